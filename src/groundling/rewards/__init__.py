"""Text rewards and the parts of a run's reward. `docs/metrics.md` lists the ids; `docs/rewards.md` explains their use.

`create(id, **args)(prompts, generations, references, meta=None)` returns float32 ``(batch,)``; the method `at_tokens`
returns a reward for each token. Every metric can be used as a reward, and `measures` contains all rewards as metrics.
"""

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
from groundling.rewards.reasoning_gym import verify  # noqa: F401  (registers it)
from groundling.rewards.registry import measures, rewards
from groundling.rewards.reward_model_part import RewardModelPart
from groundling.rewards.rubric import RubricReward
from groundling.rewards.sum import EnvPart, Rewarded, RewardSum, check_parts, chosen_parts, make_parts
from groundling.rewards.text import TextPart

register = rewards.register
create = rewards.create

__all__ = [
    "Captions",
    "EnvPart",
    "EpisodeCounts",
    "GeneratedTexts",
    "Part",
    "Reward",
    "RewardContext",
    "RewardInputs",
    "RewardModelPart",
    "RewardPartConfig",
    "RewardSum",
    "Rewarded",
    "RubricReward",
    "TextPart",
    "TokenReward",
    "check_parts",
    "chosen_parts",
    "create",
    "make_parts",
    "measures",
    "parts",
    "register",
    "rewards",
]
