"""Learn from generated preferences with the bundled model, and write results/preferences/.

    OMP_NUM_THREADS=1 python -m scripts.preferences runs/preferences

A text is good if its digits increase. DPO and KTO learn from pairs of texts. A reward model learns from the same
pairs, and PPO maximises its reward. All figures are for held-out prompts. This takes 6 minutes on one core.
"""

import argparse
import json
import platform
import random
from pathlib import Path
from typing import Any

import torch

import groundling as gl
from groundling.cli.main import main as groundling
from groundling.io.row_files import read_rows
from groundling.runs import Evaluation
from groundling.training.tracking import read_metrics

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "preferences"
_SEEDS, _PROMPTS = (1, 2, 3), 500
_OTHER = ("you", "see", "a", "wall", "steps", "left", "right", "forward", "door", "1", "2")
_TRUE = "synthetic/increasing_numbers_in_text"


def write_pairs(path: Path) -> None:
    """Write pairs for prompts of three digits; five increasing digits are preferred to other orders and to words."""
    rng, rows = random.Random(0), []
    for number in range(_PROMPTS):
        prompt, digits = [rng.randint(0, 9) for _ in range(3)], sorted(rng.sample(range(10), 5))
        other = digits
        while other == digits:
            other = rng.sample(digits, 5)
        bad = _words(other) if number % 2 else " ".join(rng.choices(_OTHER, k=5))
        rows.append({"prompt": _words(prompt), "chosen": f" {_words(digits)}", "rejected": f" {bad}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _words(digits: list[int]) -> str:
    return " ".join(map(str, digits))


def directly(algorithm: str, seed: int, pairs: Path, folder: Path) -> dict[str, Any]:
    """Train with DPO or KTO; return figures for held-out pairs (before, after) and for texts for test prompts."""
    run = gl.train(
        algorithm,
        seed=seed,
        run_dir=folder / f"{algorithm}-{seed}",
        overrides=[f"world.args.path={pairs}", "evaluation.metrics=[{id: increasing_numbers}]", "device=cpu"],
    )
    rows = [row["metrics"] for row in read_rows(run.folder / "validation.jsonl")]
    ends = {"before": rows[0], "after": rows[-1]}
    held_out = {when: {name: row[name] for name in ("loss", "accuracy")} for when, row in ends.items()}
    return {"pairs": held_out, **_seconds(run), "texts": _texts(run.evaluate())}


def rewarded(seed: int, pairs: Path, folder: Path) -> dict[str, Any]:
    """Distil a reward model and train PPO on it, with the true measure as a part with coefficient 0."""
    reward = folder / f"reward-{seed}"
    assert groundling(["distill", str(pairs), "--output", str(reward), f"seed={seed}", "device=cpu"]) == 0
    row = read_metrics(reward)[-1]
    learned = f"reward_model: {{args: {{path: {reward}, threshold_quantile: 0}}}}"
    run = gl.train(
        "rl4lms/increasing_numbers_ppo",
        seed=seed,
        run_dir=folder / f"ppo-{seed}",
        overrides=[
            *("world.pool=preferences", "~world.args", f"world.args={{path: {pairs}}}", "world.num_tokens=12"),
            *(f"reward={{increasing_numbers: {{coefficient: 0}}, {learned}}}", "world.max_prompt_length=8"),
            *("evaluation.metrics=[{id: increasing_numbers}]", "device=cpu"),
        ],
    )
    of_model = {name: row[f"validation_{name}"] for name in ("accuracy", "calibration_error", "temperature")}
    return {"reward_model": {**of_model, "seconds": row["seconds"]}, **_seconds(run), "texts": _texts(run.evaluate())}


def _seconds(run: gl.Run) -> dict[str, float]:
    return {"seconds": run.metrics[-1]["seconds"], "tokens": run.metrics[-1]["step"]}


def _texts(evaluation: Evaluation) -> dict[str, Any]:
    """Return means and 95% intervals over the test prompts, by agent and measure."""
    return {
        agent: {
            name: [round(value, 4) if value is not None else None for value in (one.value, one.low, one.high)]
            for name, one in figures.items()
            if name in ("reward", _TRUE)
        }
        for agent, figures in evaluation.figures.items()
    }


def page(results: dict[str, Any]) -> str:
    """Return the text of README.md."""

    def span(values: list[float]) -> str:
        return f"{min(values):.3f} – {max(values):.3f}" if min(values) != max(values) else f"{values[0]:.3f}"

    lines = [
        "# Preferences between texts",
        "",
        "Command: `OMP_NUM_THREADS=1 python -m scripts.preferences runs/preferences`",
        "",
        f"There are {_PROMPTS} prompts of three digits. Texts with five increasing digits are preferred to texts with the",
        "same digits in a different order, and to other words. 400 prompts are used for training, 50 for validation and",
        f"50 for testing. The model is `starter-causal`. Ranges are over seeds {', '.join(map(str, _SEEDS))}.",
        "",
        "| learner | held-out accuracy before | after | seconds |",
        "|---|---|---|---|",
    ]
    for name in ("dpo", "kto"):
        rows = results[name]
        before, after = ([row["pairs"][when]["accuracy"] for row in rows] for when in ("before", "after"))
        lines.append(f"| `{name}` | {span(before)} | {span(after)} | {span([row['seconds'] for row in rows])} |")
    models = [row["reward_model"] for row in results["ppo"]]
    accuracy, error = ([one[name] for one in models] for name in ("accuracy", "calibration_error"))
    lines += [
        f"| reward model | 0.5 (chance) | {span(accuracy)} | {span([one['seconds'] for one in models])} |",
        "",
        f"The reward model's expected calibration error is {span(error)}.",
        "",
        "The next table shows means and 95% intervals over the test prompts. The reward is the learned one, which PPO",
        "maximises. The true measure is `increasing_numbers`, which PPO does not use.",
        "",
        "| learner | seed | reward, untrained | trained | true measure, untrained | trained |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("ppo", "dpo", "kto"):
        for seed, row in zip(_SEEDS, results[name], strict=True):
            cells = [
                _cell(row["texts"][agent].get(key)) for key in ("reward", _TRUE) for agent in ("zero-shot", "trained")
            ]
            lines.append(f"| `{name}` | {seed} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{results['machine']}. All values are in [results.json](results.json).", ""])


def _cell(figure: list[float] | None) -> str:
    return "" if figure is None else f"{figure[0]:.3f} [{figure[1]:.3f}, {figure[2]:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the runs; repeat the command to continue")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    pairs = folder / "pairs.jsonl"
    write_pairs(pairs)
    results: dict[str, Any] = {
        "dpo": [directly("dpo", seed, pairs, folder) for seed in _SEEDS],
        "kto": [directly("kto", seed, pairs, folder) for seed in _SEEDS],
        "ppo": [rewarded(seed, pairs, folder) for seed in _SEEDS],
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}",
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (OUTPUT / "README.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
