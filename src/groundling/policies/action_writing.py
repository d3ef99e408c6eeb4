"""A language model writes one of the admissible actions by guided decoding."""

from torch import Tensor

from groundling.lm import LanguageModel, Prompts
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import policies


@policies.register("action_writing")
class ActionWritingPolicy(ActionTextPolicy):
    """π(a | prompt) = Π_t P(a_t | prompt, a_<t, admissible continuations): guided decoding.

    At each token only those that continue an admissible action are allowed, with renormalised probabilities (Outlines,
    arXiv 2307.09702; the trie of texts is GENRE's, arXiv 2010.00904). An action that another one begins with, as "go"
    begins "go left", ends with any of the model's end tokens, whose probabilities are added. Actions with equal tokens
    share their probability. Each action has the tokens that the tokenizer gives it; Outlines also allows other
    tokenisations of the same text.

    ``action_scoring`` takes a softmax over the log-probabilities of whole actions instead, which with sums is the
    model's own distribution restricted to them; guided decoding is another distribution (Grammar-Aligned Decoding,
    arXiv 2405.21047). A token is chosen before its continuations are known: "wait" and three actions that begin with
    "take" are first a choice between two tokens. Tokens without alternative cost a long action nothing, and "go" is
    not likelier than "go left" because it is shorter.

    One pass gives the probabilities of all actions (`LanguageModel.score_guided`); drawing an action from them equals
    drawing token by token. Entropy and PPO's ratio are those of whole actions.
    """

    def score(self, lm: LanguageModel, prompts: Prompts, actions: list[list[str]]) -> tuple[Tensor, Tensor]:
        scores = lm.score_guided(prompts, actions, self.temperature)
        return scores.log_probs, scores.state
