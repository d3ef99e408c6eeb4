"""Every policy and algorithm in every world: it trains, or one line says before anything is loaded why it cannot."""

import functools
from dataclasses import replace
from typing import Any

import pytest

from groundling.algorithms.algorithm import algorithms
from groundling.cli import main
from groundling.configs.compose import compose
from groundling.configs.schema import ComponentConfig, Config
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, policies
from groundling.training import build
from groundling.worlds import WorldSpec, world_of
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)

_SHORT = ["env.num_envs=4", "training.steps=32", "training.steps_per_update=8", "device=cpu"]
_WORLDS = {
    "babyai": ["demo", "~policy.args"],
    "own": ["demo", "~policy.args", "~env.args", "env.id=test/Doors-v0"],
    "nethack": [
        "motif/score",
        "~policy.args",
        "nethack.num_workers=0",
        "~reward.reward_model",
    ],
    "writing": ["rl4lms/increasing_numbers_ppo", "~policy.args"],
}
_SUITED = {
    "babyai": {"action_head", "action_scoring", "drrn", "random", "symbolic"},
    "own": {"action_head", "action_scoring", "drrn", "random"},
    "nethack": {"nethack"},
    "writing": {"token"},
}
_POLICIES = ("action_head", "action_scoring", "drrn", "nethack", "random", "symbolic", "token")
_ALGORITHMS = (
    *("a2c", "appo", "bc", "drrn", "grpo", "nlpo", "ppo", "reinforce_pp", "rloo", "supervised"),
    "trpo",
)
_ACT = {"a2c", "appo", "grpo", "ppo", "reinforce_pp", "rloo", "trpo"}  # they learn from what a policy does
# Which algorithms train a policy in a world, their other settings being the defaults.
_TRAINED = {
    ("babyai", "action_head"): _ACT,
    ("babyai", "action_scoring"): _ACT,
    ("babyai", "drrn"): _ACT | {"drrn"},
    ("babyai", "symbolic"): _ACT,
    ("own", "action_head"): _ACT,
    ("own", "action_scoring"): _ACT,
    ("own", "drrn"): _ACT | {"drrn"},
    ("nethack", "nethack"): _ACT,
    ("writing", "token"): _ACT - {"grpo", "rloo"} | {"bc", "supervised"},
    ("dataset", "action_head"): set(),
    ("dataset", "action_scoring"): {"bc", "supervised"},
    ("dataset", "drrn"): set(),
}


class _Loaded(Exception):
    """Building came so far as to load a model."""


def test_the_lists_are_complete() -> None:
    for registry, names in ((policies, _POLICIES), (algorithms, _ALGORITHMS)):
        assert {id for id in registry if registry.get(id).__module__.startswith("groundling.")} == set(names)


