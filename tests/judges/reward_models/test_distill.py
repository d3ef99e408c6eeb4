"""Annotated pairs of segments, and the training and evaluation of reward models."""

import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from groundling.envs.nethack.observation import message_id
from groundling.errors import ConfigError, RunError
from groundling.judges.preferences.pairs import caption, caption_ids, decode_pairs
from groundling.judges.reward_models import MotifRewardModel, load_reward_model, reward_models
from groundling.judges.reward_models.distill import (
    TrainingPairs,
    accuracy,
    agreement,
    best_temperature,
    calibration_error,
    evaluate,
    normalize,
    segment_scores,
    train_epoch,
)
from groundling.judges.reward_models.models import TableRewardModel
from groundling.judges.reward_models.reward_model import Normalization, preference_loss
from tests.judges.preferences.test_pairs import encode
from tests.judges.reward_models.reward_reference import gradients, messages_of, plain_network, random_pairs


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
    with pytest.raises(ConfigError, match="has no preferences: 3 of 3 pairs are ties, so"):
        TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8))
    with pytest.raises(ConfigError, match="has no preferences: 1 of 3 pairs are ties and 2 have no answer"):
        TrainingPairs.of(segments, np.array([3, 2, 3], dtype=np.int8))
    # Probabilities may prefer one of two where the most likely answer is a tie.
    soft = np.array([[0.3, 0.1, 0.6], [np.nan] * 3, [np.nan] * 3], dtype=np.float32)
    assert len(TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8), soft)) == 3
    soft[0] = [0.2, 0.2, 0.6]
    with pytest.raises(ConfigError, match="has no preferences"):
        TrainingPairs.of(segments, np.full(3, 2, dtype=np.int8), soft)


def test_distinct_messages_give_the_dataset_back() -> None:
    rng = np.random.default_rng(0)
    messages = encode("", "door", "You see", "a", "b")[rng.integers(0, 5, (50, 2, 3))]
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
    messages = encode(*"".join(rows)).reshape(100, 2, 1, 256)
    pairs = TrainingPairs.of(decode_pairs(messages), np.zeros(100, dtype=np.int8))
    for seed in range(10):
        training, validation = pairs.split(0.3, seed)
        both = messages_of(validation)[..., 0, 0].tolist()
        held_out = {"".join(sorted(map(chr, pair))) for pair in both}
        assert "aa" not in held_out
        # Four of twelve distinct pairs, but at most thirty in all, with or without "ab", which occurs twenty times.
        assert (len(validation), len(held_out)) in ((26, 4), (8, 4))
        assert len(training) + len(validation) == 100


def test_preference_loss_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [1.0, -1.0]])
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.75, 0.25]])
    by_hand = [
        math.log(1 + math.exp(-1)),  # -log σ(1)
        math.log(1 + math.exp(2)),  # -log σ(-2)
        math.log(2),
        0.75 * math.log(1 + math.exp(-2)) + 0.25 * math.log(1 + math.exp(2)),
    ]
    assert preference_loss(rewards, targets).item() == pytest.approx(sum(by_hand) / 4, abs=1e-6)


@pytest.mark.parametrize("length", [1, 3])
def test_gradient_of_distinct_messages_is_that_of_every_message_of_every_pair(length: int) -> None:
    pairs = random_pairs(24 // length, 0, length)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-13)):
        torch.manual_seed(0)
        model = MotifRewardModel().to(dtype)
        plain = copy.deepcopy(model)
        model.loss(segment_scores(model, pairs), pairs.targets, pairs.mask()).backward()
        everything = torch.from_numpy(messages_of(pairs)).flatten(0, 2).long()  # (N * 2 * L, 256)
        rewards = plain_network(plain.network)(everything).view(-1, 2, length).mean(-1)
        nn.CrossEntropyLoss()(rewards, pairs.targets.to(dtype)).backward()
        largest = max(g.abs().max().item() for g in gradients(plain))
        assert largest > 1e-4
        for ours, expected in zip(gradients(model), gradients(plain), strict=True):
            assert (ours - expected).abs().max() <= tolerance


def test_agreement_is_counted_without_ties() -> None:
    class Known(MotifRewardModel):
        def rewards(self, captions: Sequence[str]) -> Tensor:
            return torch.tensor([float(len(caption)) for caption in captions])

    pairs = TrainingPairs(
        ["a", "bb", "ccc"],
        torch.tensor(
            [[[0, 1], [2, -1]], [[2, -1], [1, -1]], [[0, -1], [1, -1]], [[1, -1], [1, -1]], [[2, 2], [0, -1]]]
        ),
        torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0], [0.2, 0.8]]),
    )
    # 1.5 and 3; 3 and 2; a tie; equal rewards; 3 and 1
    assert agreement(Known(), pairs) == (1, 4)
    labelled = TrainingPairs(["a", "bb"], torch.tensor([[[0]], [[1]]]), torch.tensor([[1.0], [0.0]]))
    assert agreement(Known(), labelled) == (1, 2)


