"""A calculator as a tool: the public methods of a class become tools for a language model."""

import random

import gymnasium

from groundling.envs import ToolEnv


class Calculator:
    """Answer a question with the help of a tool. The reward is 1 for the right answer."""

    def reset(self, seed: int) -> str:
        self.a, self.b = random.Random(seed).sample(range(10, 100), 2)
        return f"What is {self.a} * {self.b}?"

    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a * b

    def reward(self, answer: str) -> float:
        return float(answer == str(self.a * self.b))


gymnasium.register("Calculator-v0", entry_point=lambda: ToolEnv(Calculator))  # type: ignore[arg-type]
