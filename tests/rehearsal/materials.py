"""Inputs of rehearsed runs (one-layer models, a reward model, recorded episodes), made once per process."""

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
from groundling.lm.load.model_files import STARTERS, Source


@functools.cache
def folder() -> Path:
    """Return the folder of the inputs, which is not deleted."""
    return Path(tempfile.mkdtemp(prefix="rehearsal-"))


@functools.cache
def model(starter: str) -> Path:
    """Save a bundled model's architecture in the smallest size, with random weights and its tokenizer."""
    path = str(STARTERS[starter])
    config = AutoConfig.from_pretrained(path)
    seq2seq = bool(config.is_encoder_decoder)
    encoder_decoder = {"num_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_heads": 4}
    causal = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}
    causal |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config.update(encoder_decoder if seq2seq else causal)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = (AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM).from_config(config)
    target = folder() / starter
    LanguageModel(made, load_tokenizer(Source(path))).save_pretrained(target)
    return target


@functools.cache
def distilled() -> Path:
    """Create a folder with an empty table of rewards."""
    reward_models.create("table").save(folder() / "distilled")
    return folder() / "distilled"


@functools.cache
def dataset(world: str) -> Path:
    """Record two episodes of a random agent in a text world."""
    target = folder() / world.replace(" ", "_")
    config = config_of(Combination(world, "random", "ppo", PAID), distilled())
    words = [f"world.env={config.world.env}", "device=cpu", "evaluation.num_envs=2"]
    assert main(["collect", "random", *words, "--episodes", "2", "--output", str(target)]) == 0
    return target
