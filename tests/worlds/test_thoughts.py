"""Mutual information between prompts and thoughts (RAGEN-2, arXiv 2604.06268)."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from groundling.envs.text_env import TextObservation
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy
from groundling.policies.policy import Turn
from groundling.worlds.episode import Episode
from groundling.worlds.text.episodes import Choice
from groundling.worlds.text.thoughts import TurnSampler, information, with_information

_COLOURS = ("red", "green", "blue", "grey")


def _see(colour: str, seed: int = 0) -> TextObservation:
    return TextObservation(
        f"go to the {colour} ball", ((f"You see a {colour} key",),), (), ("left", "right"), {}, (), seed
    )


def test_information_is_that_of_the_batch() -> None:
    assert information(torch.zeros(5, 5)).tolist() == [0.0] * 5  # thoughts that do not depend on the prompt
    apart = torch.full((4, 4), -1e9).fill_diagonal_(-3.0)
    assert information(apart).tolist() == pytest.approx([math.log(4)] * 4)  # the maximum
    scores = torch.tensor([[-1.0, -2.0], [-4.0, -3.0]])
    mean = math.log((math.exp(-1) + math.exp(-2)) / 2)
    assert information(scores)[0].item() == pytest.approx(-1 - mean)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel.from_pretrained("starter-causal")


def _policy(lm: LanguageModel, **options: Any) -> ActionGeneratingPolicy:
    torch.manual_seed(0)
    return ActionGeneratingPolicy(lm, prompt="brief", value_hidden_sizes=(8,), **options)


def _episodes(policy: ActionGeneratingPolicy, colours: tuple[str, ...] = _COLOURS) -> list[Episode]:
    generator = torch.Generator().manual_seed(0)
    turns = policy.act([_see(colour) for colour in colours], generator=generator).turns
    return [Episode({"success": 1.0}, i, turn=turn) for i, turn in enumerate(turns or ())]


@pytest.mark.parametrize("guided", [True, False])
def test_thoughts_are_scored_given_each_prompt(lm: LanguageModel, guided: bool) -> None:
    policy = _policy(lm, thought_begins="I", thought_ends="Action:", max_thought_tokens=4, guided=guided)
    episodes = _episodes(policy)
    thoughts = [policy.without_action(episode.turn) for episode in episodes]
    for thought, episode in zip(thoughts, episodes, strict=True):
        assert thought.tokens == episode.turn.tokens[: len(thought.tokens)] and len(thought.tokens) >= 5
    scores = torch.zeros(4, 4)
    for i, thought in enumerate(thoughts):
        for j, colour in enumerate(_COLOURS):
            turn = replace(thought, observation=_see(colour))
            scores[i, j] = policy.evaluate([turn], torch.zeros(1, len(turn.tokens))).log_probs.sum()
    measured = with_information(policy, episodes)
    assert [one.figures["thought_information"] for one in measured] == pytest.approx(
        information(scores).tolist(), abs=1e-4
    )
    assert [one.figures["thought_retrieval"] for one in measured] == [float(scores[i].argmax() == i) for i in range(4)]


def test_equal_prompts_are_counted_once_and_one_prompt_is_not_enough(lm: LanguageModel) -> None:
    policy = _policy(lm, thought_ends="Action:", max_thought_tokens=3)
    measured = with_information(policy, _episodes(policy, ("red", "red", "blue")))
    assert ["thought_information" in one.figures for one in measured] == [True, False, True]
    for few in (_episodes(policy, ("red", "red")), [Episode({"success": 1.0})], []):
        assert with_information(policy, few) == few
    plain = _policy(lm)
    episodes = _episodes(plain)
    assert with_information(plain, episodes) is episodes and with_information(None, episodes) is episodes


def test_a_turn_of_each_episode_is_drawn_whatever_the_number_of_envs() -> None:
    def turns(seed: int) -> list[Turn]:
        return [Turn(_see("red", seed), (step,), (None,)) for step in range(6)]

    together, apart = TurnSampler(), TurnSampler()
    for step in range(6):
        both = [turns(seed)[step] for seed in range(40)]
        together([], [], Choice([], turns=both), None)  # type: ignore[arg-type]
    for seed in range(40):
        for turn in turns(seed):
            apart([], [], Choice([], turns=[turn]), None)  # type: ignore[arg-type]
    assert together.turns == apart.turns
    assert {turn.tokens[0] for turn in together.turns.values()} == set(range(6))
