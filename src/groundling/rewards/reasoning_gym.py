"""Reasoning Gym's verifiers as a reward."""

from typing import Any

from groundling.envs.engines.reasoning_gym import questions
from groundling.errors import RunError
from groundling.rewards.registry import rewards


@rewards.register("reasoning_gym")
def verify(generations: list[str], meta: list[dict[str, Any]]) -> list[float]:
    """Score between 0 and 1 for each answer to a question from the pool `reasoning_gym`."""
    if not all("entry" in row for row in meta):
        raise RunError("the reasoning_gym reward needs that pool's questions: set world.pool=reasoning_gym")
    return [
        float(questions(row["dataset"], "train", 1, row["params"]).score_answer(text.strip(), row["entry"]))
        for text, row in zip(generations, meta, strict=True)
    ]
