import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.envs.nethack.observation import message_id
from groundling.errors import ConfigError
from groundling.judges.preferences.pairs import caption, caption_ids, decode_pairs
from groundling.judges.reward_models.training_pairs import TrainingPairs
from tests.judges.reward_models.reward_reference import make_messages, messages_of, random_pairs


def test_ids_are_those_of_the_envs() -> None:
    texts = ["", "a", "b", "aaaaaaaab", "a" * 255, "You see here a gold piece."]
    ids = caption_ids(texts)
    assert ids.dtype == np.int64 and ids.tolist() == [message_id(text.encode()) for text in texts]


def test_targets_of_codes_and_of_soft_labels() -> None:
    segments = [([a], [b]) for a, b in ("ab", "cd", "ef", "gh")]
    hard = TrainingPairs.of(segments, np.array([0, 1, 2, 3], dtype=np.int8))
    assert hard.targets.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
    soft = np.array([[0.7, 0.1, 0.2], [np.nan] * 3, [0, 0, 1], [1, 0, 0]], dtype=np.float32)
    soft_pairs = TrainingPairs.of(segments, np.array([0, 1, 2, 3], dtype=np.int8), soft)
    assert torch.allclose(soft_pairs.targets, torch.tensor([[0.8, 0.2], [0.0, 1.0], [0.5, 0.5]]))
    with pytest.raises(ConfigError, match="annotate"):
        TrainingPairs.of(segments, np.full(4, 3, dtype=np.int8))


def test_ties_alone_are_refused() -> None:
    segments = [([a], [b]) for a, b in ("ab", "cd", "ef")]
    with pytest.raises(ConfigError, match="prefers nothing: 3 of 3 pairs are ties, and"):
        TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8))
    with pytest.raises(ConfigError, match="prefers nothing: 1 of 3 pairs are ties and 2 have no answer"):
        TrainingPairs.of(segments, np.array([3, 2, 3], dtype=np.int8))
    # Probabilities may prefer where the likeliest answer is a tie.
    soft = np.array([[0.3, 0.1, 0.6], [np.nan] * 3, [np.nan] * 3], dtype=np.float32)
    assert len(TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8), soft)) == 3
    soft[0] = [0.2, 0.2, 0.6]
    with pytest.raises(ConfigError, match="prefers nothing"):
        TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8), soft)


def test_distinct_messages_give_the_dataset_back() -> None:
    rng = np.random.default_rng(0)
    messages = make_messages(["", "door", "You see", "a", "b"])[rng.integers(0, 5, (50, 2, 3))]
    preferences = rng.integers(0, 4, 50).astype(np.int8)
    pairs = TrainingPairs.of(decode_pairs(messages), preferences)
    assert np.array_equal(messages_of(pairs), messages[preferences != 3])
    assert [len(caption) for caption in pairs.captions] == [0, 1, 1, 4, 7]
    assert pairs.counts().sum() == pairs.indices.numel()


@given(st.integers(0, 1000), st.integers(1, 3), st.floats(0.1, 0.5))
@settings(max_examples=20, deadline=None)
def test_no_pair_of_captions_is_on_both_sides(seed: int, length: int, fraction: float) -> None:
    pairs = random_pairs(300, seed, length, distinct=12)
    training, validation = pairs.split(fraction, seed)
    assert len(training) + len(validation) == len(pairs)

    def contents(side: TrainingPairs) -> set[frozenset[str]]:
        return {frozenset(caption(segment) for segment in pair) for pair in messages_of(side)}

    assert not contents(training) & contents(validation)


def _num_distinct(pairs: TrainingPairs) -> int:
    return len({tuple(pair) for pair in pairs.indices[:, :, 0].sort(1).values.tolist()})


def test_the_split_s_size_and_seed() -> None:
    pairs = random_pairs(4000, 0, distinct=400)
    validation = pairs.split(0.2, 0)[1]
    distinct, held_out = map(_num_distinct, (pairs, validation))
    assert 500 < held_out <= math.ceil(0.2 * distinct) and 700 < len(validation) <= 800
    assert torch.equal(validation.indices, pairs.split(0.2, 0)[1].indices)
    assert not torch.equal(validation.indices, pairs.split(0.2, 1)[1].indices)
    assert len(pairs.split(0.0, 0)[1]) == 0
    with pytest.raises(ConfigError, match="annotate more"):
        pairs[torch.arange(1)].split(0.2, 0)


def test_a_pair_that_repeats_too_often_is_trained_on() -> None:
    rows = ["aa"] * 60 + ["ab"] * 10 + ["ba"] * 10 + ["bc", "bd", "be", "bf", "cd", "ce", "cf", "de", "df", "ef"] * 2
    messages = make_messages(list("".join(rows))).reshape(100, 2, 1, 256)
    pairs = TrainingPairs.of(decode_pairs(messages), np.zeros(100, dtype=np.int8))
    for seed in range(10):
        training, validation = pairs.split(0.3, seed)
        both = messages_of(validation)[..., 0, 0].tolist()
        held_out = {"".join(sorted(map(chr, pair))) for pair in both}
        assert "aa" not in held_out
        # Four of twelve distinct ones, at most thirty in all: with "ab", twenty times, or without.
        assert (len(validation), len(held_out)) in ((26, 4), (8, 4))
        assert len(training) + len(validation) == 100
