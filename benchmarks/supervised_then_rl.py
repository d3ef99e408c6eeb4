"""Compare supervised training, RL, and both in sequence, on sums with a checker (bundled model, five seeds, one core).

    pip install reasoning-gym
    OMP_NUM_THREADS=1 python benchmarks/supervised_then_rl.py     # about an hour; run again to resume

The script tests a claim of RL4LMs (arXiv 2210.01241) on a task whose reward cannot be exploited: sums and differences
of two numbers (Reasoning Gym's `chain_sum`). Few of them have a written answer, but a checker verifies all answers. Runs
are in runs/arithmetic/, and results/rl4lms/arithmetic/ contains curves.csv, summary.json and README.md.
"""

import csv
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from groundling.cli.main import main
from groundling.intervals import IntervalEstimate, estimate
from groundling.training import checkpoint
from groundling.training.tracking import read_metrics

SEEDS = (1, 2, 3, 4, 5)
RUNS = Path("runs/arithmetic")
RESULTS = Path(__file__).parents[1] / "results" / "rl4lms" / "arithmetic"
REFERENCES = 3_000
"""Number of sums with a written answer; RL uses the checker's verdicts for all training sums."""
EPOCHS, STEPS = 20, 100_000
"""Number of passes over the references, and of generated tokens in RL."""
HELD_OUT = 500
BEYOND = "three digits"
ARMS = {
    "supervised": "learns the answers of 3,000 sums",
    "supervised, longer": "the same for twice as many passes",
    "RL": "is rewarded for correct answers to all 12,855 sums, from the start",
    "supervised, then RL": "learns the answers, and is then rewarded",
}
SPLITS = {"test": "sums as in training", "val": f"sums of {BEYOND}, on which no arm is trained"}


