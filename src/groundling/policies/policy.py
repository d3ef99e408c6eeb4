"""The policy interface: acting, and evaluating stored actions with gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from groundling.envs.text_env import Offer, TextObservation, WorldSpec
from groundling.errors import ConfigError
from groundling.lm.language_model import Among, LanguageModel
from groundling.registry import Registry, provided


def read_into(weights: dict[str, Tensor], file: Path) -> None:
    """Copy a safetensors file's tensors into ``weights``; raise `ConfigError` if names or shapes differ."""
    saved = read_tensors(file)
    theirs, ours = ({name: tuple(one.shape) for name, one in of.items()} for of in (saved, weights))
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise ConfigError(
                f"{file} does not match this policy: {name} has shape {theirs.get(name)}, expected {ours.get(name)}; "
                "check policy.args, and that the number of actions is the same as in training"
            )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raise `ConfigError` if it is damaged or missing."""
    try:
        return load_file(file)
    except (SafetensorError, FileNotFoundError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): restore the original file") from error


@dataclass(frozen=True, slots=True)
class Turn:
    """An observation and the answer generated for it."""

    observation: TextObservation
    tokens: tuple[int, ...]
    among: tuple[Among, ...]  # the candidates for each token; a single candidate means that it was forced
    text: str = ""
    action: str | None = None  # the action, if actions are free text; None if it is chosen from a list

    @property
    def is_demonstrated(self) -> bool:
        """True for an action from a dataset that the policy has not tokenized yet."""
        return self.action is not None and not self.tokens

    @property
    def counted(self) -> list[bool]:
        """Mask of tokens to learn from: those with alternatives, and the first, where the turn's value is computed."""
        return [place == 0 or ids is None or len(ids) > 1 for place, ids in enumerate(self.among)]


@dataclass
class TurnTokens:
    """The tokens of turns as CPU tensors ``(..., num_tokens)``, padded with 0; float32 unless stated otherwise."""

    ids: Tensor  # int64
    log_probs: Tensor  # under the distribution that each token was sampled from; 0 where there was no choice
    values: Tensor  # before each token to learn from
    mask: Tensor  # bool: True for tokens to learn from (`Turn.counted`)
    invalid: Tensor  # bool (...): True if the answer specifies no admissible action
    kl: Tensor | None = None  # log π - log π_ref

    @classmethod
    def of(
        cls,
        turns: Sequence[Turn],
        log_probs: Sequence[Sequence[float]],
        values: Sequence[Sequence[float]],
        invalid: Sequence[bool],
    ) -> "TurnTokens":
        """Pad turns to ``(num_turns, num_tokens)``."""

        def padded(columns: Iterable[Sequence[Any]], dtype: torch.dtype) -> Tensor:
            return pad_sequence([torch.tensor(row, dtype=dtype) for row in columns], batch_first=True)

        return cls(
            padded((turn.tokens for turn in turns), torch.long),
            padded(log_probs, torch.float32),
            padded(values, torch.float32),
            padded((turn.counted for turn in turns), torch.bool),
            torch.tensor(invalid, dtype=torch.bool),
        )

    @classmethod
    def joined(cls, parts: Sequence["TurnTokens"], dim: int) -> "TurnTokens":
        """Concatenate along a dimension other than the token dimension, padding to the longest turn."""
        longest = max(part.ids.shape[-1] for part in parts)

        def join(name: str) -> Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            if tensors[0] is None:
                return None
            if name != "invalid":
                tensors = [F.pad(tensor, (0, longest - tensor.shape[-1])) for tensor in tensors]
            return torch.cat(tensors, dim)

        return cls(**{field.name: join(field.name) for field in fields(cls)})  # type: ignore[arg-type]

    def as_steps(self, num_steps: int) -> "TurnTokens":
        """Reshape turns, which are ordered by step, to ``(num_steps, num_envs, num_tokens)``."""
        tensors: dict[str, Any] = {
            name: None if tensor is None else tensor.unflatten(0, (num_steps, -1))
            for name, tensor in vars(self).items()
        }
        return TurnTokens(**tensors)


