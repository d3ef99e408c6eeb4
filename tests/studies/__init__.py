"""Tiny studies for tests."""

import csv
from pathlib import Path

STUDY = """
# A tiny study.
name: tiny
seeds: [1, 2]
suites: [held-out, other-nouns]
episodes: 4
reference: quick
common:
  - world.env=test/Corridor-v0
  - ~world.args
  - world.actions=[left, right, wait]
  - world.num_envs=4
  - training.steps=64
  - world.num_steps=8
  - evaluation.baselines=[]
  - evaluation.num_envs=2
  - device=cpu
arms:
  quick:
    about: learns fast
    experiment: demo-easy
    overrides: &table ["~policy.args", policy.id=test-table, "evaluation.baselines=[zero-shot]"]
  slow:
    experiment: demo-easy
    overrides: ["~policy.args", policy.id=test-table, algorithm.args.learning_rate=1e-5]
  random:
    experiment: random
"""
WRITING = """
name: writers
title: Two writers
note: Of few texts.
seeds: [1]
suites: [test]
episodes: 3
common: [training.steps=40, world.num_texts=4, world.num_tokens=6, "evaluation.baselines=[]", device=cpu]
arms:
  measured: {experiment: rl4lms/increasing_numbers_reinforce_pp}
  plain: {experiment: rl4lms/increasing_numbers_reinforce_pp, overrides: ["evaluation.metrics=[]"]}
"""
FILES = ["README.md", "arms", "curves.csv", "evaluations.csv", "summary.csv", "summary.json"]
FIGURES = ["generalisation.png", "generalisation.svg", "success.png", "success.svg"]


def study_command(study: Path, *more: str) -> list[str]:
    """Return the arguments that run a study next to its file."""
    folder = study.parent
    return ["study", str(study), *more, "--runs", str(folder / "runs"), "--output", str(folder / "out")]


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
