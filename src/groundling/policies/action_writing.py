"""A language model is the policy; it writes an action token by token, and can write nothing but admissible ones."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from groundling.lm import LanguageModel, Prompts
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import policies


@policies.register("action_writing")
class ActionWritingPolicy(ActionTextPolicy):
    """π(a | prompt) = Π_t P(a_t | prompt, a_<t, what is admissible): an action is written, by guided decoding.

    At each token only those that continue an admissible action can come, and their probabilities are divided by their
    sum (Outlines, arXiv 2307.09702; the trie of texts is GENRE's, arXiv 2010.00904). An action that another one begins
    with, as "go" begins "go left", ends with any of the model's end tokens, whose probabilities are added. Actions that
    the tokenizer encodes alike share their probability. Each action is spelled as the tokenizer spells it; Outlines
    also lets the same text be written in other tokens.

    ``action_scoring`` takes a softmax over the log-probabilities of whole actions instead (sums or means of their
    tokens', over a temperature). With sums that is how the model itself would choose among them; to write them under
    a guide is another distribution (Grammar-Aligned Decoding, arXiv 2405.21047). A token is chosen before it is known
    what it leads to: three actions that begin with "take", and "wait", are first of all a choice between two tokens.
    What is certain once it has been begun costs a long action nothing, and "go" is not likelier than "go left" for
    being its beginning.

    The probabilities of all actions follow from one pass (`LanguageModel.score_guided`). To draw an action from them,
    as is done here, is the same as to draw one token after the other. The entropy is that of the action, to which its
    tokens' entropies add up; PPO's ratio is the action's, which is the product of its tokens' ratios.

    Args:
        lm, reference, prompt, language, replacements, system: See `ActionTextPolicy`.
        value_hidden_sizes: Widths of the value head's hidden layers.
        temperature: Divides the logits of tokens, as it does in sampling.
        calibration: Observations of random play, such as 256: each action's mean log-probability over them is
            subtracted (see `calibrate`); 0: none. A pretrained model prefers an action in every state.
    """

    def __init__(
        self,
        lm: LanguageModel,
        reference: LanguageModel | None = None,
        prompt: str | Sequence[str] = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
        value_hidden_sizes: Sequence[int] = (1024, 1024),
        temperature: float = 1.0,
        calibration: int = 0,
    ) -> None:
        super().__init__(
            lm,
            reference,
            prompt,
            language,
            replacements,
            system,
            value_hidden_sizes,
            temperature,
            calibration,
        )

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_guided(prompts, actions, self.temperature)
        return scores.log_probs, scores.state
