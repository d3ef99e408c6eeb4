"""The parts of a run's reward, their base classes and their inputs."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from groundling.envs.text_env import Evidence, WorldSpec
from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, RunError, foreign
from groundling.fields import Section
from groundling.judges.preferences.pairs import caption_ids
from groundling.judges.preferences.recording import in_context
from groundling.metrics.metric import (
    Figures,
    Meta,
    References,
    Scorer,
    Texts,
    check_samples,
    checked,
    mean_of,
    token_counts,
)
from groundling.registry import Registry, taken
from groundling.runtime.processes import Processes


@dataclass(kw_only=True)
class Reward(Scorer):
    """Base class of text rewards. Subclasses implement `score`. As a metric, a reward's value is its mean."""

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        """Return ``reward/ID``: the mean reward, and the reward of each sample."""
        scores = self(prompts, generations, references, meta)
        return {f"reward/{self.registered_id or self.name}": mean_of(scores.tolist())}


@dataclass(kw_only=True)
class TokenReward(Reward):
    """Base class of per-token rewards. Subclasses implement `at_token`, given the text before and after a token."""

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
        """Return the reward of the token that turned ``previous`` into ``current``; ``done`` marks the last token.

        If the method has the keyword arguments ``action: int | None = None`` and ``tokens: Sequence[int] = ()``, it
        also receives the token's id and the ids of all tokens up to it, including special tokens. The defaults are
        used when a whole text is rewarded as one token.
        """

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        check_samples(prompts, texts, references, meta)
        rewards = torch.zeros(len(texts), max(token_counts(texts)))
        wanted = taken(self.at_token, {"action": None, "tokens": ()}) if tokens else {}
        for row, written in enumerate(texts):
            sample_meta = None if meta is None else meta[row]
            for step, current in enumerate(written):
                previous, done = written[step - 1] if step else "", step == len(written) - 1
                ids: dict[str, Any] = {"action": tokens[row][step]} if "action" in wanted else {}
                if "tokens" in wanted:
                    ids["tokens"] = tokens[row][: step + 1]
                with foreign(f"{self.name}, called for token {step} of text {row},"):
                    reward = self.at_token(prompts[row], previous, current, done, references[row], sample_meta, **ids)
                try:
                    rewards[row, step] = float(reward)
                except (TypeError, ValueError) as error:
                    raise RunError(f"{self.name} must return a number for each token, got {reward!r:.80}") from error
        return checked(self.name, rewards, tuple(rewards.shape))

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        """Return the rewards of whole generations, each treated as one token."""
        return self.at_tokens(prompts, [[text] for text in generations], references, meta)[:, 0]


@dataclass(frozen=True)
class Captions:
    """Captions of ``n`` steps, ordered by step and, within a step, by env."""

    read: Callable[[Sequence[int]], Sequence[str]]  # Returns the captions at the passed indices
    goals: Sequence[str]  # ``n`` goals; for generated texts, the prompts
    ids: Tensor  # int64 ``(n,)``: equal only for equal captions
    counts: Tensor  # float32 ``(n,)``: occurrences of the caption in its episode so far, including this one
    places: Tensor | None = None  # int64 ``(n,)``: ``step * num_envs + env`` per caption; None if every step has one
    contexts: Sequence[str] | None = None  # ``n`` prefixes of the captions; a judge sees a shared prefix once


@dataclass(frozen=True)
class GeneratedTexts:
    """Generated texts, one per column of `RewardInputs`; their tokens are the steps."""

    prompts: Sequence[str]
    so_far: Sequence[Sequence[str]]  # For each text, its prefix up to each token; the last prefix is the whole text
    references: Sequence[Sequence[str]]
    meta: Meta
    tokens: Sequence[Sequence[int]] = ()  # Ids of each text's tokens; empty if they are unknown


@dataclass(frozen=True)
class RewardInputs:
    """Steps to reward; inputs that the world does not provide are None."""

    shape: tuple[int, int]  # ``(num_steps, num_envs)``
    env: Tensor | None = None  # float32 ``(num_steps, num_envs)``: rewards of the envs
    captions: Captions | None = None
    """In text envs, the descriptions after a step, one per line. In NetHack, the message that was shown when an action
    was chosen, as in Motif. For generated texts, the whole text, at its last token."""
    judged: Captions | None = None
    """Captions for judges and reward models, if different, in the format of collected pairs. In text envs, they are
    the goal, the descriptions before the action, and the action; for generated texts, the prompt and the text."""
    texts: GeneratedTexts | None = None

    @classmethod
    def of_texts(cls, texts: GeneratedTexts) -> Self:
        """Create inputs ``(longest, num_texts)`` from generated texts; a text is the caption of its last token."""
        lengths = torch.tensor([len(written) for written in texts.so_far])
        wholes, columns = [written[-1] for written in texts.so_far], torch.arange(len(lengths))
        places = (lengths - 1) * len(lengths) + columns

        def captions(read: Sequence[str], contexts: Sequence[str] | None = None) -> Captions:
            ids, counts = torch.from_numpy(caption_ids(read)), torch.ones(len(read))
            return Captions(lambda rows: [read[row] for row in rows], texts.prompts, ids, counts, places, contexts)

        in_contexts = [in_context(prompt, whole) for prompt, whole in zip(texts.prompts, wholes, strict=True)]
        shape = (int(lengths.max()), len(lengths))
        judged = captions(in_contexts, texts.prompts)
        return cls(shape, captions=captions(wholes), judged=judged, texts=texts)

    def spread(self, captions: Captions, values: Tensor) -> Tensor:
        """Scatter ``values`` ``(n,)`` to the captions' places in ``(num_steps, num_envs)``, with 0 elsewhere."""
        if captions.places is None:
            return values.view(self.shape)
        spread = torch.zeros(self.shape).flatten()
        spread[captions.places] = values
        return spread.view(self.shape)


