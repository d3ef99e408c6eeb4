"""Third-party engines that are installed: seeds, splits, rewards and errors."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from groundling.envs.bundled import ENGINES
from groundling.envs.checking import check_env
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.errors import ConfigError
from tests.thorough import thorough

DIGITS = [str(n) for n in range(1, 11)]
CASES = {
    "TextArena-v0": ("textarena", {"game": "FrozenLake-v0"}, ["up", "down", "left", "right"]),
    "ReasoningGym-v0": ("reasoning_gym", {"dataset": "letter_counting"}, DIGITS),
    "Gem-v0": ("gem", {"game": "game:GuessTheNumber-v0-easy"}, DIGITS),
    "TextWorld-v0": ("textworld", {"games": 1, "max_steps": 10, "params": {"level": 1}}, None),
    "ScienceWorld-v0": ("scienceworld", {"max_steps": 3}, None),
}


def _needs(id: str) -> None:
    pytest.importorskip(CASES[id][0])
    if id == "ScienceWorld-v0" and shutil.which("java") is None:
        pytest.skip("ScienceWorld needs Java")


def _make(id: str, **args: Any) -> gymnasium.Env[Any, str]:
    return gymnasium.make(id, disable_env_checker=True, **args)


def test_every_engine_has_a_case_or_a_module_of_its_own() -> None:
    assert {*CASES, "TextWorldExpress-v0"} == {*ENGINES}


@pytest.mark.parametrize("id", [*CASES][:-1] + thorough("ScienceWorld-v0"))
def test_episodes_follow_from_their_seeds_and_actions(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _needs(id)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # games of TextWorld
    _, args, actions = CASES[id]
    played = check_env(id, args, actions, num_episodes=2)
    assert played.most_actions > 1
    assert not any("start exactly like" in doubt for doubt in played.doubts)


def test_held_out_lakes_are_not_in_training() -> None:
    _needs("TextArena-v0")
    env = _make("TextArena-v0", game="FrozenLake-v0")
    splits = [
        {env.reset(seed=seed)[0] for seed in seeds}
        for seeds in ([training_seed(0, 0, n) for n in range(200)], [held_out_seed(n) for n in range(50)])
    ]
    assert len(splits[1]) > 20 and splits[0].isdisjoint(splits[1])


def test_a_game_of_text_arena_shows_its_board_and_pays_at_the_end() -> None:
    _needs("TextArena-v0")
    env = _make("TextArena-v0", game="GuessTheNumber-v0")
    _, info = env.reset(seed=1)
    assert "between 1 and 20" in info["goal"] and info["descriptions"] == []
    number = env.unwrapped._game.game_number  # type: ignore[attr-defined]
    _, reward, done, _, info = env.step(str(number % 20 + 1))
    assert (reward, done) == (0, False) and "The target number is" in info["descriptions"][0]
    _, reward, done, _, info = env.step(f"I say [{number}]")
    assert (reward, done, info["success"], info["metrics"]) == (1, True, True, {"invalid_move": 0})


def test_a_right_answer_of_reasoning_gym_scores_1() -> None:
    _needs("ReasoningGym-v0")
    env = _make("ReasoningGym-v0", dataset="chain_sum", size=10)
    for seed in (3, held_out_seed(0)):
        env.reset(seed=seed)
        answer = env.unwrapped._entry["answer"]  # type: ignore[attr-defined]
        assert env.step(answer)[1:3] == (1, True) and env.step("none")[1] < 1


def test_pool_and_verifier_of_reasoning_gym() -> None:
    _needs("ReasoningGym-v0")
    from groundling import rewards
    from groundling.envs.text_generation import pools

    pool = pools.create("reasoning_gym", dataset="chain_sum", params={"max_terms": 2}, size=20)
    train, test = pool.prepare("train"), pool.prepare("test")
    assert not {sample.prompt for sample in train} & {sample.prompt for sample in test}
    answers = [sample.references[0] for sample in train]
    verify = rewards.create("reasoning_gym")
    scores = verify([s.prompt for s in train], [*answers[:-1], "x"], [[] for _ in train], [s.meta for s in train])
    assert scores[:-1].tolist() == [1.0] * 19 and scores[-1] < 1


def test_returns_of_scienceworld_are_its_scores_in_every_jvm() -> None:
    _needs("ScienceWorld-v0")
    envs = [_make("ScienceWorld-v0", task="find-plant") for _ in range(2)]
    (observation, info), same = (env.reset(seed=1) for env in envs)
    assert (observation, info) == same and info["actions"] == sorted(info["actions"])
    assert info["variation"] in envs[0].unwrapped._variations[0]  # type: ignore[attr-defined]
    gains = []
    for action in ("look around", "teleport to greenhouse"):
        step, other = (env.step(action) for env in envs)
        assert step == other
        gains.append(step[1])
    assert sum(gains) == pytest.approx(envs[0].unwrapped._engine.getScore())  # type: ignore[attr-defined]
    _, reward, done, _, info = envs[0].step("focus on agent")  # the wrong object, so the task fails
    assert done and not info["success"] and sum(gains) + reward == pytest.approx(0)
    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("id", "args", "wanted"),
    [
        ("TextArena-v0", {"game": "Chequers-v0"}, "unknown TextArena game 'Chequers-v0'.*Checkers-v0"),
        ("TextArena-v0", {"game": "TicTacToe-v0"}, "cannot start TicTacToe-v0"),
        ("ReasoningGym-v0", {"dataset": "letters"}, "unknown Reasoning Gym dataset 'letters'"),
        ("ReasoningGym-v0", {"size": 0}, "size must be at least 1, got 0"),
        ("TextWorld-v0", {"games": 0}, "games must be at least 1, got 0"),
        ("Gem-v0", {"game": "game:Go"}, "unknown GEM env 'game:Go'"),
        ("TextWorld-v0", {"challenge": "chess"}, "unknown TextWorld challenge 'chess'"),
        ("TextWorld-v0", {"params": {"rooms": 3}}, "unknown treasure_hunter setting 'rooms'"),
        ("ScienceWorld-v0", {"task": "find-plants"}, "unknown ScienceWorld task 'find-plants'.*find-plant"),
        ("ScienceWorld-v0", {"simplifications": "all"}, "unknown ScienceWorld simplification 'all'"),
    ],
)
def test_unknown_games_and_settings_are_errors(id: str, args: dict[str, Any], wanted: str) -> None:
    _needs(id)
    with pytest.raises(ConfigError, match=wanted):
        _make(id, **args)
