"""Every key of every section, in every world: a run reads it, or it is refused when it is set."""

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from groundling.cli import main
from groundling.configs import schema
from groundling.configs.compose import compose
from groundling.configs.schema import Config
from groundling.errors import UnusedKey

_SHORT = ["device=cpu", "training.steps=16", "training.steps_per_update=8", "evaluation.episodes=2"]
_WORLDS = {
    "text": ["demo-easy", "env.num_envs=2", *_SHORT, "algorithm.args.minibatch_size=8"],
    "nethack": [
        *("motif/laptop", "env.num_envs=2", *_SHORT, "~reward.reward_model"),
        "reward.env.coefficient=1",
        *("policy.args={hidden_size: 8, recurrence: 4}", "algorithm.args.minibatch_size=16"),
    ],
    "writing": [
        *("rl4lms/increasing_numbers_ppo", "env.num_envs=2", *_SHORT, "evaluation.every=1"),
        *("model.path=starter-causal", "algorithm.args.minibatch_size=2"),
    ],
}
_COPIERS = ("dataclasses", "omegaconf", "groundling.configs", "groundling.training.folder", "copy", "tests.")
"""Who reads all keys, whatever becomes of them."""
_OTHER: dict[str, Any] = {
    "env.actions": ["a", "b"],
    "env.language": "french",
    "data.path": "somewhere",
    "model.revision": "main",
    "model.tokenizer": "starter",
    "model.init": "random",
    "model.dtype": "bfloat16",
    "model.attention": "sdpa",
    "model.device_map": "auto",
    "model.max_prompt_tokens": 40,
    "training.epochs": 1,
    "training.wandb": "project",
    "training.probes": 1,
    "evaluation.post_process": "three_sentence_summary",
    "evaluation.every": 7,
    "evaluation.metrics": [{"id": "diversity"}],
}
"""Values of keys whose default does not say what another value could be."""
_TOLD_APART = {
    "env.id",
    "pool.id",
    "name",
    "run_dir",
    "imports",
    "device",
    "seed",
    "policy.id",
    "algorithm.id",
}
"""Read by whatever is run: without them nothing is."""


def _keys(prefix: str = "", node: Any = Config) -> Iterator[tuple[str, Any]]:
    defaults = Config(name="x")
    for f in fields(node):
        key = prefix + f.name
        if is_dataclass(f.type):
            yield from _keys(f"{key}.", f.type)
        else:
            value: Any = defaults
            for part in key.split("."):
                value = getattr(value, part)
            yield key, value


def _another(key: str, value: Any) -> Any:
    if key in _OTHER:
        return _OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, dict):
        return {"anything": 1}
    if isinstance(value, list):
        return ["random"]
    return f"{value}x"


@pytest.fixture(scope="module", params=_WORLDS)
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, set[str]]:
    """A world, and the keys that its training and evaluation read."""
    world: str = request.param
    if world == "nethack":
        pytest.importorskip("nle")
    names = {schema.Config: ""}
    for f in fields(Config):
        if is_dataclass(f.type):
            names[f.type] = f"{f.name}."
    seen: set[str] = set()

    def recording(kind: type, prefix: str) -> Any:
        def get(self: Any, name: str) -> Any:
            reader = sys._getframe(1).f_globals.get("__name__", "")
            if not name.startswith("_") and not reader.startswith(_COPIERS):
                # Policy, algorithm and metrics share a class of sections.
                seen.update(
                    f"{one}{name}" for one in (("policy.", "algorithm.") if prefix == "*" else (prefix,))
                )
            return object.__getattribute__(self, name)

        return get

    run_dir = tmp_path_factory.mktemp(world)
    with pytest.MonkeyPatch.context() as patch:
        for kind, prefix in names.items():
            shared = kind is schema.ComponentConfig
            patch.setattr(kind, "__getattribute__", recording(kind, "*" if shared else prefix), raising=False)
        assert main(["train", *_WORLDS[world], f"run_dir={run_dir}"]) == 0
        assert main(["evaluate", str(run_dir)]) == 0
    return world, seen


def test_a_key_is_read_or_refused(read: tuple[str, set[str]], tmp_path: Path) -> None:
    world, seen = read
    experiment, *words = _WORLDS[world]
    idle = []
    for key, default in _keys():
        if key in seen | _TOLD_APART:
            continue
        value = _another(key, default)
        try:
            compose(experiment, [*words, f"{key}={_text(value)}"])
        except UnusedKey as error:
            assert error.key == key
        except Exception as error:
            assert key.rpartition(".")[2] in str(error), f"{key}: {error}"
        else:
            idle.append(key)
    assert not idle, f"set in vain in {world}: {idle}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
