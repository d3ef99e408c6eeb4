"""Every key of every section, in every world: a run reads it, or it is refused when it is set."""

import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundling.cli import main
from groundling.configs.compose import compose, from_file, to_yaml
from groundling.configs.schema import Config
from groundling.errors import ConfigError, UnusedKey
from groundling.registry import ComponentConfig
from groundling.worlds import worlds
from groundling.worlds.nethack.config import NetHackConfig, NetHackEvaluation
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation

_SHORT = ["device=cpu", "training.steps=16", "evaluation.episodes=2"]
_SECTIONS: dict[str, tuple[type, type]] = {
    "text": (TextConfig, TextEvaluation),
    "nethack": (NetHackConfig, NetHackEvaluation),
    "writing": (WritingConfig, WritingEvaluation),
}
"""By kind of world, what its section `world` is of, and its section `evaluation`."""
_WORLDS = {
    "text": [
        "demo-easy",
        "world.num_envs=2",
        "world.num_steps=8",
        *_SHORT,
        "algorithm.args.minibatch_size=8",
    ],
    "nethack": [
        *("motif/laptop", "world.num_envs=2", "world.num_steps=8", *_SHORT, "~reward.reward_model"),
        "reward.env.coefficient=1",
        *("policy.args={hidden_size: 8, recurrence: 4}", "algorithm.args.minibatch_size=16"),
    ],
    "writing": [
        *(
            "rl4lms/increasing_numbers_ppo",
            "world.num_texts=2",
            "world.num_tokens=8",
            *_SHORT,
            "evaluation.every=1",
        ),
        *("model.path=starter-causal", "algorithm.args.minibatch_size=2"),
    ],
}
_COPIERS = ("dataclasses", "omegaconf", "groundling.configs", "groundling.training.folder", "copy", "tests.")
"""Who reads all keys, whatever becomes of them."""
_OTHER: dict[str, Any] = {
    "world.actions": ["a", "b"],
    "world.language": "french",
    "world.dataset": "somewhere",
    "model.revision": "main",
    "model.tokenizer": "starter",
    "model.init": "random",
    "model.dtype": "bfloat16",
    "model.attention": "sdpa",
    "model.device_map": "auto",
    "model.max_prompt_tokens": 40,
    "training.epochs": 1,
    "training.wandb": "project",
    "world.probes": 1,
    "evaluation.post_process": "three_sentence_summary",
    "evaluation.every": 7,
    "evaluation.metrics": [{"id": "diversity"}],
}
"""Values of keys whose default does not say what another value could be."""
_TOLD_APART = {
    "world.id",
    "world.env",
    "world.pool",
    "name",
    "run_dir",
    "imports",
    "device",
    "seed",
    "policy.id",
    "algorithm.id",
}
"""Read by whatever is run: without them nothing is."""


def _defaults(kind: str) -> Config:
    """A config of a kind of world in which nothing is set."""
    world, evaluation = _SECTIONS[kind]
    return Config(name="x", world=world(), evaluation=evaluation())


def _keys(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """By dotted key every value of a config's sections; free arguments are one value."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            yield from _keys(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, value


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
    experiment, *words = _WORLDS[world]
    config = compose(experiment, words)
    assert (type(config.world), type(config.evaluation)) == _SECTIONS[world]
    names: dict[type, str] = {Config: ""}
    for f in fields(config):
        if is_dataclass(section := getattr(config, f.name)):
            names[type(section)] = f"{f.name}."
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
            shared = kind is ComponentConfig
            patch.setattr(kind, "__getattribute__", recording(kind, "*" if shared else prefix), raising=False)
        assert main(["train", *_WORLDS[world], f"run_dir={run_dir}"]) == 0
        assert main(["evaluate", str(run_dir)]) == 0
    return world, seen


def test_a_key_is_read_or_refused(read: tuple[str, set[str]], tmp_path: Path) -> None:
    world, seen = read
    experiment, *words = _WORLDS[world]
    idle = []
    for key, default in _keys(_defaults(world)):
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


def test_every_kind_of_world_has_sections_here() -> None:
    bundled = {kind for kind in worlds if worlds.get(kind).__module__.startswith("groundling.")}
    assert bundled == set(_SECTIONS) == set(_WORLDS)


def _own(kind: str) -> dict[str, type]:
    """The keys of the sections that are a kind's own, and the class that has each."""
    sections = zip(("world", "evaluation"), _SECTIONS[kind], strict=True)
    return {f"{name}.{f.name}": section for name, section in sections for f in fields(section)}


_OTHERS = [
    (kind, other, key)
    for kind, other in itertools.permutations(_SECTIONS, 2)
    for key in _own(other)
    if key not in _own(kind)
]


def test_the_kinds_differ() -> None:
    assert {kind for kind, _, _ in _OTHERS} == set(_SECTIONS)
    assert ("nethack", "text", "world.history") in _OTHERS and ("text", "writing", "world.pool") in _OTHERS


@pytest.mark.parametrize(("kind", "other", "key"), _OTHERS)
def test_a_key_of_another_kind_is_refused_by_its_name(
    kind: str, other: str, key: str, tmp_path: Path
) -> None:
    """On the command line, and in a run's file."""
    experiment, *words = _WORLDS[kind]
    value = _another(key, dict(_keys(_defaults(other)))[key])
    values = yaml.safe_load(to_yaml(compose(experiment, words)))
    section, name = key.split(".")
    values[section][name] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    for refused in (
        lambda: compose(experiment, [*words, f"{key}={_text(value)}"]),
        lambda: from_file(tmp_path / "config.yaml"),
    ):
        with pytest.raises(ConfigError, match=re.escape(key)) as error:
            refused()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", _WORLDS)
def test_a_run_does_not_change_its_kind_of_world(kind: str) -> None:
    experiment, *words = _WORLDS[kind]
    for other in (*_WORLDS, "nowhere"):
        if other != kind:
            with pytest.raises(ConfigError, match=r"world\.id"):
                compose(experiment, [*words, f"world.id={other}"])


def test_a_world_that_there_is_not_names_those_that_there_are(tmp_path: Path) -> None:
    values = yaml.safe_load(to_yaml(compose("demo-easy")))
    values["world"] = {"id": "txt", "env": "BabyAI-GoToObj-v0"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"'txt'.*'text'"):
        from_file(tmp_path / "config.yaml")
    del values["world"]["id"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"world\.id"):
        from_file(tmp_path / "config.yaml")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
