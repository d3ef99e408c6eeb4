"""Parts of a run's reward."""

import inspect
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

SAMPLES = ("prompts", "generations", "completions", "references", "meta")
"""Arguments of a plain function that are lists with one entry for each sample."""


@dataclass(kw_only=True)
class Reward(Scorer):
    """Rewards generations. A subclass implements `score`; as a metric, it is the mean."""

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        """Return ``reward/ID``: the mean, and the reward of each sample."""
        scores = self(prompts, generations, references, meta)
        return {f"reward/{self.registered_id or self.name}": mean_of(scores.tolist())}


@dataclass(kw_only=True)
class TokenReward(Reward):
    """Rewards every token. A subclass implements `at_token`, which sees the text before and after the token."""

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
        """Reward the token that turned ``previous`` into ``current``; ``done``: it is the sample's last one.

        A method with the keyword arguments ``action: int | None = None`` and ``tokens: Sequence[int] = ()`` also gets
        the token's id and the ids of all tokens up to it, special tokens included. They keep their defaults when a
        whole text is rewarded as one token.
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
                with foreign(f"{self.name}, asked about token {step} of text {row},"):
                    reward = self.at_token(prompts[row], previous, current, done, references[row], sample_meta, **ids)
                try:
                    rewards[row, step] = float(reward)
                except (TypeError, ValueError) as error:
                    raise RunError(f"{self.name} must give a number for each token, got {reward!r:.80}") from error
        return checked(self.name, rewards, tuple(rewards.shape))

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        """Reward whole generations, each as one token."""
        return self.at_tokens(prompts, [[text] for text in generations], references, meta)[:, 0]


class FunctionReward(Reward):
    """A plain function as a reward, with further arguments ``args``.
    It takes some of ``prompts``, ``generations`` (or ``completions``, as in TRL), ``references`` and ``meta`` by name,
    each with one entry for each sample, and returns a number for each.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
        super().__init__()
        self._function, self._args = function, args
        self._taken = [name for name in inspect.signature(function).parameters if name in SAMPLES]
        self.needs_references = not {"references", "meta"}.isdisjoint(self._taken)

    @property
    def name(self) -> str:
        return self._function.__name__

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Any:
        values = dict(zip(SAMPLES, (prompts, generations, generations, references, meta), strict=True))
        return self._function(**{name: values[name] for name in self._taken}, **self._args)


@dataclass(frozen=True)
class Captions:
    """Captions of ``n`` steps, in the order of steps and, within a step, of envs."""

    read: Callable[[Sequence[int]], Sequence[str]]  # Returns the texts at some of the ``n`` places
    goals: Sequence[str]  # ``n`` goals; for generated texts the prompts
    ids: Tensor  # int64 ``(n,)``: equal only for equal texts
    counts: Tensor  # float32 ``(n,)``: number of occurrences of the text in its episode so far, including this one
    places: Tensor | None = None  # int64 ``(n,)``: ``step * num_envs + env`` of each; None: every step has one
    contexts: Sequence[str] | None = None  # ``n`` first lines of the texts, which a judge of two texts reads once


@dataclass(frozen=True)
class GeneratedTexts:
    """Generated texts; one entry for each column of `RewardInputs`, whose steps are its tokens."""

    prompts: Sequence[str]
    so_far: Sequence[Sequence[str]]  # For each text, the text after each of its tokens; the last is the whole
    references: Sequence[Sequence[str]]
    meta: Meta
    tokens: Sequence[Sequence[int]] = ()  # Ids of each text's tokens; empty if they are unknown


