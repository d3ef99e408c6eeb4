import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundling.errors import ConfigError, RunError
from groundling.judges.reward_models import MotifRewardModel, load_reward_model, reward_models
from groundling.judges.reward_models.distill import (
    Distillation,
    agreement,
    evaluate,
    normalize,
    segment_scores,
    train_epoch,
)
from groundling.judges.reward_models.message_network import TableRewardModel
from groundling.judges.reward_models.reward_model import (
    Normalization,
    accuracy,
    best_temperature,
    calibration_error,
    preference_loss,
)
from groundling.judges.reward_models.training_pairs import TrainingPairs
from tests.judges.reward_models.reward_reference import gradients, messages_of, plain_network, random_pairs


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


def test_segments_are_compared_by_the_mean_over_their_steps() -> None:
    model = MotifRewardModel()
    scores = torch.tensor([[[1.0, 3.0], [0.0, 1.0]]])  # means 2 and 0.5
    assert model.loss(scores, torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 2).bool()).item() == pytest.approx(
        math.log(1 + math.exp(-1.5))
    )


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
    # 1.5 against 3; 3 against 2; a tie; equal rewards; 3 against 1
    assert agreement(Known(), pairs) == (1, 4)
    labelled = TrainingPairs(["a", "bb"], torch.tensor([[[0]], [[1]]]), torch.tensor([[1.0], [0.0]]))
    assert agreement(Known(), labelled) == (1, 2)


def test_three_epochs_end_at_the_weights_of_the_plain_computation() -> None:
    pairs = random_pairs(40, 1)
    torch.manual_seed(0)
    model = MotifRewardModel().double()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    losses = [train_epoch(model, optimizer, pairs, 16, order) for _ in range(3)]

    optimizer, order = torch.optim.Adam(plain.parameters(), lr=1e-3), torch.Generator().manual_seed(0)
    expected = []
    for _ in range(3):
        total = 0.0
        for rows in torch.randperm(40, generator=order).split(16):
            everything = torch.from_numpy(messages_of(pairs[rows])).flatten(0, 2).long()
            rewards = plain_network(plain.network)(everything).view(-1, 2)
            loss = nn.CrossEntropyLoss()(rewards, pairs.targets[rows].double())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        expected.append(total / 40)
    assert losses == pytest.approx(expected, abs=1e-9)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-8)


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


@pytest.mark.parametrize(
    "options", [{"learning_rate": 0}, {"batch_size": 0}, {"epochs": -1}, {"validation_fraction": 1.0}, {"seed": -1}]
)
def test_options_out_of_bounds_get_a_message(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Distillation(**options)


def test_accuracy_and_calibration_by_hand() -> None:
    margins = torch.tensor([2.0, -1.0, 0.5, 0.0, 4.0])
    targets = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5])
    assert accuracy(margins, targets) == pytest.approx(2.5 / 4)  # right, right, wrong, undecided; a tie
    sigmoid = [1 / (1 + math.exp(-abs(m))) for m in (2.0, 1.0, 0.5, 0.0)]  # 0.881, 0.731, 0.622, 0.5: four bins
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
    model.network.head[-1].weight.data *= 1e4  # an untrained network hardly tells messages apart
    normalize(model, pairs)
    every = model.rewards(pairs.captions)[pairs.indices].flatten().double().numpy()  # with multiplicity
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
    # a: won 2 of 4; b: 1 of 3; c: 1 and twice one half of 3.
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
    with pytest.raises(ConfigError, match="there is no reward model in"):
        load_reward_model(tmp_path)
    MotifRewardModel().save(tmp_path)
    (tmp_path / "reward_model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="no reward model that can be read"):
        load_reward_model(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'motif'"):
        reward_models.create("motiv")
