"""What agents learn from: the parts of a run's reward, and rewards of texts.

A run's reward is a `RewardSum` of parts, made by `make_parts`: what the env pays, a reward model that was distilled or
that a judge teaches, a bonus for what is new, and any reward of texts. Of texts there is every metric, sums, and the
original's own.

`create(id, **args)(prompts, generations, references, meta=None)` gives ``(batch,)`` float32, `Reward.at_tokens` a
reward for each token. `measures` knows every metric, and every reward as the metric that is its mean. `docs/metrics.md`
lists all ids.
"""

from groundling.rewards.adapters import MetricReward, RewardMetric, measures
from groundling.rewards.common_gen import PreferenceModel, RepeatPenalty
from groundling.rewards.composite import WeightedSum
from groundling.rewards.count_part import CountBonus
from groundling.rewards.env_part import EnvPart
from groundling.rewards.part import Part, RewardPartConfig, Surroundings, parts
from groundling.rewards.pooled import Pooled
from groundling.rewards.reward import Reward, TokenReward, rewards
from groundling.rewards.reward_model_part import OnlineJudge, RewardModelPart
from groundling.rewards.stretch import Captions, EpisodeCounts, Stretch, Texts
from groundling.rewards.sum import Rewarded, RewardSum, check_parts, chosen_parts, make_parts
from groundling.rewards.text import IntentReward, RougeCombined
from groundling.rewards.text_part import TextPart

register = rewards.register
create = rewards.create

__all__ = [
    "Captions",
    "CountBonus",
    "EnvPart",
    "EpisodeCounts",
    "IntentReward",
    "MetricReward",
    "OnlineJudge",
    "Part",
    "Pooled",
    "PreferenceModel",
    "RepeatPenalty",
    "Reward",
    "RewardMetric",
    "RewardModelPart",
    "RewardPartConfig",
    "RewardSum",
    "Rewarded",
    "RougeCombined",
    "Stretch",
    "Surroundings",
    "TextPart",
    "Texts",
    "TokenReward",
    "WeightedSum",
    "check_parts",
    "chosen_parts",
    "create",
    "make_parts",
    "measures",
    "parts",
    "register",
    "rewards",
]
