"""Policies whose language model says how likely each admissible action's text is."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel, Prompts, ValueHead
from groundling.policies.reading import ReadingPolicy
from groundling.policies.reference import Reference
from groundling.policies.weights import read_into, read_vector

_CALIBRATION_BATCH = 32


class ActionTextPolicy(ReadingPolicy):
    """π(a | prompt) by the text of a; subclasses give `score`.

    The value function is an MLP on the same forward pass: on the first decoder position of an
    encoder-decoder model, on the prompt's last token of a causal one.

    Args:
        lm: The language model; its weights are the policy's.
        reference: The frozen language model that a KL penalty is taken to; ``lm`` itself stands for its weights with
            the LoRA adapters off, at no memory. It costs one more pass for each action. None: no KL.
        prompt, language, replacements, system: See `ReadingPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers.
        temperature: Above 1 makes actions more alike in probability, below 1 less.
        calibration: Observations of random play by which `calibrate` is called before training; 0: it is not.
    """

    has_value_head: ClassVar[bool] = True

    def __init__(
        self,
        lm: LanguageModel,
        reference: LanguageModel | None,
        prompt: str | Sequence[str],
        language: str,
        replacements: Mapping[str, str] | None,
        system: str | None,
        value_hidden_sizes: Sequence[int],
        temperature: float,
        calibration: int = 0,
    ) -> None:
        super().__init__(prompt, language, replacements, system, lm)
        self.lm = lm
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_head: nn.Module = ValueHead(lm.hidden_size, tuple(value_hidden_sizes)).to(lm.device)
        if not temperature > 0:
            raise ConfigError(f"policy.args.temperature must be greater than 0, got {temperature}")
        self.temperature = temperature
        if calibration < 0:
            raise ConfigError(f"policy.args.calibration must be at least 0, got {calibration}")
        self.calibration = calibration
        self._means: Tensor | None = None  # float32 (num_actions,)

    @torch.no_grad()
    def calibrate(self, observations: Sequence[TextObservation]) -> None:
        """Subtract each action's mean log-probability from now on, so that what the model prefers everywhere is chosen
        no more often than the rest (batch calibration: Zhou et al. 2023, arXiv 2309.17249).

        Args:
            observations: The states that the mean is over.

        Raises:
            ConfigError: their actions differ.
        """
        if len({o.actions for o in observations}) > 1:
            raise ConfigError(
                f"policy.args.calibration={self.calibration} takes the mean of each action's score over states, and "
                "this env's actions change: leave it out"
            )
        self._means = None
        size = _CALIBRATION_BATCH
        parts = [
            self._read_by(self.lm, observations[i : i + size])[0] for i in range(0, len(observations), size)
        ]
        self._means = torch.cat(parts).mean(0)

    @abstractmethod
    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """What ``lm``, which is the policy's or its reference, thinks of each prompt's actions, with gradients.

        Returns:
            Float32 ``(batch, num_actions)``: normalised log-probabilities of the actions, -inf where there are fewer.
            Float32 ``(batch, hidden_size)``: the states that values are told from.
        """

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        log_probs, state = self._read_by(self.lm, observations)
        # The head stays out of autocast: bfloat16 tells values apart no finer than 1 in 256.
        return log_probs, self.value_head(state)

    def exploration_advice(self) -> str | None:
        return f"raise policy.args.temperature={self.temperature:g}, which makes actions more alike in probability"

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.value_head(self.states(self.read(observations)))

    def states(self, prompts: Prompts) -> Tensor:
        """Float32 ``(num_prompts, hidden_size)``, with gradients: what values are told from."""
        with self.lm.autocast():
            return self.lm.encode(prompts)

    @torch.no_grad()
    def reference_log_probs(self, observations: Sequence[TextObservation], actions: Tensor) -> Tensor | None:
        if self.reference is None:
            return None
        with self.reference.model() as lm:
            log_probs, _ = self._read_by(lm, observations)
        return log_probs.gather(-1, actions[:, None].to(log_probs.device))[:, 0]

    def save_pretrained(self, folder: Path) -> None:
        self.lm.save_pretrained(folder)
        save_file(self.value_head.state_dict(), folder / "value_head.safetensors")
        if self._means is not None:
            save_file({"means": self._means}, folder / "calibration.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read the value head and the calibration; the language model is made from ``folder`` by
        `LanguageModel.from_pretrained`.
        """
        read_into(self.value_head.state_dict(), folder / "value_head.safetensors")
        if self.calibration:
            self._means = read_vector(folder / "calibration.safetensors", "means").to(self.device)

    def _read_by(self, lm: LanguageModel, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        with lm.autocast():
            actions = [[lm.mask(action) for action in o.actions] for o in observations]
            log_probs, state = self.score(lm, self.read(observations), actions)
        if self._means is not None:
            if log_probs.shape[1] != len(self._means):
                raise ConfigError(
                    f"the policy was calibrated on {len(self._means)} actions (policy.args.calibration), and there are "
                    f"{log_probs.shape[1]} here: give it the actions that it was trained with"
                )
            log_probs = (log_probs - self._means).log_softmax(-1)
        return log_probs, state
