"""Fuzz all targets with a million inputs: ``python -m tests.fuzz --output results/fuzz`` (`make fuzz`)."""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import hypothesis

from tests.fuzz import dataset_targets, judging_targets, record_targets, settings_targets
from tests.fuzz.harness import Figures, Target, fuzz


def targets() -> list[Target]:
    """Return all targets."""
    parts = (settings_targets, record_targets, judging_targets, dataset_targets)
    return [target for part in parts for target in part.targets()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the million inputs")
    parser.add_argument("--targets", nargs="*", help="run only these, and write no README")
    arguments = parser.parse_args()
    done = []
    for target in targets():
        if arguments.targets and target.name not in arguments.targets:
            continue
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            inputs = max(1, round(target.inputs * arguments.share))
            figures = fuzz(target, Path(folder), inputs, "fuzz", hypothesis.seed(arguments.seed))
        done.append(figures)
        print(_line(figures), flush=True)
        for kind in figures.findings.values():
            print("\n".join(f"    {one}" for one in kind), flush=True)
    if not arguments.targets:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "README.md").write_text(page(done, sys.argv[1:]), encoding="utf-8")
    return any(figures.findings for figures in done)


def _line(figures: Figures) -> str:
    return (
        f"| {figures.target.name} | {figures.inputs:,} | {figures.refused / figures.inputs:.0%} | "
        f"{figures.seconds:.0f} | {1000 * figures.slowest:.0f} | {len(figures.findings)} | {figures.target.what} |"
    )


def page(done: Sequence[Figures], words: Sequence[str]) -> str:
    """Return the README, with a table of figures and the findings."""
    command = shlex.join(["python", "-m", "tests.fuzz", *words])
    inputs, seconds = sum(one.inputs for one in done), sum(one.seconds for one in done)
    lines = [
        "# Fuzzing",
        "",
        f"`{command}` (`make fuzz`) tested {inputs:,} inputs in {seconds / 60:.1f} minutes of CPU time.",
        "Each input is a valid input mutated by a seeded generator (`tests/fuzz`). A parser must return or raise a",
        "`GroundlingError` within a second of CPU time, and its result must have the property in the last column.",
        "*Refused* is the share of inputs that raise an error. *Slowest* is the CPU time of the slowest input, including",
        "the check of the property. *Findings* are failures that differ in their exception or its location. The findings of",
        "earlier runs have been fixed, and `tests/fuzz/test_found.py` contains an input for each of them.",
        "",
        "| target | inputs | refused | seconds | slowest (ms) | findings | property |",
        "|---|--:|--:|--:|--:|--:|---|",
        *map(_line, done),
        "",
    ]
    for figures in done:
        for kind in figures.findings.values():
            lines += [f"- {figures.target.name}: `{kind[0][:300]}`"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
