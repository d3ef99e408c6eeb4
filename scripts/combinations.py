"""Combinations of worlds, policies, algorithms and rewards, for a test and for docs/combinations.md.

python -m scripts.combinations     # write docs/combinations.md
"""

import copy
import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)

from groundling.config.checks import check_used
from groundling.config.compose import from_values
from groundling.config.schema import Config
from groundling.errors import GroundlingError
from groundling.judges.reward_models import reward_models
from groundling.policies.policy import has_model
from groundling.registry import ComponentConfig
from groundling.rewards import RewardPartConfig
from groundling.training.build import check_suits, world_of
from groundling.worlds.text.config import TextConfig
from groundling.worlds.writing.config import WritingConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "combinations.md"

_PAIRS = PAGE.parents[1] / "tests" / "training" / "pairs.jsonl"

_WORLDS: dict[str, dict[str, Any]] = {
    "text": {"id": "text", "env": "BabyAI-GoToObj-v0", "history": 1, "num_envs": 2, "num_steps": 4},
    "text, changing actions": {"id": "text", "env": "test/Doors-v0", "history": 1, "num_envs": 2, "num_steps": 4},
    "NetHack": {
        "id": "nethack",
        "env": "NetHackScore-v1",
        "args": {"max_episode_steps": 5},
        "num_envs": 2,
        "num_steps": 4,
    },
    "writing": {
        "id": "writing",
        "pool": "commongen",
        "args": {"offline": True, "max_size": 4},
        "max_prompt_length": 5,
        "num_texts": 4,
        "num_tokens": 4,
    },
}
WORLDS = tuple(_WORLDS)
PAID = "env reward"
_TASTE = {"normalize": False, "threshold_quantile": 0}
_ONLINE = {"judge": "rules", "args": {"rules": [["you", 1.0]]}, "model": "table"}
_REWARDS: dict[str, dict[str, dict[str, Any]]] = {
    PAID: {"env": {}},
    "count bonus": {"count": {}},
    "metric": {"increasing_numbers": {}},
    "metric with references": {"rouge": {}},
    "distilled judge": {"reward_model": {"args": {**_TASTE, "path": ""}}},
    "judge queried online": {"reward_model": {"args": {**_TASTE, "online": _ONLINE}}},
    "composite": {"reward_model": {"args": {**_TASTE, "path": ""}}, "increasing_numbers": {"coefficient": 0.5}},
}
"""The parts of each reward; the env reward is added if there is one."""
REWARDS = tuple(_REWARDS)
_POLICY_ARGS: dict[str, dict[str, Any]] = {
    "action_generating": {"value_hidden_sizes": [8], "prompt": "brief", "thought_ends": "So", "max_thought_tokens": 2},
    "action_head": {"hidden_sizes": [8], "prompt": "brief"},
    "action_scoring": {"value_hidden_sizes": [8], "prompt": "brief"},
    "action_writing": {"value_hidden_sizes": [8], "prompt": "brief"},
    "drrn": {"embedding_size": 8, "hidden_size": 8, "prompt": "brief"},
    "nethack": {"hidden_size": 8, "recurrence": 2},
    "symbolic": {"channels": 8, "hidden_size": 8, "recurrence": 2},
    "token": {"value": "shared"},
}
_BY_TEXTS = ("action_scoring", "action_writing")
_STEPS: dict[str, Any] = {"learning_rate": 1e-2, "minibatch_size": 4, "micro_batch_size": 2}
# Without rewards and a value function, only the entropy bonus has a gradient.
_CRITIC_FREE = {**_STEPS, "entropy_coefficient": 0.01}
_ALGORITHM_ARGS: dict[str, dict[str, Any]] = {
    "a2c": {"learning_rate": 1e-2, "micro_batch_size": 2},
    "appo": {"learning_rate": 1e-2, "minibatch_size": 4},
    "bc": _STEPS,
    "dpo": _STEPS,
    "drrn": {"batch_size": 4, "steps_per_gradient": 4},
    "gigpo": _CRITIC_FREE,
    "grpo": _CRITIC_FREE,
    "kto": _STEPS,
    "nlpo": {**_STEPS, "epochs": 1},
    "ppo": {**_STEPS, "epochs": 1},
    "reinforce_pp": _CRITIC_FREE,
    "rloo": _CRITIC_FREE,
    "supervised": _STEPS,
    "trpo": {
        "minibatch_size": 4,
        "micro_batch_size": 2,
        "conjugate_gradient_steps": 1,
        "line_search_steps": 2,
        "critic_epochs": 1,
    },
}
POLICIES, ALGORITHMS = (*_POLICY_ARGS, "chat_server", "random"), tuple(_ALGORITHM_ARGS)