def test_a_rule_is_learnt_and_holds_for_unseen_pairs() -> None:
    torch.manual_seed(0)
    training, validation = random_pairs(600, 2, distinct=40).split(0.2, 0)
    model = MotifRewardModel()
    before = evaluate(model, validation)
    optimizer, order = torch.optim.Adam(model.parameters(), lr=1e-3), torch.Generator().manual_seed(0)
    for _ in range(8):
        train_epoch(model, optimizer, training, 64, order)
    after = evaluate(model, validation)
    assert after["accuracy"] > 0.9 > before["accuracy"]
    assert after["loss"] < before["loss"]
    assert after["calibration_error_at_temperature"] < 0.2


def test_infinite_losses_stop_before_their_step() -> None:
    model = MotifRewardModel()
    nn.init.constant_(model.network.head[-1].bias, math.nan)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RunError, match="learning_rate"):
        train_epoch(
            model, torch.optim.Adam(model.parameters()), random_pairs(8, 0), 8, torch.Generator().manual_seed(0)
        )
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.isnan(), before[name].isnan())


def test_accuracy_and_calibration_by_hand() -> None:
    margins = torch.tensor([2.0, -1.0, 0.5, 0.0, 4.0])
    targets = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5])
    assert accuracy(margins, targets) == pytest.approx(2.5 / 4)  # correct, correct, wrong, undecided; a tie
    sigmoid = [1 / (1 + math.exp(-abs(m))) for m in (2.0, 1.0, 0.5, 0.0)]  # in four bins: 0.881, 0.731, 0.622, 0.5
    gaps = [1 - sigmoid[0], 1 - sigmoid[1], sigmoid[2], 0.0]
    assert calibration_error(margins, targets) == pytest.approx(sum(gaps) / 4)
    same_bin = calibration_error(torch.tensor([1.0, 1.01]), torch.tensor([1.0, 0.0]))
    assert same_bin == pytest.approx((1 / (1 + math.exp(-1)) + 1 / (1 + math.exp(-1.01)) - 1) / 2, abs=1e-6)
    assert math.isnan(accuracy(margins[4:], targets[4:]))
    assert math.isnan(calibration_error(margins[4:], targets[4:]))


def test_the_best_temperature_is_the_one_that_made_the_labels() -> None:
    margins = torch.linspace(-6, 6, 101)
    assert best_temperature(margins, torch.sigmoid(margins / 2.5)) == pytest.approx(2.5, rel=1e-6)
    assert best_temperature(margins, torch.sigmoid(margins / 0.5)) == pytest.approx(0.5, rel=1e-6)


def test_normalisation_by_hand() -> None:
    # 1, 1, 1, 4: mean 1.75, unbiased variance (3 * 0.75² + 2.25²) / 3 = 2.25; Motif's prior has count 1e-4.
    normalization = Normalization.of(torch.tensor([1.0, 4.0]), torch.tensor([3, 1]))
    assert normalization.mean == pytest.approx(1.75, abs=1e-4)
    assert normalization.variance == pytest.approx(2.25, abs=1e-4)
    total = 4 + 1e-4
    assert normalization.mean == pytest.approx(1.75 * 4 / total, abs=1e-12)
    assert normalization.variance == pytest.approx((4 * 2.25 + 1e-4 + 1.75**2 * 4e-4 / total) / total, abs=1e-12)
    low, high = -0.5, 1.5  # (1 - 1.75) / 1.5 and (4 - 1.75) / 1.5, each counted once
    assert len(normalization.quantiles) == 19
    assert normalization.threshold(0.5) == pytest.approx((low + high) / 2, abs=1e-4)
    assert normalization.threshold(0.05) == pytest.approx(low + 0.05 * 2, abs=1e-4)
    assert normalization.threshold(0.525) == pytest.approx(low + 0.525 * 2, abs=1e-4)
    assert normalization.threshold(0) == -math.inf
    for wrong in (0.01, -0.5, 0.96, 1):
        with pytest.raises(ConfigError, match="quantile"):
            normalization.threshold(wrong)
    with pytest.raises(RunError, match="NaN"):
        Normalization.of(torch.tensor([math.nan]), torch.tensor([1]))


