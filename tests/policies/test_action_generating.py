"""The policy that generates free answers or thoughts: generation, parsing and learning."""

import copy
import itertools
from typing import Any, Literal

import gymnasium
import pytest
import torch

from groundling.algorithms.ppo import PPO
from groundling.envs.text_env import TextObservation
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy, ActionWritingPolicy
from groundling.policies.answer import Answer, AnswerRules, find_action
from groundling.worlds.text.collect import EnvCollector
from tests.conftest import Corridor
from tests.thorough import some_of, thorough

_SIGNS = ("go", "go left", "go left now", "wait")
_FORMS: dict[str, dict[str, Any]] = {
    "guided": {},
    "free": {"guided": False, "max_action_tokens": 4},
    "thinking, guided": {"thought_begins": "I think", "thought_ends": "Action:", "max_thought_tokens": 4},
    "thinking, free": {"guided": False, "thought_ends": "so", "max_thought_tokens": 3, "temperature": 1.5},
}


def _see(*actions: str, goal: str = "go left") -> TextObservation:
    return TextObservation(goal, (("You see a signpost",),), (), actions, {})


_SEEN = [_see(*_SIGNS), _see("wait"), _see(*_SIGNS, goal="wait"), _see(*_SIGNS)]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel.from_pretrained("starter-causal")


def _policy(lm: LanguageModel, **args: Any) -> ActionGeneratingPolicy:
    torch.manual_seed(0)
    return ActionGeneratingPolicy(lm, value_hidden_sizes=(8,), **args)


@pytest.mark.parametrize(
    ("form", "starter"),
    some_of(
        itertools.product(_FORMS, ["starter-causal", "starter"]),
        [("thinking, free", "starter-causal"), ("thinking, guided", "starter")],
    ),
)
def test_written_answers_are_evaluated_as_they_were_drawn(form: str, starter: str) -> None:
    """Test prompts that continue cached ones, texts, and an encoder-decoder; with and without cache, in any batch."""
    for prompt in ("brief", "conversation") if starter == "starter-causal" else ("brief",):
        policy = _policy(LanguageModel.from_pretrained(starter), prompt=prompt, **_FORMS[form])
        with policy.unchanged():
            action = policy.act(_SEEN, generator=torch.Generator().manual_seed(0))
        again = policy.act(_SEEN, generator=torch.Generator().manual_seed(0))
        assert action.turns == again.turns
        assert action.turns is not None and action.tokens is not None
        together = policy.evaluate(action.turns, action.tokens.ids)
        for row, turn in enumerate(action.turns):
            length = len(turn.tokens)
            alone = policy.evaluate([turn], action.tokens.ids[row : row + 1, :length])
            for name in ("log_probs", "entropies", "values"):
                of_all = getattr(together, name)[row, :length]
                torch.testing.assert_close(getattr(alone, name)[0], of_all, atol=2e-5, rtol=0)
            assert together.log_probs[row, length:].eq(0).all()
        chosen = action.tokens.mask
        torch.testing.assert_close(together.log_probs.detach(), action.tokens.log_probs, atol=2e-5, rtol=0)
        torch.testing.assert_close(together.values.detach()[chosen], action.tokens.values[chosen], atol=2e-5, rtol=0)
        torch.testing.assert_close(action.log_probs, action.tokens.log_probs.sum(-1), atol=2e-5, rtol=0)
        torch.testing.assert_close(action.values, policy.values(_SEEN), atol=2e-5, rtol=0)


