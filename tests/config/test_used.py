"""In every world, each key of each section is either read by a run or rejected when it is set."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from groundling import worlds
from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.config.schema import Config, config_of
from groundling.errors import ConfigError, GroundlingError, UnusedKey
from groundling.evaluation.target import find
from groundling.fields import Section
from groundling.registry import ComponentConfig
from groundling.training.train import train
from groundling.worlds.nethack.world import NetHackConfig, NetHackEvaluation
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation
from tests.thorough import one_in, some_of

_SECTIONS: dict[str, tuple[type, type]] = {
    "text": (TextConfig, TextEvaluation),
    "nethack": (NetHackConfig, NetHackEvaluation),
    "writing": (WritingConfig, WritingEvaluation),
}
"""The sections `world` and `evaluation`, by kind of world."""
_TEXT = (
    "demo-easy",
    *("device=cpu", "evaluation.episodes=2", "training.steps=4", "~policy.args", "~algorithm.args"),
    # Episodes end at the step limit, within a rollout.
    *("world.num_envs=1", "world.num_steps=4", "world.history=2", "world.args={max_steps: 2}"),
)
_SCORING = ("policy.id=action_scoring", "policy.args={value_hidden_sizes: [8]}")
_PPO = ("algorithm.id=ppo", "algorithm.args={minibatch_size: 4, epochs: 1}")
_WRITING = (
    "rl4lms/increasing_numbers_ppo",
    *("device=cpu", "evaluation.episodes=2", "evaluation.every=1", "training.steps=1", "~algorithm.args"),
    *(
        "policy.args.value=shared",
        "model.path=starter",
        "world.num_texts=2",
        "world.num_tokens=4",
        "world.max_prompt_length=2",
    ),
)
_RUNS: dict[str, tuple[str, ...]] = {
    "text, action_scoring, ppo": (*_TEXT, *_SCORING, *_PPO),
    "text, action_scoring, grpo": (*_TEXT, *_SCORING, "algorithm.id=grpo", "algorithm.args={minibatch_size: 4}"),
    "text, action_scoring, bc": (
        *(*_TEXT, *_SCORING, "~world.args", "world.env=BabyAI-GoToObj-v0", "world.dataset=DATASET"),
        *("evaluation.every=1", "algorithm.id=bc", "algorithm.args={minibatch_size: 4}"),
    ),
    "text, action_writing, ppo": (
        *(*_TEXT, "policy.id=action_writing", "policy.args={value_hidden_sizes: [8]}", *_PPO),
    ),
    "text, action_head, ppo": (*_TEXT, "policy.id=action_head", "policy.args={hidden_sizes: [8]}", *_PPO),
    "text, drrn, drrn": (
        *(*_TEXT, "policy.id=drrn", "policy.args={embedding_size: 8, hidden_size: 8}"),
        *("algorithm.id=drrn", "algorithm.args={batch_size: 4, steps_per_gradient: 4}"),
    ),
    "text, symbolic, ppo": (
        *(*_TEXT, "world.history=3", "policy.id=symbolic", *_PPO),
        "policy.args={channels: 8, hidden_size: 8, recurrence: 2}",
    ),
    "nethack, nethack, appo": (
        *("motif/laptop", "device=cpu", "evaluation.episodes=2", "training.steps=8", "~reward.reward_model"),
        *("reward.env.coefficient=1", "world.num_envs=2", "world.num_steps=4", "world.args.max_episode_steps=3"),
        *("policy.args={hidden_size: 8, recurrence: 4}", "algorithm.args={minibatch_size: 8}"),
    ),
    "writing, token, ppo": (*_WRITING, "algorithm.args={minibatch_size: 2, epochs: 1}"),
    "writing, token, supervised": (
        *(*_WRITING, "algorithm.id=supervised", "algorithm.args={minibatch_size: 2}", "~reward"),
        *("world.pool=commongen", "~world.args", "world.args={offline: true, max_size: 4}"),
    ),
}
"""Experiments with overrides for one update, by kind of world, policy and algorithm."""
_USUAL = ("text, action_scoring, ppo", "nethack, nethack, appo", "writing, token, ppo")
_WORLDS = {
    "text": _RUNS["text, action_scoring, ppo"],
    "nethack": _RUNS["nethack, nethack, appo"],
    "writing": _RUNS["writing, token, ppo"],
}
_COPIERS = (
    "pydantic",
    "omegaconf",
    "groundling.config",
    "groundling.fields",
    "groundling.training.checkpoint",
    "tests.",
)
"""Functions that read all keys, whatever they are used for."""
_OTHER: dict[str, Any] = {
    "world.actions": ["left", "right", "on", "take", "let go", "use"],
    "world.language": "french",
    "world.history": 1,
    "world.entropy_floor": 100.0,
    "world.max_prompt_length": 1,
    "world.prompt_truncation_side": "right",
    "world.texts_per_prompt": 2,
    "world.num_envs": 4,
    "world.num_texts": 4,
    "world.num_steps": 8,
    "reward": {"count": {}},
    "model.lora": {"r": 2},
    "model.path": "starter-causal",
    "world.dataset": "somewhere",
    "model.revision": "main",
    "model.tokenizer": "starter",
    "model.init": "random",
    "model.dtype": "bfloat16",
    "model.attention": "sdpa",
    "model.device_map": "auto",
    "model.max_prompt_tokens": 40,
    "training.steps": 12,
    "training.epochs": 1,
    "training.wandb": "project",
    "training.trackio": "project",
    "world.probes": 1,
    "evaluation.post_process": "three_sentence_summary",
    "evaluation.every": 7,
    "evaluation.metrics": [{"id": "diversity"}],
}
"""Other values that change a run of one update, for keys whose default does not suggest one."""
_LEARNING = {
    *("world.num_envs", "world.num_steps", "world.actions", "world.language", "world.history"),
    *("world.bootstrap_truncated", "world.entropy_floor", "world.probes"),
    *("world.num_texts", "world.num_tokens", "world.texts_per_prompt", "world.replacement"),
    *("world.max_prompt_length", "world.prompt_truncation_side"),
    *("model.path", "model.init", "model.dtype", "model.lora", "model.max_prompt_tokens"),
    *("reward", "training.steps", "training.epochs"),
}
"""Keys that change what is learned or reported wherever they are used, so that reading them is not sufficient."""
_PARTS = 6
"""The keys are divided into this many parts, of which `make test` tests one, because a run takes seconds."""
_TIMES = {"seconds", "steps_per_second"}
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
"""Keys that every run requires."""


def _defaults(kind: str) -> dict[str, Any]:
    """Return the defaults of all keys for a kind of world, by dotted key; free arguments are one value."""

    def below(model: type[Section], prefix: str) -> Iterator[tuple[str, Any]]:
        usual = model.defaults()
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                yield from below(field.annotation, f"{prefix}{name}.")
            else:
                yield prefix + name, usual[name]

    return dict(below(config_of(kind), ""))


def _keys(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in a config's sections by dotted key; free arguments are one value."""
    for name in type(node).model_fields:
        value = getattr(node, name)
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


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


