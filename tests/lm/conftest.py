"""Tiny random models of many families and a small tokenizer; nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from groundling.lm import LanguageModel
from tests.lm.families import CONFIGS, CORPUS, VOCABULARY


@pytest.fixture(scope="session")
def tokenizers() -> dict[bool, PreTrainedTokenizerFast]:
    """Return byte-level tokenizers: one as in causal models (False), and one that ends texts with </s> (True)."""
    return {ends: _tokenizer(ends) for ends in (False, True)}


def _tokenizer(ends: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # In causal models, token 0 is an ordinary token ("!"), as in GPT-2.
    special = ["<pad>", "</s>"] if ends else ["!", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="</s>")


@pytest.fixture(scope="session")
def make_lm(tokenizers: dict[bool, PreTrainedTokenizerFast]) -> Callable[..., LanguageModel]:
    """Return `make_lm(family, seed=0, **options)`, which makes a tiny random language model of that family."""

    def make(family: str, seed: int = 0, **options: Any) -> LanguageModel:
        config = CONFIGS[family]()
        config.vocab_size = VOCABULARY
        config.bos_token_id = config.eos_token_id = 1
        config.pad_token_id = 0 if config.is_encoder_decoder else None
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            # as `LanguageModel.from_pretrained` loads it on CPUs
            biased = hasattr(config, "relative_attention_num_buckets")
            model = auto.from_config(config, attn_implementation="eager" if biased else None)
            _enlarge(model)
        return LanguageModel(model, tokenizers[config.is_encoder_decoder], **options)

    return make


@torch.no_grad()
def _enlarge(model: torch.nn.Module) -> None:
    """Enlarge the usual initial weights, so that every part of a model affects its scores."""
    for name, parameter in model.named_parameters():
        if "T5" in type(model).__name__:
            parameter.mul_(0.3 if "shared" in name or "lm_head" in name else 1.5)
        elif parameter.ndim > 1 and "conv" not in name:
            parameter.mul_(4.0)


@pytest.fixture(scope="session")
def lms(make_lm: Callable[..., LanguageModel]) -> Callable[[str], LanguageModel]:
    """Return `lms(family)`, which returns one model per session, for tests that do not change it."""
    made: dict[str, LanguageModel] = {}

    def get(family: str) -> LanguageModel:
        if family not in made:
            made[family] = make_lm(family)
        return made[family]

    return get
