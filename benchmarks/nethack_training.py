"""Measure training throughput in NetHack with Motif's network, 64 envs and rollouts of 32 steps.

    python benchmarks/nethack_training.py                                    # about five minutes
    python benchmarks/nethack_training.py --sample-factory VENV/bin/python   # also sample-factory

Variants are interleaved, so that other jobs slow all of them down equally. Each runs in separate processes, with one or
two learners (each with one thread and its share of the envs), and with or without the intrinsic reward of a network of
Motif's size. Sample-factory 2.1.1 runs the same task and network without an intrinsic reward, and renders in its workers
as in its NetHack example. It requires a separate environment (see benchmarks/sample_factory_nethack.py).

The script writes frames per second and CPU microseconds per frame to benchmarks/results/nethack_training.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import machine

RESULTS = Path(__file__).parent / "results" / "nethack_training.json"
SAMPLE_FACTORY = Path(__file__).parent / "sample_factory_nethack.py"
NUM_ENVS, NUM_STEPS = 64, 32
ARRANGEMENTS = {
    "2 learners": {"processes": 2, "intrinsic": True},
    "2 learners, extrinsic only": {"processes": 2, "intrinsic": False},
    "1 learner": {"processes": 1, "intrinsic": True},
}


def measure(seconds: float, intrinsic: bool, ahead: bool, workers: int) -> dict[str, float]:
    """Train in this process, which a launcher has started along with others, and report the speed of all of them."""
    import torch

    from groundling.algorithms import APPO, Rollout
    from groundling.envs.nethack.vector import NetHackVectorEnv
    from groundling.judges.reward_models import reward_models
    from groundling.judges.reward_models.reward_model import Normalization
    from groundling.policies.nethack import NetHackPolicy
    from groundling.rewards import EnvPart, Part, RewardModelPart, RewardSum
    from groundling.runtime.processes import Processes
    from groundling.worlds.nethack.collect import NetHackCollector

    torch.set_num_threads(1)
    torch.manual_seed(0)
    processes = Processes.join("cpu")
    policy, algorithm = NetHackPolicy(23), APPO(minibatch_size=NUM_ENVS * NUM_STEPS)
    algorithm.processes = processes
    algorithm.setup(policy)
    parts: dict[str, Part] = {"env": EnvPart(scale=0.1, clip=10)}
    if intrinsic:
        model = reward_models.create("motif")
        model.normalization = Normalization(0.0, 1.0, tuple(0.1 * i for i in range(-9, 10)))
        parts["reward_model"] = taste = RewardModelPart()
        taste.use(model)
    started = time.monotonic()
    own = processes.share(NUM_ENVS)
    envs = NetHackVectorEnv(
        "NetHackScore-v1",
        own.stop - own.start,
        num_workers=workers,
        num_groups=2 if workers else 1,
        first_env=own.start,
    )
    reward = RewardSum(parts, dict.fromkeys(parts, 0.1))
    collector = NetHackCollector(envs, NUM_STEPS, reward, rank=processes.rank, ahead=ahead)
    generator = torch.Generator().manual_seed(0)
    frames, update, start_up = 0, 0, 0.0
    while True:
        rollout, _ = collector.collect(policy, generator=generator)
        if update == 0:
            start_up = time.monotonic() - started
        if update == 2:  # warm
            frames, begin, cpu = 0, time.monotonic(), _cpu_seconds()
        rollout = Rollout.concatenate(processes.gather(rollout))
        algorithm.update(policy, rollout, generator=generator)
        frames, update = frames + len(rollout), update + 1
        if update > 2 and any(processes.gather(time.monotonic() - begin > seconds)):
            break
    elapsed = time.monotonic() - begin
    collector.close()
    spent = sum(processes.gather(_cpu_seconds() - cpu))
    figures = {
        "frames_per_second": frames / elapsed,
        "cpu_us_per_frame": 1e6 * spent / frames,
        "seconds_to_first_rollout": start_up,
    }
    return figures if processes.is_main else {}


def run_round(seconds: float, sample_factory: str | None) -> dict[str, Any]:
    """Run one round of all variants, each in separate processes."""
    figures = {}
    for name, arrangement in ARRANGEMENTS.items():
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        command += [f"--nproc-per-node={arrangement['processes']}", sys.executable, __file__, "--measure"]
        command += ["--seconds", str(seconds)] + ["--intrinsic"] * arrangement["intrinsic"]
        figures[name] = _last_line(command)
        print(name, figures[name], flush=True)
    if sample_factory is not None:
        name = "sample-factory 2.1.1"
        figures[name] = _last_line([sample_factory, str(SAMPLE_FACTORY), "--seconds", str(seconds)])
        print(name, figures[name], flush=True)
    return figures


def _last_line(command: list[str]) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{' '.join(command)} gave no figures:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def _cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="per variant and round, after a warm-up")
    parser.add_argument("--sample-factory", help="the Python interpreter of an environment with sample-factory")
    parser.add_argument("--measure", action="store_true", help="run as one of a variant's processes")
    parser.add_argument("--intrinsic", action="store_true")
    parser.add_argument("--ahead", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.measure:
        if figures := measure(arguments.seconds, arguments.intrinsic, arguments.ahead, arguments.workers):
            print(json.dumps(figures))
        return
    rounds = [run_round(arguments.seconds, arguments.sample_factory) for _ in range(arguments.rounds)]
    medians = {
        name: {key: round(statistics.median(r[name][key] for r in rounds), 3) for key in rounds[0][name]}
        for name in rounds[0]
    }
    RESULTS.write_text(json.dumps({"machine": machine(), "medians": medians, "rounds": rounds}, indent=1) + "\n")
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
