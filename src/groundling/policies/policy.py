"""What a policy is: it acts, and it evaluates stored actions with gradients."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from groundling.envs.spec import Offer, WorldSpec
from groundling.errors import ConfigError
from groundling.policies.turns import Turn, TurnTokens
from groundling.registry import Registry


@dataclass(frozen=True, slots=True)
class Action:
    """Actions chosen for a batch of observations, without gradients; all ``(batch,)``."""

    actions: Tensor
    """int64."""
    log_probs: Tensor
    """float32; log-probability of the action under the policy that chose it."""
    values: Tensor
    """float32; the value function's estimate of the return."""
    memory: Tensor | None = None
    """``(batch, size)`` float32: what a recurrent policy takes along to the next step; None of others."""
    turns: Sequence[Turn] | None = None
    """What was written to come to each action, by one that writes its turns; None of others."""
    tokens: TurnTokens | None = None
    """The same token by token, ``(batch, num_tokens)``."""

    @classmethod
    def choose(
        cls,
        log_distributions: Tensor,
        values: Tensor,
        *,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
        memory: Tensor | None = None,
    ) -> "Action":
        """The likeliest actions of ``(batch, num_actions)`` log-probabilities, or such as are drawn from them, with
        torch's global generator unless another is given.
        """
        if deterministic:
            actions = log_distributions.argmax(-1)
        else:
            actions = sample_categorical(log_distributions, generator)
        log_probs = log_distributions.gather(-1, actions[:, None])[:, 0]
        return cls(actions, log_probs, values, memory)


