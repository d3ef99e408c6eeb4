"""Playing NetHack's held-out episodes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from groundling.envs.nethack import TASKS, make_task, recording_in
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.worlds.episode import Episode
from groundling.worlds.nethack.agents import NetHackAgent
from groundling.worlds.nethack.messages import MessageScores

_NAMES = {"dlvl": "depth", "xlvl": "experience_level", "scout": "squares"}  # by nle's and the original's names
_FIGURES = (
    *("success", "return", "score", "depth", "gold", "experience_level"),
    *("length", "messages", "squares", "intrinsic_return", "turns"),
)  # reported figures in order


@dataclass
class Game:
    number: int
    actions: list[int] = field(default_factory=list)
    messages: Counter[bytes] = field(default_factory=Counter)  # occurrences before an action
    figures: dict[str, float] = field(default_factory=dict)  # at its end: `_FIGURES` and end_status

    @property
    def seed(self) -> int:
        return held_out_seed(self.number)


def play(
    agent: NetHackAgent,
    task: str,
    args: Mapping[str, Any],
    num_episodes: int,
    num_envs: int,
    seed: int = 0,
    scores: MessageScores | None = None,
) -> Iterator[Game]:
    """Play the first ``num_episodes`` held-out episodes, and yield each when it ends. Every env plays its own share,
    so that short episodes do not count more often. ``seed`` is for the draws of an agent by rules.
    """
    envs = [make_task(task, **recording_in(args, f"env-{env:04}")) for env in range(min(num_envs, num_episodes))]
    present: dict[int, Game] = {}
    shown: dict[int, Any] = {}

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
                game.messages[shown[env]["message"].tobytes()] += 1
                game.actions.append(action)
                shown[env], reward, terminated, truncated, info = envs[env].step(action)
                game.figures["return"] = game.figures.get("return", 0.0) + reward
                if terminated or truncated:
                    _finish(game, task, info, scores)
                    del present[env]
                    yield game
                    begin(env, game.number + len(envs))
    finally:
        for one in envs:
            one.close()


def _finish(game: Game, task: str, info: Mapping[str, Any], scores: MessageScores | None) -> None:
    figures = game.figures
    figures |= {_NAMES.get(k, k): float(v) for k, v in info.items() if k != "is_ascended"}
    figures["length"], figures["messages"] = float(len(game.actions)), float(len(game.messages))
    if TASKS[task]["goal"] != "score":
        figures["success"] = float(figures["return"] > 0)
    if scores is not None:
        figures["intrinsic_return"] = scores.intrinsic_return(game.messages)


def episode_of(game: Game) -> Episode:
    figures = {name: game.figures[name] for name in _FIGURES if name in game.figures}
    about: dict[str, str | int] = {"seed": game.seed}
    if "end_status" in game.figures:
        about["end_status"] = int(game.figures["end_status"])
    return Episode(figures, game.number, about, game)
