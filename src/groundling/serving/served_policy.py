"""Adapter between requests and a policy with a language model: encodes prompts and scores the listed choices."""

from collections.abc import Sequence

from torch import Tensor

from groundling.errors import ConfigError
from groundling.policies.action_generating import ActionGeneratingPolicy
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.policy import Policy
from groundling.policies.prompt_policy import LanguageModelPolicy
from groundling.policies.token import TokenPolicy
from groundling.prompts.prompt import BLANK
from groundling.serving.requests import Source

_MAX_PROMPT_TOKENS = 8192  # For models without their own limit
_MAX_CHARACTERS = 32  # Maximum number of characters per token


class ServedPolicy:
    """Wraps a policy for a server; raises `ConfigError` if the policy has no language model, ``lm``."""

    def __init__(self, policy: Policy | None) -> None:
        if not isinstance(policy, LanguageModelPolicy | TokenPolicy):
            raise ConfigError("this agent has no language model to serve: choose a different one")
        self.policy, self.lm = policy, policy.lm
        self._reads_text = isinstance(policy, LanguageModelPolicy) and isinstance(policy.read([BLANK])[0], str)
        # Tokens before a written answer: the start of a thought, or the chat template's text before a final answer.
        self._opening: Sequence[int] = () if self._reads_text or self.lm.is_encoder_decoder else self.lm.chat.lead
        thinks = False
        if isinstance(policy, ActionGeneratingPolicy):
            self._opening = policy.rules.answer((), not self._reads_text).inserted
            thinks = policy.rules.thought_ends is not None
        self._scores_texts = not thinks and isinstance(policy, ActionTextPolicy | TokenPolicy)

    def read(self, source: Source, choices: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the token ids of a prompt and its choices; raise `GroundlingError` if the policy cannot read them."""
        lm, opening = self.lm, () if choices else self._opening
        limit = lm.max_prompt_tokens or lm.max_positions or _MAX_PROMPT_TOKENS
        texts = [source[0] or "", *source[1]] if isinstance(source, tuple) else [source]
        if (size := sum(map(len, texts))) > limit * _MAX_CHARACTERS:  # encoding would take too long
            raise ConfigError(f"the prompt has {size} characters, too many for a limit of {limit} tokens: shorten it")
        if isinstance(source, tuple) and not self._reads_text:
            system, said = source
            ids = lm.chat.conversation(system, list(zip(said[:-1:2], said[1::2], strict=True)), said[-1])
        elif isinstance(source, tuple):
            if source[0] is not None or len(source[1]) > 1:
                raise ConfigError("this agent reads a single text: send only one user message")
            ids = lm.prompt_tokens([lm.mask(source[1][0])])[0]
        else:
            ids = lm.prompt_tokens([source])[0] if isinstance(source, str) else source
            opening = opening if self._reads_text else ()
        if len(ids) + len(opening) > limit:
            raise ConfigError(f"the prompt has {len(ids)} tokens, but the limit is {limit}: shorten it")
        if max(ids) >= lm.vocabulary_size:
            raise ConfigError(f"token id {max(ids)} is not one of the {lm.vocabulary_size} tokens of this model")
        return [*ids, *opening], self._choice_tokens(ids, choices) if choices else []

    def _choice_tokens(self, prompt: list[int], choices: Sequence[str]) -> list[list[int]]:
        if not self._scores_texts:
            raise ConfigError("this agent thinks before it acts, or has an action head: do not send choices")
        _, (question,) = self.lm.questions([prompt], [[self.lm.mask(choice) for choice in choices]])
        if not all(question.candidates):
            raise ConfigError(f"choice {choices[question.candidates.index([])]!r} has no tokens: remove it")
        return question.candidates

    def log_probs(self, prompts: list[list[int]], choices: Sequence[Sequence[str]]) -> Tensor:
        """Return the policy's log-probability of each choice, float32 (num_prompts, num_choices)."""
        if isinstance(self.policy, ActionTextPolicy):
            return self.policy.score_texts(self.lm, prompts, choices)[0]
        with self.lm.autocast():
            masked = [[self.lm.mask(choice) for choice in of_prompt] for of_prompt in choices]
            return self.lm.score_guided(prompts, masked).log_probs
