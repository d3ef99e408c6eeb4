"""A language model reads, and a head chooses: GLAM's ablation without action texts (NPAE with random weights)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from groundling.envs.observation import TextObservation
from groundling.lm import ActionHead, LanguageModel, ValueHead
from groundling.policies.policy import Work, policies
from groundling.policies.reading import ReadingPolicy
from groundling.policies.weights import read_into


@policies.register("action_head")
class ActionHeadPolicy(ReadingPolicy):
    """π(· | prompt) = softmax of an MLP on the prompt's state, with a value head beside it (GLAM, section 4.1).

    The state is that of the first decoder position of an encoder-decoder model, of the prompt's last token of a
    causal one. GLAM's NPAE is this policy with ``model.init=embeddings``.

    Args:
        lm: The language model; its weights are the policy's.
        num_actions: How many admissible actions there are.
        prompt, language, replacements: See `ReadingPolicy`.
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
        super().__init__(prompt, language, replacements)
        self.lm = lm
        self.action_head = ActionHead(lm.hidden_size, num_actions, tuple(hidden_sizes)).to(lm.device)
        self.value_head: nn.Module = ValueHead(lm.hidden_size, tuple(hidden_sizes)).to(lm.device)

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        with self.lm.autocast():
            states = self.lm.encode(self.prompts(observations))  # (batch, hidden_size) float32
        return self.action_head(states).log_softmax(-1), self.value_head(states)

    def work(self, observations: Sequence[TextObservation]) -> Sequence[Work]:
        prompts = self.prompts(observations)
        return [
            Work(tokens, text) for tokens, text in zip(self.lm.token_lengths(prompts), prompts, strict=True)
        ]

    def save_pretrained(self, folder: Path) -> None:
        self.lm.save_pretrained(folder)
        save_file(self.action_head.state_dict(), folder / "action_head.safetensors")
        save_file(self.value_head.state_dict(), folder / "value_head.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read the heads; the language model is made from ``folder`` by `LanguageModel.from_pretrained`."""
        read_into(self.action_head.state_dict(), folder / "action_head.safetensors")
        read_into(self.value_head.state_dict(), folder / "value_head.safetensors")