@dataclass(frozen=True)
class _Walked:
    """A run, and the keys that its training and evaluation read."""

    experiment: str
    words: list[str]
    config: Config
    learnt: dict[str, Any]
    read: set[str]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record four episodes of the expert, one of which is the validation split."""
    folder = tmp_path_factory.mktemp("data") / "expert"
    expert = find("expert", ["world.env=BabyAI-GoToObj-v0", "evaluation.num_envs=1", "device=cpu"], print)
    expert.world.record_episodes(expert.demonstrator(), 4, folder, validation_fraction=0.25)
    return folder


@pytest.fixture(scope="module", params=some_of(_RUNS, _USUAL))
def walked(request: pytest.FixtureRequest, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> _Walked:
    world, policy, algorithm = request.param.split(", ")
    if world == "nethack":
        pytest.importorskip("nle")
    experiment, *words = [word.replace("DATASET", str(dataset)) for word in _RUNS[request.param]]
    config = compose(experiment, words)
    assert (type(config.world), type(config.evaluation)) == _SECTIONS[world]
    assert (config.policy.id, config.algorithm.id) == (policy, algorithm)
    names: dict[type, str] = {type(config): ""}
    for name in type(config).model_fields:
        if isinstance(section := getattr(config, name), Section):
            names[type(section)] = f"{name}."
    seen: set[str] = set()

    def recording(kind: type, prefix: str) -> Any:
        def get(self: Any, name: str) -> Any:
            reader = sys._getframe(1).f_globals.get("__name__", "")
            if not name.startswith("_") and not reader.startswith(_COPIERS):
                # Policy, algorithm and metrics use the same class for their sections.
                seen.update(f"{one}{name}" for one in (("policy.", "algorithm.") if prefix == "*" else (prefix,)))
            return object.__getattribute__(self, name)

        return get

    run_dir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for kind, prefix in names.items():
            shared = kind is ComponentConfig
            patch.setattr(kind, "__getattribute__", recording(kind, "*" if shared else prefix), raising=False)
        assert main(["train", experiment, *words, f"run_dir={run_dir}"]) == 0
        assert main(["evaluate", str(run_dir)]) == 0
    return _Walked(experiment, words, config, _learnt(run_dir), seen)


def _learnt(run_dir: Path) -> dict[str, Any]:
    """Return what a run stores in its folder, except for times."""
    left: dict[str, Any] = {}
    for name in ("metrics", "probes", "samples/train"):
        path = run_dir / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        left[name] = [{key: value for key, value in row.items() if key not in _TIMES} for row in rows]
    (checkpoint,) = list((run_dir / "checkpoints").iterdir())[-1:]
    state = json.loads((checkpoint / "run.json").read_text())
    left["counters"] = {key: value for key, value in state["counters"].items() if key not in _TIMES}
    for path in checkpoint.rglob("*.safetensors"):
        if path.name != "random.safetensors":
            left[path.name] = path.read_bytes()
    return left


@pytest.mark.parametrize("part", one_in(_PARTS, range(_PARTS)))
def test_a_key_changes_the_run_or_is_refused(walked: _Walked, part: int, tmp_path: Path) -> None:
    kind, idle = walked.config.world.id, []
    present = dict(_keys(walked.config))
    for key, default in list(_defaults(kind).items())[part::_PARTS]:
        if key in _TOLD_APART or (key in walked.read and key not in _LEARNING):
            continue
        value = _another(key, default)
        assert value != present[key], f"{key} is no other than in the run"
        words = [*walked.words, f"{key}={_text(value)}", f"run_dir={tmp_path / key}"]
        if key == "training.epochs":  # replaces the steps, which would have no effect
            words = [word for word in words if not word.startswith("training.steps=")]
        try:
            config = compose(walked.experiment, words)
            if key in _LEARNING:
                train(config, Console(quiet=True), lambda text: None)
        except UnusedKey as error:
            assert error.key == key
        except GroundlingError as error:
            assert key.rpartition(".")[2] in str(error), f"{key}: {error}"
        else:
            if key not in _LEARNING or _learnt(tmp_path / key) == walked.learnt:
                idle.append(key)
    assert not idle, f"set in vain: {idle}"


def test_a_run_is_repeatable(walked: _Walked, tmp_path: Path) -> None:
    """Otherwise, every key would seem to have an effect."""
    words = [*walked.words, f"run_dir={tmp_path}"]
    train(compose(walked.experiment, words), Console(quiet=True), lambda text: None)
    again = _learnt(tmp_path)
    assert [name for name in again if again[name] != walked.learnt[name]] == []


def test_every_kind_of_world_has_sections_here() -> None:
    bundled = {kind for kind in worlds.worlds if worlds.worlds.get(kind).__module__.startswith("groundling.")}
    assert bundled == set(_SECTIONS) == set(_WORLDS)


@pytest.mark.parametrize("kind", _WORLDS)
def test_a_run_does_not_change_its_kind_of_world(kind: str) -> None:
    experiment, *words = _WORLDS[kind]
    for other in (*_WORLDS, "nowhere"):
        if other != kind:
            with pytest.raises(ConfigError, match=r"world\.id"):
                compose(experiment, [*words, f"world.id={other}"])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
