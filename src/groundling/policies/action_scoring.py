"""GLAM: a language model is the policy; it scores the admissible actions given a prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel, ValueHead
from groundling.policies.policy import Work, policies
from groundling.policies.reading import ReadingPolicy
from groundling.policies.reference import Reference
from groundling.policies.weights import read_into


@policies.register("action_scoring")
class ActionScoringPolicy(ReadingPolicy):
    """π(a | prompt) = softmax over the admissible actions of log P(a | prompt) (GLAM, section 3.2).

    The value function is an MLP on the same forward pass: on the first decoder position of an
    encoder-decoder model, on the prompt's last token of a causal one.

    Args:
        lm: The language model; its weights are the policy's.
        reference: The frozen language model that a KL penalty is taken to; ``lm`` itself stands for its weights with
            the LoRA adapters off, at no memory. It costs one more pass for each action. None: no KL.
        prompt, language, replacements: See `ReadingPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers (1024 and 1024 in GLAM).
        normalize: Sum the tokens' log-probabilities ("sum", as in the paper), or take their mean per
            "token" or per "word", so that long actions are not put at a disadvantage.
        temperature: Divides the actions' log-probabilities before the softmax; 1 in GLAM.
        compat: "glam" scores as the original's released code does (see `LanguageModel.score`).
    """

    def __init__(
        self,
        lm: LanguageModel,
        reference: LanguageModel | None = None,
        prompt: str = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        normalize: Literal["sum", "token", "word"] = "sum",
        temperature: float = 1.0,
        compat: Literal["glam"] | None = None,
    ) -> None:
        super().__init__(prompt, language, replacements)
        self.lm = lm
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_head: nn.Module = ValueHead(lm.hidden_size, tuple(value_hidden_sizes)).to(lm.device)
        self.normalize: Literal["sum", "token", "word"] = normalize
        if not temperature > 0:
            raise ConfigError(f"policy.args.temperature must be greater than 0, got {temperature}")
        self.temperature = temperature
        self.compat = compat

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        log_probs, state = self._score(self.lm, observations)
        # The head stays out of autocast: bfloat16 tells values apart no finer than 1 in 256.
        return log_probs, self.value_head(state)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            with self.lm.autocast():
                states = self.lm.encode(self.prompts(observations))  # (batch, hidden_size) float32
            return self.value_head(states)

    @torch.no_grad()
    def reference_log_probs(self, observations: Sequence[TextObservation], actions: Tensor) -> Tensor | None:
        if self.reference is None:
            return None
        with self.reference.model() as lm:
            log_probs, _ = self._score(lm, observations)
        return log_probs.gather(-1, actions[:, None].to(log_probs.device))[:, 0]

    def work(self, observations: Sequence[TextObservation]) -> Sequence[Work]:
        prompts = self.prompts(observations)
        return [
            Work(tokens, text) for tokens, text in zip(self.lm.token_lengths(prompts), prompts, strict=True)
        ]

    def save_pretrained(self, folder: Path) -> None:
        self.lm.save_pretrained(folder)
        save_file(self.value_head.state_dict(), folder / "value_head.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read the value head; the language model is made from ``folder`` by `LanguageModel.from_pretrained`."""
        read_into(self.value_head.state_dict(), folder / "value_head.safetensors")

    def _score(self, lm: LanguageModel, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions ``(batch, num_actions)``, and the state that values are told from."""
        actions = [list(o.actions) for o in observations]
        with lm.autocast():
            scores = lm.score_candidates(
                self.prompts(observations), actions, normalize=self.normalize, compat=self.compat
            )
        return (scores.log_probs / self.temperature).log_softmax(-1), scores.state
