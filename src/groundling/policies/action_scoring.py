"""GLAM's policy: a language model scores the admissible actions given a prompt."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.fields import Ge, OnlyWith
from groundling.lm import ActionHead, LanguageModel, Prompts, ValueHead
from groundling.policies import arguments
from groundling.policies.policy import policies, read_tensors
from groundling.policies.prompt_policy import LanguageModelPolicy, Reference

_CALIBRATION_BATCH = 32


class ActionTextPolicy(LanguageModelPolicy):
    """Computes π(a | prompt) from the text of action a; subclasses implement `score`.

    The value function is an MLP on a hidden state of the same forward pass: at the first decoder position for
    encoder-decoder models, or at the prompt's last token for causal models.

    Args:
        lm: The language model; its weights are part of the policy.
        reference: A frozen language model for a KL penalty, which costs one more pass per action. Pass ``lm`` itself
            to use its weights without the LoRA adapters, at no extra memory cost. If None, there is no penalty.
        prompt, language, replacements, system: See `PromptPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers (1024 and 1024 in GLAM).
        temperature: Values above 1 flatten the distribution over actions; values below 1 sharpen it.
        calibration: Number of observations from random play (such as 256) used to estimate each action's mean
            log-probability. The mean is subtracted (see `calibrate`), because a pretrained model tends to prefer the
            same action in every state. 0 disables calibration.
    """

    def __init__(
        self,
        lm: arguments.TrainedModel,
        reference: arguments.ReferenceModel = None,
        prompt: str | Sequence[str] = "glam",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        system: arguments.SystemPrompt = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        temperature: arguments.Temperature = 1.0,
        calibration: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(lm, prompt, language, replacements, system)
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_head = ValueHead(lm.hidden_size, tuple(value_hidden_sizes)).to(lm.device)
        self.temperature, self.calibration = temperature, calibration
        self._means: Tensor | None = None  # float32 (num_actions,)

    @abstractmethod
    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Score each prompt's actions with ``lm`` (the policy's model or the reference), with gradients.

        Returns:
            Float32 ``(batch, num_actions)``: normalised log-probabilities, padded with -inf.
            Float32 ``(batch, hidden_size)``: the states from which values are computed.
        """

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        log_probs, states = self._score(self.lm, observations)
        # In float32, because bfloat16 has only 8 bits of precision.
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
        return f"raise policy.args.temperature={self.temperature:g}, which flattens the distribution over actions"

    @torch.no_grad()
    def calibrate(self, observations: Sequence[TextObservation]) -> None:
        """From now on, subtract each action's mean log-probability over these observations.

        This is batch calibration (Zhou et al. 2023, arXiv 2309.17249). All observations must have the same actions.
        """
        if len({o.actions for o in observations}) > 1:
            raise ConfigError("policy.args.calibration needs an env whose actions never change: remove it")
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
            file = folder / "calibration.safetensors"
            means = read_tensors(file).get("means")
            if means is None or means.ndim != 1 or means.dtype != torch.float32 or not means.isfinite().all():
                raise ConfigError(
                    f"{file} is damaged: means is not a finite float32 vector; restore the original file"
                )
            self._means = means.to(self.device)

    def _score(self, lm: LanguageModel, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        return self.score_texts(lm, self.read(observations), [o.actions for o in observations])

    def score_texts(
        self, lm: LanguageModel, prompts: Prompts, actions: Sequence[Sequence[str]]
    ) -> tuple[Tensor, Tensor]:
        """Score like `score`, but apply calibration, and treat control tokens spelled out in actions as plain text."""
        with lm.autocast():
            masked = [[lm.mask(action) for action in of_prompt] for of_prompt in actions]
            log_probs, states = self.score(lm, prompts, masked)
        if self._means is not None:
            if log_probs.shape[1] != len(self._means):
                raise ConfigError(f"calibrated on {len(self._means)} actions, but this env has {log_probs.shape[1]}")
            log_probs = (log_probs - self._means).log_softmax(-1)
        return log_probs, states


@policies.register("action_scoring")
class ActionScoringPolicy(ActionTextPolicy):
    """π(a | prompt) = softmax over the admissible actions of log P(a | prompt) / temperature (GLAM, section 3.2).

    Args:
        lm, reference, prompt, language, replacements, system: See `ActionTextPolicy`.
        value_hidden_sizes, temperature, calibration: See `ActionTextPolicy`.
        normalize: "sum" adds the tokens' log-probabilities, as in the paper, which favours short actions over long
            ones. "token" and "word" (TWOSOME, arXiv 2401.14151) average them, so that actions are about equally likely.
            ``action_writing`` has no length bias.
        compat: "glam" computes the same scores as the code released with GLAM (see `LanguageModel.score`).
    """

    def __init__(
        self,
        lm: arguments.TrainedModel,
        reference: arguments.ReferenceModel = None,
        prompt: str | Sequence[str] = "glam",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        system: arguments.SystemPrompt = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        normalize: Annotated[Literal["sum", "token", "word"], OnlyWith("compat", (None,))] = "sum",
        temperature: arguments.Temperature = 1.0,
        calibration: Annotated[int, Ge(0)] = 0,
        compat: Literal["glam"] | None = None,
    ) -> None:
        super().__init__(
            lm, reference, prompt, language, replacements, system, value_hidden_sizes, temperature, calibration
        )
        self.normalize: Literal["sum", "token", "word"] = normalize
        self.compat = compat

    def exploration_advice(self) -> str | None:
        if self.normalize == "sum" and self.compat is None:
            return (
                "policy.args.normalize=sum adds up the log-probabilities of an action's tokens, which favours short "
                "actions over long ones: set policy.id=action_writing, or normalize=token, and "
                "policy.args.temperature=2"
            )
        return super().exploration_advice()

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_candidates(prompts, actions, normalize=self.normalize, compat=self.compat)
        return (scores.log_probs / self.temperature).log_softmax(-1), scores.state


@policies.register("action_head")
class ActionHeadPolicy(LanguageModelPolicy):
    """π(· | prompt) = softmax of an MLP on the prompt's state (GLAM, section 4.1); a value head reads the same state.

    The state is taken at the first decoder position for encoder-decoder models, or at the prompt's last token for
    causal models. GLAM's NPAE is this policy with ``model.init=embeddings``.

    Args:
        lm: The language model; its weights are part of the policy.
        num_actions: Maximum number of admissible actions; output ``i`` corresponds to the ``i``-th action.
        prompt, language, replacements, system: See `PromptPolicy`.
        hidden_sizes: Widths of each head's hidden layers (1024 and 1024 in GLAM).
    """

    def __init__(
        self,
        lm: arguments.TrainedModel,
        num_actions: arguments.NumActions,
        prompt: str | Sequence[str] = "glam",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        system: arguments.SystemPrompt = None,
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
                f"{int(counts.max())} actions are admissible, but the action head has {self.num_actions} outputs: set "
                "policy.args.num_actions to the maximum number of admissible actions"
            )
        if int(counts.min()) < self.num_actions:
            beyond = torch.arange(self.num_actions) >= counts[:, None]
            logits = logits.masked_fill(beyond.to(logits.device), -torch.inf)
        return logits.log_softmax(-1), self.value_head(states)

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        return {"action_head.safetensors": self.action_head.state_dict(), **super().weight_files()}
