"""Our pools, and RL4LMs' files as rebuilt by tests/convert, match the output of the original's code and files.

`benchmarks/rl4lms_pools.py` ran the original and wrote `original.json`.
"""

import json

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


@pytest.mark.parametrize("name", RL4LMS)
def test_rebuilt_files_equal_the_originals(name: str) -> None:
    assert oracle.fingerprint([oracle.flat(rl4lms(name))])["sha256"] == KNOWN["files"][name]
