"""The adapters of engines, tested without the engines: missing packages, global generators, splits, a fake game."""

import random
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from groundling.envs.bundled import ENGINES
from groundling.envs.engines.global_random import GlobalRandom, start_game
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.errors import ConfigError

PACKAGES = ("gem", "reasoning_gym", "scienceworld", "textarena", "textworld", "textworld_express")


@pytest.mark.parametrize(("id", "package"), [*zip(sorted(ENGINES), PACKAGES, strict=True)])
def test_a_missing_engine_is_an_error_that_says_how_to_install_it(
    id: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install 'groundling\["):
        gymnasium.make(id)


def test_each_env_has_its_own_global_generators() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), np.random.random()  # noqa: NPY002

    before = random.getstate()
    one, other = GlobalRandom(), GlobalRandom()
    for state in (one, other):
        with state:
            random.seed(3)
            np.random.seed(3)  # noqa: NPY002
    with one:
        first = [draw(), draw()]
    with pytest.raises(ValueError), other:
        second = [draw()]
        raise ValueError
    with other:
        second.append(draw())
    assert first == second and random.getstate() == before


def test_a_quarter_of_the_starts_is_held_out() -> None:
    def starts(seeds: list[int], kinds: int) -> set[str]:
        seen = list[str]()

        def start(seed: int) -> str:
            seen.append(f"room {seed % kinds}")
            return seen[-1]

        drawn = set()
        for seed in seeds:
            start_game(seed, start)
            drawn.add(seen[-1])
        return drawn

    train, held_out = [training_seed(0, 0, n) for n in range(300)], [held_out_seed(n) for n in range(300)]
    with GlobalRandom():
        trained, tested = starts(train, 40), starts(held_out, 40)
        assert not trained & tested and len(trained | tested) == 40 and 4 <= len(tested) <= 18
        assert (
            starts(train[:9], 1) == starts(held_out[:9], 1) == {"room 0"}
        )  # a game with only one start cannot be split


class _Kind(Enum):
    PROMPT, PLAYER_ACTION, GAME_MESSAGE, GAME_BOARD = range(4)


class _Dice:
    """A game like those of TextArena, in which the next throw must be guessed."""

    def reset(self, num_players: int, seed: int) -> None:
        random.seed(seed)
        self._messages = [(-1, "Guess the\nnext throw.", _Kind.PROMPT)]
        self._throw()

    def _throw(self) -> None:
        self._die = random.randint(1, 6)
        self._messages += [(-1, f"Thrown before: {random.randint(1, 6)}", _Kind.GAME_BOARD)]

    def get_observation(self) -> tuple[int, list[Any]]:
        shown, self._messages = self._messages, []
        return 0, shown

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._messages += [(0, action, _Kind.PLAYER_ACTION), (-1, f"You said {action}.", _Kind.GAME_MESSAGE)]
        self._won = action == f"[{self._die}]"
        self._throw()
        return self._won, {}

    def close(self) -> tuple[dict[int, int], list[dict[str, bool]]]:
        return {0: int(self._won)}, [{"invalid_move": False}]


def test_a_game_of_text_arena_as_an_env(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("textarena")
    package.__path__ = []  # type: ignore[attr-defined]
    vars(package).update(
        make=lambda game: SimpleNamespace(env=_Dice()), Wrapper=SimpleNamespace, ObservationType=_Kind
    )
    registration = ModuleType("textarena.envs.registration")
    vars(registration).update(ENV_REGISTRY={"Dice-v0": None})
    for name, module in (("", package), (".envs", ModuleType("textarena.envs")), (".envs.registration", registration)):
        monkeypatch.setitem(sys.modules, f"textarena{name}", module)
    one, other = (gymnasium.make("TextArena-v0", disable_env_checker=True, game="Dice-v0") for _ in range(2))
    (_, info), _ = one.reset(seed=5), other.reset(seed=5)
    assert info["goal"] == "Guess the next throw." and info["descriptions"][0].startswith("Thrown before")
    for guess in ("1", "2", "3", "4", "5", "6") * 5:
        step, same = one.step(guess), other.step(guess)  # interleaved
        assert step == same and step[-1]["descriptions"][0] == f"You said [{guess}]."
        assert step[1:3] == ((1, True) if step[2] else (0, False))
        if step[2]:
            break
    assert step[-1]["success"]