@dataclass(frozen=True)
class RewardInputs:
    """Steps to reward; None for inputs that their world lacks."""

    shape: tuple[int, int]  # ``(num_steps, num_envs)``
    env: Tensor | None = None  # float32 ``(num_steps, num_envs)``: rewards of the envs
    captions: Captions | None = None
    """In text envs the descriptions after a step, a line each; in NetHack the message at which an action was chosen,
    as in Motif; for generated texts the whole text, at its last token."""
    judged: Captions | None = None
    """Other captions for judges and reward models, as in the pairs collected for them: in text envs the goal, the
    descriptions before the action, and the action; for generated texts prompt and text."""
    texts: GeneratedTexts | None = None

    @classmethod
    def of_texts(cls, texts: GeneratedTexts) -> Self:
        """Generated texts, ``(longest, num_texts)``; the caption of the last token is the whole text."""
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
        """Put ``values`` ``(n,)`` at the places of the captions: ``(num_steps, num_envs)``, 0 elsewhere."""
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
        """Count the caption ``id``, and return its number of occurrences."""
        self._seen[env][id] += 1
        return self._seen[env][id]

    def end(self, envs: Iterable[int]) -> None:
        """Reset the counts of ``envs``, whose episodes ended."""
        for env in envs:
            self._seen[env].clear()

    def state_dict(self) -> list[dict[str, int]]:
        """Counts by id for each env; serialisable as JSON."""
        return [{str(id): count for id, count in seen.items()} for seen in self._seen]

    def load_state_dict(self, states: Sequence[Mapping[str, int]]) -> None:
        self._seen = [Counter({int(id): count for id, count in state.items()}) for state in states]


_EVIDENCE: dict[Evidence, str] = {
    "env": "an env's own reward",
    "captions": "a text to read at each step",
    "counts": "how often a caption has come up in the episode",
    "references": "texts to compare with (references)",
}


class RewardPartConfig(Section):
    """One summand of a run's reward."""

    id: str | None = None
    """One of `groundling list rewards`; null: the part's name."""
    coefficient: float = 1.0
    """Factor of its rewards in the sum; 0: they are only logged."""
    args: dict[str, Any] = {}


@dataclass(frozen=True)
class RewardContext:
    """Device, seed, model and data that a run provides to the parts of its reward."""

    device: str = "cpu"
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    world: str | None = None  # Kind of world, as judges distinguish them; None if they do not know it
    lm: Any = None  # The language model under training; None in runs without one
    samples: Sequence[Sample] = ()  # The split of a pool for which texts are generated; empty in other worlds


class Part(ABC):
    """One summand of a reward. It is made and checked before anything is loaded; `begin` loads what it needs.

    Each of several processes has its own instance, which sees only that process's envs; a checkpoint keeps the first's
    state. Rewards that depend on steps of other envs therefore change with the number of processes, unless the part
    gathers these steps by `RewardContext.processes`.
    """

    needs: frozenset[Evidence] = frozenset()
    """Inputs that it uses; of the class, unless it depends on arguments."""
    per_token = False
    """Uses every token of a generated text, and not only the whole."""
    needs_model = False
    """Uses the language model under training."""

    def accepts(self, world: WorldSpec) -> str | None:
        """Return None if it can reward in a world, else why not."""
        return refusal(self.needs, world.evidence)

    def check(self) -> None:  # noqa: B027 (many need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing; fast, and loads no model."""

    def begin(self, context: RewardContext) -> None:  # noqa: B027 (many need nothing)
        """Load what it needs; called once, before `rewards`."""

    @abstractmethod
    def rewards(self, inputs: RewardInputs) -> Tensor:
        """float32 ``(num_steps, num_envs)``, on the CPU, without the coefficient."""

    def figures(self) -> dict[str, int]:
        """Counts to log besides its rewards, of this process."""
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
"""Classes of parts, and all rewards of texts, of which `create_part` makes parts."""


def check_name(name: str) -> None:
    """Raise `ConfigError` if a part cannot have this name, which is also that of a folder."""
    if not re.fullmatch(r"[\w-]{1,100}", name):
        raise ConfigError(f"a part of the reward is named by letters, digits, _ and -, got {name!r}")


def refusal(needs: Collection[Evidence], evidence: Collection[Evidence]) -> str | None:
    """Return why a part that uses ``needs`` cannot reward where there is ``evidence``, or None."""
    missing = [text for kind, text in _EVIDENCE.items() if kind in needs and kind not in evidence]
    return f"it looks at {' and '.join(missing)}" if missing else None
