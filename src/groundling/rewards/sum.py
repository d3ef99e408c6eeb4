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
    """The env's reward, clip(scale · r, ±clip). GLAM: scale 20, no clip; Motif: scale 0.1, clip 10."""

    needs = frozenset({"env"})

    scale: float = 1.0
    """Factor on the env's reward, before clipping."""
    clip: Annotated[float | None, Gt(0)] = None
    """Greatest absolute value of the scaled reward; null: no limit."""

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.env is not None
        scaled = self.scale * inputs.env
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)


@parts.register("count")
@dataclass(kw_only=True)
class CountBonus(Part):
    """1 / n^exponent at the n-th occurrence of a caption in its episode.
    MBIE-EB's count bonus (Strehl and Littman 2008; exponent 1/2), but for captions and within episodes.
    """

    needs = frozenset({"counts"})

    exponent: Annotated[float, Gt(0)] = 0.5
    """Rate at which the bonus falls with repetition; usually 0.5 to 3."""

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.captions is not None
        return inputs.spread(inputs.captions, inputs.captions.counts**-self.exponent)


FOLDER = "rewards"  # Folder of a checkpoint, with a folder for each part that has a state


@dataclass(frozen=True)
class Rewarded:
    """Rewards of steps; tensors float32 ``(num_steps, num_envs)``, on the CPU."""

    total: Tensor
    by_part: Mapping[str, Tensor]  # By the parts' names, without coefficients


@dataclass(eq=False)
class RewardSum:
    """Σ coefficient · part, both by the parts' names; the default coefficient is 1."""

    parts: Mapping[str, Part]
    coefficients: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, inputs: RewardInputs) -> Rewarded:
        """Reward steps; raise `GroundlingError` unless each part returns a finite reward for each step of each env."""
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

    @property
    def needs_model(self) -> list[str]:
        """Names of the parts that use the language model under training."""
        return [name for name, part in self.parts.items() if part.needs_model]

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
    """Parts of a run by name: those of the config that are not null, and by default the world's reward ``env``."""
    usual = {"env": RewardPartConfig()} if "env" in world.evidence else {}
    return {name: part for name, part in {**usual, **settings}.items() if part is not None}


def check_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> None:
    """Raise `ConfigError`, before anything is made, if a part is unknown or does not suit the world."""
    for name, part in chosen_parts(settings, world).items():
        needs: frozenset[Evidence] = getattr(parts.get(part.id or name), "needs", frozenset())
        _check_suits(name, world, refusal(needs, world.evidence))


def make_parts(settings: Mapping[str, RewardPartConfig | None], world: WorldSpec) -> RewardSum:
    """Make and check the parts of a run's reward, and load nothing: call `RewardSum.begin` before rewarding."""
    made: dict[str, Part] = {}
    chosen = chosen_parts(settings, world)
    if not chosen:
        raise ConfigError(f"nothing is rewarded in {world.name}: add reward.ID={{}}, one of `groundling list rewards`")
    for name, config in chosen.items():
        check_name(name)
        with naming(name):
            made[name] = create_part(config.id or name, config.args)
        _check_suits(name, world, made[name].accepts(world))
    for name, part in made.items():
        with naming(name):
            part.check()
    return RewardSum(made, {name: config.coefficient for name, config in chosen.items()})


def create_part(id: str, args: Mapping[str, Any]) -> Part:
    """Make the part ``id``; a reward of texts becomes a `TextPart`.
    If it takes the language model under training, and ``args`` name no other, it is made in `Part.begin`.
    """
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


def _check_suits(name: str, world: WorldSpec, reason: str | None) -> None:
    if reason is not None:
        raise ConfigError(f"reward.{name} does not suit {world.name}: {reason}; take it out with ~reward.{name}")
