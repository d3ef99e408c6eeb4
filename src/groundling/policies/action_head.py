"""A language model reads, and a head chooses: GLAM's ablation without action texts (NPAE with random weights)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.lm import ActionHead, LanguageModel, ValueHead
from groundling.policies.policy import Action, Evaluation, Policy, policies
from groundling.prompts import PromptReader


@policies.register("action_head")
class ActionHeadPolicy(Policy):
    """π(· | prompt) = softmax of an MLP on the prompt's state, with a value head beside it (GLAM, section 4.1).

    The state is that of the first decoder position of an encoder-decoder model, of the prompt's last token of a
    causal one. GLAM's NPAE is this policy with ``model.init=embeddings``.

    Args:
        lm: The language model; its weights are the policy's.
        num_actions: How many admissible actions there are.
        prompt: Id of the prompt that tells an observation to the model.
        language: Language of that prompt; the env must speak the same.
        replacements: Words of the prompt and what stands for them (see `PromptReader`).
        hidden_sizes: Widths of each head's hidden layers (1024 and 1024 in GLAM).
    """

    def __init__(
        self,
        lm: LanguageModel,
        num_actions: int,
        prompt: str = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        hidden_sizes: Sequence[int] = (1024, 1024),
    ) -> None:
        super().__init__()
        self.lm = lm
        self.action_head = ActionHead(lm.hidden_size, num_actions, tuple(hidden_sizes)).to(lm.device)
        self.value_head = ValueHead(lm.hidden_size, tuple(hidden_sizes)).to(lm.device)
        self._read = PromptReader(prompt, language, replacements)

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            log_probs, values = self._forward(observations)  # (batch, num_actions), (batch,)
        return Action.choose(log_probs, values, deterministic=deterministic, generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluation:
        log_probs, values = self._forward(observations)
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._forward(observations)[1]

    def action_log_probs(self, observations: Sequence[TextObservation]) -> Tensor:
        with torch.no_grad():
            return self._forward(observations)[0]

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [self._read(o) for o in observations]

    def costs(self, observations: Sequence[TextObservation]) -> Sequence[int]:
        return self.lm.token_lengths(self.prompts(observations))

    def save_pretrained(self, folder: Path) -> None:
        self.lm.save_pretrained(folder)
        save_file(self.action_head.state_dict(), folder / "action_head.safetensors")
        save_file(self.value_head.state_dict(), folder / "value_head.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read the heads; the language model is made from ``folder`` by `LanguageModel.from_pretrained`."""
        self.action_head.load_state_dict(load_file(folder / "action_head.safetensors"))
        self.value_head.load_state_dict(load_file(folder / "value_head.safetensors"))

    def _forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        with self.lm.autocast():
            states = self.lm.encode(self.prompts(observations))  # (batch, hidden_size) float32
        return self.action_head(states).log_softmax(-1), self.value_head(states)
