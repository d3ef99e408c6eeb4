"""What a reward is: a number for each generation, or for each of its tokens."""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from groundling.arguments import taken
from groundling.errors import ConfigError, ForeignError, RunError, foreign
from groundling.metrics.metric import Document, Meta, check_samples
from groundling.registry import Registry


@dataclass(kw_only=True)
class Reward(ABC):
    """Rewards generations. A subclass gives the numbers in `score`; calling it checks them."""

    compat: Literal["rl4lms"] | None = None
    """"rl4lms" reproduces RL4LMs's rewards, faults included; `docs/metrics.md` lists where they differ."""

    per_token = False
    """Whether `at_tokens` looks at every token; else only at whole generations, and their last token is rewarded."""

    by_sample = True
    """Whether a sample's reward is the same whatever other samples are rewarded with it or were before. If not,
    of several processes one rewards the samples of all."""

    needs_references = False
    """Whether it looks at a sample's references or meta, which only a pool has."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a ``compat`` that does not exist."""
        if self.compat not in (None, "rl4lms"):
            raise ConfigError(f'compat must be null or "rl4lms", got {self.compat!r}')

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def __call__(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
    ) -> Tensor:
        """Reward a batch of samples.

        Args:
            prompts: What was read, one for each sample.
            generations: What was written.
            references: What might have been written; an empty list where there is no reference.
            meta: What else is known of each sample.

        Returns:
            ``(batch,)`` float32, on the CPU.

        Raises:
            RunError: the lists differ in length; a sample lacks what the reward needs; a reward is not a finite
                number, or there are not as many as samples.
        """
        check_samples(prompts, generations, references, meta)
        scores = self._scored(prompts, generations, references, meta)
        try:
            rewards = torch.as_tensor(scores, dtype=torch.float32, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"{self.name} must give one number for each sample, got {scores!r:.80}") from error
        return _checked(rewards, (len(generations),), self.name)

    def _scored(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Sequence[float] | Tensor:
        """As `score`; where that raises, the error says for which sample, if samples are judged by themselves."""
        try:
            with foreign(f"{self.name}, asked about {len(generations)} texts,"):
                return self.score(prompts, generations, references, meta)
        except ForeignError:
            for row in range(len(generations)) if self.by_sample and len(generations) > 1 else ():
                one = slice(row, row + 1)
                of_one = None if meta is None else meta[one]
                with foreign(f"{self.name}, asked about text {row}, written to {prompts[row]!r:.80},"):
                    self.score(prompts[one], generations[one], references[one], of_one)
            raise

    def at_tokens(
        self,
        prompts: Sequence[str],
        texts: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """Reward every token; the last one gets the reward of the whole, the others 0.

        Args:
            prompts: What was read.
            texts: Of each sample, what was written after each token; the last is the whole generation. Where not
                `per_token`, only their number and the last of them matter.
            references: As in calling.
            meta: As in calling.
            tokens: Of each sample, the ids of its tokens; empty where they are unknown.

        Returns:
            ``(batch, longest)`` float32, 0 after a sample's last token.

        Raises:
            RunError: as in calling, or a sample has no token.
        """
        lengths = token_counts(texts)
        whole = self(prompts, [written[-1] for written in texts], references, meta)
        rewards = torch.zeros(len(texts), max(lengths))
        rewards[torch.arange(len(texts)), torch.tensor(lengths) - 1] = whole
        return rewards

    def check(self) -> None:  # noqa: B027 (many need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing; cheap, and loads no model."""

    def read_corpus(self, samples: Sequence[Document]) -> None:  # noqa: B027 (few need it)
        """Take statistics from all samples of a split, some of which are rewarded; see `Metric.read_corpus`."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers of earlier samples and later rewards depend on, as JSON holds it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most remember nothing)
        """Take up what `state_dict` gave."""

    @abstractmethod
    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Sequence[float] | Tensor:
        """One finite number for each sample."""


@dataclass(kw_only=True)
class TokenReward(Reward):
    """A reward at every token. A subclass gives it in `at_token`, from what stood there before and after it."""

    per_token = True

    @abstractmethod
    def at_token(
        self,
        prompt: str,
        previous: str,
        current: str,
        done: bool,
        references: Sequence[str],
        meta: Mapping[str, Any] | None,
    ) -> float:
        """Reward the token that turned the text ``previous`` into ``current``.

        Args:
            prompt: The sample's prompt.
            previous: Text before the token.
            current: Text after it.
            done: Whether it is the sample's last token.
            references: The sample's references.
            meta: The sample's meta.

        A method with the keyword arguments ``action: int | None = None`` and ``tokens: Sequence[int] = ()`` also gets
        the token's id and the ids of all tokens up to it, special tokens included. They keep their defaults where a
        whole text is rewarded as if it were one token.
        """

    def at_tokens(
        self,
        prompts: Sequence[str],
        texts: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """``(batch, longest)`` float32, 0 after a sample's last token; arguments and errors as `Reward.at_tokens`."""
        check_samples(prompts, texts, references, meta)  # type: ignore[arg-type]
        lengths = token_counts(texts)
        rewards = torch.zeros(len(texts), max(lengths))
        wanted = taken(self.at_token, {"action": None, "tokens": ()}) if tokens else {}
        for row, written in enumerate(texts):
            sample_meta = None if meta is None else meta[row]
            for step, current in enumerate(written):
                previous = written[step - 1] if step else ""
                done = step == len(written) - 1
                ids: dict[str, Any] = {"action": tokens[row][step]} if "action" in wanted else {}
                if "tokens" in wanted:
                    ids["tokens"] = tokens[row][: step + 1]
                with foreign(f"{self.name}, asked about token {step} of text {row},"):
                    given = (prompts[row], previous, current, done, references[row], sample_meta)
                    reward = self.at_token(*given, **ids)
                try:
                    rewards[row, step] = float(reward)
                except (TypeError, ValueError) as error:
                    raise RunError(f"{self.name} must give a number for each token, got {reward!r:.80}") from error
        return _checked(rewards, tuple(rewards.shape), self.name)

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Tensor:
        """Of whole generations: each as if it were one token."""
        return self.at_tokens(prompts, [[text] for text in generations], references, meta)[:, 0]


class FunctionReward(Reward):
    """A plain function as a reward.

    Args:
        function: Takes some of ``prompts``, ``generations`` (or ``completions``, as TRL calls them), ``references`` and
            ``meta`` by name, each with one entry for each sample, and gives a number for each.
        args: Its other arguments.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
        super().__init__()
        self._function, self._args = function, args
        self._taken = [name for name in inspect.signature(function).parameters if name in _OF_SAMPLES]
        self.needs_references = not {"references", "meta"}.isdisjoint(self._taken)

    @property
    def name(self) -> str:
        return self._function.__name__

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Sequence[float] | Tensor:
        values = (prompts, generations, generations, references, meta)
        given = dict(zip(_OF_SAMPLES, values, strict=True))
        scores: Sequence[float] = self._function(**{name: given[name] for name in self._taken}, **self._args)
        return scores


_OF_SAMPLES = ("prompts", "generations", "completions", "references", "meta")


def _rewards(function: Callable[..., Any]) -> bool:
    """Whether it is a function of generations, and no function that makes a reward."""
    return inspect.isfunction(function) and not {"generations", "completions"}.isdisjoint(
        inspect.signature(function).parameters
    )


def _as_factory(function: Callable[..., Any]) -> Callable[..., Reward]:
    """Makes the reward that a function is, from those of its arguments that are not about samples."""

    @functools.wraps(function)
    def make(**args: Any) -> Reward:
        return FunctionReward(function, args)

    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.name not in _OF_SAMPLES and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    make.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in options])  # type: ignore[attr-defined]
    return make


class RewardRegistry(Registry[Reward]):
    """Takes rewards, and plain functions as rewards."""

    def register(self, id: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a `Reward`, or a plain function of generations (see `FunctionReward`)."""
        add = super().register(id)

        def decorate(factory: Callable[..., Any]) -> Callable[..., Any]:
            if _rewards(factory):
                add(_as_factory(factory))
                return factory
            return add(factory)

        return decorate

    def _hint(self, id: str) -> str:
        """How a plain function would be a reward, where one was registered that is none."""
        factory = self._factories.get(id)
        if inspect.isfunction(factory) and not _rewards(inspect.unwrap(factory)):
            return "; a function that scores texts takes them as generations (or completions)"
        return super()._hint(id)


rewards = RewardRegistry("reward")


def token_counts(texts: Sequence[Sequence[str]]) -> list[int]:
    """How many tokens each sample has; `RunError` if one has none."""
    lengths = list(map(len, texts))
    if not lengths or 0 in lengths:
        raise RunError("every sample needs at least one token to be rewarded for")
    return lengths


def _checked(rewards: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    if tuple(rewards.shape) != shape:
        raise RunError(f"{name} must give one reward for each of {shape[0]} samples, got shape {tuple(rewards.shape)}")
    broken = (~rewards.isfinite()).nonzero()
    if len(broken):
        first = tuple(broken[0].tolist())
        raise RunError(f"{name} gave {rewards[first].item()} for sample {first[0]}: rewards must be finite numbers")
    return rewards


def shared(factory: Callable[..., Any], compat: str | None) -> dict[str, Any]:
    """``compat`` as an argument for what is made within another component, where it takes one."""
    return {"compat": compat} if "compat" in inspect.signature(factory).parameters else {}


def part_of(compat: str | None, id: str, args: Mapping[str, Any] | None) -> Reward:
    """The reward ``id`` within another one, whose ``compat`` it has unless its own ``args`` say otherwise.

    Raises:
        ConfigError: no such id or argument, or ``args`` are none.
    """
    if not isinstance(args, Mapping | None):
        raise ConfigError(f"the args of reward {id!r} must be a mapping, {{name: value}}, got {args!r}")
    return rewards.create(id, **shared(rewards.get(id), compat) | dict(args or {}))
