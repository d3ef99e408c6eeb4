"""A stand-in for nle's NetHack with hand-written screens."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groundling.envs.nethack import make_task
from groundling.envs.nethack.tasks import NetHackTask


@dataclass
class Shown:
    """What NetHack shows after a key; all values that are not given are zero."""

    message: str = ""
    stats: dict[int, int] = field(default_factory=dict)
    """blstats by index; time (20) and the level's number (24) are 1 by default."""
    more: bool = False
    question: bool = False
    line: bool = False
    glyphs: dict[tuple[int, int], int] = field(default_factory=dict)
    """Glyphs by row and column; all others are unexplored stone."""
    over: bool = False


class FakeNetHack:
    """Shows the given screens, one `Shown` per key, and stores the keys."""

    def __init__(self, env: NetHackTask, script: list[Shown]) -> None:
        self.keys: list[int] = []
        self._buffers = dict(zip(env._observation_keys, env.last_observation, strict=True))
        self._observation = env.last_observation
        self._script, self._shown = script, Shown()
        self._show(script.pop(0))
        env.blstats, env.message = self._buffers["blstats"].tolist(), self._buffers["message"].tobytes()
        env._map = self._buffers["glyphs"].tobytes()

    def _show(self, shown: Shown) -> None:
        self._shown = shown
        buffers = self._buffers
        buffers["message"][:] = np.frombuffer(shown.message.encode().ljust(256, b"\0"), dtype=np.uint8)
        buffers["blstats"][:] = 0
        for index, value in ({20: 1, 24: 1} | shown.stats).items():
            buffers["blstats"][index] = value
        buffers["internal"][1:4] = shown.question, shown.line, shown.more
        buffers["glyphs"][:] = 2359
        for cell, glyph in shown.glyphs.items():
            buffers["glyphs"][cell] = glyph

    def step(self, key: int) -> tuple[Any, bool]:
        self.keys.append(key)
        self._show(self._script.pop(0))
        return self._observation, self._shown.over

    def in_normal_game(self) -> bool:
        return not self._shown.over

    def how_done(self) -> int:
        return 0


def scripted(task: str, script: list[Shown], **args: Any) -> tuple[NetHackTask, FakeNetHack]:
    """Return a task that has started an episode with the script's first screen, and its game."""
    env = make_task(task, **args)
    env.begin(seed=0)
    game = FakeNetHack(env, script)
    env.nethack = game
    env._explored.clear()
    return env, game
