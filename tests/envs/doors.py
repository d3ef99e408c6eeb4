"""Text envs whose admissible actions change, and which can crash on request; workers import them quickly."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.seeds import training_seed


class Doors(gymnasium.Env[str, Any]):
    """One to five doors at each step, described in a text; open the goal's colour. `trouble` occurs at step 3.

    Args:
        trouble: raise, die, segfault, hang, or lie (about its reward).
        times: An existing file; the trouble occurs only as many times as the file has characters left.
        discrete: The number of actions, if they are numbers.
    """

    observation_space = gymnasium.spaces.Text(1000)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Text(50)
    colors = ("red", "green", "blue", "grey", "pink")

    def __init__(self, trouble: str = "", times: str = "", discrete: int = 0) -> None:
        self.trouble, self.times = trouble, times
        if discrete:
            self.action_space = gymnasium.spaces.Discrete(discrete)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.wanted, self.steps = str(self.np_random.choice(self.colors)), 0
        return self._look()

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 3 and self.trouble and self._strikes():
            if self.trouble == "raise":
                raise ValueError("no such door")
            if self.trouble in ("die", "segfault"):
                os.kill(os.getpid(), signal.SIGKILL if self.trouble == "die" else signal.SIGSEGV)
            if self.trouble == "lie":
                observation, info = self._look()
                return observation, "much", False, False, info  # type: ignore[return-value]
            time.sleep(60)
        name = action if isinstance(action, str) else self.actions[action]
        success = name == f"open {self.wanted}"
        observation, info = self._look()
        return observation, float(success), success, self.steps >= 8, info

    def _look(self) -> tuple[str, dict[str, Any]]:
        doors = self.np_random.permutation(self.colors)[: int(self.np_random.integers(1, 6))].tolist()
        self.actions = [f"open {color}" for color in doors]
        return "You see doors.\n\n" + "\n".join(doors), {"goal": f"open {self.wanted}", "actions": self.actions}

    def _strikes(self) -> bool:
        if not self.times:
            return True
        path = Path(self.times)
        left = len(path.read_text())
        path.write_text("x" * (left - 1) if left else "")
        return left > 0


gymnasium.register("test/Doors-v0", entry_point=Doors)


class Forgetful(Doors):
    """Shows lists that do not depend on its seed."""

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        return observation, info | {"actions": [f"{a} {time.time_ns()}" for a in info["actions"]]}


class Endless(Doors):
    """Never ends."""

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step("")
        return observation, 0.0, False, False, info


class Hasty(Doors):
    """Ends the first ``at_once`` training episodes of seed 0 at their first step, and others at their second."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self.short = {training_seed(0, 0, number) for number in range(at_once)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.last = 1 if seed in self.short else 2
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.steps >= self.last, False, info


class Wandering(Doors):
    """Replaces its mission by a different one in the instance ``which``, after the first step."""

    instances = 0

    def __init__(self, which: int) -> None:
        super().__init__()
        Wandering.instances += 1
        self.wanders = Wandering.instances == which

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.wanders:
            self.wanted = "black"
        return super().step(action)


class Unseeded(Doors):
    """Samples one ``part`` of its observations without using its seed."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        if self.part == "order":
            self.actions = [f"open {color}" for color in self.colors]
            random.shuffle(self.actions)
        if self.part == "number":
            self.actions = [f"take {number}" for number in range(random.randint(1, 30))]
        if self.part == "text":
            observation = f"You see {random.random()}."
        return observation, info | {"actions": self.actions}


class Shared(Unseeded):
    """Seeds the module ``random`` at each reset, like TextArena, and samples from it at each step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        return super().reset(seed=seed)


class Counted(Doors):
    """Plays its games in turn, whatever the seed."""

    game = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.game += 1
        return super().reset(seed=self.game)


class Hashed(Doors):
    """Lists its actions in the order of a set, which is fixed within a process and differs between processes."""

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        self.actions = list({f"open the {color} door {number}" for color in self.colors for number in range(8)})
        return observation, info | {"actions": self.actions}


class Games(Doors):
    """One of ``count`` games or, with ``by_range``, one of eight, which the seed's highest bits select."""

    def __init__(self, count: int = 8, by_range: bool = False, identity: str = "int") -> None:
        super().__init__()
        self.count, self.by_range, self.identity = count, by_range, identity

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        game = seed >> 28 if self.by_range else seed % self.count
        _, info = super().reset(seed=game)
        if self.identity == "shown":
            return f"This is game {game}.", info | {"goal": "open a door"}
        identity = np.int64(game) if self.identity == "numpy" else game
        return "A game.", info | {"goal": "open a door", "task_id": identity}


class Careless(Doors):
    """Shows texts that models cannot read well."""

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, _ = super()._look()
        self.actions = ["", "open\nred", "open blue"]
        return observation, {"goal": " ", "actions": self.actions}


class Many(Doors):
    """Has so many actions that a model cannot read all of its lists."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        self.actions = [f"open {number}" for number in range(self.num_actions)]
        return observation, info | {"actions": self.actions}


class Broken(Doors):
    """Raises an error other than ours, or exits, in one of its methods."""

    def __init__(self, method: str, error: str = "KeyError") -> None:
        super().__init__()
        self.method, self.error = method, {"KeyError": KeyError, "SystemExit": SystemExit}[error]
        self._break("init")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self._break("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._break("step")
        return super().step(action)

    def close(self) -> None:
        self._break("close")

    def _break(self, method: str) -> None:
        if method == self.method:
            raise self.error(0)


class Long(Doors):
    """Shows several doors with long descriptions, and one short action."""

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        self.actions = [*(f"{action} door with the small key in your left hand" for action in info["actions"]), "wait"]
        return observation, info | {"actions": self.actions}


class Free(Doors):
    """Accepts any text, and does not list actions."""

    def _look(self) -> tuple[str, dict[str, Any]]:
        observation, info = super()._look()
        return observation, {"goal": info["goal"]}


gymnasium.register("test/Games-v0", entry_point=Games)
gymnasium.register("test/Free-v0", entry_point=Free)
gymnasium.register("test/Hasty-v0", entry_point=Hasty)
gymnasium.register("test/Wandering-v0", entry_point=Wandering)
gymnasium.register("test/Forgetful-v0", entry_point=Forgetful)
gymnasium.register("test/Endless-v0", entry_point=Endless)
gymnasium.register("test/Shared-v0", entry_point=Shared)
gymnasium.register("test/Counted-v0", entry_point=Counted)


class Ends(gymnasium.Env[dict[str, Any], int]):
    """Succeeds at its first step; from the second episode on, the process ends there."""

    observation_space = gymnasium.spaces.Dict({"mission": gymnasium.spaces.Text(32)})
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.dies = seed is not None and seed > 100
        return {"mission": "go left"}, {"descriptions": ["You see a wall"]}

    def step(self, action: int) -> Any:
        if self.dies:
            os._exit(3)
        return {"mission": "go left"}, 1.0, True, False, {"descriptions": ["You see a wall"], "success": True}
