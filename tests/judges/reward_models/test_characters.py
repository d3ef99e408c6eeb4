from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.errors import ConfigError
from groundling.judges.reward_models import CharacterRewardModel, MotifRewardModel, load_reward_model
from groundling.judges.reward_models.distill import evaluate, segment_scores, train_epoch
from groundling.judges.reward_models.training_pairs import TrainingPairs


def make() -> CharacterRewardModel:
    torch.manual_seed(0)
    return CharacterRewardModel(channels=8, hidden_size=8, max_bytes=200)


@given(st.lists(st.text(max_size=90), min_size=2, max_size=70))
@settings(max_examples=20, deadline=None)
def test_a_reward_does_not_depend_on_other_captions(captions: list[str]) -> None:
    model = make()
    alone = torch.cat([model.rewards([caption]) for caption in captions])
    assert torch.allclose(model.rewards(captions), alone, atol=1e-6)


def test_every_part_of_a_caption_counts_but_the_middle_of_a_long_one() -> None:
    model = make()
    short, long = "take the red key", "a" * 100 + "鍵" * 100 + "b" * 100
    others = ["Take the red key", "take the red keys", "take the rid key"]
    assert all(model.rewards([short]) != model.rewards([other]) for other in others)
    assert model.rewards([long]) == model.rewards([long.replace("鍵", "x")])
    assert model.rewards([long]) != model.rewards([long[:-1] + "c"]) != model.rewards([long])


def test_motifs_network_refuses_other_captions() -> None:
    for text in ("é鍵", "a" * 257):
        with pytest.raises(ConfigError, match="--model characters"):
            MotifRewardModel().rewards([text])


def _pairs(count: int) -> TrainingPairs:
    """Segments of unequal lengths; preferred is the one whose share of "take" is greater."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda most: int(torch.randint(most, (), generator=generator))  # noqa: E731
    templates = ("take the {} key", "go past the {} key")
    colors = ("red", "grün", "鍵")
    segments = [
        [[templates[draw(2)].format(colors[draw(3)]) for _ in range(1 + draw(3))] for _ in "ab"] for _ in range(count)
    ]
    shares = [[sum("take" in one for one in side) / len(side) for side in pair] for pair in segments]
    labels = torch.tensor([2 if a == b else int(b > a) for a, b in shares]).numpy()
    return TrainingPairs.of(segments, labels)


def test_segments_of_unequal_lengths_are_compared_by_their_means() -> None:
    model, pairs = make(), _pairs(20)
    loss = model.loss(segment_scores(model, pairs), pairs.targets, pairs.mask())
    by_hand = torch.zeros(())
    for indices, target in zip(pairs.indices, pairs.targets, strict=True):
        means = [model([pairs.captions[i] for i in side if i >= 0]).mean() for side in indices]
        by_hand = by_hand - (torch.stack(means).log_softmax(0) * target).sum() / len(pairs)
    assert loss.item() == pytest.approx(by_hand.item(), abs=1e-6)
    expected = torch.autograd.grad(by_hand, list(model.parameters()))
    for ours, theirs in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_rule_is_learnt_from_texts_in_any_script_and_saved(tmp_path: Path) -> None:
    training, validation = _pairs(200).split(0.2, 0)
    model = make()
    optimizer, order = torch.optim.Adam(model.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    for _ in range(6):
        train_epoch(model, optimizer, training, 32, order)
    assert evaluate(model, validation)["accuracy"] > 0.95
    model.save(tmp_path)
    again = load_reward_model(tmp_path)
    assert torch.equal(again.rewards(training.captions), model.rewards(training.captions))
