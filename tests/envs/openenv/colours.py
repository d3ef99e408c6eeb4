"""A game for OpenEnv's client and server: open the doors in the order of a list, which depends on the seed."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

COLOURS = ("red", "green", "blue")


class Game:
    """Opening the first colour of the list has reward 1 and shows a different list; the third ends the episode."""

    def __init__(self, keeps_seeds: bool = True) -> None:
        self.keeps_seeds = keeps_seeds

    def reset(self, seed: int | None = None) -> None:
        self.random = random.Random(seed if self.keeps_seeds else None)
        self.opened, self.order = 0, self.random.sample(COLOURS, 3)
        self.doors = self.random.sample(range(3), 3)

    def step(self, door: int) -> float:
        right = COLOURS[door] == self.order[self.opened]
        self.opened += right
        self.doors = self.random.sample(range(3), 3)
        return float(right)

    @property
    def done(self) -> bool:
        return self.opened == 3

    @property
    def fields(self) -> dict[str, Any]:
        messages = [{"content": f"You have opened {self.opened} doors.\nThe number is {self.random.random()}."}]
        return {
            "question": f"Which door is {self.order[0]}?",
            "legal_actions": [] if self.done else self.doors,
            "messages": messages,
            "metadata": {"size": [3, 1]},
        }


class Server:
    """Replaces `open_client`, so that OpenEnv need not be installed.

    Args:
        trouble: Errors to raise and answers to change, by number of the request.
    """

    def __init__(self, trouble: dict[int, Any] | None = None, keeps_seeds: bool = True) -> None:
        self.trouble, self.keeps_seeds = trouble or {}, keeps_seeds
        self.requests, self.sent = itertools.count(1), list[Any]()

    def __call__(self, url: str, timeout: float, patience: float) -> "_Client":
        return _Client(self)


class _Client:
    def __init__(self, server: Server) -> None:
        self.server, self.game = server, Game(server.keeps_seeds)
        self.async_client = SimpleNamespace(_ws=object())

    def reset(self, seed: int, **given: Any) -> SimpleNamespace:
        self.game.reset(seed)
        return self._answer({"seed": seed, **given}, 0.0)

    def step(self, action: dict[str, Any]) -> SimpleNamespace:
        return self._answer(action, self.game.step(action["door"]))

    def close(self) -> None:
        pass

    def _answer(self, sent: Any, reward: float) -> SimpleNamespace:
        self.server.sent.append(sent)
        trouble = self.server.trouble.get(next(self.server.requests), {})
        if isinstance(trouble, Exception):
            raise trouble
        fields = {**self.game.fields, **trouble.pop("fields", {})} if isinstance(trouble, dict) else None
        return SimpleNamespace(**({"observation": fields, "reward": reward, "done": self.game.done} | trouble))
