"""GLAM's policy: a language model scores the admissible actions given a prompt."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from groundling.errors import ConfigError
from groundling.lm import LanguageModel, Prompts
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import policies
from groundling.policies.provided import Language, ReferenceModel, Replacements, SystemPrompt, TrainedModel


@policies.register("action_scoring")
class ActionScoringPolicy(ActionTextPolicy):
    """π(a | prompt) = softmax over the admissible actions of log P(a | prompt) / temperature (GLAM, section 3.2).

    Args:
        lm, reference, prompt, language, replacements, system: See `ActionTextPolicy`.
        value_hidden_sizes, temperature, calibration: See `ActionTextPolicy`.
        normalize: "sum" adds the tokens' log-probabilities, as in the paper, whose actions have one or two words. Each
            further token costs some nats, so an action of eight words is practically never taken next to one of two.
            With the mean per "token" or per "word" (TWOSOME, arXiv 2401.14151) actions become nearly equally likely.
            ``action_writing`` has no such preference.
        compat: "glam" scores as the original's released code does (see `LanguageModel.score`).
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
        normalize: Literal["sum", "token", "word"] = "sum",
        temperature: float = 1.0,
        calibration: int = 0,
        compat: Literal["glam"] | None = None,
    ) -> None:
        super().__init__(
            lm, reference, prompt, language, replacements, system, value_hidden_sizes, temperature, calibration
        )
        if compat is not None and normalize != "sum":
            raise ConfigError(
                f"policy.args.normalize={normalize} does nothing with compat={compat}, which adds up raw logits: "
                "leave one of them"
            )
        self.normalize: Literal["sum", "token", "word"] = normalize
        self.compat = compat

    def exploration_advice(self) -> str | None:
        if self.normalize == "sum" and self.compat is None:
            return (
                "policy.args.normalize=sum adds up the log-probabilities of an action's tokens, so that long actions "
                "are hardly ever taken next to short ones: take policy.id=action_writing, or normalize=token, and "
                "policy.args.temperature=2"
            )
        return super().exploration_advice()

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_candidates(prompts, actions, normalize=self.normalize, compat=self.compat)
        return (scores.log_probs / self.temperature).log_softmax(-1), scores.state