@dataclass(frozen=True, slots=True)
class Action:
    """Actions chosen for a batch of observations, without gradients; tensors are ``(batch,)``."""

    actions: Tensor
    """The chosen actions, int64."""
    log_probs: Tensor
    """Their log-probabilities under the policy that chose them, float32."""
    values: Tensor
    """Estimated returns, float32."""
    memory: Tensor | None = None
    """A recurrent policy's memory after this step, float32 ``(batch, memory_size)``."""
    turns: Sequence[Turn] | None = None
    """The turn generated for each action; None if the policy does not generate turns."""
    tokens: TurnTokens | None = None
    """The tokens of these turns, ``(batch, num_tokens)``."""

    @property
    def chosen(self) -> list[int | str]:
        """The actions in the form that an env accepts: indices, or texts if actions are free text."""
        indices = self.actions.tolist()
        texts = [None] * len(indices) if self.turns is None else [turn.action for turn in self.turns]
        return [index if text is None else text for index, text in zip(indices, texts, strict=True)]

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
        """Sample actions from normalised log-probabilities ``(batch, num_actions)``, or take the most likely ones.

        Inadmissible actions have log-probability -inf. Without a ``generator``, torch's global one is used.
        """
        if deterministic:
            actions = log_distributions.argmax(-1)
        else:
            actions = sample_categorical(log_distributions, generator)
        log_probs = log_distributions.gather(-1, actions[:, None])[:, 0]
        return cls(actions, log_probs, values, memory)


