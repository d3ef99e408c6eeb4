"""Policies that read: a prompt tells them what an env shows, and they choose among its actions by that alone."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groundling.envs.observation import TextObservation
from groundling.lm import LanguageModel, Prompts
from groundling.policies.conversation import PolicyPrompts
from groundling.policies.policy import Action, Evaluation, Outputs, Policy, Work
from groundling.prompts import PromptReader

_REMEMBERED = 100_000


class ReadingPolicy(Policy):
    """A policy whose choice depends on a prompt and the admissible actions; subclasses give `forward`.

    Args:
        prompt: Id of the prompt that tells an observation; of several, each episode is told in one of them.
        language: Language of that prompt; the env must speak the same.
        replacements: Words of the prompt and what stands for them (see `PromptReader`).
        system: The system prompt of a prompt that is a conversation; None: its own.
        lm: The language model that reads, conversations by its chat template; None: what reads takes texts.
    """

    needs = frozenset({"words"})

    def __init__(
        self,
        prompt: str | Sequence[str] = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
        lm: LanguageModel | None = None,
    ) -> None:
        super().__init__()
        self._prompts = PolicyPrompts(PromptReader(prompt, language, replacements, system), lm)
        self._known: dict[Hashable, tuple[Tensor, Tensor]] | None = None
        self._kept_bytes = 0  # in the last time in which the weights stayed as they were

    @abstractmethod
    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        """Log-probability of each action, ``(batch, num_actions)`` float32, and values ``(batch,)``, with gradients.

        Where an observation has fewer actions than another, -inf fills its row.
        """

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        outputs = self.distributions(observations)
        return Action.choose(
            outputs.log_probs, outputs.values, deterministic=deterministic, generator=generator
        )

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluation:
        log_probs, values = self(observations)
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return self.distributions(observations).values

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs | None:
        return self.distributions(observations)

    @torch.no_grad()
    def distributions(self, observations: Sequence[TextObservation]) -> Outputs:
        """`forward` without gradients; remembered while the weights are `unchanged`."""
        prompts = [] if self._known is None else self.read(observations)
        if self._known is None or not all(isinstance(prompt, str) for prompt in prompts):
            return Outputs(*self(observations))  # a conversation hardly comes twice
        keys = [(prompt, o.actions) for prompt, o in zip(prompts, observations, strict=True)]
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        new = {key: o for key, o in zip(keys, observations, strict=True) if key not in self._known}
        if new:
            self._known.update(zip(new, zip(*self(list(new.values())), strict=True), strict=True))
        rows = [self._known[key] for key in keys]
        return Outputs(
            # Rows are as long as the most actions of the call that gave them.
            pad_sequence([row for row, _ in rows], batch_first=True, padding_value=-torch.inf),
            torch.stack([value for _, value in rows]),
        )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        self._known = {}
        try:
            with self._prompts.keeping():
                yield
        finally:
            self._known = None
            self._kept_bytes = self._prompts.kept_bytes

    def figures(self) -> dict[str, float]:
        """``kept_mib``: the memory of conversations that were kept while it acted, of this process."""
        return {"kept_mib": round(self._kept_bytes / 2**20, 3)} if self._kept_bytes else {}

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return self._prompts.shown(observations)

    def read(self, observations: Sequence[TextObservation], prompts: Sequence[str] | None = None) -> Prompts:
        """What is read: texts, or token ids of conversations.

        Args:
            observations: What is told.
            prompts: The prompt of each, by its id; None: that of its episode.
        """
        return self._prompts.read(observations, prompts)

    def work(self, observations: Sequence[TextObservation]) -> Sequence[Work] | None:
        return self._prompts.work(observations)