def test_normalisation_counts_the_messages_of_the_training_pairs() -> None:
    pairs = random_pairs(50, 3, length=2)
    torch.manual_seed(0)
    model = MotifRewardModel()
    model.network.head[-1].weight.data *= 1e4  # an untrained network hardly distinguishes messages
    normalize(model, pairs)
    every = model.rewards(pairs.captions)[pairs.indices].flatten().double().numpy()  # including repetitions
    assert model.normalization is not None
    assert model.normalization.mean == pytest.approx(every.mean(), rel=1e-5)
    assert model.normalization.variance == pytest.approx(every.var(ddof=1), rel=1e-2)
    once = model.rewards([c for c, n in zip(pairs.captions, pairs.counts(), strict=True) if n]).numpy()
    middle = np.median((once - every.mean()) / every.std(ddof=1))
    assert model.normalization.threshold(0.5) == pytest.approx(middle, abs=1e-2)


def test_the_table_holds_each_messages_share_of_won_comparisons() -> None:
    segments = [([a], [b]) for a, b in ("ab", "ab", "ba", "ac", "cc")]
    pairs = TrainingPairs.of(segments, np.array([0, 0, 0, 1, 2], dtype=np.int8))
    table = TableRewardModel(default=-1.0)
    table.fit(pairs)
    # a won 2 of 4; b won 1 of 3; c won 1 and twice one half of 3.
    expected = [2 / 4, 1 / 3, 2 / 3, -1.0]
    assert table.rewards(["a", "b", "c", "unseen"]).tolist() == pytest.approx(expected)
    assert TableRewardModel().rewards(["a"]).tolist() == [0.0]


def test_the_table_takes_new_labels_and_changes_its_version() -> None:
    table = TableRewardModel()
    version = table.version
    assert table.version == version
    table.set(["seven", "three", "seven"], np.array([1.0, 2.0, 5.0]))
    assert table.rewards(["three", "seven"]).tolist() == [2.0, 5.0] and len(table.ids) == 2
    assert table.version != version
    table.set(["three"], np.array([0.5]))
    assert table.rewards(["three", "seven"]).tolist() == [0.5, 5.0]


@pytest.mark.parametrize(
    ("id", "args"),
    [
        ("motif", {}),
        ("classifier", {"threshold": 0.3}),
        ("table", {"default": 0.25}),
        ("language_model", {"path": "starter-causal", "hidden_sizes": [8]}),
    ],
)
def test_every_model_is_loaded_as_saved(id: str, args: dict, tmp_path) -> None:
    torch.manual_seed(0)
    pairs = random_pairs(20, 0)
    model = reward_models.create(id, **args)
    if isinstance(model, TableRewardModel):
        model.fit(pairs)
    else:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        train_epoch(model, optimizer, pairs, 20, torch.Generator().manual_seed(0))
    normalize(model, pairs)
    model.save(tmp_path / "saved", {"note": "é"})
    names = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert names <= {".safetensors", ".json", ".txt", ".jinja"}
    again = load_reward_model(tmp_path / "saved")
    assert type(again) is type(model)
    assert again.normalization == model.normalization
    assert again.args == model.args
    assert torch.equal(again.rewards(pairs.captions), model.rewards(pairs.captions))
    assert again.version == model.version
    again.save(tmp_path / "again")
    assert torch.equal(load_reward_model(tmp_path / "again").rewards(pairs.captions), model.rewards(pairs.captions))


def test_other_folders_get_a_message(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no reward model in"):
        load_reward_model(tmp_path)
    MotifRewardModel().save(tmp_path)
    (tmp_path / "reward_model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="no readable reward model"):
        load_reward_model(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'motif'"):
        reward_models.create("motiv")
