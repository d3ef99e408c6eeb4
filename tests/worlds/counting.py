"""A fourth kind of world, as somebody else would write it: count up or down to a number. And who learns it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.algorithms import Algorithm, Rollout
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.envs.spec import WorldSpec
from groundling.fields import Ge
from groundling.policies import Policy
from groundling.policies.policy import Action, Evaluation, policies
from groundling.worlds import World, worlds
from groundling.worlds.collector import Collector
from groundling.worlds.config import EvaluationConfig, WorldConfig
from groundling.worlds.episode import HeldOutEpisode, Played
from groundling.worlds.showing import Moment, ReportTable

_LONGEST = 6


@dataclass
class CountingConfig(WorldConfig):
    """Where it is counted."""

    PLACE: ClassVar[str] = "target"

    id: str = "counting"
    target: Annotated[int, Ge(1)] = 2
    """The number to be reached."""
    num_envs: Annotated[int, Ge(1)] = 4
    num_steps: Annotated[int, Ge(1)] = 8


@dataclass
class CountingEvaluation(EvaluationConfig):
    """Held-out countings."""


@dataclass
class Counted:
    """A counting that has ended."""

    episode_return: float
    length: int
    success: bool
    figures: Mapping[str, float]


class Counter:
    """Begins at a number that its seed says; 1 counts up, 0 down."""

    def __init__(self, target: int, seed: int) -> None:
        self.target, self.number, self.steps = target, seed % 3 - 1, 0

    def step(self, action: int) -> Counted | None:
        self.number, self.steps = self.number + (1 if action else -1), self.steps + 1
        if self.number != self.target and self.steps < _LONGEST:
            return None
        success = self.number == self.target
        return Counted(float(success), self.steps, success, {"last_number": float(self.number)})


@policies.register("counting_policy")
class CountingPolicy(Policy):
    """Two weights for what to do, and one for what it is worth."""

    needs = frozenset({"number"})  # type: ignore[arg-type]

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.value = nn.Linear(1, 2), nn.Linear(1, 1)

    def _see(self, observations: Sequence[int]) -> tuple[Tensor, Tensor]:
        seen = torch.tensor(observations, dtype=torch.float32)[:, None]
        return self.choice(seen).log_softmax(-1), self.value(seen)[:, 0]

    @torch.no_grad()
    def act(self, observations: Sequence[int], **options: Any) -> Action:
        options.pop("memory", None)
        deterministic, generator = options.get("deterministic", False), options.get("generator")
        return Action.choose(*self._see(observations), deterministic=deterministic, generator=generator)

    def evaluate(self, observations: Sequence[int], actions: Tensor) -> Evaluation:
        log_probs, values = self._see(observations)
        return Evaluation.of(log_probs, actions, values)

    @torch.no_grad()
    def values(self, observations: Sequence[int], memory: Tensor | None = None) -> Tensor:
        return self._see(observations)[1]

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "counting.safetensors")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(load_file(folder / "counting.safetensors"))


class CountingCollector(Collector):
    """Steps counters by whoever learns."""

    def __init__(self, config: CountingConfig, seed: int, rows: slice) -> None:
        self._config, self._seed, self._rows = config, seed, range(rows.start, rows.stop)
        self._begun = [0] * len(self._rows)
        self._counters = [self._next(place) for place in range(len(self._rows))]

    def _next(self, place: int) -> Counter:
        seed = training_seed(self._seed, self._rows[place], self._begun[place])
        self._begun[place] += 1
        return Counter(self._config.target, seed)

    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, Sequence[Counted]]:
        observations, steps, ended = [], [], []
        for _ in range(self._config.num_steps):
            seen = [counter.number for counter in self._counters]
            action = policy.act(seen, generator=generator)
            outcomes = [c.step(a) for c, a in zip(self._counters, action.actions.tolist(), strict=True)]
            ended += [one for one in outcomes if one is not None]
            rewards = torch.tensor([0.0 if one is None else one.episode_return for one in outcomes])
            dones = torch.tensor([one is not None for one in outcomes])
            observations += seen
            steps.append((action.actions, action.log_probs, action.values, rewards, dones))
            for place, one in enumerate(outcomes):
                if one is not None:
                    self._counters[place] = self._next(place)
            on_step(len(seen))
        last = [counter.number for counter in self._counters]
        columns = [torch.stack(column) for column in zip(*steps, strict=True)]
        return Rollout(observations, *columns, policy.values(last), last), ended

    def state_dict(self) -> list[dict[str, Any]]:
        counters = zip(self._begun, self._counters, strict=True)
        return [{"begun": begun, "number": c.number, "steps": c.steps} for begun, c in counters]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._begun = [state["begun"] for state in states]
        for counter, state in zip(self._counters, states, strict=True):
            counter.number, counter.steps = state["number"], state["steps"]


@worlds.register("counting")
class CountingWorld(World[CountingConfig, CountingEvaluation]):
    """Counting to a number."""

    config_class = CountingConfig
    evaluation_class = CountingEvaluation
    offers = WorldSpec("counting", frozenset({"number"}), "choice", 2, evidence=frozenset({"env"}))  # type: ignore[arg-type]
    unit = "counts"
    episodes = "countings"
    suites: ClassVar[Mapping[str, str]] = {"far": "numbers as they come"}
    learning_figures = ("last_number",)
    baselines: ClassVar[Mapping[str, str]] = {"upwards": "counts up"}

    @classmethod
    def has(cls, place: str) -> bool:
        return place.isdigit()

    @property
    def spec(self) -> WorldSpec:
        return self.offers

    @property
    def settings(self) -> dict[str, Any]:
        return {"target": self.config.target}

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        return CountingCollector(self.config, self.seed, rows)

    def _episode(self, policy: Policy | None, number: int) -> Iterator[Moment | Counted]:
        counter, ended = Counter(self.config.target, held_out_seed(number)), None
        while ended is None:
            action = 1 if policy is None else policy.act([counter.number], deterministic=True).actions.item()
            yield Moment([f"at {counter.number}"], action=("down", "up")[int(action)])
            ended = counter.step(int(action))
        yield ended

    def play(
        self,
        agent: str,
        policy: Policy | None,
        suite: str,
        num_episodes: int,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Played:
        self.check_agent(agent, policy)
        episodes = []
        for number in range(num_episodes):
            *_, ended = self._episode(policy, number)
            assert isinstance(ended, Counted)
            figures = {"success": float(ended.success), "length": float(ended.length)}
            episodes.append(HeldOutEpisode(number, figures, {"seed": held_out_seed(number)}, None))
            on_episode()
        return Played(episodes)

    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        self.check_agent(agent, policy)
        yield from (moment for moment in self._episode(policy, number) if isinstance(moment, Moment))

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        return [ReportTable("Numbers", [[("target", 1)]], [[str(self.config.target)]], "Counted.", "far")]
