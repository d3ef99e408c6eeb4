"""Our pools, and RL4LMs' files as tests/convert rebuilds them, are what the original's own code and files gave.

`oracle.py` ran them and wrote `original.json`. With RL4LMS=CHECKOUT and NLTK 3.7 the comparison is made again.
"""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("nltk")

from tests.convert.originals import RL4LMS, rl4lms
from tests.envs.text_generation import oracle

KNOWN = json.loads(oracle.TABLE.read_text("utf-8"))


@pytest.mark.parametrize("id", oracle.CASES)
def test_pools_equal_the_original(id: str) -> None:
    with oracle.awkward_rows(), oracle.words_of_nltk():
        fingerprints = {
            f"{split} {json.dumps(args, sort_keys=True)}": oracle.fingerprint(oracle.ours(id, args, split))
            for args in oracle.CASES[id]
            for split in oracle.SPLITS
        }
    assert fingerprints == KNOWN["pools"][id]
    assert all(kept["samples"] for kept in fingerprints.values())


def test_all_pools_of_the_original_are_known() -> None:
    assert set(KNOWN["pools"]) == set(oracle.CASES)


@pytest.mark.parametrize("name", RL4LMS)
def test_rebuilt_files_equal_the_originals(name: str) -> None:
    assert oracle.fingerprint([oracle.flat(rl4lms(name))])["sha256"] == KNOWN["files"][name]


def test_all_files_of_the_original_are_rebuilt() -> None:
    assert set(KNOWN["files"]) == set(RL4LMS) and len(RL4LMS) == 44


@pytest.mark.skipif("RL4LMS" not in os.environ, reason="RL4LMS names no checkout of the original")
def test_the_original_still_gives_the_recorded_samples() -> None:
    made, lines = oracle.compare(Path(os.environ["RL4LMS"]))
    sums, differing = oracle.compare_files(Path(os.environ["RL4LMS"]))
    assert {"pools": made, "files": sums} == KNOWN and not differing
    assert all(line.endswith("| 0 | 0 | 0 | 0 |") for line in lines)
