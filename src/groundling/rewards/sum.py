"""A run's reward: the sum of its parts, each times its coefficient."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from groundling.envs.spec import Evidence, WorldSpec
from groundling.errors import ConfigError, ForeignError, GroundlingError, RunError, foreign
from groundling.rewards.part import Part, RewardPartConfig, Surroundings, check_name, parts, refusal
from groundling.rewards.stretch import Stretch

FOLDER = "rewards"
"""Where a checkpoint holds what the parts remember, each in a folder of its name."""


@dataclass(frozen=True)
class Rewarded:
    """What a stretch of steps is worth; tensors float32 ``(num_steps, num_envs)``, on the CPU."""

    total: Tensor
    by_part: Mapping[str, Tensor]
    """By the parts' names, each without its coefficient."""


class RewardSum:
    """Σ coefficient · part, in the order in which they are given.

    Args:
        parts: By name.
        coefficients: Of each; 1 where nothing is said.

    Attributes:
        parts: By name.
    """

    def __init__(self, parts: Mapping[str, Part], coefficients: Mapping[str, float] | None = None) -> None:
        self.parts = dict(parts)
        self._coefficients = {**dict.fromkeys(parts, 1.0), **(coefficients or {})}

    def __call__(self, stretch: Stretch) -> Rewarded:
        """Reward a stretch of steps.

        Raises:
            GroundlingError: a part cannot be had.
            RunError: a part gives something else than a finite reward for each step of each env.
        """
        by_part = {}
        for name, part in self.parts.items():
            with naming(name), foreign("it"):
                by_part[name] = _checked(part.rewards(stretch), stretch.shape)
        first, *others = (self._coefficients[name] * rewards for name, rewards in by_part.items())
        total: Tensor = first
        for other in others:
            total = total + other
        return Rewarded(total, by_part)

    @property
    def needs(self) -> frozenset[Evidence]:
        """What any of the parts looks at."""
        return frozenset[Evidence]().union(*(part.needs for part in self.parts.values()))

    @property
    def per_token(self) -> bool:
        """Whether any of the parts looks at every token of a written text."""
        return any(part.per_token for part in self.parts.values())

    @property
    def needs_model(self) -> list[str]:
        """The names of the parts that read the language model under training."""
        return [name for name, part in self.parts.items() if part.needs_model]

    def check(self) -> None:
        """Raise `GroundlingError` if a library, a model or a file is missing; cheap, and loads no model."""
        for name, part in self.parts.items():
            with naming(name):
                part.check()

    def begin(self, run: Surroundings) -> None:
        """Load what the parts need.

        Raises:
            GroundlingError: one cannot be had; the message names the part.
        """
        for name, part in self.parts.items():
            with naming(name), foreign("it"):
                part.begin(run)

    def figures(self) -> dict[str, int]:
        """What is to be watched of the parts beside their rewards; of several parts in sum."""
        counts: Counter[str] = Counter()
        for part in self.parts.values():
            counts.update(part.figures())
        return dict(counts)

    def forget(self) -> None:
        """Reward from here on as if nothing had been rewarded before."""
        for part in self.parts.values():
            part.forget()

    def save(self, checkpoint: Path) -> None:
        """Write into a checkpoint what later rewards depend on."""
        for name, part in self.parts.items():
            folder = checkpoint / FOLDER / name
            folder.mkdir(parents=True)
            part.save(folder)
            if not any(folder.iterdir()):
                folder.rmdir()

    def load(self, checkpoint: Path) -> None:
        """Take up what `save` wrote.

        Raises:
            ConfigError: a part is no longer what it was.
        """
        for name, part in self.parts.items():
            if (checkpoint / FOLDER / name).is_dir():
                part.load(checkpoint / FOLDER / name)

    def close(self) -> None:
        """Let go of threads and processes."""
        for part in self.parts.values():
            part.close()


def chosen_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> dict[str, RewardPartConfig]:
    """The parts that a run has, by name.

    Where the world pays, its reward is one of them unless ``env`` is null; a part that is null is left out.
    """
    usual = {"env": RewardPartConfig()} if "env" in world.evidence else {}
    return {name: part for name, part in {**usual, **settings}.items() if part is not None}


def check_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> None:
    """Check, before anything is made, that the parts suit the world.

    Raises:
        ConfigError: there is no such part, or one looks at what the world does not have.
    """
    for name, part in chosen_parts(settings, world).items():
        check_name(name)
        if not math.isfinite(part.coefficient):
            raise ConfigError(f"reward.{name}.coefficient must be a finite number, got {part.coefficient}")
        needs: frozenset[Evidence] = getattr(parts.get(part.id or name), "needs", frozenset())
        _check_suits(name, world, refusal(needs, world.evidence))


def make_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> RewardSum:
    """The parts' sum, checked and with nothing loaded: call `RewardSum.begin` before it rewards.

    Args:
        settings: By name; null leaves a part out.
        world: Where they are to reward.

    Raises:
        ConfigError: there is none, no such part or argument, or one does not suit the world.
        GroundlingError: what one needs is missing.
    """
    check_parts(settings, world)
    made: dict[str, Part] = {}
    chosen = chosen_parts(settings, world)
    if not chosen:
        raise ConfigError(
            f"nothing says what is rewarded in {world.name}: add a part, reward.ID={{}} with one of `groundling list "
            "rewards`"
        )
    for name, part in chosen.items():
        with naming(name):
            made[name] = parts.create(part.id or name, **part.args)
        _check_suits(name, world, made[name].accepts(world))
    reward = RewardSum(made, {name: part.coefficient for name, part in chosen.items()})
    reward.check()
    return reward


def _checked(rewards: object, shape: tuple[int, int]) -> Tensor:
    """What a part gave, float32 ``shape``; raise `RunError` where it is not that, or not finite."""
    if not isinstance(rewards, Tensor) or tuple(rewards.shape) != shape:
        given = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise RunError(f"it must give a tensor of shape {shape}, a reward for each step of each env, and gave {given}")
    broken = (~rewards.isfinite()).nonzero()
    if len(broken):
        step, env = broken[0].tolist()
        raise RunError(
            f"it gave {rewards[step, env].item()} for step {step} of env {env}: rewards must be finite numbers"
        )
    return rewards.detach().float()


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let errors say which part of the reward they are of."""
    try:
        yield
    except GroundlingError as error:
        cause = error.__cause__ if isinstance(error, ForeignError) else error
        raise type(error)(f"reward.{name}: {error}") from cause


def _check_suits(name: str, world: WorldSpec, reason: str | None) -> None:
    """Raise `ConfigError` if there is a reason why the part cannot reward."""
    if reason is not None:
        raise ConfigError(f"reward.{name} does not suit {world.name}: {reason}; take it out with ~reward.{name}")
