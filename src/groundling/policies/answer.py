"""Rules for an agent's generated answers: the allowed tokens, when an answer ends, and which action it specifies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.lm.language_model import Among
from groundling.lm.read.guided import Trie
from groundling.policies.policy import Turn
from groundling.tokenization.detokenize import Continuation

_AROUND = " \t\r\n\"'`*.!\u201c\u201d\u2018\u2019"
_ACTION_TOKENS, _TEXT_TOKENS, _THOUGHT_TOKENS = 16, 64, 48


@dataclass(frozen=True)
class ActionTokens:
    """The token ids of a list of admissible actions, as they appear in an answer."""

    actions: tuple[str, ...]
    opening: list[int]  # inserted first: the start of a thought, or the template's text before an answer
    tokens: list[list[int]]  # the tokens of each action, after the opening or a thought
    end: int  # the token that ends an action: the end token of a turn or of a text
    paths: list[list[int]]  # guided decoding: each action's tokens up to the last with an alternative, at least one
    max_length: int  # maximum length of a generated action in tokens, including the end token

    def equal(self, action: int) -> list[int]:
        """Return the indices of all actions with the same tokens as ``action``, which the model cannot distinguish.

        If actions are free text, only ``action`` is returned.
        """
        return [index for index, ids in enumerate(self.tokens) if ids == self.tokens[action]] or [action]


class AnswerRules:
    """The rules for generating an answer; see `ActionGeneratingPolicy` for the arguments."""

    def __init__(
        self,
        lm: LanguageModel,
        guided: bool = True,
        max_action_tokens: int | None = None,
        invalid_action: str | None = None,
        thought_begins: str | None = None,
        thought_ends: str | None = None,
        max_thought_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> None:
        if blank := [text for text in stop or () if not text]:
            raise ConfigError(f"policy.args.stop={list(stop or ())} contains {blank[0]!r}: remove it")
        if thought_ends is not None and not thought_ends.strip():
            raise ConfigError(f"policy.args.thought_ends={thought_ends!r} is blank: use a string such as Action:")
        self.ends = lm.end_tokens.ids
        if not self.ends:
            raise ConfigError("this model has no end token, so answers would never end: set model.tokenizer")
        self.guided, self.invalid_action, self.thought_ends = guided, invalid_action, thought_ends
        self.stop = tuple(stop or ())
        self.max_thought_tokens = 0 if thought_ends is None else max_thought_tokens or _THOUGHT_TOKENS
        self.closing = list(lm.tokenizer(thought_ends, add_special_tokens=False)["input_ids"] if thought_ends else [])
        self._lm, self._thought_begins, self._max_action_tokens = lm, thought_begins, max_action_tokens
        self.action_tokens = lru_cache(10_000)(self._action_tokens)

    def usual_tokens(self, any_text: bool) -> int:
        """Return the maximum number of tokens in an answer, unless an admissible action is unusually long."""
        usual = _TEXT_TOKENS if any_text else _ACTION_TOKENS
        return self._other_tokens(False) + (self._max_action_tokens or usual)

    def max_tokens(self, observations: Sequence[TextObservation], in_conversation: bool = False) -> int:
        """Return the maximum number of tokens in an answer to any of these observations."""
        lengths = [self.action_tokens(seen.actions, in_conversation).max_length for seen in observations]
        return self._other_tokens(in_conversation) + max(lengths)

    def _other_tokens(self, in_conversation: bool) -> int:
        return len(self._opening(in_conversation)) + self.max_thought_tokens + len(self.closing)

    def _action_tokens(self, actions: tuple[str, ...], in_conversation: bool) -> ActionTokens:
        answers = in_conversation and self.thought_ends is None
        lead = len(self._lead(answers))
        masked = [self._lm.mask(action) for action in actions]
        tokens = [ids[lead:] for ids in self._lm.candidate_tokens(masked, answers)]
        ends = self._lm.end_tokens
        end = ends.of_turn if in_conversation else ends.of_text
        assert end is not None  # one of `ends`
        paths: list[list[int]] = []
        if not actions:
            longest = self._max_action_tokens or _TEXT_TOKENS
        elif self.guided:
            chosen = Trie.of(tokens, [end]).chosen
            paths = [path or [*ids, end][:1] for path, ids in zip(chosen, tokens, strict=True)]
            longest = max(map(len, paths))
        else:
            longest = self._max_action_tokens or max(_ACTION_TOKENS, 1 + max(map(len, tokens)))
        return ActionTokens(actions, self._opening(in_conversation), tokens, end, paths, longest)

    def _opening(self, in_conversation: bool) -> list[int]:
        lead = self._lead(in_conversation)
        if self.thought_ends is None:
            return list(lead)
        if self._thought_begins is None:
            return []
        return self._lm.candidate_tokens([self._thought_begins], in_conversation)[0][len(lead) :]

    def _lead(self, in_conversation: bool) -> list[int]:
        return self._lm.chat.lead if in_conversation and not self._lm.is_encoder_decoder else []

    def answer(self, actions: tuple[str, ...], in_conversation: bool = False, prompt: Sequence[int] = ()) -> "Answer":
        return Answer(self, self.action_tokens(actions, in_conversation), prompt)

    def plain_turn(self, observation: TextObservation, action: int | str, in_conversation: bool = False) -> Turn:
        """Return a turn that takes an action, passed as text or index, without a thought."""
        answer = self.answer(observation.actions, in_conversation)
        known = answer.choices
        answer.thinks, answer.inserted = False, [*known.opening, *self.closing]
        text = observation.action_text(action)
        own = self.action_tokens((text,), in_conversation).tokens if answer.is_text else known.tokens
        tokens = own[0 if answer.is_text else int(action)]
        if not answer.guided and len(tokens) > known.max_length:
            raise ConfigError(
                f"policy.args.max_action_tokens={known.max_length} is too small for the action {text!r:.80}, which "
                f"has {len(tokens)} tokens: raise it{'' if answer.is_text else ', or remove it'}"
            )
        path = known.paths[int(action)] if answer.guided else [*tokens, known.end]
        while not answer.ended:
            allowed = answer.allowed
            answer.write(path[len(answer.action_ids)] if allowed is None or len(allowed) > 1 else allowed[0])
        return answer.turn(observation)

    def decoder(self, before: Sequence[int], skip_special_tokens: bool = False) -> Continuation:
        """Return a decoder for the text that follows the tokens ``before``."""
        return Continuation(self._lm.tokenizer, before, skip_special_tokens)


@dataclass
class Answer:
    rules: AnswerRules
    choices: ActionTokens
    prompt: Sequence[int] = ()  # token ids before the answer; empty for an encoder-decoder
    tokens: list[int] = field(default_factory=list)
    among: list[Among] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)  # before each token; 0 before most inserted ones
    thought: list[int] = field(default_factory=list)
    action_ids: list[int] = field(default_factory=list)  # the action's tokens
    ended: bool = False
    action: int = 0  # index of the action that the answer specifies, or of its replacement
    action_text: str = ""  # the action, if actions are free text
    invalid: bool = False  # True if the answer specifies no admissible action

    def __post_init__(self) -> None:
        self.is_text = not self.choices.actions  # any text is an action
        self.guided = self.rules.guided and not self.is_text
        self.thinks = self.rules.thought_ends is not None
        self.inserted = list(self.choices.opening)  # tokens that the rules insert next
        self._begun = ""  # start of the action, if it is in the token that ended the thought
        self._decoder: Continuation | None = None  # decodes the thought, then the action

    def turn(self, observation: TextObservation) -> Turn:
        text = self.rules.decoder(self.prompt).append(*self.tokens)
        action = self.action_text if self.is_text else None
        return Turn(observation, tuple(self.tokens), tuple(self.among), text, action)

    @property
    def allowed(self) -> Among:
        if self.inserted:
            return (self.inserted[0],)
        if self.thinks or not self.guided:
            return None
        length = len(self.action_ids)
        return tuple(sorted({path[length] for path in self.choices.paths if path[:length] == self.action_ids}))

    def write(self, token: int, log_prob: float = 0.0, value: float = 0.0, among: Among = None) -> None:
        """Append a token, chosen ``among`` the `allowed` ones, and any following tokens that have no alternative."""
        self._append(token, among or self.allowed, log_prob, value)
        while not self.ended and (allowed := self.allowed) is not None and len(allowed) == 1:
            self._append(allowed[0], allowed, 0.0, 0.0)

    def _append(self, token: int, among: Among, log_prob: float, value: float) -> None:
        self.tokens.append(token)
        self.among.append(among)
        self.log_probs.append(log_prob)
        self.values.append(value)
        if self.inserted:
            self.inserted.pop(0)
        elif self.thinks:
            self._think(token)
        else:
            self._act(token)

    def _think(self, token: int) -> None:
        self.thought.append(token)
        _, end, begun = self._text_with(token, False).partition(self.rules.thought_ends or "")
        if end:
            self.thinks, self._begun, self._decoder = False, begun, None
        elif token in self.rules.ends or len(self.thought) == self.rules.max_thought_tokens:
            self.thinks, self.inserted, self._decoder = False, list(self.rules.closing), None

    def _act(self, token: int) -> None:
        self.action_ids.append(token)
        if self.guided:
            self.ended = self.action_ids in self.choices.paths
            self.action = self.choices.paths.index(self.action_ids) if self.ended else 0
            return
        text = (self._begun + self._text_with(token, True)).lstrip()
        stop = self.rules.stop if self.is_text else ("\n",)
        stopped = min((place for one in stop if (place := text.find(one)) >= 0), default=None)
        if token not in self.rules.ends and stopped is None and len(self.action_ids) < self.choices.max_length:
            return
        self.ended, text = True, text[:stopped]
        if self.is_text:
            self.action_text = text.strip()
            return
        named = self._named(text)
        self.invalid = named is None
        self.action = action_instead(self.rules.invalid_action, self.choices.actions) if named is None else named

    def _named(self, text: str) -> int | None:
        """Return the index of the action with exactly these tokens, or else of the action that ``text`` specifies."""
        ids = self.action_ids[:-1] if self.action_ids[-1] in self.rules.ends else self.action_ids
        if not self._begun.strip() and ids in self.choices.tokens:
            return self.choices.tokens.index(ids)
        return find_action(text, self.choices.actions)

    def _text_with(self, token: int, skip_special_tokens: bool) -> str:
        """Return the text of the thought or action up to ``token``, the last token generated."""
        if self._decoder is None:
            self._decoder = self.rules.decoder([*self.prompt, *self.tokens[:-1]], skip_special_tokens)
        return self._decoder.append(token)


def find_action(text: str, actions: Sequence[str]) -> int | None:
    """Return the index of the action that a text specifies; None if it specifies none.

    An exact match is tried first. Otherwise case, whitespace, and surrounding quotation marks, backticks, asterisks,
    full stops and exclamation marks are ignored.
    """
    if text.strip() in actions:
        return list(actions).index(text.strip())
    wanted = _plain(text)
    return next((index for index, action in enumerate(actions) if wanted and _plain(action) == wanted), None)


def action_instead(invalid_action: str | None, actions: Sequence[str]) -> int:
    """Return the index of ``invalid_action``, which replaces invalid answers; 0 if it is None or not admissible."""
    named = None if invalid_action is None else find_action(invalid_action, actions)
    return 0 if named is None else named


def _plain(text: str) -> str:
    return " ".join(text.strip(_AROUND).casefold().split())
