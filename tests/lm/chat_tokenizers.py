"""Tokenizers with and without an end-of-turn token, tiny models for them, and SentencePiece decoders."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from groundling.lm import LanguageModel

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
TEXT_END, TURN_END, CONFIG_END = 0, 2, 3


def byte_level(eos: str = "<|endoftext|>", template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single bytes and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    made.chat_template = template
    return made


def metaspace(words: str, scheme: str = "always") -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of Llama 2, whose decoder strips the first space of a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [f"▁{word}" for word in words.split()] + sorted(set("▁" + words.replace(" ", "")))
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = []
    for word in words.split():  # from left to right
        for end in range(1, len(word) + 1):
            left, piece = f"▁{word[: end - 1]}", f"▁{word[:end]}"
            vocabulary.setdefault(piece, len(vocabulary))
            merges.append((left, word[end - 1]))
    tokenizer = Tokenizer(
        models.BPE(vocabulary, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def tiny(tokenizer: PreTrainedTokenizerFast, ends: int | list[int] | None = TEXT_END) -> LanguageModel:
    """Return a random GPT-2 with the tokenizer's vocabulary and these end tokens in its generation config."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_embd=32,
                n_layer=1,
                n_head=2,
                n_positions=512,
                initializer_range=0.2,
                tie_word_embeddings=False,
                eos_token_id=None,
                bos_token_id=None,
            )
        )
    assert model.generation_config is not None
    model.generation_config.eos_token_id = ends
    return LanguageModel(model, tokenizer)
