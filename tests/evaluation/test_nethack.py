from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundling.config.compose import compose
from groundling.envs.nethack import make_task
from groundling.envs.nethack.observation import View
from groundling.envs.nethack.vector import NetHackVectorEnv
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.judges.reward_models.reward_model import Normalization
from groundling.policies.nethack import NetHackPolicy
from groundling.rewards import RewardModelPart
from groundling.worlds.episode import Played
from groundling.worlds.nethack.episodes import BaselineAgent, Game, PolicyAgent, episode_of, features, mixed, play
from groundling.worlds.nethack.frames import MessageScores, play_steps, view
from groundling.worlds.nethack.pairs import random_player


class Lengths:
    """A reward model in which the reward of a message is its length."""

    normalization = Normalization(10.0, 4.0, tuple(np.linspace(-0.9, 0.9, 19)))

    def rewards(self, captions: Sequence[str]) -> torch.Tensor:
        return torch.tensor([float(len(caption)) for caption in captions])


def _message(text: str) -> bytes:
    return text.encode().ljust(256, b"\0")


@pytest.mark.parametrize("args", [{}, {"compat": ["crop"]}, {"vector": "motif"}])
def test_a_policy_sees_what_it_was_trained_on(args: dict[str, Any]) -> None:
    envs = NetHackVectorEnv("NetHackScore-v1", 2, 0, num_groups=1, args=args)
    frames = envs.reset()
    alone = make_task("NetHackScore-v1", **args)
    actions = np.random.default_rng(0).integers(23, size=(40, 2))
    shown, _ = alone.reset(seed=training_seed(0, 0, 0))
    for row in actions:
        seen = features([shown], View.of(args))
        for name in ("chars", "colours", "vector", "messages"):
            np.testing.assert_array_equal(getattr(seen, name)[0], getattr(frames, name)[0], err_msg=name)
        envs.send(0, row)
        frames = envs.receive(0)
        shown, _, terminated, truncated, _ = alone.step(int(row[0]))
        assert not (terminated or truncated)
    envs.close()
    alone.close()


def test_an_episodes_intrinsic_return_by_hand() -> None:
    scores = MessageScores(Lengths(), RewardModelPart())  # type: ignore[arg-type]  # the median of the quantiles is 0
    long, short = _message("sixteen letters!"), _message("short")
    assert scores.of([long])[0].normalised == pytest.approx(3.0) and scores.of([short])[0].first == 0.0
    assert scores.reward(long, 2) == pytest.approx(3.0 / 8)
    counts = Counter({long: 3, short: 9})
    assert scores.intrinsic_return(counts) == pytest.approx(3 * (1 + 1 / 8 + 1 / 27))


def test_episodes_do_not_depend_on_the_number_of_envs() -> None:
    args = {"max_episode_steps": 30}

    def of(num_envs: int) -> list[Game]:
        games = play(BaselineAgent(random_player), "NetHackScore-v1", args, 5, num_envs, seed=3)
        return sorted(games, key=lambda game: game.number)

    one, three = of(1), of(3)
    assert one == three and [game.number for game in one] == list(range(5))
    assert all(sum(game.messages.values()) == len(game.actions) == game.figures["length"] for game in one)
    figures = Played([episode_of(game) for game in one]).figures()
    assert figures["length"].value == np.mean([len(game.actions) for game in one])
    assert "success" not in figures and "intrinsic_return" not in figures
    (game,) = play(BaselineAgent(random_player), "NetHackStaircase-v1", {"max_episode_steps": 5}, 1, 4)
    assert game.figures["success"] == 0.0


def test_every_episode_has_its_own_recording(tmp_path: Path) -> None:
    args = {"max_episode_steps": 5, "savedir": str(tmp_path), "save_ttyrec_every": 1}
    list(play(BaselineAgent(random_player), "NetHackScore-v1", args, 6, 3))
    for seed in (4, 6):
        list(play_steps(random_player(0), "NetHackScore-v1", args, seed, None))
    folders = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.ttyrec3.bz2"))
    assert folders == [f"env-000{env}" for env in (0, 0, 1, 1, 2, 2)] + ["seed-4", "seed-6"]


def test_envs_have_separate_memories() -> None:
    torch.manual_seed(0)
    policy = NetHackPolicy(23, hidden_size=8)
    env = make_task("NetHackScore-v1")
    shown = []
    for number in range(2):
        env.reset(seed=held_out_seed(number))
        shown.append([env.step(2 + i)[0] for i in range(6)])
    env.close()
    together, alone = PolicyAgent(policy, deterministic=True), PolicyAgent(policy, deterministic=True)
    for number in (0, 1):
        together.begin(number, 0)
    both = [together.act([0, 1], [a, b]) for a, b in zip(*shown, strict=True)]
    for number in (0, 1):
        alone.begin(7, 0)
        assert [alone.act([7], [o])[0] for o in shown[number]] == [actions[number] for actions in both]


def test_mixed_players_take_turns_by_episodes() -> None:
    players = mixed([lambda seed: lambda shown: 1, lambda seed: lambda shown: 2])
    chosen = [players(seed)({}) for seed in range(40)]
    assert set(chosen) == {1, 2} and chosen == [players(seed)({}) for seed in range(40)]


def test_a_sample_that_plays_differently_now_is_shown_without_pictures(tmp_path: Path) -> None:
    config = compose("motif/score")
    (game,) = play(BaselineAgent(random_player), "NetHackScore-v1", {"max_episode_steps": 9}, 1, 1)
    sample = {"task": "NetHackScore-v1", "args": {"max_episode_steps": 9}, "seed": game.seed, "messages": []}
    sample |= {"actions": game.actions, "figures": game.figures}
    assert len(view(config.reward, "cpu", tmp_path, sample).frames) == 6
    others = [game.actions[:5], [*game.actions, 1]]  # the game continues after the last action, or has ended before it
    for changed in (*({"actions": actions} for actions in others), {"figures": {**game.figures, "return": -1}}):
        assert view(config.reward, "cpu", tmp_path, sample | changed).frames == []


def test_steps_have_their_rewards() -> None:
    scores = MessageScores(Lengths(), RewardModelPart(threshold_quantile=0))  # type: ignore[arg-type]
    act = random_player(0)
    seen = list(play_steps(act, "NetHackScore-v1", {"max_episode_steps": 20}, held_out_seed(0), scores))
    assert [step.step for step in seen] == list(range(21)) and seen[-1].ended
    assert sum(step.reward for step in seen) == pytest.approx(seen[-1].episode_return)
    paid = sum(step.intrinsic or 0.0 for step in seen)
    assert paid == pytest.approx(scores.intrinsic_return(seen[-1].counts))
    assert sum(seen[-1].counts.values()) == 20
    rows = seen[3].picture().shape[0] / np.asarray(seen[3].screen.image()).shape[0] * 24
    assert rows == 27 and "step 3" in seen[3].figures_line()
