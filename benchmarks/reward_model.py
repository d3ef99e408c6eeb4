"""Compare the speed of training a reward model on distinct messages with that of the plain computation.

    taskset -c 0 nice -n 5 python benchmarks/reward_model.py            # one thread, about two minutes
    taskset -c 0 nice -n 5 python benchmarks/reward_model.py --quick    # smoke test: two rounds of one batch

Pairs of single messages are sampled from random play of NLE's NetHackScore-v0, and labelled by a rule. Both variants
use the same network, initial weights and minibatches, and are interleaved in each round. Times are CPU seconds of the
process, including the optimizer step:

plain       all 256 bytes of every message of every pair pass through the network, as in the original
distinct    `groundling.judges.reward_models.distill.train_epoch`

Before the measurement, the gradients of both variants are compared on every minibatch.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import nle  # noqa: F401  (registers)
import numpy as np
import torch
from machine import machine
from numpy.typing import NDArray
from torch import Tensor, nn

from groundling.judges.preferences.pairs import decode_pairs
from groundling.judges.reward_models import MotifRewardModel
from groundling.judges.reward_models.distill import TrainingPairs, segment_scores, train_epoch
from groundling.judges.reward_models.models import MessageNetwork, encode

RESULTS = Path(__file__).parent / "results"
SPEED_LIMIT, GRADIENT_LIMIT = 4.0, 1e-6
WORDS = (b"kill", b"$", b"stairs", b"door", b"hit", b"find")


def random_play(steps: int, seed: int) -> NDArray[np.uint8]:
    """Return the messages (steps, 256) of uniformly random actions."""
    env: Any = gymnasium.make("NetHackScore-v0", observation_keys=("message", "blstats")).unwrapped
    rng = np.random.default_rng(seed)
    messages = np.empty((steps, 256), dtype=np.uint8)
    done, episode = True, 0
    for step in range(steps):
        if done:
            env.seed(core=seed + episode, disp=seed + episode, reseed=False)
            observation, _ = env.reset()
            episode, done = episode + 1, False
        else:
            observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
            done = terminated or truncated
        messages[step] = observation["message"]
    env.close()
    return messages


def make_pairs(count: int, steps: int, seed: int) -> TrainingPairs:
    messages = random_play(steps, seed)
    drawn = np.random.default_rng(seed).integers(steps, size=(count, 2, 1))
    worth = np.array([sum(word in message.tobytes() for word in WORDS) for message in messages])[drawn[..., 0]]
    preferences = np.where(worth[:, 0] > worth[:, 1], 0, np.where(worth[:, 0] < worth[:, 1], 1, 2))
    return TrainingPairs.of(decode_pairs(messages[drawn]), preferences)


def plain_network(network: MessageNetwork) -> nn.Sequential:
    """Return the original's layers with the parameters of ``network``: int64 (n, 256) to (n, 1)."""

    class Transposed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 2)

    c, relu, pool = network.convolutions, nn.ReLU(), nn.MaxPool1d(3)
    layers = [network.embedding, Transposed(), c[0], relu, pool, c[1], relu, pool]
    return nn.Sequential(*layers, c[2], relu, c[3], relu, c[4], relu, c[5], relu, pool, nn.Flatten(), network.head)


def plain_loss(network: nn.Sequential, everything: Tensor, pairs: TrainingPairs) -> Tensor:
    """Return the loss on the pairs of messages ``everything``, uint8 (N, 2, L, 256)."""
    rewards = network(everything.flatten(0, 2).long()).view(everything.shape[:3]).mean(-1)
    return nn.functional.cross_entropy(rewards, pairs.targets.to(rewards))


def every_message(pairs: TrainingPairs) -> Tensor:
    """Return every message of every pair: uint8 (N, 2, L, 256)."""
    return encode(pairs.captions, "motif")[pairs.indices]


