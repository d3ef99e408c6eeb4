"""Playing NetHack's held-out episodes, and what they come to."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from groundling.envs.nethack import TASKS, make_task, recording_in
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.worlds.episode import HeldOutEpisode
from groundling.worlds.nethack.agents import Agent
from groundling.worlds.nethack.message_scores import Taste

_NAMES = {"dlvl": "depth", "xlvl": "experience_level", "scout": "squares"}
"""nle's and the original's words for figures, in words."""


@dataclass
class Game:
    """An episode from its beginning to its end."""

    number: int
    """Which of the held-out episodes."""
    actions: list[int] = field(default_factory=list)
    messages: Counter[bytes] = field(default_factory=Counter)
    """How often each came up where an action was chosen."""
    figures: dict[str, float] = field(default_factory=dict)
    """When it has ended: return, score, depth, gold, experience_level, length, messages (distinct ones), turns,
    squares, end_status; success where the task has a goal; intrinsic_return where there is a reward model."""

    @property
    def seed(self) -> int:
        """Of NetHack."""
        return held_out_seed(self.number)


def play(
    agent: Agent,
    task: str,
    args: Mapping[str, Any],
    num_episodes: int,
    num_envs: int,
    seed: int = 0,
    taste: Taste | None = None,
    on_episode: Callable[[], None] = lambda: None,
) -> list[Game]:
    """Play the first ``num_episodes`` held-out episodes, in their order.

    Every env plays its own share to the end, so that short episodes are not counted more often than long ones.

    Args:
        agent: Who plays.
        task: One of `groundling.envs.nethack.TASKS`.
        args: Arguments of `groundling.envs.nethack.tasks.NetHackTask`.
        num_episodes: How many.
        num_envs: How many at once.
        seed: Of what an agent by rules leaves to chance.
        taste: Measures the intrinsic return.
        on_episode: Called after each.
    """
    envs = [
        make_task(task, **recording_in(args, f"env-{env:04}")) for env in range(min(num_envs, num_episodes))
    ]
    present: dict[int, Game] = {}
    shown: dict[int, Any] = {}
    finished: list[Game] = []

    def begin(env: int, number: int) -> None:
        if number < num_episodes:
            present[env] = Game(number)
            shown[env], _ = envs[env].reset(seed=present[env].seed)
            agent.begin(env, training_seed(seed, 0, number))

    try:
        for env in range(len(envs)):
            begin(env, env)
        while present:
            playing = list(present)
            actions = agent.act(playing, [shown[env] for env in playing])
            for env, action in zip(playing, actions, strict=True):
                game = present[env]
                ended, shown[env] = _step(game, envs[env], shown[env], action)
                if ended:
                    _finish(game, task, taste)
                    finished.append(present.pop(env))
                    on_episode()
                    begin(env, game.number + len(envs))
    finally:
        for one in envs:
            one.close()
    return sorted(finished, key=lambda game: game.number)


def _step(game: Game, env: Any, shown: Any, action: int) -> tuple[bool, Any]:
    """Whether the game is over, and what is shown after ``action``."""
    game.messages[shown["message"].tobytes()] += 1
    game.actions.append(action)
    observation, reward, terminated, truncated, info = env.step(action)
    game.figures["return"] = game.figures.get("return", 0.0) + reward
    ended = terminated or truncated
    if ended:
        figures = {_NAMES.get(k, k): float(v) for k, v in info.items() if k != "is_ascended"}
        game.figures |= figures
    return ended, observation


def _finish(game: Game, task: str, taste: Taste | None) -> None:
    figures = game.figures
    figures["length"], figures["messages"] = float(len(game.actions)), float(len(game.messages))
    if TASKS[task]["goal"] != "score":
        figures["success"] = float(figures["return"] > 0)
    if taste is not None:
        figures["intrinsic_return"] = taste.intrinsic_return(game.messages)


_FIGURES = (
    "success",
    "return",
    "score",
    "depth",
    "gold",
    "experience_level",
    "length",
    "messages",
    "squares",
    "intrinsic_return",
    "turns",
)
"""The figures that are told, in their order."""


def record_of(game: Game) -> HeldOutEpisode:
    """What an episode comes to, in the record of all worlds."""
    figures = {name: game.figures[name] for name in _FIGURES if name in game.figures}
    about: dict[str, str | int] = {"seed": game.seed}
    if "end_status" in game.figures:
        about["end_status"] = int(game.figures["end_status"])
    return HeldOutEpisode(game.number, figures, about, game)
