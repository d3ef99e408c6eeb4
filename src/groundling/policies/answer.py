"""The form of an agent's answer: what may come at each token, when it ends, and which action it names."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.lm.read.answers import Among
from groundling.lm.read.trie import Trie
from groundling.policies.turns import Turn
from groundling.tokenization.detokenize import Continuation

_AROUND = " \t\r\n\"'`*.!\u201c\u201d\u2018\u2019"
_ACTION_TOKENS, _THOUGHT_TOKENS = 16, 48
_REMEMBERED_LISTS = 10_000
"""Lists of actions whose tokens are kept at most."""


class Form:
    """The rules of `ActionGeneratingPolicy`, whose arguments these are.

    Raises:
        ConfigError: one of them cannot be followed, or does nothing.
    """

    def __init__(
        self,
        lm: LanguageModel,
        guided: bool,
        max_action_tokens: int | None,
        invalid_action: str | None,
        thought_begins: str | None,
        thought_ends: str | None,
        max_thought_tokens: int | None,
    ) -> None:
        for name, value in (("max_action_tokens", max_action_tokens), ("invalid_action", invalid_action)):
            if guided and value is not None:
                raise ConfigError(
                    f"policy.args.{name}={value} does nothing with guided decoding, which writes only admissible "
                    "actions: leave it out, or set policy.args.guided=false"
                )
        for name, given in (("thought_begins", thought_begins), ("max_thought_tokens", max_thought_tokens)):
            if thought_ends is None and given is not None:
                raise ConfigError(
                    f"policy.args.{name}={given} is a setting of the thought before an action, and this policy "
                    "writes none: set policy.args.thought_ends to the text that ends it (Action:, say)"
                )
        for name, most in (
            ("max_action_tokens", max_action_tokens),
            ("max_thought_tokens", max_thought_tokens),
        ):
            if most is not None and most < 1:
                raise ConfigError(f"policy.args.{name} must be at least 1, got {most}")
        if thought_ends is not None and not thought_ends.strip():
            raise ConfigError(
                f"policy.args.thought_ends={thought_ends!r} is blank: give a text that ends the thought, such as "
                "Action:"
            )
        self.ends = lm.end_tokens.ids
        if not self.ends:
            raise ConfigError(
                "this model has no end token (in its tokenizer, generation config or chat template), without which no "
                "answer ends: name another tokenizer (model.tokenizer=…)"
            )
        self.guided, self.invalid_action, self.thought_ends = guided, invalid_action, thought_ends
        self.max_thought_tokens = 0 if thought_ends is None else max_thought_tokens or _THOUGHT_TOKENS
        self._max_action_tokens = max_action_tokens
        self._thought_begins, self.closing = thought_begins, self._encoded(lm, thought_ends)
        self._lm = lm
        self._paths: dict[tuple[tuple[str, ...], bool], list[list[int]]] = {}

    def opening(self, in_conversation: bool) -> list[int]:
        """Token ids that a rule writes first: the beginning of a thought, or the template's text before an answer."""
        lead = self._lead(in_conversation)
        if self.thought_ends is None:
            return lead
        if self._thought_begins is None:
            return []
        return self._lm.candidate_tokens([self._thought_begins], in_conversation)[0][len(lead) :]

    def action_tokens(self, actions: Sequence[str], in_conversation: bool) -> list[list[int]]:
        """Token ids of actions, as they follow the `opening` or a thought."""
        answers = in_conversation and self.thought_ends is None
        tokens = self._lm.candidate_tokens([self._lm.mask(action) for action in actions], answers)
        lead = self._lead(answers)
        return [ids[len(lead) :] for ids in tokens]

    def _lead(self, in_conversation: bool) -> list[int]:
        return self._lm.chat.lead if in_conversation and not self._lm.is_encoder_decoder else []

    @property
    def plain(self) -> bool:
        """Whether an answer is an admissible action and nothing else."""
        return self.guided and self.thought_ends is None

    @property
    def usual_tokens(self) -> int:
        """How many tokens an answer has at most, where no admissible action is longer than usual."""
        action = self._max_action_tokens or _ACTION_TOKENS
        return len(self.opening(False)) + self.max_thought_tokens + len(self.closing) + action

    def most_action_tokens(self, actions: tuple[str, ...], in_conversation: bool = False) -> int:
        """How many tokens of an action are written at most, the end included."""
        if self.guided:
            return max(len(path) for path in self.paths(actions, in_conversation))
        if self._max_action_tokens is not None:
            return self._max_action_tokens
        return max(_ACTION_TOKENS, 1 + max(map(len, self.action_tokens(actions, in_conversation))))

    def end_token(self, in_conversation: bool) -> int:
        """The token that ends an action: that of a turn, or of a plain text."""
        ends = self._lm.end_tokens
        token = ends.of_turn if in_conversation else ends.of_text
        assert token is not None  # some of `ends`
        return token

    def paths(self, actions: tuple[str, ...], in_conversation: bool = False) -> list[list[int]]:
        """The tokens of each action that guided decoding writes: up to the last that is a choice, and at least one."""
        key = actions, in_conversation
        if key not in self._paths:
            if len(self._paths) >= _REMEMBERED_LISTS:
                self._paths.clear()
            tokens, end = self.action_tokens(actions, in_conversation), self.end_token(in_conversation)
            chosen = Trie.of(tokens, [end]).chosen
            self._paths[key] = [path or [*ids, end][:1] for path, ids in zip(chosen, tokens, strict=True)]
        return self._paths[key]

    def same_tokens(self, actions: tuple[str, ...], action: int, in_conversation: bool = False) -> list[int]:
        """Indices of the actions that have the tokens of ``action``, itself included: the model writes all alike."""
        tokens = self.action_tokens(actions, in_conversation)
        return [index for index, ids in enumerate(tokens) if ids == tokens[action]]

    def most_tokens(self, observations: Sequence[TextObservation], in_conversation: bool = False) -> int:
        """How many tokens an answer has at most at one of these."""
        action = max(self.most_action_tokens(seen.actions, in_conversation) for seen in observations)
        return len(self.opening(in_conversation)) + self.max_thought_tokens + len(self.closing) + action

    def plain_turn(self, observation: TextObservation, action: int, in_conversation: bool = False) -> Turn:
        """The turn that takes ``action``, an index, without a thought.

        Raises:
            ConfigError: the action has more tokens than may be written.
        """
        answer = Answer(self, observation.actions, in_conversation)
        answer.thinks, answer.waiting = False, [*self.opening(in_conversation), *self.closing]
        end = self.end_token(in_conversation)
        spelled = [*self.action_tokens(observation.actions, in_conversation)[action], end]
        path = self.paths(observation.actions, in_conversation)[action] if self.guided else spelled
        most = self.most_action_tokens(observation.actions, in_conversation)
        if not self.guided and len(spelled) - 1 > most:
            raise ConfigError(
                f"policy.args.max_action_tokens={most} leaves no room for the action {observation.actions[action]!r}, "
                f"which takes {len(spelled) - 1} tokens: set that at least, or leave it out"
            )
        while not answer.ended:
            among = answer.among_next
            answer.write(path[len(answer.said)] if among is None or len(among) > 1 else among[0])
        return answer.turn(observation)

    def decoder(self, before: Sequence[int], skip_special_tokens: bool = False) -> Continuation:
        """The decoder of what follows the tokens ``before``."""
        return Continuation(self._lm.tokenizer, before, skip_special_tokens)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return self.decoder(()).append(*tokens)

    def names(
        self, tokens: Sequence[int], actions: tuple[str, ...], in_conversation: bool = False
    ) -> int | None:
        """The first action with exactly these tokens, which its decoded text may not tell; None: no action."""
        candidates = self.action_tokens(actions, in_conversation)
        return candidates.index(list(tokens)) if tokens in candidates else None

    @staticmethod
    def _encoded(lm: LanguageModel, text: str | None) -> list[int]:
        return list(lm.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


@dataclass
class Answer:
    """An answer as it is written."""

    form: Form
    actions: tuple[str, ...]
    """The admissible ones."""
    in_conversation: bool = False
    """True if the prompt is a conversation, whose turns have their own end token."""
    prompt: Sequence[int] = ()
    """Token ids before the answer; none for an encoder-decoder."""
    tokens: list[int] = field(default_factory=list)
    among: list[Among] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """Before each token; 0 before those that a rule puts after another."""
    thought: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    """The action's tokens."""
    ended: bool = False
    action: int = 0
    """Which of the admissible ones it came to."""
    invalid: bool = False
    """It named none, and a rule did."""

    def __post_init__(self) -> None:
        self.thinks = self.form.thought_ends is not None
        self._most = self.form.most_action_tokens(self.actions, self.in_conversation)
        self.waiting = list(self.form.opening(self.in_conversation))  # tokens that a rule writes next
        self._begun = ""  # of the action, in the token that ended the thought
        self._decoder: Continuation | None = None  # of the thought, then of the action

    def turn(self, observation: TextObservation) -> Turn:
        """It as an answer to an observation."""
        text = self.form.decoder(self.prompt).append(*self.tokens)
        return Turn(observation, tuple(self.tokens), tuple(self.among), text)

    @property
    def among_next(self) -> Among:
        """What the next token is chosen among."""
        if self.waiting:
            return (self.waiting[0],)
        if self.thinks or not self.form.guided:
            return None
        length = len(self.said)
        paths = self.form.paths(self.actions, self.in_conversation)
        going_on = [path for path in paths if path[:length] == self.said]
        return tuple(sorted({path[length] for path in going_on}))

    def write(self, token: int, log_prob: float = 0.0, value: float = 0.0) -> None:
        """Write a token, and those after it that are certain."""
        self._put(token, self.among_next, log_prob, value)
        while not self.ended and (among := self.among_next) is not None and len(among) == 1:
            self._put(among[0], among, 0.0, 0.0)

    def _put(self, token: int, among: Among, log_prob: float, value: float) -> None:
        self.tokens.append(token)
        self.among.append(among)
        self.log_probs.append(log_prob)
        self.values.append(value)
        if self.waiting:
            self.waiting.pop(0)
        elif self.thinks:
            self._think(token)
        else:
            self._say(token)

    def _think(self, token: int) -> None:
        self.thought.append(token)
        _, end, begun = self._decoded(token, False).partition(self.form.thought_ends or "")
        if end:
            self.thinks, self._begun, self._decoder = False, begun, None
        elif token in self.form.ends or len(self.thought) == self.form.max_thought_tokens:
            self.thinks, self.waiting, self._decoder = False, list(self.form.closing), None

    def _decoded(self, token: int, skip_special_tokens: bool) -> str:
        """The text of the thought, or of the action, up to ``token``, which is the last one written."""
        if self._decoder is None:
            self._decoder = self.form.decoder([*self.prompt, *self.tokens[:-1]], skip_special_tokens)
        return self._decoder.append(token)

    def _say(self, token: int) -> None:
        self.said.append(token)
        if self.form.guided:
            paths = self.form.paths(self.actions, self.in_conversation)
            self.ended = self.said in paths
            self.action = paths.index(self.said) if self.ended else 0
            return
        text = (self._begun + self._decoded(token, True)).lstrip()
        if token in self.form.ends or "\n" in text or len(self.said) == self._most:
            self.ended = True
            said = self.said[:-1] if token in self.form.ends else self.said
            said_all = not self._begun.strip()
            named = self.form.names(said, self.actions, self.in_conversation) if said_all else None
            if named is None:
                named = find_action(text.partition("\n")[0], self.actions)
            self.invalid = named is None
            self.action = action_instead(self.form.invalid_action, self.actions) if named is None else named


def find_action(text: str, actions: Sequence[str]) -> int | None:
    """Which of the actions a text is; if none to the letter, apart from case, blanks, and marks around it (quotation
    marks, asterisks, full stops and exclamation marks).
    """
    if text.strip() in actions:
        return list(actions).index(text.strip())
    wanted = _plain(text)
    return next((index for index, action in enumerate(actions) if wanted and _plain(action) == wanted), None)


def action_instead(invalid_action: str | None, actions: Sequence[str]) -> int:
    """Which of the actions is done where an answer names none: ``invalid_action``, or the first where that is none."""
    named = None if invalid_action is None else find_action(invalid_action, actions)
    return 0 if named is None else named


def _plain(text: str) -> str:
    return " ".join(text.strip(_AROUND).casefold().split())
