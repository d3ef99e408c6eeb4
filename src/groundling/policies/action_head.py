"""A language model reads and a head chooses: GLAM's ablation without action texts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import ActionHead, ValueHead
from groundling.policies.policy import policies
from groundling.policies.prompt_policy import LanguageModelPolicy
from groundling.policies.provided import Language, NumActions, Replacements, SystemPrompt, TrainedModel


@policies.register("action_head")
class ActionHeadPolicy(LanguageModelPolicy):
    """π(· | prompt) = softmax of an MLP on the prompt's state (GLAM, section 4.1); a value head reads the same state.

    The state is that of the first decoder position of an encoder-decoder model, of the prompt's last token of a causal
    one. GLAM's NPAE is this policy with ``model.init=embeddings``.

    Args:
        lm: The language model; its weights are the policy's.
        num_actions: The largest number of admissible actions; output ``i`` belongs to the ``i``-th of them.
        prompt, language, replacements, system: See `PromptPolicy`.
        hidden_sizes: Widths of each head's hidden layers (1024 and 1024 in GLAM).
    """

    def __init__(
        self,
        lm: TrainedModel,
        num_actions: NumActions,
        prompt: str | Sequence[str] = "glam",
        language: Language = "english",
        replacements: Replacements = None,
        system: SystemPrompt = None,
        hidden_sizes: Sequence[int] = (1024, 1024),
    ) -> None:
        super().__init__(lm, prompt, language, replacements, system)
        self.num_actions = num_actions
        self.action_head = ActionHead(lm.hidden_size, num_actions, tuple(hidden_sizes)).to(lm.device)
        self.value_head = ValueHead(lm.hidden_size, tuple(hidden_sizes)).to(lm.device)

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        states = self.states(self.read(observations))
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

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        return {"action_head.safetensors": self.action_head.state_dict(), **super().weight_files()}