class Outputs(NamedTuple):
    """What a policy makes of observations; float32, without gradients."""

    log_probs: Tensor
    """``(batch, num_actions)``: of every action; -inf where it cannot be taken."""
    values: Tensor
    """``(batch,)``."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Stored actions seen again by the present policy, with gradients; float32, of the actions' shape."""

    log_probs: Tensor
    entropies: Tensor
    values: Tensor
    log_distributions: Callable[[], Tensor]
    """Gives ``(*actions' shape, num_actions)``: log-probability of every action, -inf where it cannot be taken. To be
    asked for, because of texts it is large and few need it."""
    raw_log_probs: Callable[[], Tensor]
    """Gives ``log_probs`` before any filter or mask, which is what a KL to the reference is of."""

    @classmethod
    def of(cls, log_distributions: Tensor, actions: Tensor, values: Tensor) -> "Evaluation":
        """From normalised log-probabilities of every action, ``(*actions.shape, num_actions)``."""
        # An inadmissible action (-inf) has probability 0 and adds nothing, also to the gradient.
        finite = log_distributions.masked_fill(log_distributions.isinf(), 0.0)
        entropies = -(log_distributions.exp() * finite).sum(-1)
        log_probs = log_distributions.gather(-1, actions[..., None])[..., 0]
        return cls(log_probs, entropies, values, lambda: log_distributions, lambda: log_probs)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one env, which a recurrent policy evaluates together."""

    observations: Sequence[Any]
    memory: Tensor
    """``(size,)`` float32: before the first of them."""
    starts: Tensor
    """``(length,)`` bool: where an episode begins, and memory with it."""


class Work(NamedTuple):
    """What it takes to evaluate an observation."""

    tokens: int
    """How many are read."""
    key: Hashable
    """The same for observations that are better computed together: equal ones, of which only one is, and texts to
    one prompt, which is read once."""
    text: Hashable | None = None
    """The same for the steps of one conversation, which are read as one text, so that minibatches keep them together;
    None: these are drawn from all observations alike."""


class Policy(nn.Module, ABC):
    """Actor and value function together. Observations are whatever its envs give.

    A recurrent policy has a ``memory_size``; whoever steps its envs keeps the memory ``(num_envs, memory_size)``,
    which `act` takes and gives, and sets an env's row to 0 when an episode begins. `evaluate` then gets `Segment`s.
    """

    memory_size: int = 0
    recurrence: int = 1
    """Steps of a `Segment`: how far back in time gradients go."""
    needs: ClassVar[frozenset[Offer]] = frozenset()
    """What of an observation it looks at; empty: it does not say, and is let into any world."""
    trainable: ClassVar[bool] = True
    """Whether it has weights to train."""
    has_value_head: ClassVar[bool] = False
    """True if values come from a module ``value_head`` on a language model's states."""
    writes_turns: ClassVar[bool] = False
    """Whether it writes its turns: its actions have `Action.turns`, which it evaluates in the place of observations."""

    @classmethod
    def accepts(cls, world: WorldSpec) -> str | None:
        """Whether it can act in a world, asked before anything is loaded: None, or why not."""
        if missing := sorted(cls.needs - world.observation):
            return f"it looks at {', '.join(missing)}, and {world.name} shows {', '.join(sorted(world.observation))}"
        return None

    def exploration_advice(self) -> str | None:
        """Which setting lets one that takes few of its actions take others, and why; None: it has no such setting."""
        return None

    @abstractmethod
    def act(
        self,
        observations: Sequence[Any],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        """Choose an action for each observation: the likeliest, or one drawn with ``generator``."""

    @abstractmethod
    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluation:
        """Log-probability, entropy and value of ``actions`` at ``observations``.

        Args:
            observations: One for each action; of a recurrent policy one `Segment` for each row of actions.
            actions: ``(batch,)`` int64; of a recurrent policy ``(batch, recurrence)``.
        """

    @abstractmethod
    def values(self, observations: Sequence[Any], memory: Tensor | None = None) -> Tensor:
        """Value of each observation, ``(batch,)`` float32, without gradients."""

    def initial_memory(self, batch: int) -> Tensor | None:
        """The memory ``(batch, memory_size)`` at the beginning of an episode; None of a policy without one."""
        return torch.zeros(batch, self.memory_size) if self.memory_size else None

    @property
    def device(self) -> torch.device:
        """Where its tensors are: of its first weight, the CPU if it has none."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def prompts(self, observations: Sequence[Any]) -> list[str] | None:
        """What a policy that reads would read at these observations; None of others."""
        return None

    def outputs(self, observations: Sequence[Any]) -> Outputs | None:
        """What it makes of each observation; None of a policy whose choice depends on more than that."""
        return None

    def reference_log_probs(self, observations: Sequence[Any], actions: Tensor) -> Tensor | None:
        """Log-probability ``(batch,)`` float32 of ``actions`` under the reference of a KL penalty, without gradients;
        None of a policy without one.
        """
        return None

    def unchanged(self) -> AbstractContextManager[None]:
        """A time in which the weights stay as they are, so that what has been computed may be remembered."""
        return nullcontext()

    def figures(self) -> dict[str, float]:
        """What is to be logged of it after a rollout, besides what an algorithm tells."""
        return {}

    def work(self, observations: Sequence[Any]) -> Sequence[Work] | None:
        """What it takes to evaluate each observation, where that differs: what is alike is then put into one
        micro-batch. None where all take the same.
        """
        return None

    @abstractmethod
    def save_pretrained(self, folder: Path) -> None:
        """Write the weights into ``folder`` as safetensors."""

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Read what `save_pretrained` wrote, but for a language model that the policy was made with."""


policies: Registry[Policy] = Registry("policy")


def check_accepts(id: str, world: WorldSpec) -> None:
    """Check that the policy ``id`` can act in a world.

    Raises:
        ConfigError: no such policy, or it cannot; the message names those that can, and can be trained.
    """
    if (reason := _refusal(id, world)) is not None:
        trained = [name for name in policies if getattr(policies.get(name), "trainable", True)]
        suited = ", ".join(name for name in trained if _refusal(name, world) is None)
        raise ConfigError(
            f"policy {id!r} does not suit {world.name}: {reason}; set policy.id to one of {suited}"
        )


def _refusal(id: str, world: WorldSpec) -> str | None:
    accepts = getattr(policies.get(id), "accepts", None)  # a function that makes a policy does not say
    return None if accepts is None else accepts(world)


def has_model(id: str) -> bool:
    """Whether the policy ``id`` has a language model, or may have one."""
    parameters = inspect.signature(policies.get(id)).parameters
    return "lm" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def sample_categorical(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one index per row of normalised ``log_probs`` ``(batch, n)``; -inf entries are never drawn.

    One uniform number per row and the inverse of the cumulative distribution: row ``i`` depends on the
    ``i``-th number alone, so the draw is the same however the batch is spread over processes.
    """
    cumulative = log_probs.double().exp().cumsum(-1)  # (batch, n)
    uniform = torch.rand(len(log_probs), 1, dtype=torch.float64, generator=generator).to(log_probs.device)
    # Scaled by the last sum, which rounding may leave a hair away from 1.
    return (cumulative <= uniform * cumulative[:, -1:]).sum(-1).clamp_(max=log_probs.shape[-1] - 1)