@pytest.mark.parametrize("world", _WORLDS)
@pytest.mark.parametrize("policy", _POLICIES)
def test_a_policy_suits_a_world_or_is_refused_at_once(
    policy: str, world: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if world == "nethack":
        pytest.importorskip("nle")
    experiment, *words = _WORLDS[world]
    words += [f"policy.id={policy}", *_SHORT]
    if policy in _SUITED[world] - {"random"}:
        words += ["~algorithm.args", "algorithm.id=drrn"] if policy == "drrn" else []
        words += ["policy.args.num_actions=5"] if (policy, world) == ("action_head", "own") else []
        words += ["policy.args.recurrence=8"] if policy in ("symbolic", "nethack") else []
        assert main(["train", experiment, *words, "--dry-run"]) == 0
        return

    def load(*args: object, **kwargs: object) -> None:
        raise AssertionError("a language model was loaded")

    monkeypatch.setattr(build, "_make_language_model", load)
    assert main(["train", experiment, *words, "--dry-run"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith(f"error: policy '{policy}' ")
    if policy not in _SUITED[world]:  # random has no weights to train, wherever it suits
        named = told[0].partition("set policy.id to one of ")[2].split(", ")
        assert set(named) & set(_POLICIES) == _SUITED[world]  # beside those of other tests


def test_a_policy_of_ones_own_says_what_it_needs() -> None:
    class Tasting(Policy):
        needs = frozenset({"flavours"})  # type: ignore[arg-type]

    world = WorldSpec("Kitchen-v0", frozenset({"words", "symbols"}), "choice", 3)
    assert Tasting.accepts(world) == "it looks at flavours, and Kitchen-v0 shows symbols, words"
    assert Policy.accepts(world) is None


def test_a_policy_that_a_function_makes_is_let_in() -> None:
    config = compose("demo", ["~policy.args"])
    spec = world_of(config).spec
    assert spec.observation == {"words", "symbols"} and spec.num_actions == 6
    with pytest.raises(
        ConfigError, match=r"'symbolic' does not suit test/Doors-v0: it looks at symbols, and"
    ):
        build.make_policy(compose(_WORLDS["own"][0], [*_WORLDS["own"][1:], "policy.id=symbolic"]))


@functools.cache
def _composed(world: str) -> Config:
    experiment, *words = _WORLDS["babyai" if world == "dataset" else world]
    words += ["data.path=/nowhere"] if world == "dataset" else []
    return compose(experiment, [*words, *_SHORT])


def _make(world: str, policy: ComponentConfig, algorithm: ComponentConfig, **pool: Any) -> None:
    config = _composed(world)
    config = replace(config, policy=policy, algorithm=algorithm, pool=replace(config.pool, **pool))
    build.make_policy(config, learns=True)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **kwargs: object) -> None:
        raise _Loaded

    monkeypatch.setattr(build, "_make_language_model", load)
    monkeypatch.setattr(policies, "create", load)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize(("world", "policy"), _TRAINED)
@pytest.mark.usefixtures("no_model")
def test_an_algorithm_suits_a_policy_or_is_refused_at_once(world: str, policy: str, algorithm: str) -> None:
    suited = _TRAINED[world, policy]
    args = {"num_actions": 5} if (world, policy) == ("own", "action_head") else {}
    with pytest.raises(_Loaded if algorithm in suited else ConfigError) as met:
        _make(world, ComponentConfig(policy, args), ComponentConfig(algorithm))
    if algorithm not in suited:
        told = str(met.value)
        assert told.startswith(f"algorithm {algorithm!r} does not suit policy {policy!r} in ")
        named = told.partition("algorithm.id to one of ")[2].split(", ")
        assert set(named) & set(_ALGORITHMS) == suited  # beside those of other tests
        if algorithm == "drrn" and world != "dataset" and "drrn" in _SUITED[world]:
            assert "set policy.id to one of drrn or " in told


_NO_MASK, _MASK = ComponentConfig("token"), ComponentConfig("token", {"mask_type": "learned_top_p"})
_PENALISED = ComponentConfig("ppo", {"kl_coefficient": 0.1})
_CHOICE = ComponentConfig("bc", {"objective": "choice"})


@pytest.mark.parametrize(
    ("world", "policy", "algorithm", "pool", "reason"),
    [
        ("writing", _NO_MASK, ComponentConfig("nlpo"), {}, "policy.args.mask_type=learned_top_p"),
        ("writing", _MASK, ComponentConfig("nlpo"), {}, None),
        ("writing", _NO_MASK, ComponentConfig("grpo"), {"texts_per_prompt": 1}, "texts_per_prompt must be"),
        ("writing", _NO_MASK, ComponentConfig("grpo"), {"texts_per_prompt": 2}, None),
        ("writing", _NO_MASK, _PENALISED, {}, None),
        ("babyai", ComponentConfig("action_scoring"), _PENALISED, {}, None),
        ("babyai", ComponentConfig("symbolic"), _PENALISED, {}, "kl_coefficient=0.1 needs a reference"),
        ("dataset", ComponentConfig("drrn"), ComponentConfig("bc"), {}, "algorithm.args.objective=choice"),
        ("dataset", ComponentConfig("drrn"), _CHOICE, {}, None),
        ("dataset", ComponentConfig("symbolic"), _CHOICE, {}, "it looks at symbols, and dataset /nowhere"),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_what_an_algorithm_needs_depends_on_settings(
    world: str, policy: ComponentConfig, algorithm: ComponentConfig, pool: dict[str, Any], reason: str | None
) -> None:
    with pytest.raises(_Loaded if reason is None else ConfigError, match=reason):
        _make(world, policy, algorithm, **pool)


@pytest.mark.usefixtures("no_model")
def test_a_dry_run_tells_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *_WORLDS["babyai"], "~algorithm.args", "algorithm.id=drrn", "--dry-run"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith(
        "error: algorithm 'drrn' does not suit policy 'action_scoring'"
    )


def test_a_dry_run_cuts_rollouts_as_training_does(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policy.id=symbolic", "policy.args.recurrence=5", *_SHORT]  # of 8 steps an update
    assert main(["train", *_WORLDS["babyai"], *words, "--dry-run"]) == 1
    assert "training.steps_per_update=8 is no multiple" in capsys.readouterr().err