@dataclass(frozen=True, slots=True)
class Combination:
    """The components of a run, identified by the names above."""

    world: str
    policy: str
    algorithm: str
    reward: str

    @property
    def clones(self) -> bool:
        """True if the algorithm imitates a dataset."""
        return self.algorithm in ("bc", "supervised")


def learners() -> Iterator[Combination]:
    """Yield every world, policy and algorithm, with a reward that is compatible with the world."""
    for world, policy, algorithm in itertools.product(WORLDS, POLICIES, ALGORITHMS):
        yield Combination(world, policy, algorithm, "metric" if world == "writing" else PAID)


def rewarded() -> Iterator[Combination]:
    """Yield every world and reward, with a policy and an algorithm that are compatible with the world."""
    for world, reward in itertools.product(WORLDS, REWARDS):
        policy = {"NetHack": "nethack", "writing": "token"}.get(world, "action_scoring")
        yield Combination(world, policy, "ppo", reward)


def config_of(one: Combination, distilled: Path, model: str = "starter", dataset: str = "FOLDER") -> Config:
    """Return the smallest config of a combination, with the settings that its components require.

    Args:
        one: The combination.
        distilled: A reward model's folder.
        model: The language model, for policies that use one.
        dataset: A folder of recorded episodes, for cloning in text worlds.
    """
    config = copy.deepcopy(_world(one.world))
    world = config.world
    config.policy = ComponentConfig(id=one.policy, args=dict(_POLICY_ARGS.get(one.policy, {})))
    if one.policy == "symbolic" and isinstance(world, TextConfig):
        world.history = TextConfig.defaults()["history"]  # reads no past observations
    config.algorithm = ComponentConfig(id=one.algorithm, args=dict(_ALGORITHM_ARGS[one.algorithm]))
    if has_model(config.policy.id):
        config.model.path = model
    if one.policy == "action_head" and one.world == "text, changing actions":
        config.policy.args["num_actions"] = 5
    if one.policy in ("action_generating", "token") and one.algorithm == "nlpo":
        config.policy.args |= {"mask_type": "learned_top_p", "min_tokens_to_keep": 5}
    if one.clones and isinstance(world, TextConfig):
        world.dataset = dataset
        config.algorithm.args["objective"] = "text" if one.policy in _BY_TEXTS else "choice"
    if one.algorithm == "gigpo" and isinstance(world, TextConfig):
        world.group_size = 2
    if one.algorithm in ("grpo", "rloo") and isinstance(world, WritingConfig):
        world.texts_per_prompt = 2
    if one.algorithm in ("dpo", "kto") and isinstance(world, WritingConfig):
        world.pool, world.args = "preferences", {"path": str(_PAIRS)}
    if one.reward != PAID or world.id == "writing":  # otherwise the env reward is the default
        for name, part in copy.deepcopy(_REWARDS[one.reward]).items():
            config.reward[name] = RewardPartConfig(**part)
            if "path" in config.reward[name].args:
                config.reward[name].args["path"] = str(distilled)
    return config


