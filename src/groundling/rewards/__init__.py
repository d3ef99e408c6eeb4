"""Rewards of texts, and the parts of a run's reward; ids in `docs/metrics.md`, usage in `docs/rewards.md`.

`create(id, **args)(prompts, generations, references, meta=None)` returns ``(batch,)`` float32, `at_tokens` a reward
for each token. Every metric is a reward, and `measures` has every reward as a metric.
"""

from groundling.rewards.composite import PreferenceModel, RepeatPenalty, WeightedSum
from groundling.rewards.part import (
    Captions,
    EpisodeCounts,
    GeneratedTexts,
    Part,
    Reward,
    RewardContext,
    RewardInputs,
    RewardPartConfig,
    TokenReward,
    parts,
)
from groundling.rewards.registry import measures, rewards
from groundling.rewards.reward_model_part import OnlineJudge, Pooled, RewardModelPart
from groundling.rewards.sum import CountBonus, EnvPart, Rewarded, RewardSum, check_parts, chosen_parts, make_parts
from groundling.rewards.text import IntentReward, RougeCombined, TextPart

register = rewards.register
create = rewards.create

__all__ = [
    "Captions",
    "CountBonus",
    "EnvPart",
    "EpisodeCounts",
    "GeneratedTexts",
    "IntentReward",
    "OnlineJudge",
    "Part",
    "Pooled",
    "PreferenceModel",
    "RepeatPenalty",
    "Reward",
    "RewardContext",
    "RewardInputs",
    "RewardModelPart",
    "RewardPartConfig",
    "RewardSum",
    "Rewarded",
    "RougeCombined",
    "TextPart",
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