class EpisodeCounts:
    """Number of occurrences of each caption in the current episode of each of ``num_envs`` envs."""

    def __init__(self, num_envs: int) -> None:
        self._seen: list[Counter[int]] = [Counter() for _ in range(num_envs)]

    def add(self, env: int, id: int) -> int:
        """Count the caption ``id`` and return its number of occurrences so far."""
        self._seen[env][id] += 1
        return self._seen[env][id]

    def end(self, envs: Iterable[int]) -> None:
        """Reset the counts of the envs whose episodes have ended."""
        for env in envs:
            self._seen[env].clear()

    def state_dict(self) -> list[dict[str, int]]:
        """Return the counts by id for each env, serialisable as JSON."""
        return [{str(id): count for id, count in seen.items()} for seen in self._seen]

    def load_state_dict(self, states: Sequence[Mapping[str, int]]) -> None:
        self._seen = [Counter({int(id): count for id, count in state.items()}) for state in states]


_EVIDENCE: dict[Evidence, str] = {
    "env": "an env that pays a reward",
    "captions": "a caption for each step",
    "counts": "counts of each caption within the episode",
    "references": "reference texts",
}


class RewardPartConfig(Section):
    """One term of a run's reward."""

    id: str | None = None
    """A reward's id (see `groundling list rewards`). If null, the part's name is its id."""
    coefficient: float = 1.0
    """Coefficient of the part in the sum. If 0, its rewards are only logged."""
    args: dict[str, Any] = {}


@dataclass(frozen=True)
class RewardContext:
    """Device, seed, model and data that a run provides to the parts of its reward."""

    device: str = "cpu"
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    world: str | None = None  # Judges' name for the kind of world; None if no judge supports it
    lm: Any = None  # The language model under training; None in runs without one
    samples: Sequence[Sample] = ()  # The split of the pool that provides the prompts; empty in other worlds


class Part(ABC):
    """One term of a reward. It is created and checked before anything is loaded; `begin` loads models and data.

    Each process has its own instance, which sees only that process's envs. Checkpoints save the first process's state.
    Rewards that depend on the steps of other envs therefore change with the number of processes, unless the part
    gathers these steps with `RewardContext.processes`.
    """

    needs: frozenset[Evidence] = frozenset()
    """Inputs that the part uses; set on the class unless they depend on arguments."""
    per_token = False
    """True if the part uses each token of a generated text rather than only the whole text."""
    needs_model = False
    """True if the part uses the language model under training."""

    def accepts(self, world: WorldSpec) -> str | None:
        """Return None if the part is compatible with a world, otherwise the reason why it is not."""
        return refusal(self.needs, world.evidence)

    def check(self) -> None:  # noqa: B027 (many parts need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing, without loading a model."""

    def begin(self, context: RewardContext) -> None:  # noqa: B027 (many parts need nothing)
        """Load models and data. Called once, before `rewards`."""

    @abstractmethod
    def rewards(self, inputs: RewardInputs) -> Tensor:
        """Return float32 ``(num_steps, num_envs)`` on the CPU, without applying the coefficient."""

    def figures(self) -> dict[str, int]:
        """Return this process's counts, which are logged in addition to its rewards."""
        return {}

    def forget(self) -> None:  # noqa: B027 (most have no state)
        """Reset the state that later rewards depend on."""

    def save(self, folder: Path) -> None:  # noqa: B027 (most have no state)
        """Write the state that later rewards depend on into an existing folder."""

    def load(self, folder: Path) -> None:  # noqa: B027 (most have no state)
        """Restore what `save` wrote."""

    def close(self) -> None:  # noqa: B027 (most have no resources)
        """Release threads and processes."""


parts: Registry[Any] = Registry("reward")
"""Part classes and all text rewards; `create_part` creates parts from both."""


def check_name(name: str) -> None:
    """Raise `ConfigError` if the name, which is also used as a folder name, is not valid for a part."""
    if not re.fullmatch(r"[\w-]{1,100}", name):
        raise ConfigError(f"the name of a reward part must consist of letters, digits, _ and -, got {name!r}")


def refusal(needs: Collection[Evidence], evidence: Collection[Evidence]) -> str | None:
    """Return why a part with these ``needs`` is incompatible with the ``evidence`` that a world offers, or None."""
    missing = [text for kind, text in _EVIDENCE.items() if kind in needs and kind not in evidence]
    return f"it needs {' and '.join(missing)}" if missing else None