@cache
def _world(name: str) -> Config:
    values = {
        "name": "combination",
        "device": "cpu",
        "world": _WORLDS[name],
        "policy": {"id": "token" if name == "writing" else "random"},
        "algorithm": {"id": "ppo"},
        "training": {"steps": 10**6},
    }
    return from_values(values)


def verdict(config: Config) -> str | None:
    """Return None if the run trains, or the error with which it is rejected before anything is loaded."""
    try:
        check_used(config)
        check_suits(config.policy, config.model, config.algorithm, world_of(config))
    except GroundlingError as error:
        return str(error)
    return None


def page() -> str:
    """Return the text of docs/combinations.md."""
    with tempfile.TemporaryDirectory() as folder:
        distilled = Path(folder)
        reward_models.create("table").save(distilled)
        trained = {one: verdict(config_of(one, distilled)) for one in learners()}
        paid = {one: verdict(config_of(one, distilled)) for one in rewarded()}
    notes: list[str] = []
    lines = [_HEAD]
    for world in WORLDS:
        rows = [
            [f"`{policy}`", *(_cell(reason, notes) for reason in _of(trained, world=world, policy=policy))]
            for policy in POLICIES
        ]
        lines += [f"## Learning: {world}", "", *_table(["", *(f"`{a}`" for a in ALGORITHMS)], rows), ""]
    rows = [[reward, *(_cell(reason, notes) for reason in _of(paid, reward=reward))] for reward in REWARDS]
    lines += ["## Rewards", "", _REWARDS_HEAD, "", *_table(["", *WORLDS], rows), ""]
    lines += ["## Reasons", "", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


_HEAD = """# Valid combinations

`python -m scripts.combinations` writes this page. A test keeps it up to date and trains each ticked combination for
two updates. The other combinations are rejected before anything is loaded. The numbers in their cells refer to the
[reasons](#reasons). [architecture.md](architecture.md) explains worlds, policies, algorithms and rewards.

The worlds are a BabyAI env, an env whose actions change at every step, NetHack, and a pool of prompts. Some
combinations require additional settings:

- the action head requires as many outputs as there are actions in the longest list;
- NLPO requires a mask;
- GRPO and RLOO require several texts per prompt;
- GiGPO requires several envs that play the same episodes;
- behavioural cloning in text worlds requires a dataset;
- DPO and KTO require a pool of preferences.

The settings of an experiment are chosen for its policy. If you select a different policy, settings that have no
effect are rejected, and the error message contains the value to use (for example, `world.history=3` for a policy that
does not read text).
"""
_REWARDS_HEAD = """A reward can be combined with any policy and any algorithm, except for cloning, which uses no reward.
The env's own reward, if there is one, is added unless `reward.env` is null."""


def _of(verdicts: dict[Combination, str | None], **names: str) -> list[str | None]:
    """Return the verdicts of the combinations with these names, in order."""
    return [
        reason for one, reason in verdicts.items() if all(getattr(one, key) == name for key, name in names.items())
    ]


def _cell(reason: str | None, notes: list[str]) -> str:
    """Return a tick, or the number of the reason in ``notes``, to which new reasons are added."""
    if reason is None:
        return "✓"
    suits = re.fullmatch(r"(policy|algorithm|reward)\S* .*?is incompatible .*?: (.*?)(; (set|remove) .*)?", reason)
    if suits is not None:
        why = re.sub(r"\b(glyphs|prompt|symbols|words)\b", r"`\1`", suits[2]) if suits[1] == "policy" else suits[2]
        reason = re.sub("^it ", f"The {suits[1]} ", re.sub("^that policy", "The policy", why)) + "."
    note = reason
    if note not in notes:
        notes.append(note)
    return str(notes.index(note) + 1)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---" + "|:-:" * (len(head) - 1) + "|"
    return ["| " + " | ".join(row) + " |" for row in [head]] + [rule, *("| " + " | ".join(row) + " |" for row in rows)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
