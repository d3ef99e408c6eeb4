"""Measure PPO with LoRA on the upper layers, with and without cached states of the frozen layers.

    OMP_NUM_THREADS=1 python benchmarks/frozen_layers.py                      # takes some minutes on one core
    OMP_NUM_THREADS=1 python benchmarks/frozen_layers.py --model llama

Each round collects a rollout and learns from it in both ways, starting from the same weights. The script reports the CPU
seconds of acting (`Policy.act` within `Policy.unchanged`) and learning (`PPO.update`), and the largest differences of
log-probabilities and LoRA weights. The cache persists between rounds, as in training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from machine import machine, seconds
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from groundling.algorithms import Rollout
from groundling.config.compose import compose
from groundling.lm import LanguageModel
from groundling.lm.read.tree_reader import TreeReader
from groundling.runtime import devices
from groundling.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "frozen-layers.json"
MODELS = {"smollm2": range(12, 30), "llama": range(6, 15)}
"""Layers with LoRA; the first layers, up to 0.4 of all, are frozen."""
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_llama(folder: Path) -> Path:
    """Save a Llama with 45 M random weights and SmolLM2's tokenizer."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=15,
        num_attention_heads=6,
        num_key_value_heads=6,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    LanguageModel.from_pretrained("smollm2").tokenizer.save_pretrained(folder)
    return folder


def make_trainer(arguments: argparse.Namespace, folder: Path) -> Trainer:
    path = "smollm2" if arguments.model == "smollm2" else make_llama(folder / "model")
    lora = {"r": 16, "lora_alpha": 32, "target_modules": MODULES}
    lora["layers_to_transform"] = list(MODELS[arguments.model])
    ppo = {
        "epochs": 1,
        "minibatch_size": arguments.minibatch,
        "learning_rate": 3e-4,
        "normalize_advantages": True,
        "detach_values": True,
        "advantage_share": arguments.share,
    }
    words = [
        "world.history=1",
        "world.args={max_steps: 8, describe_walls: false}",
        f"world.num_envs={arguments.envs}",
        f"world.num_steps={arguments.steps}",
        f"model={ {'path': str(path), 'lora': lora} }".replace("'", ""),
        f"policy.id={arguments.policy}",
        "policy.args.prompt=brief",
        "algorithm.id=ppo",
        "~algorithm.args",
        f"algorithm.args={ppo}".replace("'", ""),
        "cloning.episodes=null",
        "evaluation.baselines=[]",
        "device=cpu",
    ]
    run = folder / "run"
    run.mkdir()
    return Trainer(compose("demo-smollm2", words), run, warnings.warn)


def uncached() -> Any:
    """Return a context in which no states of frozen layers are cached."""
    return mock.patch.object(TreeReader, "has_frozen_layers", False)


def act(trainer: Trainer, rollout: Rollout) -> tuple[float, Tensor]:
    """Return the CPU seconds of acting on a rollout's observations, and the log-probabilities of its actions."""
    rows = rollout.actions.shape[1]
    steps = [rollout.observations[i : i + rows] for i in range(0, len(rollout.observations), rows)]
    began = seconds()
    with trainer.policy.unchanged():
        outputs = [trainer.policy.outputs(step) for step in steps]
    taken = seconds() - began
    log_probs = torch.cat([output.log_probs for output in outputs if output is not None])
    return taken, log_probs.gather(-1, rollout.actions.flatten()[:, None])[:, 0]


def learn(trainer: Trainer, rollout: Rollout) -> tuple[float, list[Tensor]]:
    """Return the CPU seconds of an update and the weights after it; then restore the weights."""
    weights = [p for p in trainer.policy.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    trainer.algorithm.setup(trainer.policy)
    began = seconds()
    trainer.algorithm.update(trainer.policy, rollout, generator=torch.Generator().manual_seed(0))
    taken = seconds() - began
    after = [p.detach().clone() for p in weights]
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
    return taken, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--policy", default="action_writing")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--share", type=float, default=1.0, help="algorithm.args.advantage_share")
    parser.add_argument("--rounds", type=int, default=3, help="including the first one, which is a warm-up")
    parser.add_argument("--profile", choices=("plain", "cached"), help="profile learning once, and write no results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    rows: dict[str, list[float]] = {f"{way}_{what}": [] for way in ("plain", "cached") for what in ("act", "learn")}
    far_log_probs = far_weights = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(arguments, Path(folder))
        generator = torch.Generator().manual_seed(0)
        for number in range(arguments.rounds):
            rollout, _ = trainer.collector.collect(trainer.policy, generator=generator)
            found = {}
            for way, on in (("plain", False), ("cached", True)):
                with nullcontext() if on else uncached():
                    acted, log_probs = act(trainer, rollout)
                    learnt, weights = learn(trainer, replace(rollout))
                found[way] = log_probs, weights
                if number:
                    rows[f"{way}_act"].append(acted / rollout.num_transitions)
                    rows[f"{way}_learn"].append(learnt / rollout.num_transitions)
                print(
                    way,
                    f"act {acted / rollout.num_transitions:.4f} learn {learnt / rollout.num_transitions:.4f}",
                    flush=True,
                )
            (one, weights), (other, same) = found["plain"], found["cached"]
            far_log_probs = max(far_log_probs, float((one - other).abs().max()))
            far_weights = max(far_weights, max(float((a - b).abs().max()) for a, b in zip(weights, same, strict=True)))
        if arguments.profile:
            with nullcontext() if arguments.profile == "cached" else uncached(), torch.profiler.profile() as profile:
                learn(trainer, rollout)
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=45))
            return
    means = {name: statistics.mean(values) for name, values in rows.items()}
    for way in ("plain", "cached"):
        means[f"{way}_step"] = means[f"{way}_act"] + means[f"{way}_learn"]
    ratios = {what: means[f"plain_{what}"] / means[f"cached_{what}"] for what in ("act", "learn", "step")}
    row = {
        "settings": {name: value for name, value in vars(arguments).items() if name != "profile"},
        "cpu_seconds_a_step": {name: round(value, 4) for name, value in means.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "largest_difference": {"log_probs": far_log_probs, "weights_after_an_update": far_weights},
        "machine": machine(),
    }
    print(json.dumps(row, indent=1))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*known, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
