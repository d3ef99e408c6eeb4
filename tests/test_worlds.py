"""Incompatible components are rejected, and alternatives are listed; see tests/training/test_combinations.py."""

import functools
from pathlib import Path
from typing import Any

import pytest

from groundling.algorithms.algorithm import algorithms
from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.errors import ConfigError
from groundling.policies.policy import policies
from groundling.registry import ComponentConfig
from groundling.training import build
from tests.building import policy_of
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)

_SHORT = ["world.num_envs=4", "training.steps=32", "world.num_steps=8", "device=cpu"]
_SHORT_TEXTS = ["world.num_texts=4", "training.steps=32", "world.num_tokens=8", "device=cpu"]
_ACT = {"a2c", "appo", "grpo", "ppo", "reinforce_pp", "rloo", "trpo"}  # they learn from a policy's actions
_WORLDS = {
    "babyai": ["demo", "model.path=starter", "~policy.args"],
    "own": ["demo", "model.path=starter", "~policy.args", "~world.args", "world.env=test/Doors-v0"],
    "nethack": ["motif/score", "~policy.args", "world.num_workers=0", "~reward.reward_model"],
    "writing": ["rl4lms/increasing_numbers_ppo", "~policy.args"],
}


class _Loaded(Exception):
    """Raised when a model would be loaded."""


def test_policies_made_by_functions_are_accepted() -> None:
    config = compose("demo", ["model.path=starter", "~policy.args"])
    spec = build.world_of(config).spec
    assert spec.observation == {"words", "symbols"} and spec.num_actions == 6
    with pytest.raises(ConfigError, match=r"'symbolic' is incompatible with test/Doors-v0: it needs symbols, but"):
        policy_of(compose(_WORLDS["own"][0], [*_WORLDS["own"][1:], "policy.id=symbolic", "world.history=3"]))


@functools.cache
def _composed(world: str) -> Config:
    experiment, *words = _WORLDS["babyai" if world == "dataset" else world]
    words += ["world.dataset=/nowhere"] if world == "dataset" else []
    return compose(experiment, [*words, *(_SHORT_TEXTS if world == "writing" else _SHORT)])


def _make(world: str, policy: ComponentConfig, algorithm: ComponentConfig, **more: Any) -> None:
    config = _composed(world)
    config = config.model_copy(
        update={"policy": policy, "algorithm": algorithm, "world": config.world.model_copy(update={**more})}
    )
    policy_of(config, learns=True)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **kwargs: object) -> None:
        raise _Loaded

    monkeypatch.setattr(build, "_make_language_model", load)
    monkeypatch.setattr(policies, "create", load)


_BY_TEXTS = {"action_generating", "action_scoring", "action_writing"}


@pytest.mark.parametrize(
    ("world", "policy", "algorithm", "named"),
    [
        ("babyai", "action_head", "nlpo", {"algorithm.id": _ACT}),
        ("babyai", "action_head", "drrn", {"policy.id": {"drrn"}, "algorithm.id": _ACT}),
        ("babyai", "random", "ppo", {"policy.id": {"action_head", "drrn", "symbolic"} | _BY_TEXTS}),
        ("dataset", "drrn", "bc", {"policy.id": _BY_TEXTS - {"action_generating"}}),
        ("dataset", "action_scoring", "ppo", {"algorithm.id": {"bc", "supervised"}}),
        ("writing", "token", "grpo", {"algorithm.id": _ACT - {"grpo", "rloo"} | {"bc", "supervised"}}),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_refusals_name_alternatives(world: str, policy: str, algorithm: str, named: dict[str, set[str]]) -> None:
    with pytest.raises(ConfigError) as refused:
        _make(world, ComponentConfig(id=policy), ComponentConfig(id=algorithm))
    message = str(refused.value)
    assert message.startswith(f"algorithm {algorithm!r} is incompatible with policy {policy!r} in ")
    for key in ("policy.id", "algorithm.id"):
        ids = message.partition(f"{key} to one of ")[2].partition(" or ")[0].split(", ")
        registry = policies if key == "policy.id" else algorithms
        bundled = {id for id in ids if id and registry.get(id).__module__.startswith("groundling.")}
        assert bundled == named.get(key, set())  # others belong to other tests


_NO_MASK, _MASK = (ComponentConfig(id="token"), ComponentConfig(id="token", args={"mask_type": "learned_top_p"}))
_PENALISED = ComponentConfig(id="ppo", args={"kl_coefficient": 0.1})
_CHOICE = ComponentConfig(id="bc", args={"objective": "choice"})


@pytest.mark.parametrize(
    ("world", "policy", "algorithm", "more", "reason"),
    [
        ("writing", _NO_MASK, ComponentConfig(id="nlpo"), {}, "policy.args.mask_type=learned_top_p"),
        ("writing", _MASK, ComponentConfig(id="nlpo"), {}, None),
        ("writing", _NO_MASK, ComponentConfig(id="grpo"), {"texts_per_prompt": 1}, "texts_per_prompt must be"),
        ("writing", _NO_MASK, ComponentConfig(id="grpo"), {"texts_per_prompt": 2}, None),
        ("writing", _NO_MASK, _PENALISED, {}, None),
        ("babyai", ComponentConfig(id="action_scoring"), _PENALISED, {}, None),
        ("babyai", ComponentConfig(id="action_writing"), _PENALISED, {}, None),
        ("babyai", ComponentConfig(id="symbolic"), _PENALISED, {}, "kl_coefficient=0.1 needs a reference"),
        ("dataset", ComponentConfig(id="drrn"), ComponentConfig(id="bc"), {}, "algorithm.args.objective=choice"),
        ("dataset", ComponentConfig(id="drrn"), _CHOICE, {}, None),
        ("dataset", ComponentConfig(id="symbolic"), _CHOICE, {}, "it needs symbols, but dataset nowhere"),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_needs_of_algorithms_depend_on_settings(
    world: str, policy: ComponentConfig, algorithm: ComponentConfig, more: dict[str, Any], reason: str | None
) -> None:
    with pytest.raises(_Loaded if reason is None else ConfigError, match=reason):
        _make(world, policy, algorithm, **more)


_SYMBOLIC = ["policy.id=symbolic", "world.history=3", "policy.args.recurrence=5", *_SHORT]  # 8 steps per update
_PERPLEXITY = ["policy.id=drrn", "reward.causal_perplexity.coefficient=-1"]


@pytest.mark.parametrize("command", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("world", "words", "message"),
    [
        ("babyai", ["policy.id=token"], "'token' is incompatible with BabyAI-MixedTrainLocal-v0: it needs prompt"),
        ("nethack", ["policy.id=drrn"], "provides glyphs; set policy.id to one of nethack"),
        ("babyai", ["~algorithm.args", "algorithm.id=drrn"], "'drrn' is incompatible with policy 'action_scoring'"),
        ("own", ["policy.id=action_head"], "set policy.args.num_actions to the maximum"),
        ("own", ["world.env=test/Free-v0"], "test/Free-v0 accepts any text as an action and lists none; set policy.id to"),
        ("babyai", _SYMBOLIC, "world.num_steps=8 must be a multiple of policy.args.recurrence=5"),
        ("babyai", _PERPLEXITY, "reward.causal_perplexity uses the language model being trained, but policy 'drrn'"),
        ("babyai", ["model.load_in_4bit=true"], "loads weights that cannot be trained"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_model")
def test_a_run_is_refused_in_one_line_before_anything_is_loaded(
    world: str, words: list[str], message: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *_WORLDS[world], *words, f"run_dir={tmp_path}", *command]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