def compare_gradients(pairs: TrainingPairs, batch_size: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest difference of gradients, absolute and relative to the batch's largest gradient."""
    torch.manual_seed(0)
    model = MotifRewardModel().to(dtype)
    plain = copy.deepcopy(model)
    network = plain_network(plain.network)
    absolute = relative = 0.0
    for rows in torch.arange(len(pairs)).split(batch_size):
        batch = pairs[rows]
        model.zero_grad()
        plain.zero_grad()
        model.loss(segment_scores(model, batch), batch.targets, batch.mask()).backward()
        plain_loss(network, every_message(batch), batch).backward()
        both = [(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
        difference = max((p - q).abs().max().item() for p, q in both if p is not None and q is not None)
        largest = max(q.abs().max().item() for _, q in both if q is not None)
        absolute, relative = max(absolute, difference), max(relative, difference / largest)
    return {"absolute": absolute, "of_the_greatest": relative}


def measure(pairs: TrainingPairs, batch_size: int, rounds: int, batches: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MotifRewardModel()
    plain = copy.deepcopy(model)
    network = plain_network(plain.network)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-5) for m in (model, plain)]
    seconds: dict[str, list[float]] = {"plain": [], "distinct": []}
    distinct: list[int] = []
    for number in range(rounds + 1):  # the first round warms up
        order = torch.Generator().manual_seed(number)
        part = pairs[torch.randperm(len(pairs), generator=order)[: batches * batch_size]]
        everything = every_message(part)  # not timed
        began = time.process_time()
        for rows in torch.randperm(len(part), generator=order).split(batch_size):
            loss = plain_loss(network, everything[rows], part[rows])
            optimizers[1].zero_grad(set_to_none=True)
            loss.backward()
            optimizers[1].step()
        middle = time.process_time()
        train_epoch(model, optimizers[0], part, batch_size, order)
        ended = time.process_time()
        distinct.append(len(part[torch.arange(batch_size)].indices.unique()))
        if number:
            seconds["plain"].append(middle - began)
            seconds["distinct"].append(ended - middle)
    count = batches * batch_size
    ratios = [p / d for p, d in zip(seconds["plain"], seconds["distinct"], strict=True)]
    return {
        "pairs_per_cpu_second": {name: count / statistics.median(s) for name, s in seconds.items()},
        "speedup": {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)},
        "distinct_messages_in_a_batch": statistics.median(distinct),
        "rounds_in_cpu_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=100_000, help="steps of random play, the source of the pairs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="number of batches in each round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="run with small sizes; write no results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs, arguments.steps, arguments.rounds, arguments.batches = 2_000, 5_000, 2, 1
    torch.set_num_threads(1)
    pairs = make_pairs(arguments.pairs, arguments.steps, arguments.seed)
    results: dict[str, Any] = {
        "settings": vars(arguments),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "nle": importlib.metadata.version("nle"),
        },
        "distinct_messages": len(pairs.captions),
        "longest_message": max(map(len, pairs.captions)),
        "batch_sizes": {},
    }
    for batch_size in (256, 1024):
        some = pairs[torch.arange(4 * batch_size) % len(pairs)]
        gaps = {str(dtype): compare_gradients(some, batch_size, dtype) for dtype in (torch.float32, torch.float64)}
        found: dict[str, Any] = {"gradient_difference": gaps}
        found |= measure(pairs, batch_size, arguments.rounds, arguments.batches)
        results["batch_sizes"][batch_size] = found
        ratio = found["speedup"]
        speed = found["pairs_per_cpu_second"]
        print(
            f"batch {batch_size:5}: plain {speed['plain']:7.0f} pairs/s, distinct {speed['distinct']:7.0f} pairs/s, "
            f"{ratio['median']:5.1f} x ({ratio['least']:.1f} to {ratio['greatest']:.1f}); "
            f"{found['distinct_messages_in_a_batch']:.0f} distinct messages in a batch; "
            + "; ".join(
                f"{dtype} gradients differ by {gap['absolute']:.1e}, {gap['of_the_greatest']:.1e} of the greatest"
                for dtype, gap in gaps.items()
            ),
            flush=True,
        )
    results["machine"]["load_after"] = os.getloadavg()
    print(f"targets: >= {SPEED_LIMIT} x, gradients equal to within {GRADIENT_LIMIT}")
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "reward_model-cpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
