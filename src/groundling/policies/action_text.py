"""Policies whose language model gives each admissible action's text a probability."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel, Prompts, ValueHead
from groundling.policies.prompt_policy import LanguageModelPolicy
from groundling.policies.provided import Language, ReferenceModel, Replacements, SystemPrompt, TrainedModel
from groundling.policies.reference import Reference
from groundling.policies.weights import read_vector

_CALIBRATION_BATCH = 32


class ActionTextPolicy(LanguageModelPolicy):
    """π(a | prompt) from the text of a; subclasses implement `score`.

    The value function is an MLP on the same forward pass: on the first decoder position of an encoder-decoder model,
    on the prompt's last token of a causal one.

    Args:
        lm: The language model; its weights are the policy's.
        reference: A frozen language model, for a KL penalty; ``lm`` itself stands for its weights with the LoRA
            adapters off, which takes no memory. Costs one more pass for each action. None: no KL.
        prompt, language, replacements, system: See `PromptPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers (1024 and 1024 in GLAM).
        temperature: Above 1 makes the actions' probabilities more alike, below 1 less.
        calibration: Number of observations of random play, such as 256, over which each action's mean log-probability
            is taken and then subtracted (see `calibrate`), since a pretrained model prefers the same action in every
            state; 0: none.
    """

    def __init__(
        self,
        lm: TrainedModel,
        reference: ReferenceModel = None,
        prompt: str | Sequence[str] = "glam",
        language: Language = "english",
        replacements: Replacements = None,
        system: SystemPrompt = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        temperature: float = 1.0,
        calibration: int = 0,
    ) -> None:
        super().__init__(lm, prompt, language, replacements, system)
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_head = ValueHead(lm.hidden_size, tuple(value_hidden_sizes)).to(lm.device)
        if not temperature > 0:
            raise ConfigError(f"policy.args.temperature must be greater than 0, got {temperature}")
        if calibration < 0:
            raise ConfigError(f"policy.args.calibration must be at least 0, got {calibration}")
        self.temperature, self.calibration = temperature, calibration
        self._means: Tensor | None = None  # float32 (num_actions,)

    @abstractmethod
    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Score each prompt's actions with ``lm``, the policy's or the reference's, with gradients.

        Returns:
            Float32 ``(batch, num_actions)``: normalised log-probabilities, padded with -inf.
            Float32 ``(batch, hidden_size)``: the states that values are computed from.
        """

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        log_probs, states = self._score(self.lm, observations)
        # In float32: bfloat16 has only 8 bits of precision.
        return log_probs, self.value_head(states)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.value_head(self.states(self.read(observations)))

    @torch.no_grad()
    def reference_log_probs(self, observations: Sequence[TextObservation], actions: Tensor) -> Tensor | None:
        if self.reference is None:
            return None
        with self.reference.model() as lm:
            log_probs, _ = self._score(lm, observations)
        return log_probs.gather(-1, actions[:, None].to(log_probs.device))[:, 0]

    def exploration_advice(self) -> str | None:
        return f"raise policy.args.temperature={self.temperature:g}, which makes actions more alike in probability"

    @torch.no_grad()
    def calibrate(self, observations: Sequence[TextObservation]) -> None:
        """Subtract each action's mean log-probability over these observations from now on.

        Batch calibration (Zhou et al. 2023, arXiv 2309.17249); the observations must have the same actions.
        """
        if len({o.actions for o in observations}) > 1:
            raise ConfigError(
                f"policy.args.calibration={self.calibration} takes the mean of each action's score over states, and "
                "this env's actions change: leave it out"
            )
        self._means = None
        batches = range(0, len(observations), _CALIBRATION_BATCH)
        parts = [self._score(self.lm, observations[i : i + _CALIBRATION_BATCH])[0] for i in batches]
        self._means = torch.cat(parts).mean(0)

    def save_pretrained(self, folder: Path) -> None:
        super().save_pretrained(folder)
        if self._means is not None:
            save_file({"means": self._means}, folder / "calibration.safetensors")

    def load_weights(self, folder: Path) -> None:
        super().load_weights(folder)
        if self.calibration:
            self._means = read_vector(folder / "calibration.safetensors", "means").to(self.device)

    def _score(self, lm: LanguageModel, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        with lm.autocast():
            actions = [[lm.mask(action) for action in o.actions] for o in observations]
            log_probs, states = self.score(lm, self.read(observations), actions)
        if self._means is not None:
            if log_probs.shape[1] != len(self._means):
                raise ConfigError(
                    f"the policy was calibrated on {len(self._means)} actions (policy.args.calibration), and there are "
                    f"{log_probs.shape[1]} here: give it the actions that it was trained with"
                )
            log_probs = (log_probs - self._means).log_softmax(-1)
        return log_probs, states
