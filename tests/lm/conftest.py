"""Tiny random models of many families, and a small tokenizer, all made here: nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.models.bart import BartConfig
from transformers.models.bloom import BloomConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mamba import MambaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.opt import OPTConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.t5 import T5Config

from groundling.lm import LanguageModel

VOCABULARY = 320
CORPUS = [
    "Possible action of the agent: turn left, turn right, go forward, pick up, drop, toggle",
    "Goal of the agent: go to the red ball. You see a wall 2 steps forward, You see a blue key 3 steps left",
    "You see a green box 1 step right and 4 steps forward, You carry a yellow ball",
]
ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]

_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_POSITIONS = {"max_position_embeddings": 256}
CONFIGS: dict[str, Callable[[], Any]] = {
    "t5": lambda: T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "flan-t5": lambda: T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, scale_decoder_outputs=False,
    ),
    "bart": lambda: BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=1, **_POSITIONS,
    ),
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "llama": lambda: LlamaConfig(num_key_value_heads=2, **_SHAPE, **_POSITIONS),
    "qwen2": lambda: Qwen2Config(num_key_value_heads=2, **_SHAPE, **_POSITIONS),
    "qwen3": lambda: Qwen3Config(num_key_value_heads=2, head_dim=8, **_SHAPE, **_POSITIONS),
    "opt": lambda: OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=16, **_POSITIONS
    ),
    "mistral": lambda: MistralConfig(num_key_value_heads=2, sliding_window=24, **_SHAPE, **_POSITIONS),
    "gemma2": lambda: Gemma2Config(num_key_value_heads=2, head_dim=8, final_logit_softcapping=1.0, **_SHAPE),
    "bloom": lambda: BloomConfig(hidden_size=32, n_layer=2, n_head=4),
    "mamba": lambda: MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4),
}  # fmt: skip
# Families whose candidates must be read one per row.
UNPACKABLE = {"bart", "bloom", "mamba"}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizers() -> dict[bool, PreTrainedTokenizerFast]:
    """A byte-level tokenizer as causal models have it (False), and one that ends texts with </s> as T5's (True)."""
    return {ends: _tokenizer(ends) for ends in (False, True)}


def _tokenizer(ends: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # For the causal models id 0 is an ordinary token ("!"), as in GPT-2.
    special = ["<pad>", "</s>"] if ends else ["!", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="</s>")


@pytest.fixture(scope="session")
def make_lm(tokenizers: dict[bool, PreTrainedTokenizerFast]) -> Callable[..., LanguageModel]:
    """`make_lm(family, seed=0, **options)`: a tiny random language model of that family."""

    def make(family: str, seed: int = 0, **options: Any) -> LanguageModel:
        config = CONFIGS[family]()
        config.vocab_size = VOCABULARY
        config.bos_token_id = config.eos_token_id = 1
        config.pad_token_id = 0 if config.is_encoder_decoder else None
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = auto.from_config(config)
            _enlarge(model)
        return LanguageModel(model, tokenizers[config.is_encoder_decoder], **options)

    return make


@torch.no_grad()
def _enlarge(model: torch.nn.Module) -> None:
    """Larger weights than the usual initialisation, so that every part of a model tells in its scores."""
    for name, parameter in model.named_parameters():
        if "T5" in type(model).__name__:
            parameter.mul_(0.3 if "shared" in name or "lm_head" in name else 1.5)
        elif parameter.ndim > 1 and "conv" not in name:
            parameter.mul_(4.0)


@pytest.fixture(scope="session")
def lms(make_lm: Callable[..., LanguageModel]) -> Callable[[str], LanguageModel]:
    """`lms(family)`: the same for the whole session, for tests that do not change it."""
    made: dict[str, LanguageModel] = {}

    def get(family: str) -> LanguageModel:
        if family not in made:
            made[family] = make_lm(family)
        return made[family]

    return get
