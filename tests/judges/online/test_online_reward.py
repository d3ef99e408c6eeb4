"""The reward model learns while the agent trains, and continues when a run is resumed."""

import threading
import time
from collections.abc import Sequence

import pytest
import torch

from groundling.errors import RunError
from groundling.judges.asking.judge import Reply
from groundling.judges.asking.questions import Question
from groundling.judges.online.background import OnlineLearning
from groundling.judges.online.reward import OnlineReward, online_judge
from groundling.judges.preferences.pairs import caption_ids
from groundling.judges.reward_models import (
    CharacterRewardModel,
    ClassifierRewardModel,
    MotifRewardModel,
    TableRewardModel,
)
from groundling.rewards.part import GeneratedTexts, RewardInputs
from groundling.rewards.reward_model_part import RewardModelPart, RewardTable
from tests.judges.online.judging import PATIENCE, Scripted, fits, judge_labels, until
from tests.judges.reward_models.reward_reference import random_texts


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (["none"], "returned 0 valid answers about 1 captions and 1 without"),
        (["a", "b"], "KeyError: 'winner'"),
        (["a"], None),
    ],
)
def test_closing_warns_of_a_judge_that_never_answered_or_failed_to_the_end(
    captions: list[str], message: str | None
) -> None:
    warnings: list[str] = []

    def judge(questions: list[tuple[str, ...]], contexts: list[str]) -> list[float | None]:
        return [{"a": 1.0, "none": None}["winner" if text == "b" else text] for (text,) in questions]

    online = OnlineReward(TableRewardModel(), judge, OnlineLearning(judge_batch_size=1), warnings.append)
    for caption in captions:
        online.observe_captions([caption])
        until(lambda: online._judge.asked)
    until(lambda: (online._judge.failing is not None) == ("b" in captions))
    online.update()
    online.close()
    assert (message is None and not warnings) or message in warnings[-1]


def test_labels_go_into_the_table_and_reach_the_agent() -> None:
    model = TableRewardModel()
    online = OnlineReward(model, judge_labels, OnlineLearning(judge_batch_size=2))
    table = RewardTable(model)
    batch = ["You see", "It's a wall", "You see", "", "door"]
    ids = torch.from_numpy(caption_ids(batch))

    def read(places: Sequence[int]) -> list[str]:
        return [batch[place] for place in places]

    assert table(ids, read).tolist() == [0] * 5
    online.observe_captions(batch)
    online.observe_captions(batch)
    until(lambda: online.update() and online.figures()["online_answers"] == 4)
    assert table(ids, read).tolist() == [1, 0, 1, 0, 0]
    assert not online.update()
    assert online.figures() == {"online_messages": 4, "online_answers": 4, "online_invalid": 0, "online_failures": 0}
    online.close()


