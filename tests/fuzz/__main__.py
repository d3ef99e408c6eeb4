"""The long form: ``python -m tests.fuzz --output results/fuzz`` (`make fuzz`). A million inputs."""

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
    """All of them."""
    parts = (settings_targets, record_targets, judging_targets, dataset_targets)
    return [target for part in parts for target in part.targets()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of the long form")
    parser.add_argument("--targets", nargs="*", help="these alone, and no page")
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
    """The table of figures, and the findings, of which there should be none."""
    command = shlex.join(["python", "-m", "tests.fuzz", *words])
    inputs, seconds = sum(one.inputs for one in done), sum(one.seconds for one in done)
    lines = [
        "# Fuzzing",
        "",
        f"`{command}` (`make fuzz`): {inputs:,} inputs in {seconds / 60:.1f} minutes of CPU time.",
        "Each input is a well-formed one, bent by a seeded generator (`tests/fuzz`). A reader has to return, or to",
        "refuse it with a `GroundlingError`, within a second of CPU time, and what it returns has to have the",
        "property in the last column. *Refused* is the share of inputs that were; *slowest* is the CPU time of one,",
        "the check of its property included; *findings* are kinds of failure, by what was raised and where.",
        "What earlier runs found is mended; `tests/fuzz/test_found.py` has an input of each.",
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
