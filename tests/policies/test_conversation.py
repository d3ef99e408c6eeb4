"""Policies that read an episode as a conversation: each step's outputs equal those for this step alone."""

import warnings
from collections.abc import Callable

import pytest
import torch

from groundling.algorithms import Rollout
from groundling.algorithms.rollout import Batch, Targets
from groundling.envs.text_env import TextObservation
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import (
    ActionGeneratingPolicy,
    ActionHeadPolicy,
    ActionScoringPolicy,
    ActionWritingPolicy,
    Policy,
)
from groundling.prompts import Conversation, prompts
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.thorough import some_of, thorough

_SEES = ["You see a wall", "You see a red ball", "You see a key", "You see a wall"]
_ACTIONS = ("turn left", "go forward", "drop")

_KINDS = {
    "scoring": lambda lm: ActionScoringPolicy(lm, prompt="conversation", value_hidden_sizes=(8,)),
    "writing": lambda lm: ActionWritingPolicy(lm, prompt="conversation", value_hidden_sizes=(8,)),
    "head": lambda lm: ActionHeadPolicy(lm, 6, prompt="conversation", hidden_sizes=(8,)),
}


def _steps(count: int, num_envs: int = 2, seed: int = 0) -> list[list[TextObservation]]:
    """Return the observations of random agents by step, over whole episodes."""
    envs = TextVectorEnv.make("BabyAI-GoToLocal-v0", num_envs, history=None, seed=seed)
    steps, generator = [envs.reset()], torch.Generator().manual_seed(0)
    for _ in range(count - 1):
        actions = torch.randint(0, 6, (num_envs,), generator=generator)
        steps.append(envs.step(actions.tolist()).observations)
    return steps


def _policy(kind: str, lm: LanguageModel) -> Policy:
    torch.manual_seed(0)
    return _KINDS[kind](lm)


def _loss(log_probs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 1, log_probs.numel()).view_as(log_probs)
    return (log_probs.exp() * weights).sum() + (values * weights[:, 0]).sum()


def test_a_long_conversation_leaves_room_for_the_longest_answer() -> None:
    lm = LanguageModel.from_pretrained("starter-causal")
    policy = ActionGeneratingPolicy(
        lm, prompt="conversation", value_hidden_sizes=(8,), thought_ends="Action:", max_thought_tokens=300
    )
    assert lm.max_positions is not None
    for count in range(10, 90, 4):
        views = (("You see a wall 2 steps left", "You see a red ball 1 step right"),) * count
        seen = TextObservation("go to the red ball", views, ("turn left",) * (count - 1), _ACTIONS, {})
        (prompt,) = policy.read([seen])
        assert len(prompt) + 300 + len(lm.tokenizer.encode("Action:")) + 16 <= lm.max_positions + 1


@pytest.mark.parametrize("kind", some_of(_KINDS, ["scoring"]))
@pytest.mark.parametrize("room", [260, *thorough(None)])
def test_an_episode_is_what_its_steps_are_alone(kind: str, room: int | None) -> None:
    lm = LanguageModel.from_pretrained("starter-causal", max_prompt_tokens=room)
    policy, steps = _policy(kind, lm), _steps(12)
    weights = [p for p in policy.parameters() if p.requires_grad]
    flat = [observation for step in steps for observation in step]
    if room is not None:
        lengths = [work.tokens for work in policy.work(flat)]
        assert max(lengths) <= room
        with pytest.warns(UserWarning, match="conversations longer than 260 tokens lose their first turns"):
            assert len({work.text for work in policy.work(flat)}) > 2  # each env started a new episode at least once
    with policy.unchanged():
        acting = [policy.outputs(step) for step in steps]
        last = policy.values(steps[-1])
    log_probs, values = policy(flat)
    gradients = torch.autograd.grad(_loss(log_probs, values), weights, allow_unused=True)
    alone = [policy([observation]) for observation in flat]
    expected, expected_values = (torch.cat(parts) for parts in zip(*alone, strict=True))
    expected_gradients = torch.autograd.grad(_loss(expected, expected_values), weights, allow_unused=True)
    near = {"atol": 1e-4, "rtol": 0.0}
    torch.testing.assert_close(torch.cat([a.log_probs for a in acting]), expected, **near)
    torch.testing.assert_close(torch.cat([a.values for a in acting]), expected_values, **near)
    torch.testing.assert_close(last, expected_values[-2:], **near)
    torch.testing.assert_close(log_probs, expected, **near)
    torch.testing.assert_close(values, expected_values, **near)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_a_conversation_is_read_on_from_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LanguageModel.from_pretrained("starter-causal")
    policy, steps = _policy("scoring", lm), _steps(12, num_envs=1)
    read: list[int] = []
    original = lm.backbone.read

    def counting(tokens: torch.Tensor, *more: object) -> torch.Tensor:
        read.append(tokens.numel())
        return original(tokens, *more)

    monkeypatch.setattr(lm.backbone, "read", counting)
    flat = [step[0] for step in steps]
    policy.work(flat)
    whole = policy.work(flat[-1:])[0].tokens
    with torch.no_grad():
        policy(flat)  # the first call checks for exactness
        read.clear()
        policy(flat)
    assert len(read) == 1
    assert whole < sum(read) < 2 * whole  # plus the actions of twelve steps
    read.clear()
    with policy.unchanged():
        for step in steps:
            policy.outputs(step)
    assert len(read) == len(steps)
    assert sum(read) < 2 * whole


