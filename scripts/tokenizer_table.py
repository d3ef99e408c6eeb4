"""Which tokenizers and chat templates give the template's own tokens: a test walks the list of docs/tokenizers.md.

python -m scripts.tokenizer_table     # writes docs/tokenizers.md
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from groundling.envs.observation import TextObservation
from groundling.envs.text_generation import Sample
from groundling.lm import LanguageModel
from groundling.policies.answer import Answer, Form
from groundling.worlds.writing.collect import PromptEncoder
from scripts.tokenizer_kinds import ENDS, TEMPLATES, TOKENIZERS, make_tokenizer

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
    """A tokenizer with a chat template, and a model of random weights."""

    def __init__(self, kind: str, template: str) -> None:
        self.template = template
        self.lm = _model(kind)
        self.lm.tokenizer.chat_template = TEMPLATES[template]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.chat = self.lm.chat

    def messages(self, system: str | None, said: Sequence[str]) -> list[dict[str, str]]:
        """As Transformers takes them; a system prompt opens the first words where the template refuses it."""
        words = [
            said[0] if system is None or self.template != "Gemma" else f"{system}\n\n{said[0]}",
            *said[1:],
        ]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(itertools.cycle(("user", "assistant")), words, strict=False)
        ]
        first = {"role": "system", "content": system}
        return messages if system is None or self.template == "Gemma" else [first, *messages]

    def truth(self, system: str | None, said: Sequence[str], asks: bool = True) -> list[int]:
        """Token ids by Transformers."""
        return list(
            self.lm.tokenizer.apply_chat_template(
                self.messages(system, said), add_generation_prompt=asks, return_dict=False
            )
        )

    def answer(self, said: Sequence[str], answer: str) -> list[int] | None:
        """Token ids of an answer after a conversation, out of those of the whole text; None if its prompt has others."""
        tokenizer, prompt = self.lm.tokenizer, self.truth(None, said)
        printed = str(
            tokenizer.apply_chat_template(
                self.messages(None, said), tokenize=False, add_generation_prompt=True
            )
        )
        whole = str(tokenizer.apply_chat_template(self.messages(None, [*said, answer]), tokenize=False))
        if whole.startswith(printed):
            text = whole[: whole.index(answer, len(printed)) + len(answer)]
        else:  # its answers have other text before them once they are given
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
    "The tokenizer merges the end of the prompt with the answer into other tokens, so the answer has no tokens of its own "
    "in the whole text. It is encoded alone."
)


def opening(pair: Pair) -> str | None:
    """The first prompt, with a system prompt and without."""
    for system, words in itertools.product((None, "You act.\nBe brief."), (SAID[0], SAID[2], SAID[4])):
        assert pair.chat.opening(system, words) == pair.truth(system, [words]), (system, words)
    return None


def several_turns(pair: Pair) -> str | None:
    """Each prompt of a conversation, as it grows."""
    for system, last in itertools.product((None, "You act.\nBe brief."), (1, 3, 5)):
        assert pair.chat.tokens(system, SAID[:last]) == pair.truth(system, SAID[:last]), (system, last)
    why = pair.chat.why_whole
    return None if why is None else f"Equal, rendered whole at each step: {why}."


def score(pair: Pair) -> str | None:
    """Log-probabilities of answers, against those of the whole text read at once."""
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


def _form(pair: Pair, guided: bool) -> Form:
    form = Form(pair.lm, guided, None, None, None, None, None)
    form.in_conversation = True
    return form


def writing(pair: Pair) -> str | None:
    """What a guide lets the model write, and what is read of an answer that it writes freely."""
    truth = {text: pair.answer(SAID[:3], text) for text in ANSWERS}
    guided = _form(pair, True).action_tokens(ANSWERS)
    free = _form(pair, False)
    unread = False
    for number, (text, ids) in enumerate(zip(ANSWERS, guided, strict=True)):
        assert truth[text] is None or ids == truth[text], text
        answer = Answer(free, ANSWERS)
        for token in ids:
            answer.write(token)
        assert not answer.ended, text
        answer.write(pair.lm.tokenizer.convert_tokens_to_ids(ENDS.get(pair.template, "<|im_end|>")))
        assert answer.ended, text
        unread = unread or answer.invalid or answer.action != number
    if unread:
        return "Not every action can be read in its tokens, of which some are unknown ones."
    return _MERGES if None in truth.values() else None


def cloning(pair: Pair) -> str | None:
    """The tokens that a recorded action teaches."""
    seen = TextObservation("go", (("You see a wall",),), (), ANSWERS, {})
    end = pair.lm.tokenizer.convert_tokens_to_ids(ENDS.get(pair.template, "<|im_end|>"))
    merges = False
    for number, text in enumerate(ANSWERS):
        ids = pair.answer(SAID[:3], text)
        merges = merges or ids is None
        turn = _form(pair, False).plain_turn(seen, number)
        assert ids is None or turn.tokens == (*ids, end), text
    return _MERGES if merges else None


def supervised(pair: Pair) -> str | None:
    """The tokens that a pool's reference teaches."""
    answers = [pair.answer(SAID[:3], text) for text in ANSWERS]
    encode = PromptEncoder(pair.lm.tokenizer, 512, chat=pair.chat)
    for text, ids in zip(ANSWERS, answers, strict=True):
        assert ids is None or encode.target(text, False) == ids, text
    return _MERGES if None in answers else None


def pool_conversations(pair: Pair) -> str | None:
    """Samples that are conversations, with thoughts and blanks in their earlier answers."""
    encode = PromptEncoder(pair.lm.tokenizer, 512, chat=pair.chat)
    for said in (SAID, _THOUGHT):
        sample = Sample.of_messages("one", [*pair.messages(None, said)])
        (prompt,) = encode([sample])
        spelled = said is _THOUGHT and pair.chat.encoder.spelled(said[1])
        if spelled and list(prompt.ids) != pair.truth(None, said):
            return (
                "The template writes `<think>` itself, so an earlier answer's is plain text, not the token."
            )
        assert list(prompt.ids) == pair.truth(None, said), said
    return None


CHECKS: dict[str, Callable[[Pair], str | None]] = {
    "opening": opening,
    "several turns": several_turns,
    "score": score,
    "guided and free writing": writing,
    "cloning": cloning,
    "supervised": supervised,
    "pool conversations": pool_conversations,
}
