"""Rewards that were recorded by running the original."""

from typing import Any

import pytest

from groundling import rewards
from tests.metrics.conftest import golden, with_wordnet  # noqa: F401  (a fixture)

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "meteor+penalty": ("meteor", {"shaping_fn": "common_gen_repeat_penalty"}),
    "rouge1": ("rouge", {"rouge_type": "rouge1"}),
    "rouge2_multi": ("rouge", {"rouge_type": "rouge2", "use_single_ref": False}),
    "rougeL": ("rouge", {"rouge_type": "rougeL"}),
}
"""Golden names that are not ids, but an id with arguments."""
TEXTS = {case["id"]: case for case in golden("single")}
CASES = [case for case in golden("reward") if case["id"] in TEXTS]


@pytest.mark.parametrize("name", sorted({name for case in CASES for name in case["values"]}))
def test_compat_gives_the_rewards_of_the_original(name: str, request: pytest.FixtureRequest) -> None:
    if "meteor" in name:
        request.getfixturevalue("with_wordnet")
    id, args = CALLS.get(name, (name, {}))
    reward = rewards.create(id, compat="rl4lms", **args)
    for case in CASES:
        text = TEXTS[case["id"]]
        score = reward([text["prompt"]], [text["generation"]], [text["references"]])
        assert score.item() == pytest.approx(case["values"][name]["done"], abs=1e-6), case["id"]


def test_a_batch_is_rewarded_sample_by_sample() -> None:
    texts = [TEXTS[case["id"]] for case in CASES]
    batch = [[text[key] for text in texts] for key in ("prompt", "generation", "references")]
    for name in ("chrf", "ter", "sacre_bleu", "rouge_combined"):
        reward = rewards.create(name)
        one_by_one = [reward([p], [g], [r]).item() for p, g, r in zip(*batch, strict=True)]
        assert reward(*batch).tolist() == pytest.approx(one_by_one, abs=1e-7)
