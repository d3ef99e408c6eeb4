"""The starter models' tokenizer: byte-level BPE with one token for each word of the text world."""

from __future__ import annotations

from starter_corpus import documents, join
from starter_words import ENGLISH, FRENCH
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1400
PAD, UNKNOWN, END_OF_SEQUENCE, END_OF_TEXT = "<pad>", "<unk>", "</s>", "<|endoftext|>"
SENTINELS = [f"<extra_id_{index}>" for index in range(8)]

# Openings of descriptions and prompts are one token each, which saves a third of the tokens.
PHRASES = ("You see a", "You carry a", "Tu vois une", "Tu vois un", "Tu portes une", "of the agent", "de l'agent")
# The places after a number are also one token each.
SPANS = ("steps? (?:left|right)(?: and)?", "steps? forward", "pas à (?:gauche|droite)(?: et)?", "pas devant")
PIECES = "|".join(
    [
        f",? (?:{'|'.join(PHRASES)})(?!\\p{{L}})",
        f" (?:{'|'.join(SPANS)})(?!\\p{{L}})",
        r",? ?\n",
        r" ?\p{L}+(?:'(?=\p{L}))?",
        r" ?\d",
        r" ?[^\s\p{L}\d]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def texts(seed: int) -> list[str]:
    """Return the text from which merges are learned: samples of the corpus, and the world's words, repeated."""
    sample = [
        join(document.context, *(part for turn in document.turns for part in turn))
        for document in documents(seed, 20_000)
    ]
    words = [
        word
        for language in (ENGLISH, FRENCH)
        for group in (language.nouns, language.colors, language.states, *language.action_words)
        for word in group
    ]
    return sample + [" Action " + " ".join(words)] * 500


def build_tokenizer(kind: str, seed: int) -> Tokenizer:
    """Train the merges, which are the same for both kinds, and add the special tokens of T5 or GPT-2."""
    specials = [PAD, END_OF_SEQUENCE, UNKNOWN, *SENTINELS] if kind == "t5" else [PAD, END_OF_TEXT, UNKNOWN]
    tokenizer = Tokenizer(BPE())
    # Encoding adds a leading space and decoding removes one, so that a word has the same token
    # at the start of a candidate and inside a sentence, and decoding restores any text.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = BpeTrainer(
        vocab_size=VOCABULARY + len(specials),
        min_frequency=20,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(seed), trainer)
    if kind == "t5":
        end = (END_OF_SEQUENCE, tokenizer.token_to_id(END_OF_SEQUENCE))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {END_OF_SEQUENCE}", pair=f"$A $B {END_OF_SEQUENCE}", special_tokens=[end]
        )
    return tokenizer


def fast_tokenizer(kind: str, tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer as an instance of the class in Transformers."""
    ends = {"eos_token": END_OF_SEQUENCE} if kind == "t5" else {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=SENTINELS if kind == "t5" else [],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
        **ends,
    )
