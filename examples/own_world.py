"""A custom kind of world: count up or down to a number.

All commands accept it with ``--import examples.own_world`` and an experiment with ``world: {id: counting}``. Its
observations are numbers, so it requires a policy that accepts numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from groundling.worlds import Collector, Episode, Frame, Rollout, World, WorldConfig, WorldSpec, worlds

_MOST_STEPS = 6


class CountingConfig(WorldConfig):
    """The config section ``world``."""

    PLACE: ClassVar[str] = "target"

    id: str = "counting"
    target: int = 2
    """Target number."""
    num_envs: int = 4
    num_steps: int = 8


class Counter:
    """A game that starts at -1, 0 or 1. Action 1 counts up, and action 0 counts down."""

    def __init__(self, target: int, seed: int) -> None:
        self.target, self.number, self.steps = target, seed % 3 - 1, 0

    def step(self, action: int) -> Mapping[str, float] | None:
        """Take a step; return the metrics if the episode is finished."""
        self.number, self.steps = self.number + (1 if action else -1), self.steps + 1
        if self.number != self.target and self.steps < _MOST_STEPS:
            return None
        success = float(self.number == self.target)
        return {"return": success, "length": self.steps, "success": success, "last_number": self.number}


class CountingCollector(Collector):
    """Play ``num_steps`` steps in each env of this process."""

    def __init__(self, world: "CountingWorld", rows: range) -> None:
        self._world, self._rows, self._begun = world, rows, [0] * len(rows)
        self._counters = [self._next(place) for place in range(len(rows))]

    def _next(self, place: int) -> Counter:
        seed = self._world.training_seed(self._rows[place], self._begun[place])
        self._begun[place] += 1
        return Counter(self._world.config.target, seed)

    def collect(
        self, policy: Any, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, Sequence[Episode]]:
        observations, steps, episodes = [], [], []
        for _ in range(self._world.config.num_steps):
            seen = [counter.number for counter in self._counters]
            action = policy.act(seen, generator=generator)
            ended = [c.step(a) for c, a in zip(self._counters, action.actions.tolist(), strict=True)]
            rewards = torch.tensor([figures["return"] if figures else 0.0 for figures in ended])
            dones = torch.tensor([figures is not None for figures in ended])
            observations += seen
            steps.append((action.actions, action.log_probs, action.values, rewards, dones))
            for place, figures in enumerate(ended):
                if figures is not None:
                    episodes.append(Episode(figures))
                    self._counters[place] = self._next(place)
            on_step(len(seen))
        last = [counter.number for counter in self._counters]
        columns = zip(*steps, strict=True)
        actions, log_probs, values, rewards, dones = map(torch.stack, columns)  # (num_steps, num_envs)
        rollout = Rollout(observations, actions, log_probs, values, rewards, dones, policy.values(last), last)
        return rollout, episodes

    def state_dict(self) -> list[dict[str, Any]]:
        counters = zip(self._begun, self._counters, strict=True)
        return [{"begun": begun, "number": c.number, "steps": c.steps} for begun, c in counters]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._begun = [state["begun"] for state in states]
        for counter, state in zip(self._counters, states, strict=True):
            counter.number, counter.steps = state["number"], state["steps"]


@worlds.register("counting")
class CountingWorld(World):
    """Count to a number."""

    config: CountingConfig
    offers = WorldSpec("counting", frozenset({"number"}), "choice", 2, evidence=frozenset({"env"}))
    baselines: ClassVar[Mapping[str, str]] = {"upwards": "counts up"}

    @classmethod
    def has(cls, place: str) -> bool:
        return place.isdigit()

    def collector(self, policy: Any, algorithm: Any, rows: slice) -> Collector:
        return CountingCollector(self, range(rows.start, rows.stop))

    def play(self, player: Any, num_episodes: int) -> Iterator[Episode]:
        for number in range(num_episodes):
            for _, figures in self._steps(player, number):
                if figures is not None:
                    yield Episode(figures, number, {"seed": self.held_out_seed(number)})

    def watch(self, player: Any, number: int) -> Iterator[Frame]:
        for frame, _ in self._steps(player, number):
            yield frame

    def _steps(self, player: Any, number: int) -> Iterator[tuple[Frame, Mapping[str, float] | None]]:
        self.check_player(player)
        counter, figures = Counter(self.config.target, self.held_out_seed(number)), None
        while figures is None:
            seen = [counter.number]
            action = 1 if player.policy is None else player.policy.act(seen, deterministic=True).actions.item()
            frame = Frame([f"at {counter.number}"], action=("down", "up")[action])
            figures = counter.step(action)
            yield frame, figures
