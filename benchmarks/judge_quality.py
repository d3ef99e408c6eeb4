"""Compare judges with hand labels of 200 pairs of NetHack messages.

    python benchmarks/judge_quality.py rules
    python benchmarks/judge_quality.py --prompts default,reworded transformers:smollm2

The labels in ``results/motif-claims/hand_labels.jsonl`` state which of two captions shows more progress towards a high
score ("first", "second" or "tie"), based only on the captions. Each judge is queried for each pair in both orders. One row
per judge and prompt is added to ``results/motif-claims/judges.csv``.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.intervals import wilson_interval
from groundling.judges import Comparison, Question, create
from groundling.judges.asking.judge import Outcome, ask
from groundling.worlds import worlds

RESULTS = Path(__file__).parents[1] / "results" / "motif-claims"
LABELS = ("first", "second", "tie")


def probabilities(judge: Any, question: Question, pairs: Sequence[Comparison]) -> np.ndarray:
    """Return the judge's probabilities of first, second and tie, ``(n, 3)``; NaN without a verdict."""
    answers = np.full((len(pairs), 3), np.nan)

    def keep(outcome: Outcome) -> None:
        soft = outcome.replies[-1].probabilities
        if soft is not None:
            answers[outcome.number] = soft
        elif outcome.verdict is not None:
            answers[outcome.number] = np.eye(3)[outcome.verdict.choice]

    ask(judge, question, pairs, keep)
    return answers


def compare(name: str, prompt: str, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Query a judge for each labelled pair in both orders, and compare the verdicts with the labels."""
    id, _, model = name.partition(":")
    judge = create(id, **({"model": model} if model else {}))
    worlds.get("nethack")  # registers the goals and prompts of its judges
    question = Question(world="nethack", prompt=prompt)
    shown = probabilities(judge, question, [Comparison(row["first"], row["second"]) for row in rows])
    swapped = probabilities(judge, question, [Comparison(row["second"], row["first"]) for row in rows])
    both = (shown + swapped[:, [1, 0, 2]]) / 2
    label = np.array([LABELS.index(row["label"]) for row in rows])
    verdicts = both.argmax(1)
    decided, margin = label < 2, both[:, 0] - both[:, 1]
    wins = np.where(label == 0, margin, -margin)[decided]
    correct, count = float((wins > 0).sum() + (wins == 0).sum() / 2), int(decided.sum())  # equal pairs count as half
    low, high = wilson_interval(round(correct), count)
    first = np.concatenate([shown, swapped])
    return {
        "judge": name,
        "prompt": prompt,
        "pairs": len(rows),
        "invalid": int(np.isnan(both).any(1).sum()),
        "preferences": count,
        "agrees": int((verdicts == label)[decided].sum()),
        "calls_tie": int((verdicts == 2)[decided].sum()),
        "opposite": int((verdicts == 1 - label)[decided].sum()),
        "ties": int((~decided).sum()),
        "ties_called_tie": int((verdicts == 2)[~decided].sum()),
        "forced_accuracy": f"{correct / count:.3f}",
        "low": f"{low:.3f}",
        "high": f"{high:.3f}",
        "prefers_shown_first": f"{np.nanmean(first[:, 0] > first[:, 1]):.3f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judges", nargs="+", help="rules, or transformers:MODEL")
    parser.add_argument("--prompts", default="default", help="comma-separated prompts of the world")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in (RESULTS / "hand_labels.jsonl").read_text("utf-8").splitlines()]
    path = RESULTS / "judges.csv"
    table = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    for name in arguments.judges:
        for prompt in arguments.prompts.split(","):
            row = compare(name, prompt, rows)
            print(json.dumps(row), flush=True)
            table = [one for one in table if (one["judge"], one["prompt"]) != (name, prompt)] + [row]
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
                writer.writerows(table)


if __name__ == "__main__":
    main()
