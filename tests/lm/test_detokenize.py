"""Generated texts are decoded as continuations of their prompts."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from groundling.envs.text_generation import Sample
from groundling.envs.text_generation.env import TextGenerationEnv
from groundling.policies import TokenPolicy
from groundling.tokenization.chat import Chat
from groundling.tokenization.detokenize import Continuation
from groundling.worlds.writing.collect import texts_so_far
from groundling.worlds.writing.config import PromptEncoder
from tests.lm.chat_tokenizers import CHATML, byte_level, metaspace, tiny

WORDS = "you see a red ball and go north"
TEXT = "you see a red ball 😀😀 and é go\n\nnorth, 漢字漢字漢字 " * 3


def _word_piece() -> PreTrainedTokenizerFast:
    pieces = ["[UNK]", "[SEP]", *WORDS.split(), "##th", "nor", "##s", "."]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", sep_token="[SEP]")


TOKENIZERS = {
    "metaspace always": lambda: metaspace(WORDS),
    "metaspace first": lambda: metaspace(WORDS, "first"),
    "metaspace never": lambda: metaspace(WORDS, "never"),
    "byte-level": byte_level,
    "word piece": _word_piece,
}


def _joined(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_prompt_and_text_are_the_text_of_both_after_every_token(name):
    tokenizer = TOKENIZERS[name]()
    tokens = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    special = [tokenizer.all_special_ids[0]]
    for cut, prompt in ((0, tokens[:5]), (9, tokens[:9]), (4, tokens[:4] + special * 9), (30, tokens[:30])):
        read, given = _joined(tokenizer, prompt), tokens[cut or 5 :]
        if read.endswith("\ufffd"):
            continue
        written = Continuation(tokenizer, prompt)
        for number, token in enumerate(given, 1):
            text, expected = read + written.append(token), _joined(tokenizer, prompt + given[:number])
            # With byte fallback, a run of bytes is decoded to replacement characters until its last one is complete.
            assert text == expected or (name.startswith("metaspace") and expected.endswith("\ufffd"))
        assert Continuation(tokenizer, prompt).append(*given) == _joined(tokenizer, prompt + given)[len(read) :]


def test_a_text_after_nothing_or_an_end_token_begins_a_text():
    tokenizer = metaspace(WORDS)
    red = tokenizer(" red ball", add_special_tokens=False)["input_ids"]
    expected = _joined(tokenizer, red)
    for prompt in ([], [tokenizer.bos_token_id], [*red, tokenizer.eos_token_id]):
        assert Continuation(tokenizer, prompt).append(*red) == expected
    assert (
        Continuation(tokenizer, [*red, tokenizer.eos_token_id], False).append(*red, tokenizer.eos_token_id)
        == f"{expected}</s>"
    )


def test_tokens_of_a_long_text_are_decoded_in_linear_time(monkeypatch):
    tokenizer, decoded = metaspace(WORDS), list[int]()
    decode = type(tokenizer).decode

    def counted(self, tokens, **options):
        decoded.append(len(tokens))
        return decode(self, tokens, **options)

    monkeypatch.setattr(type(tokenizer), "decode", counted)
    tokens = random.Random(0).choices(tokenizer(f" {WORDS} 漢")["input_ids"], k=600)
    written = Continuation(tokenizer, tokens * 2)
    for token in tokens:
        text = written.append(token)
    assert sum(decoded) < 60 * len(tokens)
    assert _joined(tokenizer, tokens * 2) + text == _joined(tokenizer, tokens * 3)


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_rewards_environments_and_generate_read_the_first_space(scheme, template):
    tokenizer = metaspace(WORDS, scheme)
    tokenizer.pad_token, tokenizer.chat_template = "</s>", template
    lm = tiny(tokenizer, 2)
    space = tokenizer("you see a red", add_special_tokens=False)["input_ids"][-1:]
    assert tokenizer.convert_ids_to_tokens(space) == ["▁red"]
    with torch.no_grad():  # generates only ``▁red``
        lm.model.lm_head.weight.zero_()
        lm.model.transformer.ln_f.bias.fill_(1.0)
        lm.model.lm_head.weight[space] = 10.0
    prompts = PromptEncoder(tokenizer, chat=Chat(tokenizer) if template else None)([Sample("a", "you see a")])
    (generation,) = lm.generate([prompts[0].ids], max_new_tokens=2)
    assert generation.text == " red red"
    policy = TokenPolicy(lm, critic=False)
    rows = [policy.write(prompts, torch.rand(1, 2, dtype=torch.float64)).token_ids()[0].tolist()]
    assert texts_so_far(lm, prompts, rows, per_token=True) == [[" red", " red red"]]
    assert texts_so_far(lm, prompts, rows, per_token=False) == [["", " red red"]]
    for every in (False, True):
        env = TextGenerationEnv([Sample("a", "you see a")], tokenizer, max_episode_length=2, decode_every_step=every)
        env.reset()
        texts = [env.step(token)[4].get("context_text") for token in rows[0]]
        assert texts == [" red" if every else None, " red red"]
