"""Facts about settings, declared at the field of a section or at the argument of a component.

A section of the config is a pydantic model and declares them at its fields. A component declares them in the signature
of its constructor, or at the fields of a dataclass; its id's arguments are checked by them before it is built::

    class NetHackConfig(WorldConfig):
        num_envs: Annotated[int, Ge(1)] = 32
        num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0

    @judges.register("openai")
    class OpenAIJudge(Judge):
        def __init__(self, model: str, base_url: Annotated[str, CommandLineOnly, Private] = URL) -> None: ...

    @policies.register("mine")
    class MyPolicy(Policy):
        def __init__(self, lm: Annotated[LanguageModel, Provided("lm")], size: Annotated[int, Ge(1)] = 64) -> None: ...

    @algorithms.register("ppo")
    @dataclass(kw_only=True)
    class PPO(OnPolicy):
        clip_range: Annotated[float, Gt(0)] = 0.2

Resuming, trust, publishing and evaluation read the facts; a key's name stands nowhere but at its declaration.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from annotated_types import Ge, Gt, Le, Lt

__all__ = [
    "CommandLineOnly",
    "Fact",
    "FixedByTraining",
    "Ge",
    "Gt",
    "Le",
    "Lt",
    "MayChangeOnResume",
    "NoEffectOnResults",
    "Private",
    "Provided",
    "ReadByModel",
    "TrainingOnly",
]


@dataclass(frozen=True)
class Fact:
    """A property of a setting, as metadata of `typing.Annotated`."""

    name: str
    entries: tuple[str, ...] | None = None
    """Entries of a mapping that it holds of, such as arguments of another library; None: of the whole value."""
    condition: Callable[[Any], bool] | None = None
    """Values that it holds of; None: of all."""

    def of(self, *entries: str) -> "Fact":
        """Restrict it to entries of a mapping: ``lora: Annotated[dict[str, Any], CommandLineOnly.of("megatron")]``."""
        return replace(self, entries=entries)

    def when(self, condition: Callable[[Any], bool]) -> "Fact":
        """Restrict it to values: ``attention: Annotated[str, CommandLineOnly.when(is_kernel_of_hub)]``."""
        return replace(self, condition=condition)


MayChangeOnResume = Fact("MayChangeOnResume")
"""A run may be resumed with another value."""
NoEffectOnResults = Fact("NoEffectOnResults")
"""Runs and evaluations that differ in it alone agree up to rounding and chance. It may change on resume, too."""
CommandLineOnly = Fact("CommandLineOnly")
"""No file may set it, only the present command line or call: it runs code, names a server or a key, or writes files.
None, False and 0 turn such a setting off and are free."""
Private = Fact("Private")
"""Left out of everything that is shared: reports, published policies, results of studies."""
ReadByModel = Fact("ReadByModel")
"""Text that a model reads or writes: shared unchanged, since another wording would be another agent."""
TrainingOnly = Fact("TrainingOnly")
"""Without use for an agent that only plays: what a file sets is then ignored where it would be refused."""
FixedByTraining = Fact("FixedByTraining")
"""Decided the weights of a checkpoint: no evaluation of it can change it."""


@dataclass(frozen=True)
class Provided:
    """An argument that the run gives to a component, as metadata of `typing.Annotated`; never matched by its name.

    Roles of a policy's arguments: ``lm`` (the model of ``model.path``), ``reference`` (the model as training began,
    where the algorithm penalises the distance from it), ``value_base`` (the same, for an adapter of the values),
    ``num_actions``, ``language`` and ``critic``. A reward's or a metric's: ``lm`` (the model under training).
    """

    role: str
    settable: bool = False
    """A config may set the argument itself, which takes precedence."""
