"""Compare PPO on whole texts with PPO on single tokens, as in RL4LMs, for the same number of tokens.

    OMP_NUM_THREADS=1 python benchmarks/token_by_token.py       # about twenty minutes on one core; run again to resume

The script trains `rl4lms/increasing_numbers_ppo` in runs/writing/tokens-seedN with the same texts per update, optimizer
steps and settings, but with minibatches of single tokens, which are sampled from all texts and evaluated as separate
sequences. The comparison with the runs of benchmarks/writing.py is written to results/rl4lms/token_by_token.json.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from writing import RESULTS, SEEDS, complete, experiment, first_and_last, rows_of, run_dir

from groundling.algorithms import Rollout
from groundling.config.compose import compose
from groundling.intervals import estimate
from groundling.policies import Evaluated, Policy, Written
from groundling.training.trainer import Trainer
from groundling.worlds.episode import Episode
from groundling.worlds.world import Collector

NAME = "tokens"


class SingleTokens:
    """A text collector whose rollouts consist of single tokens, each of which follows its prompt and earlier tokens."""

    def __init__(self, texts: Collector) -> None:
        self._texts = texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._texts, name)

    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None]
    ) -> tuple[Rollout, Sequence[Episode]]:
        rollout, episodes = self._texts.collect(policy, generator=generator, on_step=on_step)
        assert rollout.mask is not None
        seen = [
            Written((*text.prompt, *rollout.actions[:step, column].tolist()), 1, None)
            for step in range(len(rollout.actions))
            for column, text in enumerate(rollout.observations)
        ]
        return replace(rollout, observations=seen, sequences=False, groups=None), episodes


def of_single_tokens(policy: Policy) -> None:
    """Make the policy evaluate actions ``(batch,)``."""
    evaluate = policy.evaluate

    def single(observations: Sequence[Written], actions: Tensor) -> Evaluated:
        texts = evaluate(observations, actions[:, None])
        log_probs, entropies, values = (t[:, 0] for t in (texts.log_probs, texts.entropies, texts.values))
        return Evaluated(
            log_probs, entropies, values, lambda: texts.log_distributions()[:, 0], lambda: texts.raw_log_probs()[:, 0]
        )

    policy.evaluate = single  # type: ignore[method-assign]


def train(seed: int) -> None:
    folder = run_dir(NAME, seed)
    config = compose(experiment("ppo"), [f"seed={seed}", f"run_dir={folder}", "device=cpu"])
    folder.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    run = Trainer(config, folder, print)
    run.collector = SingleTokens(run.collector)  # type: ignore[assignment]  # forwards other attributes
    of_single_tokens(run.policy)
    run.loop(Console(), lambda: False)
    (folder / "cpu.json").write_text(json.dumps(time.process_time() - began))


def main() -> None:
    torch.set_num_threads(1)
    for seed in SEEDS:
        if not complete("ppo", seed):
            raise SystemExit("run benchmarks/writing.py ppo first")
    steps = compose(experiment("ppo")).training.steps
    for seed in SEEDS:
        if not run_dir(NAME, seed).exists() or rows_of(NAME, seed)[-1]["step"] < steps:
            train(seed)
    found = {}
    for name in ("ppo", NAME):
        last = [first_and_last(rows_of(name, seed))[1] for seed in SEEDS]
        seconds = [json.loads((run_dir(name, seed) / "cpu.json").read_text()) for seed in SEEDS]
        found[name] = {
            "by_seed": [round(x, 4) for x in last],
            "reward": asdict(estimate(torch.tensor(last).numpy())),
            "cpu_seconds": round(sum(seconds) / len(seconds), 1),
        }
    text = json.dumps({"tokens": steps, "whole texts": found["ppo"], "single tokens": found[NAME]}, indent=1)
    (RESULTS / "token_by_token.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
