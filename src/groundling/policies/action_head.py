"""A language model reads, and a head chooses: GLAM's ablation without action texts (NPAE with random weights)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import ActionHead, LanguageModel, ValueHead
from groundling.policies.policy import policies
from groundling.policies.reading import ReadingPolicy
from groundling.policies.weights import read_into


@policies.register("action_head")
class ActionHeadPolicy(ReadingPolicy):
    """π(· | prompt) = softmax of an MLP on the prompt's state, with a value head beside it (GLAM, section 4.1).

    The state is that of the first decoder position of an encoder-decoder model, of the prompt's last token of a
    causal one. GLAM's NPAE is this policy with ``model.init=embeddings``.

    Args:
        lm: The language model; its weights are the policy's.
        num_actions: How many admissible actions there are at most; output ``i`` is of the ``i``-th of them.
        prompt, language, replacements, system: See `ReadingPolicy`.
        hidden_sizes: Widths of each head's hidden layers (1024 and 1024 in GLAM).
    """

    has_value_head: ClassVar[bool] = True

    def __init__(
        self,
        lm: LanguageModel,
        num_actions: int,
        prompt: str | Sequence[str] = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
        hidden_sizes: Sequence[int] = (1024, 1024),
    ) -> None:
        super().__init__(prompt, language, replacements, system, lm)
        self.lm, self.num_actions = lm, num_actions
        self.action_head = ActionHead(lm.hidden_size, num_actions, tuple(hidden_sizes)).to(lm.device)
        self.value_head: nn.Module = ValueHead(lm.hidden_size, tuple(hidden_sizes)).to(lm.device)

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        with self.lm.autocast():
            states = self.lm.encode(self.read(observations))  # (batch, hidden_size) float32
        logits = self.action_head(states)  # (batch, num_actions)
        counts = torch.tensor([len(o.actions) for o in observations])
        if int(counts.max()) > self.num_actions:
            raise ConfigError(
                f"{int(counts.max())} actions are admissible, and the action head has {self.num_actions} outputs: set "
                "policy.args.num_actions to the length of the longest list"
            )
        if int(counts.min()) < self.num_actions:
            beyond = torch.arange(self.num_actions) >= counts[:, None]
            logits = logits.masked_fill(beyond.to(logits.device), -torch.inf)
        return logits.log_softmax(-1), self.value_head(states)

    def save_pretrained(self, folder: Path) -> None:
        self.lm.save_pretrained(folder)
        save_file(self.action_head.state_dict(), folder / "action_head.safetensors")
        save_file(self.value_head.state_dict(), folder / "value_head.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read the heads; the language model is made from ``folder`` by `LanguageModel.from_pretrained`."""
        read_into(self.action_head.state_dict(), folder / "action_head.safetensors")
        read_into(self.value_head.state_dict(), folder / "value_head.safetensors")