def write_data() -> Path:
    """Write the splits as JSON lines with distinct expressions, and return the folder."""
    folder = RUNS / "data"
    if (folder / "test.jsonl").exists():
        return folder
    import reasoning_gym

    def sums(digits: int, size: int) -> dict[str, str]:
        smallest = 1 if digits == 2 else digits
        made = reasoning_gym.create_dataset(
            "chain_sum", size=size, seed=1, min_terms=2, max_terms=2, min_digits=smallest, max_digits=digits
        )
        return {f"{one['metadata']['expression']} =": one["answer"] for one in made}

    folder.mkdir(parents=True, exist_ok=True)
    known = sorted(sums(2, 60_000).items())
    random.Random(0).shuffle(known)
    training = known[2 * HELD_OUT :]
    splits = {
        "train": training,
        "few": training[:REFERENCES],
        "val": sorted(sums(3, HELD_OUT).items()),
        "test": known[:HELD_OUT],
    }
    for name, rows in splits.items():
        lines = (json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def words(arm: str, seed: int, data: Path) -> list[str]:
    """Return the arguments of ``groundling train`` for a run."""
    supervised = arm.startswith("supervised") and "RL" not in arm
    training = data / ("few.jsonl" if supervised else "train.jsonl")
    paths = f"{{train:{training},val:{data}/val.jsonl,test:{data}/test.jsonl}}"
    pool = f"{{pool:jsonl,args:{{path:{paths},reference_column:answer}},num_tokens:6,max_prompt_length:24}}"
    common = [f"seed={seed}", f"run_dir={run_dir(arm, seed)}", "device=cpu", "~world.args", f"world={pool}"]
    common += ["~reward", f"evaluation.episodes={HELD_OUT}", "evaluation.every=null"]
    common += ["evaluation.metrics=[{id:says_reference}]", "evaluation.baselines=[]"]
    if supervised:
        epochs = EPOCHS * (2 if arm == "supervised, longer" else 1)
        return [
            "rl4lms/increasing_numbers_ppo",
            *common,
            "world.num_texts=512",
            "~algorithm.args",
            "algorithm={id:supervised,args:{learning_rate:1e-3,minibatch_size:64}}",
            f"training.epochs={epochs}",
        ]
    start = [] if arm == "RL" else [f"model.path={last_checkpoint('supervised', seed)}"]
    return [
        "rl4lms/increasing_numbers_grpo",
        *common,
        *start,
        "world.num_texts=256",
        "reward={says_reference:{}}",
        *RL_SETTINGS,
        f"training.steps={STEPS}",
    ]


RL_SETTINGS = (
    "world.texts_per_prompt=8",
    "algorithm.args.learning_rate=5e-5",
    "algorithm.args.epochs=1",
    "algorithm.args.minibatch_size=256",
    "algorithm.args.kl_coefficient=0.02",
)


def run_dir(arm: str, seed: int) -> Path:
    return RUNS / f"{arm.replace(', ', '-').replace(' ', '-')}-seed{seed}"


def last_checkpoint(arm: str, seed: int) -> Path | None:
    return checkpoint.latest(run_dir(arm, seed) / "checkpoints", print)


def run() -> int:
    """Train and evaluate the missing runs seed by seed, and write the results after each seed."""
    data = write_data()
    for seed in SEEDS:
        for arm in ARMS:
            folder = run_dir(arm, seed)
            if not (folder / "done").exists():
                steps = (["train", *words(arm, seed, data)], ["evaluate", str(folder), "--suite", ",".join(SPLITS)])
                for step in steps:
                    if status := main(step):
                        return status
                (folder / "done").touch()
        write_results()
    return 0


def accuracies() -> Iterator[tuple[str, str, int, float]]:
    """Return the arm, the split, the seed and the share of correct answers."""
    for arm in ARMS:
        for seed in SEEDS:
            if (run_dir(arm, seed) / "done").exists():
                for split in SPLITS:
                    path = run_dir(arm, seed) / "evaluation" / f"{split}.json"
                    figures = json.loads(path.read_text())["agents"]["trained"]["figures"]
                    yield arm, split, seed, figures["reward/says_reference"]["value"]


def write_results() -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = list(accuracies())
    means = {
        (arm, split): estimate(
            np.array([v for a, s, _, v in rows if (a, s) == (arm, split)]), lambda values: values.mean(-1)
        )
        for arm, split in dict.fromkeys((arm, split) for arm, split, _, _ in rows)
    }
    summary = [{"arm": arm, "split": split, **asdict(mean)} for (arm, split), mean in means.items()]
    (RESULTS / "summary.json").write_text(json.dumps({"arms": summary, "runs": rows}, indent=1) + "\n")
    with (RESULTS / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        keys = ("update", "step", "return_mean", "entropy", "kl_mean", "probability")
        writer.writerow(["arm", "seed", *keys])
        for arm, seed in dict.fromkeys((arm, seed) for arm, _, seed, _ in rows):
            for row in read_metrics(run_dir(arm, seed)):
                cells = [row.get(key) for key in keys]
                writer.writerow([arm, seed, *(f"{x:.5g}" if isinstance(x, float) else x for x in cells)])
    (RESULTS / "README.md").write_text(readme(means, rows))


def readme(means: dict[tuple[str, str], IntervalEstimate], rows: list[tuple[str, str, int, float]]) -> str:
    by_run = {(arm, split, seed): value for arm, split, seed, value in rows}
    table = ["| arm | | " + " | ".join(SPLITS.values()) + " |", "|---|---|" + "--:|" * len(SPLITS)]
    for arm, about in ARMS.items():
        cells = (text_of(means[arm, split]) if (arm, split) in means else "" for split in SPLITS)
        table.append(f"| {arm} | {about} | " + " | ".join(cells) + " |")
    differences = []
    for other in ("supervised", "supervised, longer", "RL"):
        pairs = [
            by_run["supervised, then RL", "test", seed] - by_run[other, "test", seed]
            for seed in SEEDS
            if {("supervised, then RL", "test", seed), (other, "test", seed)} <= by_run.keys()
        ]
        if len(pairs) > 1:
            differences.append(
                f"- from *{other}*: {text_of(estimate(np.array(pairs), lambda values: values.mean(-1)))}"
            )
    seeds = sorted({seed for _, _, seed, _ in rows})
    return (
        "\n\n".join(
            [
                "# Supervised training, RL, and both in sequence",
                "The task consists of sums and differences of two numbers with one or two digits, from [Reasoning Gym]"
                "(https://github.com/open-thought/reasoning-gym). The model is the bundled `starter-causal` (one million "
                "parameters). Command:",
                "```\npip install reasoning-gym\nOMP_NUM_THREADS=1 python benchmarks/supervised_then_rl.py\n```",
                f"Seeds: {', '.join(map(str, seeds))}. There are {REFERENCES:,} references and {EPOCHS} passes; GRPO uses "
                f"{STEPS:,} tokens. The table shows the share of correct answers to {HELD_OUT} held-out prompts, with texts "
                "sampled as in training, as means over seeds with a 95% bootstrap interval over seeds.",
                "\n".join(table),
                "Paired differences of *supervised, then RL* on held-out sums of the training distribution:",
                "\n".join(differences),
                "The reward is the checker's verdict, so there is no different measure to exploit. "
                f"The last column shows a task that was not trained: sums of {BEYOND}.",
                "`curves.csv` contains every update, and `summary.json` every run.",
            ]
        )
        + "\n"
    )


def text_of(found: IntervalEstimate) -> str:
    return (
        f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
        if found.low < 0
        else (f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")
    )


if __name__ == "__main__":
    sys.exit(run())
