"""The reward of a run: Σ coefficient · part."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from groundling.envs.text_env import Evidence, WorldSpec
from groundling.errors import ConfigError, ForeignError, GroundlingError, foreign
from groundling.fields import Gt
from groundling.metrics.metric import checked
from groundling.registry import provided
from groundling.rewards.part import Part, RewardContext, RewardInputs, RewardPartConfig, check_name, parts, refusal
from groundling.rewards.text import TextPart, rewards


@parts.register("env")
@dataclass(kw_only=True)
class EnvPart(Part):
    """The env's reward, clip(scale · r, ±clip). GLAM uses scale 20 and no clip; Motif uses scale 0.1 and clip 10."""

    needs = frozenset({"env"})

    scale: float = 1.0
    """Factor applied to the env's reward before clipping."""
    clip: Annotated[float | None, Gt(0)] = None
    """Maximum absolute value of the scaled reward. If null, the reward is not clipped."""

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.env is not None
        scaled = self.scale * inputs.env
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)


@parts.register("count")
@dataclass(kw_only=True)
class CountBonus(Part):
    """1 / n^exponent at the n-th occurrence of a caption in its episode.
    This is MBIE-EB's count bonus (Strehl and Littman 2008; exponent 1/2), but for captions and within episodes.
    """

    needs = frozenset({"counts"})

    exponent: Annotated[float, Gt(0)] = 0.5
    """Rate at which the bonus decays with repetition; usually 0.5 to 3."""

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.captions is not None
        return inputs.spread(inputs.captions, inputs.captions.counts**-self.exponent)


FOLDER = "rewards"  # Subfolder of a checkpoint, with a folder for each stateful part


@dataclass(frozen=True)
class Rewarded:
    """Rewards of steps; tensors are float32 ``(num_steps, num_envs)``, on the CPU."""

    total: Tensor
    by_part: Mapping[str, Tensor]  # By part name, without coefficients


@dataclass(eq=False)
class RewardSum:
    """The sum Σ coefficient · part. Both mappings are keyed by part name; a missing coefficient is 1."""

    parts: Mapping[str, Part]
    coefficients: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, inputs: RewardInputs) -> Rewarded:
        """Compute rewards; raise `GroundlingError` unless each part returns a finite one for each step of each env."""
        by_part = {}
        for name, part in self.parts.items():
            with naming(name), foreign("it"):
                by_part[name] = checked("it", part.rewards(inputs), inputs.shape)
        weighted = (self.coefficients.get(name, 1.0) * rewards for name, rewards in by_part.items())
        return Rewarded(functools.reduce(Tensor.add, weighted), by_part)

    @property
    def needs(self) -> frozenset[Evidence]:
        return frozenset[Evidence]().union(*(part.needs for part in self.parts.values()))

    @property
    def per_token(self) -> bool:
        return any(part.per_token for part in self.parts.values())

    def begin(self, context: RewardContext) -> None:
        for name, part in self.parts.items():
            with naming(name), foreign("it"):
                part.begin(context)

    def figures(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for part in self.parts.values():
            counts.update(part.figures())
        return dict(counts)

    def forget(self) -> None:
        for part in self.parts.values():
            part.forget()

    def save(self, checkpoint: Path) -> None:
        for name, part in self.parts.items():
            folder = checkpoint / FOLDER / name
            folder.mkdir(parents=True)
            part.save(folder)
            if not any(folder.iterdir()):
                folder.rmdir()

    def load(self, checkpoint: Path) -> None:
        for name, part in self.parts.items():
            if (checkpoint / FOLDER / name).is_dir():
                part.load(checkpoint / FOLDER / name)

    def close(self) -> None:
        for part in self.parts.values():
            part.close()


def chosen_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> dict[str, RewardPartConfig]:
    """Return a run's parts by name: the non-null parts of the config and, by default, the world's ``env`` reward."""
    usual = {"env": RewardPartConfig()} if "env" in world.evidence else {}
    return {name: part for name, part in {**usual, **settings}.items() if part is not None}


def check_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> None:
    """Raise `ConfigError`, before anything is created, if a part is unknown or incompatible with the world."""
    for name, part in chosen_parts(settings, world).items():
        needs: frozenset[Evidence] = getattr(parts.get(part.id or name), "needs", frozenset())
        if (reason := refusal(needs, world.evidence)) is not None:
            raise _unsuited(name, world, reason)


def make_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> RewardSum:
    """Create and check the parts of a run's reward without loading anything; `RewardSum.begin` does the loading."""
    made: dict[str, Part] = {}
    chosen = chosen_parts(settings, world)
    if not chosen:
        raise ConfigError(
            f"{world.name} has no reward: add reward.ID={{}}, with an ID from `groundling list rewards`, or your own "
            "function with --reward FILE.py:FUNCTION"
        )
    for name, config in chosen.items():
        check_name(name)
        with naming(name):
            made[name] = create_part(config.id or name, config.args)
        if (reason := made[name].accepts(world)) is not None:
            raise _unsuited(name, world, reason)
    for name, part in made.items():
        with naming(name):
            part.check()
    return RewardSum(made, {name: config.coefficient for name, config in chosen.items()})


def create_part(id: str, args: Mapping[str, Any]) -> Part:
    """Create the part ``id``. A text reward is wrapped in a `TextPart`, which creates it later if it needs the model."""
    if id in parts.in_order():
        part: Part = parts.create(id, **args)
        return part
    takes_model = [name for name, one in provided(rewards.get(id)).items() if one.role == "lm"]
    if takes_model and args.get(takes_model[0]) is None:
        return TextPart(lambda lm: rewards.create(id, **{**args, takes_model[0]: lm}))
    return TextPart(rewards.create(id, **args))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix errors with the name of the part."""
    try:
        yield
    except GroundlingError as error:
        cause = error.__cause__ if isinstance(error, ForeignError) else error
        raise type(error)(f"reward.{name}: {error}") from cause


def _unsuited(name: str, world: WorldSpec, reason: str) -> ConfigError:
    return ConfigError(f"reward.{name} is incompatible with {world.name}: {reason}; remove it with ~reward.{name}")