def test_gradients_of_a_conversation_are_those_of_its_turns_alone(lm: LanguageModel) -> None:
    policy = _policy(copy.deepcopy(lm), prompt="conversation", **_FORMS["thinking, guided"])
    first = _see(*_SIGNS)
    later = TextObservation("go left", (*first.descriptions, ("You see a wall",)), ("go",), _SIGNS, {})
    action = policy.act([first, later], generator=torch.Generator().manual_seed(0))
    assert action.turns is not None and action.tokens is not None
    weights = [p for p in policy.lm.parameters() if p.requires_grad]

    def gradients(together: bool) -> list[torch.Tensor]:
        parts = [(action.turns, action.tokens.ids)]
        if not together:
            parts = [([turn], action.tokens.ids[row : row + 1]) for row, turn in enumerate(action.turns)]
        total = sum((policy.evaluate(*part).log_probs.sum() for part in parts), torch.zeros(()))
        return list(torch.autograd.grad(total, weights, allow_unused=True))

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_guided_action_is_as_likely_as_one_that_is_written_in_one_pass(lm: LanguageModel) -> None:
    """Scoring and generation agree, and actions are sampled according to their probabilities."""
    policy, written = _policy(lm, prompt="brief"), ActionWritingPolicy(lm, prompt="brief")
    seen = _see(*_SIGNS)
    expected = written.outputs([seen]).log_probs[0]
    outputs = policy.outputs([seen])
    assert outputs is not None
    torch.testing.assert_close(outputs.log_probs[0], expected, atol=1e-5, rtol=0)
    every = policy.evaluate([seen] * len(_SIGNS), torch.arange(len(_SIGNS))).log_probs.detach()
    torch.testing.assert_close(every, expected, atol=1e-5, rtol=0)
    action = policy.act([seen] * 1000, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(action.actions, minlength=len(_SIGNS)) / len(action.actions)
    error = (expected.exp() * (1 - expected.exp()) / len(action.actions)).sqrt()
    assert ((shares - expected.exp()).abs() <= 4 * error + 1e-4).all(), (shares, expected.exp())
    assert policy.act([seen], deterministic=True).tokens is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("go left", 1),
        (" Go  LEFT.", 1),
        ('"go left now"', 2),
        ("`wait`!", 3),
        ("*go left*!", 1),
        ("\u201cgo left\u201d", 1),
        ("go right", None),
        ("I go left", None),
        ("", None),
        ("gone", None),
    ],
)
def test_an_answer_names_an_action_or_none(text: str, named: int | None) -> None:
    assert find_action(text, _SIGNS) == named


def test_an_exact_action_comes_first() -> None:
    assert [find_action(text, ["left", ".", "*"]) for text in ("", "!", " ** ", ".")] == [None, None, None, 1]
    assert [find_action(text, ["wait", "wait!", "Wait"]) for text in ("wait!", " Wait ", "WAIT")] == [1, 2, 0]


def _say(rules: AnswerRules, lm: LanguageModel, text: str, ends: bool = True) -> Answer:
    """Write an answer with these words, as far as the rules allow it."""
    answer = rules.answer(_SIGNS)
    tokens = [*lm.candidate_tokens([text])[0], *([rules.ends[0]] if ends else [])]
    for token in tokens:
        if not answer.ended:
            answer.write(token)
    return answer


