"""Golden cases of RL4LMs, WordNet, and tiny models saved in folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.models.bert import BertConfig, BertForSequenceClassification, BertModel
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from groundling.errors import GroundlingError
from groundling.metrics.matching import wordnet

GOLDEN = Path(__file__).parents[1] / "data" / "rl4lms_golden.jsonl"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, "good", "bad", "the", "cat", "dog", "sat", "ran", "on", "mat", "film", "was", "."]


def golden(kind: str) -> list[dict[str, Any]]:
    """Return the cases of one kind; floats are as computed by the original, including NaN."""
    return [case for case in map(json.loads, GOLDEN.read_text().splitlines()) if case["kind"] == kind]


@pytest.fixture(scope="session")
def with_wordnet() -> None:
    """Skip if WordNet is not installed (apt install wordnet-base)."""
    try:
        wordnet()
    except GroundlingError as error:
        pytest.skip(str(error))


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one id for each of `WORDS`."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        model_max_length=32,
    )


def _bert_config(**options: Any) -> BertConfig:
    return BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        **options,
    )


def _saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def classifier(tmp_path: Path) -> Callable[..., str]:
    """Return `classifier(bias=None, labels=…)`, which saves a model; its logits are the bias, or random."""

    def make(bias: list[float] | None = None, labels: list[str] | None = None, size: int = 2, **config: Any) -> str:
        count = len(bias or labels or [0.0] * size)
        names = dict(enumerate(labels or [f"LABEL_{i}" for i in range(count)]))
        torch.manual_seed(0)
        model = BertForSequenceClassification(
            _bert_config(id2label=names, label2id={name: i for i, name in names.items()}, num_labels=count, **config)
        )
        if bias is not None:
            with torch.no_grad():
                model.classifier.weight.zero_()
                model.classifier.bias.copy_(torch.tensor(bias))
        else:
            with torch.no_grad():
                model.classifier.weight.mul_(100)
        return _saved(model, tmp_path / "classifier")

    return make


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    return _saved(BertModel(_bert_config()), tmp_path / "encoder")


@pytest.fixture
def encoder_decoder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(WORDS),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=3,
    )
    return _saved(T5ForConditionalGeneration(config), tmp_path / "t5")


@pytest.fixture
def causal(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=12, bos_token_id=3, eos_token_id=3
    )
    return _saved(GPT2LMHeadModel(config), tmp_path / "gpt2")