@pytest.mark.parametrize("kind", ["scoring", "writing"])
def test_the_reference_has_its_own_cache(kind: str) -> None:
    lm = LanguageModel.from_pretrained("starter-causal", lora={"r": 2})
    policy = {"scoring": ActionScoringPolicy, "writing": ActionWritingPolicy}[kind](
        lm, lm, prompt="conversation", value_hidden_sizes=(8,)
    )
    steps = _steps(6)
    before = policy.outputs(steps[-1]).log_probs
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    actions = torch.tensor([1, 2])
    with policy.unchanged():
        for step in steps:
            now = policy.outputs(step).log_probs
        reference = policy.reference_log_probs(steps[-1], actions)
        again = policy.outputs(steps[-1]).log_probs
    assert (now - before).abs().max() > 1e-3
    torch.testing.assert_close(reference, before.gather(1, actions[:, None])[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(again, now, atol=1e-4, rtol=0)


@pytest.mark.parametrize("path", ["starter", "starter-causal"])
def test_a_model_without_exact_caching_reads_all_and_warns(path: str, make_lm: Callable[..., LanguageModel]) -> None:
    lm = LanguageModel.from_pretrained(path, gradient_checkpointing=path == "starter-causal")
    policy, steps = _policy("scoring", lm), _steps(5)
    with pytest.warns(UserWarning, match="cannot reuse earlier steps of a conversation"):
        whole = policy.outputs(steps[-1])
    with policy.unchanged(), warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning is issued once
        for step in steps:
            acting = policy.outputs(step)
    torch.testing.assert_close(acting.log_probs, whole.log_probs, atol=1e-4, rtol=0)


def test_minibatches_keep_conversations_together() -> None:
    policy, steps = _policy("scoring", LanguageModel.from_pretrained("starter-causal")), _steps(8, 4, seed=1)
    flat = [observation for step in steps for observation in step]
    nothing = torch.zeros(8, 4)
    rollout = Rollout(
        observations=flat,
        actions=nothing.long(),
        log_probs=nothing,
        values=nothing,
        rewards=nothing,
        dones=nothing.bool(),
        last_values=nothing[0],
        last_observations=steps[-1],
    )
    batch = Batch.of(policy, rollout, Targets(nothing, nothing))
    orders = []
    for epoch in range(3):
        minibatches = list(batch.minibatches(8, 1, torch.Generator().manual_seed(epoch)))
        orders.append(torch.cat(minibatches).tolist())
        assert sorted(orders[-1]) == list(range(32))
        assert [len(minibatch) for minibatch in minibatches] == [8] * 4
        for minibatch in minibatches:
            assert len(set((minibatch % 4).tolist())) == 1  # all from the same env
    assert len({tuple(order) for order in orders}) > 1


def test_changing_actions_are_listed_when_they_change() -> None:
    envs = TextVectorEnv.make("test/Doors-v0", 1, history=None, seed=3)
    observation = envs.reset()[0]
    shown = [observation.actions]
    while len(shown) < 4:
        observation = envs.step([0]).observations[0]
        shown = [observation.actions] if not observation.past_actions else [*shown, observation.actions]
    assert observation.past_choices == tuple(shown[:-1])
    conversation = prompts.get("conversation")(observation, "english")
    assert isinstance(conversation, Conversation)
    assert f"Actions: {', '.join(shown[0])}" in conversation.first_message()
    for turn in range(1, 4):
        changes = shown[turn] != shown[turn - 1]
        assert (f"Actions: {', '.join(shown[turn])}" in conversation.message(turn)) is changes
    assert f"Actions: {', '.join(shown[2])}" in conversation.first_message(2)
    assert observation.recent(2).past_choices == (shown[2],)


def test_the_experiment_sets_the_system_prompt() -> None:
    lm = LanguageModel.from_pretrained("starter-causal")
    observation = TextObservation("go", (("You see a wall",),), (), _ACTIONS, {})
    policy = ActionScoringPolicy(
        lm, prompt="conversation", system="Be quick.", replacements={"wall": "hedge"}, value_hidden_sizes=(8,)
    )
    assert policy.prompts([observation])[0].startswith("Be quick.")
    assert "hedge" in policy.prompts([observation])[0]
    text = ActionScoringPolicy(lm, prompt="brief", system="Be quick.", value_hidden_sizes=(8,))
    with pytest.raises(ConfigError, match=r"policy\.args\.system has no effect on the prompt"):
        text.prompts([observation])


def test_a_conversation_has_a_plain_form() -> None:
    conversation = Conversation(
        "Be quick.", "Goal: go", ("a wall", "a door"), ("Actions: wait", "Actions: open"), ("wait",)
    )
    assert str(conversation) == "Be quick.\n\nGoal: go\nActions: wait\n\na wall\nwait\na door\nActions: open\n"


def test_a_long_view_loses_its_beginning() -> None:
    lm = LanguageModel.from_pretrained("starter-causal", max_prompt_tokens=60)
    policy = _policy("scoring", lm)
    view = tuple(f"You see a ball {number} steps forward" for number in range(40))
    for past in (0, 3):
        observation = TextObservation("go", (view,) * (past + 1), ("drop",) * past, _ACTIONS, {})
        with pytest.warns(UserWarning, match=r"turns longer than 60 tokens lose .* goal .*model\.max_prompt_tokens"):
            assert policy.work([observation])[0].tokens == 60
        assert "ball 39 steps" in policy.prompts([observation])[0]
        assert policy.outputs([observation]).log_probs.isfinite().all()