class Outputs(NamedTuple):
    """A policy's outputs for a batch of observations; float32, without gradients."""

    log_probs: Tensor  # (batch, num_actions); -inf for inadmissible actions
    values: Tensor  # (batch,)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Stored actions evaluated by the current policy, with gradients; float32, with the shape of the actions."""

    log_probs: Tensor
    entropies: Tensor
    values: Tensor
    log_distributions: Callable[[], Tensor]
    """Returns ``(*actions.shape, num_actions)``, -inf for inadmissible actions; lazy, as few algorithms need it."""
    raw_log_probs: Callable[[], Tensor]
    """Returns ``log_probs`` before filters and masks, from which the KL to the reference is computed."""

    @classmethod
    def of(cls, log_distributions: Tensor, actions: Tensor, values: Tensor) -> "Evaluated":
        """Evaluate actions under normalised log-probabilities ``(*actions.shape, num_actions)``."""
        # Inadmissible actions (-inf) have probability 0 and contribute nothing, not even to the gradient.
        finite = log_distributions.masked_fill(log_distributions.isinf(), 0.0)
        entropies = -(log_distributions.exp() * finite).sum(-1)
        log_probs = log_distributions.gather(-1, actions[..., None])[..., 0]
        return cls(log_probs, entropies, values, lambda: log_distributions, lambda: log_probs)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one env, which a recurrent policy evaluates together."""

    observations: Sequence[Any]
    memory: Tensor  # float32 (memory_size,): the memory before the first step
    starts: Tensor  # bool (length,): an episode starts at this step, so the memory is set to 0


class Work(NamedTuple):
    """The cost of evaluating an observation, used to form minibatches."""

    tokens: int  # number of tokens to read
    key: Hashable  # equal for observations that are cheaper in the same batch: equal prompts, or texts of one prompt
    text: Hashable | None = None  # equal for the steps of one conversation, which minibatches keep together


class Policy(nn.Module, ABC):
    """An actor and a value function.

    A recurrent policy has a ``memory_size``. The caller keeps its memory ``(num_envs, memory_size)``, passes it to
    `act`, reads it from the `Action`, and sets an env's row to 0 when an episode starts. `evaluate` takes `Segment`s.
    """

    memory_size: int = 0
    recurrence: int = 1
    """Length of a `Segment`: the number of steps to backpropagate through."""
    needs: ClassVar[frozenset[Offer]] = frozenset()
    """The parts of an observation that the policy reads. If empty, the policy can act in any world."""
    _cache: dict[Any, Any] | None = None
    trainable: ClassVar[bool] = True
    weights_file: ClassVar[str] = "policy.safetensors"
    has_value_head: ClassVar[bool] = False
    """True if a module ``value_head`` computes values from a language model's states."""
    writes_turns: ClassVar[bool] = False
    """True if actions have `Action.turns`, which `evaluate` then accepts instead of observations."""
    writes_text: ClassVar[bool] = False
    """True if the policy can act where actions are free text."""

    def __init__(self) -> None:
        super().__init__()

    @classmethod
    def accepts(cls, world: WorldSpec) -> str | None:
        """Return the reason why the policy cannot act in a world; None if it can. Called before anything is loaded."""
        if missing := sorted(cls.needs - world.observation):
            return f"it needs {' and '.join(missing)}, but {world.name} provides {' and '.join(sorted(world.observation))}"
        if world.action == "free_text" and not cls.writes_text:
            return f"it chooses from a list of actions, but {world.name} accepts any text as an action and lists none"
        return None

    @classmethod
    def unused_argument(cls, args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Return a message about an argument that has no effect in a world, or None."""
        return None

    def exploration_advice(self) -> str | None:
        """Return advice on a setting to change if the policy chooses only a few actions, or None."""
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
        """Choose an action for each observation: the most likely one, or one sampled with ``generator``."""

    @abstractmethod
    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluated:
        """Compute log-probabilities, entropies and values of stored actions, with gradients.

        Args:
            observations: One for each action; for a recurrent policy, one `Segment` for each row of actions.
            actions: int64 ``(batch,)``; for a recurrent policy, ``(batch, recurrence)``.
        """

    @abstractmethod
    def values(self, observations: Sequence[Any], memory: Tensor | None = None) -> Tensor:
        """Return the value of each observation, float32 ``(batch,)``, without gradients."""

    def initial_memory(self, batch: int) -> Tensor | None:
        """Return the memory ``(batch, memory_size)`` at the start of an episode; None if the policy has none."""
        return torch.zeros(batch, self.memory_size) if self.memory_size else None

    @property
    def device(self) -> torch.device:
        """The device of the first weight; the CPU for a policy without weights."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def prompts(self, observations: Sequence[Any]) -> list[str] | None:
        """Return the prompts of these observations, or None if the policy reads no prompts."""
        return None

    def outputs(self, observations: Sequence[Any]) -> Outputs | None:
        """Return log-probabilities and values; None if they depend on more than the observations."""
        return None

    def reference_log_probs(self, observations: Sequence[Any], actions: Tensor) -> Tensor | None:
        """Return the reference's log-probabilities of actions, float32 ``(batch,)``; None without a reference."""
        return None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Return a context manager within which the weights do not change: results may be cached in ``self._cache``."""
        self._cache = {}
        try:
            yield
        finally:
            self._cache = None

    def figures(self) -> dict[str, float]:
        """Return metrics to log after each rollout."""
        return {}

    def work(self, observations: Sequence[Any]) -> Sequence[Work] | None:
        """Return the cost of evaluating each observation; None if all cost the same."""
        return None

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights by file name, except a language model's, which are saved separately."""
        weights = self.state_dict()
        return {self.weights_file: weights} if weights else {}

    def save_pretrained(self, folder: Path) -> None:
        """Write the weights, and the language model ``self.lm`` if there is one, into ``folder`` as safetensors."""
        if isinstance(lm := getattr(self, "lm", None), LanguageModel):
            lm.save_pretrained(folder)
        for name, weights in self.weight_files().items():
            save_file(weights, folder / name)

    def load_weights(self, folder: Path) -> None:
        """Load weights saved by `save_pretrained`, except a language model's; raise `ConfigError` on a mismatch."""
        for name, weights in self.weight_files().items():
            read_into(weights, folder / name)


policies: Registry[Policy] = Registry("policy")


@policies.register("random")
class RandomPolicy(Policy):
    """Chooses uniformly among the admissible actions, even if ``deterministic``; all values are 0."""

    needs = frozenset({"words"})
    trainable = False

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        return Action.choose(*self.outputs(observations), generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluated:
        log_probs, values = self.outputs(observations)
        return Evaluated.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return torch.zeros(len(observations))

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs:
        sizes = torch.tensor([len(o.actions) for o in observations])
        admissible = torch.arange(int(sizes.max())) < sizes[:, None]  # (batch, num_actions)
        log_probs = torch.where(admissible, -sizes[:, None].float().log(), -torch.inf)
        return Outputs(log_probs, self.values(observations))


def check_accepts(id: str, world: WorldSpec) -> None:
    """Raise `ConfigError`, which lists suitable trainable policies, unless the policy ``id`` can act in a world."""

    def refusal(id: str) -> str | None:
        accepts = getattr(policies.get(id), "accepts", None)  # a registered function has none
        return None if accepts is None else accepts(world)

    if (reason := refusal(id)) is not None:
        trained = [name for name in policies if getattr(policies.get(name), "trainable", True)]
        suited = ", ".join(name for name in trained if refusal(name) is None)
        raise ConfigError(
            f"policy {id!r} is incompatible with {world.name}: {reason}; set policy.id to one of {suited}"
        )


def has_model(id: str) -> bool:
    """Return True if the policy ``id`` uses the run's language model."""
    return any(one.role == "lm" for one in provided(policies.get(id)).values())


def sample_categorical(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample an index for each row of normalised ``log_probs`` ``(batch, n)``; -inf entries are never sampled."""
    # Inverse transform sampling with one uniform number per row: row ``i`` depends only on the ``i``-th number, so
    # samples do not depend on how a batch is split over processes.
    cumulative = log_probs.double().exp().cumsum(-1)  # (batch, n)
    uniform = torch.rand(len(log_probs), 1, dtype=torch.float64, generator=generator).to(log_probs.device)
    # Scale by the last sum, which may differ slightly from 1 because of rounding.
    return (cumulative <= uniform * cumulative[:, -1:]).sum(-1).clamp_(max=log_probs.shape[-1] - 1)
