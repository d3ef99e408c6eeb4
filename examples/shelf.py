"""A text env with 1 to 39 admissible actions, which change at every step.

groundling check-env examples.shelf:Shelf
groundling train shelf --config-dir examples --import examples.shelf
"""

from typing import Any

import gymnasium

COLORS, NOUNS = (
    ("red", "green", "blue", "yellow", "grey"),
    ("key", "ball", "box", "cup", "book", "hat", "ring", "bag"),
)
THINGS = [f"{color} {noun}" for color in COLORS for noun in NOUNS]


class Shelf(gymnasium.Env[str, str]):
    """A row of shelves, one of which has the object named in the goal. Take an object, or go to the next shelf."""

    observation_space = gymnasium.spaces.Text(10_000)
    action_space = gymnasium.spaces.Text(100)  # actions are the texts in info["actions"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.place = 0, int(self.np_random.integers(4))
        self.wanted = str(self.np_random.choice(THINGS))
        return self._look()

    def step(self, action: str) -> Any:
        self.steps += 1
        took = action.startswith("take")
        observation, info = self._look()
        return observation, float(action == f"take the {self.wanted}"), took, self.steps >= 6, info

    def _look(self) -> tuple[str, dict[str, Any]]:
        things = [thing for thing in self.np_random.permutation(THINGS).tolist() if thing != self.wanted]
        things = things[: int(self.np_random.integers(38))] + [self.wanted] * (self.steps == self.place)
        self.np_random.shuffle(things)
        actions = [*(f"take the {thing}" for thing in things), "go on"]
        return "\n".join(f"You see a {thing}" for thing in things), {
            "goal": f"take the {self.wanted}",
            "actions": actions,
        }


gymnasium.register("Shelf-v0", entry_point=Shelf)  # type: ignore[arg-type]
