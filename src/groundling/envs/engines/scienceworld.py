"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540), an engine written in Java, as a text env."""

from typing import Any

import gymnasium

from groundling.envs.engines.java import start_java, stop_java
from groundling.envs.seeds import is_held_out
from groundling.errors import ConfigError, importing, unknown

_SAME_ORDER = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""JVM options that make all hash codes equal. By default, hash codes, and thus the order of objects, are random."""


class ScienceWorld(gymnasium.Env[str, str]):
    """One of the engine's 30 tasks, such as find-plant or melt. Each variation of a task is a game.

    An observation consists of the result of the last action, the room and the inventory. ``info["actions"]`` lists the
    valid actions, often several hundred, in alphabetical order. The reward is the increase in the task's score, which
    is between 0 and 1; a failed task has score 0. An episode is truncated after ``max_steps``.

    Args:
        task: Name of the task.
        simplifications: Comma-separated names, such as ``teleportAction,openDoors``; ``easy`` for all of them.
        max_steps: Maximum number of steps in an episode.
        fold: The engine's set of variations to use: ``train``, ``dev`` or ``test``. If None, held-out episodes use
            test, and other episodes use train.

    Raises:
        ConfigError: The package or Java is missing, or the task, a simplification or the fold does not exist.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(
        self, task: str = "find-plant", simplifications: str = "easy", max_steps: int = 100, fold: str | None = None
    ) -> None:
        with importing("ScienceWorld", "scienceworld"):
            from scienceworld.constants import ID2TASK, JAR_PATH
        if task not in (tasks := sorted(ID2TASK.values())):
            raise ConfigError(unknown("ScienceWorld task", task, tasks))
        if fold not in (None, "train", "dev", "test"):
            raise ConfigError(f"fold must be train, dev, test or null, got {fold!r}")
        self._java = start_java("ScienceWorld", JAR_PATH, *_SAME_ORDER)  # engines in one JVM share object names
        self._engine = self._java.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        allowed = ["easy", *self._engine.getPossibleSimplifications().split(", ")]
        for name in filter(None, simplifications.split(",")):
            if name not in allowed:
                self.close()
                raise ConfigError(unknown("ScienceWorld simplification", name, allowed))
        self._task, self._simplifications, self.max_steps = task, simplifications, max_steps
        self._engine.load(task, 0, simplifications, False)
        names = [(fold or split).title() for split in ("train", "test")]
        self._variations = [list(getattr(self._engine, f"getVariations{name}")()) for name in names]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        variations = self._variations[is_held_out(seed)]
        self._variation = variations[seed % len(variations)]
        self._engine.load(self._task, self._variation, self._simplifications, False)
        self._engine.reset()
        self._steps, self._score = 0, 0.0
        return self._observe(self._engine.step("look around"))

    def close(self) -> None:
        stop_java(self._java)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = self._engine.step(action)
        self._steps += 1
        score = self._engine.getScore()
        gained, self._score = max(score, 0.0) - self._score, max(score, 0.0)
        terminated = bool(self._engine.getCompleted()) or score < 0
        observation, info = self._observe(result)
        info["success"] = score >= 1
        return observation, gained, terminated, not terminated and self._steps >= self.max_steps, info

    def _observe(self, result: str) -> tuple[str, dict[str, Any]]:
        parts = [self._engine.freeActionLook(), self._engine.freeActionInventory()]
        if result.strip() not in [part.strip() for part in parts]:
            parts.insert(0, result)
        goal = self._engine.freeActionTaskDesc().removeprefix("Task Description:")
        lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
        return "\n".join(lines), {
            "goal": " ".join(goal.split()),
            "descriptions": lines,
            "actions": sorted(set(self._engine.getValidActionObjectCombinations())),
            "task": self._task,
            "variation": self._variation,
        }
