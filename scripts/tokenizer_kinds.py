"""Kinds of tokenizers and chat templates that are small enough to be built in a test.

The templates are our own versions of published ones.
"""

from collections.abc import Callable
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from groundling.lm.load.gguf import SMOLLM2
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.model_files import Source, resolve

_CORPUS = [
    "You see a wall 2 steps left",
    "You see a red ball and a green key 3 steps forward",
    "Goal: go to the red ball",
    "Actions: turn left, turn right, go forward, pick up, drop, toggle",
    "You act in a world. Answer each message with your next action.",
    "go north. look at the map! take 12 coins",
    "system user assistant model end",
    "<|user|> <|assistant|> <|system|> [INST] [/INST] <<SYS>> <</SYS>>",
    "<think>It is there.</think>",
] * 4
_CONTROL = [
    "<pad>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]
_WORDS_PATTERN = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _bpe(byte_fallback: bool = False, ignore_merges: bool = False) -> Tokenizer:
    return Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, ignore_merges=ignore_merges))


def _trained(tokenizer: Tokenizer, byte_level: bool = False) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else ["\n", "é", "漢"]
    specials = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256) if getattr(tokenizer.model, "byte_fallback", False)),
    ]
    trainer: trainers.Trainer
    if isinstance(tokenizer.model, models.BPE):
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        )
    elif isinstance(tokenizer.model, models.Unigram):
        trainer = trainers.UnigramTrainer(
            vocab_size=160, special_tokens=["<unk>"], unk_token="<unk>", initial_alphabet=alphabet, show_progress=False
        )
    elif isinstance(tokenizer.model, models.WordPiece):
        trainer = trainers.WordPieceTrainer(
            vocab_size=260, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
        )
    else:
        trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _metaspace(scheme: str) -> Tokenizer:
    made = _bpe()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _trained(made)


def _llama2() -> Tokenizer:
    made = _bpe(byte_fallback=True)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # only for training
    made = _trained(made)
    made.pre_tokenizer = None  # type: ignore[assignment]
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def _gemma() -> Tokenizer:
    made = _bpe(byte_fallback=True)
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made = _trained(made)
    made.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    return made


def _byte_level(prefix: bool) -> Tokenizer:
    made = _bpe()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    return _trained(made, byte_level=True)


def _split_bytes(normalizer: normalizers.Normalizer | None, ignore_merges: bool) -> Tokenizer:
    made = _bpe(ignore_merges=ignore_merges)
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_WORDS_PATTERN, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return _trained(made, byte_level=True)


def _unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    return _trained(made)


def _wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))  # type: ignore[call-arg]
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return _trained(made)


def _wordlevel() -> Tokenizer:
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))  # type: ignore[call-arg]
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return _trained(made)


_BUILT: dict[str, Callable[[], Tokenizer]] = {
    "BPE, Metaspace `first`": lambda: _metaspace("first"),
    "BPE, Metaspace `always`": lambda: _metaspace("always"),
    "BPE, Metaspace `never`": lambda: _metaspace("never"),
    "Llama 2 (`Prepend`, `Replace`, byte fallback)": _llama2,
    "Gemma (`Replace`, byte fallback, spaces as added tokens)": _gemma,
    "Unigram with Metaspace (T5)": _unigram,
    "byte-level (GPT-2)": lambda: _byte_level(False),
    "byte-level with prefix space (RoBERTa)": lambda: _byte_level(True),
    "byte-level, split by words and digits (Llama 3)": lambda: _split_bytes(None, True),
    "byte-level, NFC, thoughts as added tokens (Qwen 3)": lambda: _split_bytes(normalizers.NFC(), False),
    "WordPiece (BERT)": _wordpiece,
    "WordLevel": _wordlevel,
    "control tokens that strip whitespace (Phi 3)": lambda: _metaspace("first"),
}
BUNDLED = {"Groundling's `starter-causal`": "starter-causal", "SmolLM2": SMOLLM2}
TOKENIZERS = (*_BUILT, *BUNDLED)

_END = "{% if add_generation_prompt %}"
TEMPLATES = {
    "ChatML": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + _END
    + "<|im_start|>assistant\n{% endif %}",
    "Llama 2": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set start = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}{% else %}{% set rest = messages %}"
    "{% set start = '' %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}"
    "{{ '<s>[INST] ' + ((start if loop.first else '') + m.content) | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + ' </s>' }}{% endif %}{% endfor %}",
    "Llama 3": "{% for m in messages %}{{ '<|begin_of_text|>' if loop.first else '' }}"
    "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    + _END
    + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "Zephyr": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '</s>\n' }}{% endfor %}"
    + _END
    + "{{ '<|assistant|>\n' }}{% endif %}",
    "Gemma": "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}<s>"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}" + _END + "<start_of_turn>model\n{% endif %}",
    "thoughts dropped": "{% for m in messages %}{% set words = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in words %}{% set words = words.split('</think>')[-1].lstrip('\n') %}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ words }}<|im_end|>\n{% endfor %}"
    + _END
    + "<|im_start|>assistant\n{% endif %}",
    "trimmed": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    + _END
    + "<|im_start|>assistant\n{% endif %}",
    "text before the last answer": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}" + _END + "<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
    "empty thought in the last answer": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}" + _END + "<|im_start|>assistant\n{% endif %}",
}
ENDS = {"Llama 2": "</s>", "Zephyr": "</s>", "Llama 3": "<|eot_id|>", "Gemma": "<end_of_turn>"}
"""The token that ends an assistant's turn, by template; ``<|im_end|>`` in all others."""


@cache
def make_tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer of a kind, with the control tokens of all templates."""
    if kind in BUNDLED:
        made = load_tokenizer(Source(resolve(BUNDLED[kind])))
        made.add_special_tokens({"additional_special_tokens": [*_CONTROL]})
        made.name_or_path = kind
        return made
    strips = "strip" in kind
    built = _BUILT[kind]()
    built.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=False, rstrip=strips) for token in _CONTROL]
    )
    if "thoughts" in kind:
        built.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    first = built.token_to_id("<s>")
    if "Llama 2" in kind:
        built.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", first)])
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        name_or_path=kind,
    )
