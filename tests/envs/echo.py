"""A text env in which any text is an action, and a class with tools; workers import them quickly."""

import random
import time
from typing import Any

import gymnasium

from groundling.envs import ToolEnv


class Echo(gymnasium.Env[str, str]):
    """Repeat a word twice; the reward of each turn is 1 if the text contains the word."""

    observation_space = action_space = gymnasium.spaces.Text(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word, self.turn = str(self.np_random.choice(["red", "blue", "key"])), 0
        return f"The word is\n{self.word}", {"goal": "repeat the word"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        info = {"metrics": {"letters": len(action)}, "success": self.word in action}
        return f"You said {action!r}\n{self.word}", float(self.word in action), self.turn == 2, False, info


class Calculator:
    """Multiply with a tool, written like the tools of TRL's users."""

    def reset(self, seed: int) -> str:
        self.a, self.b = random.Random(seed).sample(range(10), 2)
        return f"What is {self.a} * {self.b}?"

    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a * b

    def fail(self) -> None:
        """Raise an error."""
        raise ValueError("out of order")

    def wait(self) -> None:
        """Never return."""
        time.sleep(60)

    def reward(self, answer: str) -> float:
        return float(answer == str(self.a * self.b))


def make_calculator() -> ToolEnv:
    return ToolEnv(Calculator, max_turns=3)


gymnasium.register("test/Echo-v0", entry_point=Echo)
gymnasium.register("test/Calculator-v0", entry_point=make_calculator)