def test_the_rules_of_an_answer(lm: LanguageModel) -> None:
    free = AnswerRules(lm, False, 8, "wait")
    for text, action, invalid in (
        ("go left", 1, False),
        ("go left\nand then some", 1, False),
        ("nonsense", 3, True),  # the action that is configured for invalid answers
    ):
        answer = _say(free, lm, text)
        assert (answer.ended, answer.action, answer.invalid) == (True, action, invalid), text
    unnamed = _say(AnswerRules(lm, False, 2, "jump"), lm, "for ever and ever", ends=False)
    assert (unnamed.ended, unnamed.action, unnamed.invalid) == (True, 0, True)  # cut, and "jump" is not an action
    assert len(unnamed.tokens) == 2

    long = "take the big red ball and put it next to the small green box in the other room of the house"
    usual, seen = AnswerRules(lm, guided=False), _see("wait", long)
    turn = usual.plain_turn(seen, 1)  # more tokens than the default of 16
    assert turn.text.startswith(long) and len(turn.tokens) == usual.max_tokens([seen]) > 17

    thinking = AnswerRules(lm, False, 8, None, "I think", "Action:", 6)
    answer = _say(thinking, lm, "I think Action: go left", ends=False)
    text = thinking.decoder(()).append(*answer.tokens)
    assert text.startswith("I think") and text.count("Action:") == 1 and not answer.ended
    answer.write(thinking.ends[0])
    assert answer.action == 1 and not answer.invalid
    # A thought that does not end is ended, and these tokens were not sampled.
    answer = _say(thinking, lm, "I think " + "left " * 20, ends=False)
    turn = answer.turn(_see(*_SIGNS))
    assert len(answer.thought) == 6 and "Action:" in turn.text
    # Except for the first token, before which the turn's value is predicted.
    assert turn.counted[0] and turn.counted.count(False) == len(answer.choices.opening) - 1 + len(thinking.closing)
    # A token that ends the whole answer ends the thought, and the action follows.
    guided = AnswerRules(lm, thought_ends="Action:", max_thought_tokens=6)
    answer = guided.answer(_SIGNS)
    answer.write(guided.ends[0])
    assert guided.decoder(()).append(*answer.tokens[1:]).strip() == "Action:" and not answer.ended
    while not answer.ended:
        answer.write((answer.allowed or (0,))[0])
    assert answer.tokens[-len(answer.action_ids) :] == answer.choices.paths[answer.action]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"invalid_action": "wait"}, "does nothing without guided=False"),
        ({"thought_begins": "I"}, "does nothing without thought_ends"),
        ({"thought_ends": " "}, "is blank"),
        ({"thought_ends": "So", "max_thought_tokens": 0}, "max_thought_tokens must be at least 1"),
        ({"temperature": 0.0}, "greater than 0"),
    ],
)
def test_settings_without_effect_are_refused(lm: LanguageModel, args: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _policy(lm, **args)


class Signpost(gymnasium.Env[str, str]):
    """Only one of three actions has a reward, and it is always the same."""

    observation_space = gymnasium.spaces.Text(50)
    action_space = gymnasium.spaces.Text(50)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, info = self._look()
        return observation, float(action == "go right"), True, False, info

    def _look(self) -> tuple[str, dict[str, Any]]:
        return "You see a signpost", {"goal": "go", "actions": ["go left", "go right", "wait"]}


@pytest.mark.parametrize("credit", ["poad", *thorough("turn", "token")])
def test_it_learns_the_rewarded_action(lm: LanguageModel, credit: Literal["turn", "token", "poad"]) -> None:
    """The policy learns after a thought of two tokens, with each kind of credit."""
    policy = _policy(copy.deepcopy(lm), prompt="brief", thought_ends=":", max_thought_tokens=2)
    ppo = PPO(learning_rate=1e-3, epochs=2, normalize_advantages=True, entropy_coefficient=0, credit=credit)
    ppo.setup(policy)
    envs = TextVectorEnv(Signpost, 16, None, lambda env, episode: 2 * (1000 * env + episode), history=1)
    envs.reset()
    collector, generator, rates = EnvCollector(envs, 2), torch.Generator().manual_seed(0), []
    for _ in range(6):
        rollout, episodes = collector.collect(policy, generator=generator)
        means = rollout.turn_means()
        assert 1 <= means["tokens_per_turn"] <= 4 and means["invalid_actions"] == 0
        ppo.update(policy, rollout, generator=generator)
        rates.append(sum(e.success for e in episodes) / len(episodes))
    assert rates[0] < 0.7 and sum(rates[-3:]) / 3 > 0.9, rates


def test_credit_of_a_turn_with_one_choice_is_the_turns(lm: LanguageModel) -> None:
    policy = _policy(lm, prompt="brief")
    actions = ["left", "right", "stay"]  # their first tokens differ
    envs = TextVectorEnv(Corridor, 4, actions, lambda env, episode: 2 * env)
    envs.reset()
    rollout, _ = EnvCollector(envs, 6).collect(policy, generator=torch.Generator().manual_seed(0))
    rollout.rewards = torch.rand(rollout.rewards.shape, generator=torch.Generator().manual_seed(1))
    of_turns, *of_tokens = (
        PPO(gamma=0.9, gae_lambda=0.8, credit=credit).targets(rollout) for credit in ("turn", "token", "poad")
    )
    for targets in of_tokens:
        torch.testing.assert_close(targets.advantages[..., 0], of_turns.advantages)
        torch.testing.assert_close(targets.returns[..., 0], of_turns.returns)


def test_an_action_longer_than_the_limit_is_not_cloned(lm: LanguageModel) -> None:
    rules = _policy(lm, guided=False, max_action_tokens=2).rules
    assert rules.plain_turn(_see(*_SIGNS), 3).text.strip() == "wait"
    with pytest.raises(ConfigError, match=r"max_action_tokens=2 is too small for the action 'go left now'"):
        rules.plain_turn(_see(*_SIGNS), 2)
