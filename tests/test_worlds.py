"""Every policy in every world: it begins to train, or one line says before anything is loaded why it cannot."""

import pytest

from groundling.cli import main
from groundling.configs.compose import compose
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
        "nethack.reward.intrinsic_coefficient=0",
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


def test_the_lists_are_complete() -> None:
    bundled = {id for id in policies if policies.get(id).__module__.startswith("groundling.")}
    assert bundled == set(_POLICIES)


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