def test_nothing_waits_for_the_judge() -> None:
    hold = threading.Event()

    def slow(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        hold.wait(PATIENCE)
        return judge_labels(questions, contexts)

    online = OnlineReward(TableRewardModel(), slow)
    texts = random_texts(200, 1)
    began = time.monotonic()
    for start in range(0, 200, 20):
        online.observe_captions(texts[start : start + 20])
        assert not online.update()
    assert time.monotonic() - began < PATIENCE / 2
    hold.set()
    until(lambda: online.update() or online.figures()["online_answers"])
    online.close()


@pytest.mark.parametrize("kind", [ClassifierRewardModel, MotifRewardModel])
def test_networks_learn_in_the_background(kind: type) -> None:
    torch.manual_seed(0)
    model = kind()
    learning = OnlineLearning(train_every=60, epochs=12, learning_rate=4e-3, batch_size=32, comparisons=4)
    online = OnlineReward(model, judge_labels, learning, warn=pytest.fail)
    texts = sorted({*random_texts(100, 3)})[:40]
    before = model.version
    weights = model.network.head[-1].weight.clone()
    online.observe_captions(texts)
    answers = 40 if kind is ClassifierRewardModel else 4 * 40 - 10
    until(lambda: online._judge.asked == answers)
    if kind is ClassifierRewardModel:  # 40 answers are not enough to start
        assert not online.update()
        assert online._training is None
        online.observe_captions([f"{text} e" for text in texts])
        until(lambda: online._judge.asked == 80)
    assert not online.update()  # training has started, but the model has not changed yet
    assert torch.equal(model.network.head[-1].weight, weights)
    assert model.version == before
    until(online.update)
    assert model.version != before
    rewards = model.rewards(texts)
    if kind is ClassifierRewardModel:
        agreeing = sum(float(reward) == fits(text) for reward, text in zip(rewards, texts, strict=True))
        assert agreeing >= 36
        assert model.normalization is None
    else:
        with_e = torch.tensor([text.count("e") >= 3 for text in texts])
        without = torch.tensor([text.count("e") == 0 for text in texts])
        assert rewards[with_e].mean() > rewards[without].mean() + 1
        assert model.normalization.variance > 0.1
    online.close()


def test_a_model_is_tested_on_new_answers() -> None:
    torch.manual_seed(0)
    learning = OnlineLearning(train_every=10, epochs=1)
    online = OnlineReward(MotifRewardModel(), judge_labels, learning, warn=pytest.fail)
    texts = sorted({*random_texts(100, 3)})[:24]
    online.observe_captions(texts[:12])
    until(lambda: online.update() and online._training is None)
    learnt_from = online._trained_on
    assert learnt_from >= 10 and online.figures()["online_tested"] == 0
    online.observe_captions(texts[12:])
    until(lambda: online._judge.asked == 2 * 24 - 3)
    until(online.update)
    new = list(online._answered.values())[learnt_from : online._trained_on]
    figures = online.figures()
    assert figures["online_tested"] == sum(answer != 0.5 for answer in new) > 0
    assert 0 <= figures["online_agreed"] <= figures["online_tested"]
    online.close()


def test_close_ends_a_training() -> None:
    """A thread that computes while Python shuts down would abort the process."""
    learning = OnlineLearning(train_every=1, epochs=1_000_000, batch_size=4)
    online = OnlineReward(MotifRewardModel(), judge_labels, learning, warn=pytest.fail)
    online.observe_captions(sorted({*random_texts(40, 3)})[:12])
    until(lambda: online.update() or online._training is not None)
    training = online._training
    assert training is not None and not training.done()
    online.close()
    assert training.done()


def test_an_untrained_ranking_model_rewards_next_to_nothing() -> None:
    torch.manual_seed(0)
    model = MotifRewardModel()
    online = OnlineReward(model, judge_labels)
    raw = model.rewards(["You see", "door"])
    given = RewardModelPart().transform(raw, torch.ones(2), model.normalization)
    assert given.abs().max() < 1e-2
    online.close()


def test_only_captions_of_one_goal_are_compared_also_after_a_resume() -> None:
    asked: list[tuple[str, ...]] = []

    def judge(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        asked.extend(questions)
        return [0.5] * len(questions)

    online = OnlineReward(MotifRewardModel(), judge)
    online.observe_captions(["a 1", "b 1", "a 2", "c 1", "b 2"], ["a", "b", "a", "c", "b"])
    until(lambda: online._judge.asked == 2)
    online.update()
    state = online.state_dict()
    online.close()
    assert {frozenset(question) for question in asked} == {frozenset({"a 1", "a 2"}), frozenset({"b 1", "b 2"})}
    asked.clear()
    resumed = OnlineReward(MotifRewardModel(), judge)
    resumed.load_state_dict(state)
    resumed.observe_captions(["c 2", "a 3"], ["c", "a"])
    until(lambda: resumed._judge.asked == 2)
    assert {frozenset(question) for question in asked} == {frozenset({"a 3", "a 1"}), frozenset({"a 3", "a 2"})}
    resumed.close()


@pytest.mark.parametrize("kind", [TableRewardModel, CharacterRewardModel])
def test_the_context_of_two_texts_is_shown_once_also_after_a_resume(kind: type) -> None:
    """A prompt is the context of the question, and the model reads each text after it."""
    prompt = "Sum up:\nA newt came."
    judge = Scripted(*(Reply("", probabilities=(0.8, 0.1, 0.1)) for _ in range(3)))

    def written(*texts: str) -> RewardInputs:
        return RewardInputs.of_texts(
            GeneratedTexts([prompt] * len(texts), [[t] for t in texts], [[]] * len(texts), None)
        )

    def observe(online: OnlineReward, inputs: RewardInputs) -> None:
        read = inputs.judged
        online.observe(read.ids, read.read, read.goals, read.contexts)

    online = OnlineReward(kind(), online_judge(judge, Question(world="writing")))
    observe(online, written("A newt.", "No newt."))
    count = 1 if kind is CharacterRewardModel else 2
    until(lambda: online._judge.asked == count)
    online.update()
    state = online.state_dict()
    online.close()
    resumed = OnlineReward(kind(), online_judge(judge, Question(world="writing")))
    resumed.load_state_dict(state)
    observe(resumed, written("One newt."))
    until(lambda: resumed._judge.asked)
    resumed.close()
    assert len(judge.asked) >= count + 1
    for _, user in judge.asked:
        assert user["content"].count("A newt came.") == 1 and "| A newt came." in user["content"]
    if kind is CharacterRewardModel:
        first = judge.asked[0][1]["content"]
        assert "| A newt." in first and "| No newt." in first


def test_answered_questions_are_not_asked_again_after_a_resume() -> None:
    asked: list[str] = []

    def judge(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        asked.extend(text for (text,) in questions)
        return [None if text == "door 鍵" else fits(text) for (text,) in questions]

    online = OnlineReward(TableRewardModel(), judge)
    online.observe_captions(["You see", "door 鍵", "kill"])
    until(lambda: online._judge.asked == 3)
    online.update()
    state = online.state_dict()
    online.close()
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "captions": torch.uint8,
        "lengths": torch.int64,
        "goals": torch.uint8,
        "goal_lengths": torch.int64,
        "questions": torch.int64,
        "answers": torch.float32,
        "trained_on": torch.int64,
    }
    asked.clear()
    resumed = OnlineReward(TableRewardModel(), judge)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["answers"].tolist() == state["answers"].tolist()
    resumed.observe_captions(["You see", "door 鍵", "kill", "new"])
    until(lambda: resumed._judge.asked == 2)
    assert sorted(asked) == ["door 鍵", "new"]
    resumed.close()
    ranking = OnlineReward(MotifRewardModel(), judge)
    with pytest.raises(RunError, match="about 1 captions each"):
        ranking.load_state_dict(state)
    ranking.close()


def test_training_interrupted_by_a_checkpoint_starts_again() -> None:
    torch.manual_seed(0)
    learning = OnlineLearning(train_every=60)
    online = OnlineReward(ClassifierRewardModel(), judge_labels, learning, warn=pytest.fail)
    online.observe_captions(sorted({*random_texts(100, 3)})[:70])
    until(lambda: online._judge.asked == 70)
    assert not online.update() and online._training is not None
    state = online.state_dict()
    until(online.update)
    learnt = online.state_dict()
    online.close()
    assert (int(state["trained_on"]), int(learnt["trained_on"])) == (0, 70)
    for saved, begins in ((state, True), (learnt, False)):
        resumed = OnlineReward(ClassifierRewardModel(), judge_labels, learning, warn=pytest.fail)
        resumed.load_state_dict(saved)
        assert not resumed.update()
        assert (resumed._training is not None) == begins
        resumed.close()


def test_training_that_fails_leaves_the_model_as_it_was() -> None:
    warnings: list[str] = []
    model = ClassifierRewardModel()
    model.network.head[-1].bias.data.fill_(float("nan"))
    online = OnlineReward(model, judge_labels, OnlineLearning(train_every=1), warnings.append)
    online.observe_captions(["door"])
    until(lambda: online.update() or warnings)
    assert "learning_rate" in warnings[0]
    online.close()
