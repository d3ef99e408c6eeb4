"""What rehearsed runs read: models of one layer, a reward model, recorded episodes. Made once for each process."""

import functools
import tempfile
from pathlib import Path

import torch
from scripts.combinations import PAID, Combination, config_of
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from groundling.cli.main import main
from groundling.judges.reward_models import reward_models
from groundling.lm import LanguageModel
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.sources import STARTERS, Source


@functools.cache
def folder() -> Path:
    """Where they lie; left to the machine."""
    return Path(tempfile.mkdtemp(prefix="rehearsal-"))


@functools.cache
def model(starter: str) -> Path:
    """A bundled model's architecture in the smallest size, with random weights and its tokenizer."""
    path = str(STARTERS[starter])
    config = AutoConfig.from_pretrained(path)
    seq2seq = bool(config.is_encoder_decoder)
    small = (
        {"num_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_heads": 4}
        if seq2seq
        else {
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
        }
    )
    config.update(small)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = (AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM).from_config(config)
    target = folder() / starter
    LanguageModel(made, load_tokenizer(Source(path))).save_pretrained(target)
    return target


@functools.cache
def distilled() -> Path:
    """A reward model's folder: a table, empty."""
    reward_models.create("table").save(folder() / "distilled")
    return folder() / "distilled"


@functools.cache
def dataset(world: str) -> Path:
    """Two episodes of a text world, played at random."""
    target = folder() / world.replace(" ", "_")
    config = config_of(Combination(world, "random", "ppo", PAID), distilled())
    words = [f"world.env={config.world.env}", "device=cpu", "evaluation.num_envs=2"]
    assert main(["collect", "random", *words, "--episodes", "2", "--output", str(target)]) == 0
    return target
