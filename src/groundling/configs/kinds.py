"""Which kind of world a config is of, and which of its keys a run there uses: what is set in vain is an error."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Literal

from groundling.algorithms.algorithm import algorithms
from groundling.configs.schema import ComponentConfig, Config
from groundling.envs.nethack import TASKS
from groundling.envs.spec import Evidence, WorldSpec
from groundling.errors import UnusedKey
from groundling.policies.policy import policies
from groundling.rewards import check_parts

Kind = Literal["text", "nethack", "writing"]
NAMES: dict[Kind, str] = {
    "text": "text envs",
    "nethack": "NetHack's tasks",
    "writing": "runs that write to a pool",
}


def kind_of(config: Config) -> Kind:
    """The one place that tells a config's kind of world."""
    if config.pool.id is not None:
        return "writing"
    return "nethack" if config.env.id in TASKS else "text"


_PAYS: frozenset[Evidence] = frozenset({"env", "captions", "counts"})
SPECS: dict[Kind, WorldSpec] = {
    "text": WorldSpec("a text env", frozenset({"words", "symbols"}), "choice", evidence=_PAYS),
    "nethack": WorldSpec("NetHack", frozenset({"glyphs"}), "choice", evidence=_PAYS, subject="nethack"),
    "writing": WorldSpec(
        "a pool",
        frozenset({"prompt"}),
        "token",
        evidence=frozenset({"captions", "references"}),
        subject="writing",
    ),
}
"""What each kind offers a policy at most, and what it offers rewards."""
_USED: dict[str, tuple[Kind, ...]] = {
    "env.actions": ("text",),
    "env.num_workers": ("text",),
    "env.timeout": ("text",),
    "env.history": ("text",),
    "env.language": ("text",),
    "env.bootstrap_truncated": ("text", "nethack"),
    "nethack": ("nethack",),
    "data": ("text",),
    "pool": ("writing",),
    "training.probes": ("text",),
    "training.entropy_floor": ("text", "nethack"),
    "evaluation.num_envs": ("text", "nethack"),
    "evaluation.deterministic": ("text", "nethack"),
    "evaluation.metrics": ("writing",),
    "evaluation.generation": ("writing",),
    "evaluation.post_process": ("writing",),
    "evaluation.batch_size": ("writing",),
}
"""By key, or by section for all of its keys, the kinds of world that use it; all use the others."""
_INSTEAD: dict[tuple[Kind, str], str] = {
    ("nethack", "env.num_workers"): "nethack.num_workers",
}
"""What a kind has in the place of another's key."""


def check_used(config: Config) -> None:
    """Check that everything that is set, and is not as the schema has it, is used by the parts that are chosen.

    Raises:
        UnusedKey: something does nothing; the message says who would use it.
        ConfigError: a part of the reward looks at what there is not.
    """
    kind, usual = kind_of(config), dict(_leaves("", Config(name=config.name)))
    for key, value in _leaves("", config):
        if value == usual[key]:
            continue
        kinds = _kinds_of(key)
        if kind not in kinds:
            instead = _INSTEAD.get((kind, key))
            here = f"here it is {instead}" if instead else f"leave it at {_told(usual[key])}"
            if kinds == ("writing",):
                here = f"set pool.id too, or {here}"
            users = " and ".join(NAMES[one] for one in kinds)
            raise UnusedKey(
                key, f"{key}={_told(value)} does nothing in {NAMES[kind]}, it is of {users}: {here}"
            )
        if (reason := _unused_here(config, kind, key)) is not None:
            raise UnusedKey(
                key, f"{key}={_told(value)} does nothing: {reason}; leave it at {_told(usual[key])}"
            )
    check_parts(config.reward, SPECS[kind])


def _unused_here(config: Config, kind: Kind, key: str) -> str | None:
    """Why nothing that the config chooses uses a key of its world; None where something does."""
    section = key.partition(".")[0]
    demonstrated = bool(getattr(algorithms.get(config.algorithm.id), "demonstrated", False))
    if section == "model" and not has_model(config.policy) and _suits(config, kind):
        return f"policy {config.policy.id!r} has no language model"
    if key == "env.id" and kind == "writing" and config.env.id != "TextGeneration-v0":
        return "the pool is what is written to (env.id=TextGeneration-v0)"
    if key in ("pool.texts_per_prompt", "pool.replacement") and demonstrated:
        return f"algorithm {config.algorithm.id} reads the references, each in its turn"
    if demonstrated and (key == "env.bootstrap_truncated" or (key == "reward" and kind != "writing")):
        return f"algorithm {config.algorithm.id} learns from no rewards"
    if key == "training.epochs" and not demonstrated:
        return f"algorithm {config.algorithm.id} learns from what the policy does itself: set training.steps"
    if key == "evaluation.every" and kind != "writing" and config.data.path is None and not demonstrated:
        return "only a pool or a dataset has a validation split"
    return None


def has_model(policy: ComponentConfig) -> bool:
    """Whether a policy has a language model, or may have one."""
    parameters = inspect.signature(policies.get(policy.id)).parameters
    return "lm" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _suits(config: Config, kind: Kind) -> bool:
    """Whether the policy can act in such worlds; if not, it is refused for that, and not for its model's keys."""
    accepts = getattr(policies.get(config.policy.id), "accepts", None)
    return accepts is None or accepts(SPECS[kind]) is None


def _kinds_of(key: str) -> tuple[Kind, ...]:
    for prefix in (key, key.rpartition(".")[0], key.partition(".")[0]):
        if prefix in _USED:
            return _USED[prefix]
    return tuple(NAMES)


def _leaves(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    """By dotted key every value; free arguments are one value."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from _leaves(f"{prefix}{f.name}.", value)
        else:
            yield prefix + f.name, value


def _told(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return _told(asdict(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_told(one)}" for name, one in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
