"""Tiny models of all kinds, saved in folders, so that nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.bert import BertConfig, BertForSequenceClassification, BertModel

from groundling.errors import GroundlingError
from groundling.metrics.matching import wordnet
from tests.convert.originals import rl4lms
from tests.lm.conftest import _tokenizer
from tests.lm.families import CONFIGS, VOCABULARY


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Save tiny random models with tokenizers, and return their folders."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    made: dict[str, Any] = {}
    for name, family, auto in (("causal", "gpt2", AutoModelForCausalLM), ("seq2seq", "t5", AutoModelForSeq2SeqLM)):
        shape = CONFIGS[family]()
        shape.num_hidden_layers = 1
        if name == "seq2seq":
            shape.num_decoder_layers = 1
        shape.vocab_size, shape.bos_token_id, shape.eos_token_id = VOCABULARY, 1, 1
        shape.pad_token_id = 0 if name == "seq2seq" else None
        made[name] = auto.from_config(shape)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertConfig(vocab_size=VOCABULARY, pad_token_id=0, **sizes)
    made["encoder"] = BertModel(bert)
    made["classifier"] = BertForSequenceClassification(
        BertConfig(vocab_size=VOCABULARY, pad_token_id=0, num_labels=4, **sizes)
    )
    for name, model in made.items():
        model.save_pretrained(root / name)
        tokenizer = _tokenizer(ends=name != "causal")
        if name in ("encoder", "classifier"):
            tokenizer.model_max_length = 512
        tokenizer.save_pretrained(root / name)
    return {name: str(root / name) for name in made}


def has_wordnet() -> bool:
    """Return True if METEOR can be computed, which requires WordNet; it is not a Python package."""
    try:
        wordnet()
    except GroundlingError:
        return False
    return True


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return `write(name, **changes)`, which writes a file of the original, with changed entries (dotted keys)."""

    def write(name: str, **changes: Any) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        made = OmegaConf.create(rl4lms(name))
        for key, value in changes.items():
            OmegaConf.update(made, key.replace("__", "."), value, merge=False)
        OmegaConf.save(made, path)
        return path

    return write
