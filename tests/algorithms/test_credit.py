"""Credit of turns and tokens: gradients are compared with those of a finite world that is enumerated."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch

from groundling.algorithms.advantages import (
    anchored,
    generalized_advantage,
    leave_one_out,
    returns_to_go,
    token_advantages,
)
from groundling.algorithms.grpo import GiGPO
from groundling.algorithms.rollout import Rollout

GAMMA = 0.8
ACTIONS = ((0,), (1, 0), (1, 1))
"""Actions of one or two tokens."""
MOST = 3
"""Maximum number of turns in an episode."""


def world(state, action):
    """Return the next state (None at the end of the episode) and the reward."""
    if action == (0,):
        return (None, 0.7) if state == 1 else (1, -0.2)
    if action == (1, 0):
        return (1 - state, 0.3 + 0.1 * state)
    return (None, 0.9 * state - 0.4)


@dataclass
class Turn:
    state: int
    action: tuple[int, ...]
    reward: float


def parameters():
    """Return the logits of the first token, by turn and state, and of the second token."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MOST, 2, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()


def token_log_probs(logits, turn, state, action):
    """Return the log-probability of each token of an action."""
    chosen = logits[turn, state].log_softmax(-1)
    return [chosen[place, token] for place, token in enumerate(action)]


def episodes(logits, state=0, turn=0):
    """Yield every episode that starts there, with its probability."""
    for action in ACTIONS:
        probability = torch.stack(token_log_probs(logits, turn, state, action)).sum().exp()
        following, reward = world(state, action)
        first = [Turn(state, action, reward)]
        if following is None or turn + 1 == MOST:
            yield first, probability
        else:
            for rest, likely in episodes(logits, following, turn + 1):
                yield first + rest, probability * likely


def discounts(turns, token_gamma):
    """Return the discounts of tokens by turn: γ for each turn before, γ_w for each token before in the same turn."""
    so_far, result = 1.0, []
    for turn in turns:
        factors = [so_far * token_gamma**place for place in range(len(turn.action))]
        result.append(factors)
        so_far = factors[-1] * GAMMA
    return result


def objective(logits, token_gamma, state=0, turn=0):
    """Return E[Σ γ... r], where each reward is discounted like the last token of its turn."""
    return sum(
        probability * sum(d[-1] * t.reward for d, t in zip(discounts(turns, token_gamma), turns, strict=True))
        for turns, probability in episodes(logits, state, turn)
    )


def values_of(logits, token_gamma):
    """Return V before each token, by turn, state and the tokens generated so far."""
    known = {}
    with torch.no_grad():
        for turn, state in itertools.product(range(MOST), range(2)):
            known[turn, state, ()] = objective(logits, token_gamma, state, turn)
        for turn, state in itertools.product(range(MOST), range(2)):
            total = 0.0
            for token in (0, 1):
                following, reward = world(state, (1, token))
                later = 0.0 if following is None or turn + 1 == MOST else known[turn + 1, following, ()]
                total += logits[turn, state, 1].softmax(-1)[token] * (reward + GAMMA * later)
            known[turn, state, (1,)] = total
    return known


def tensors(turns, known):
    """Return the rewards, values, mask and dones of one env's episode."""
    values = torch.zeros(len(turns), 1, 2, dtype=torch.float64)
    mask = torch.zeros(values.shape, dtype=torch.bool)
    for number, turn in enumerate(turns):
        for place in range(len(turn.action)):
            values[number, 0, place] = known[number, turn.state, turn.action[:place]]
            mask[number, 0, place] = True
    dones = torch.zeros(len(turns), 1, dtype=torch.bool)
    dones[-1] = True
    return torch.tensor([[t.reward] for t in turns], dtype=torch.float64), values, mask, dones


def expected_gradient(logits, advantages_of, token_gamma):
    """Return E[Σ γ... ∇ log π(token) Â(token)] over all episodes."""
    total = 0.0
    for turns, probability in episodes(logits):
        advantages = advantages_of(turns)  # (turns, tokens)
        for number, (turn, factors) in enumerate(zip(turns, discounts(turns, token_gamma), strict=True)):
            log_probs = token_log_probs(logits, number, turn.state, turn.action)
            for place, log_prob in enumerate(log_probs):
                total += probability.detach() * factors[place] * log_prob * advantages[number][place]
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("credit", ["turn", "poad", "token"])
def test_the_gradient_is_that_of_enumeration(credit, lam):
    logits = parameters()
    token_gamma = GAMMA if credit == "token" else 1.0
    known = values_of(logits, token_gamma)
    nothing = torch.zeros(1, dtype=torch.float64)

    def advantages_of(turns):
        rewards, values, mask, dones = tensors(turns, known)
        if credit == "turn":
            by_turn, _ = generalized_advantage(rewards, values[..., 0], dones, nothing, GAMMA, lam)
            return by_turn.expand(-1, 2)
        return token_advantages(rewards, values, mask, dones, nothing, GAMMA, lam, token_gamma)[0][:, 0]

    computed = expected_gradient(logits, advantages_of, token_gamma)
    exact = torch.autograd.grad(objective(logits, token_gamma), logits)[0]
    torch.testing.assert_close(computed, exact, atol=1e-6, rtol=0)
    if credit == "token":  # this discounts long actions more, which is a different objective
        assert (exact - torch.autograd.grad(objective(logits, 1.0), logits)[0]).abs().max() > 0.01


def test_turns_of_one_token_are_steps():
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator)
    dones, last = torch.rand(5, 3, generator=generator) < 0.3, torch.randn(3, generator=generator)
    expected = generalized_advantage(rewards, values, dones, last, 0.9, 0.8)
    mask = torch.ones(5, 3, 1, dtype=torch.bool)
    computed = token_advantages(rewards, values[..., None], mask, dones, last, 0.9, 0.8)
    for one, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(one[..., 0], other)


def test_masked_tokens_have_no_influence():
    rewards, dones = torch.tensor([[1.0], [2.0]]), torch.tensor([[False], [True]])
    values = torch.tensor([[[0.5, 0.2, 9.0]], [[0.1, 7.0, 9.0]]])
    mask = torch.tensor([[[True, True, False]], [[True, False, False]]])
    advantages, returns = token_advantages(rewards, values, mask, dones, torch.zeros(1), 0.5, 1.0)
    torch.testing.assert_close(advantages, torch.tensor([[[1.5, 1.8, 0.0]], [[1.9, 0.0, 0.0]]]))
    torch.testing.assert_close(returns, torch.tensor([[[2.0, 2.0, 0.0]], [[2.0, 0.0, 0.0]]]))


def test_a_turn_without_tokens_is_refused():
    mask = torch.tensor([[[True]], [[False]]])
    flat = torch.zeros(2, 1)
    with pytest.raises(ValueError, match="a turn has no token"):
        token_advantages(flat, torch.zeros(2, 1, 1), mask, flat.bool(), torch.zeros(1), 1.0, 1.0)
    with pytest.raises(ValueError, match="same shape"):
        token_advantages(flat, torch.zeros(2, 1, 2), mask, flat.bool(), torch.zeros(1), 1.0, 1.0)


# The agent may stop at any turn; the reward is 1 for each turn that it continues and 0 for stopping.


def stopping(logits):
    """Yield every episode of at most three turns, with its decisions, rewards and log-probability."""
    for length in range(MOST + 1):
        continues = [True] * length + ([False] if length < MOST else [])
        log_prob = sum(
            torch.nn.functional.logsigmoid(logits[t] if on else -logits[t]) for t, on in enumerate(continues)
        )
        yield continues, [float(on) for on in continues], log_prob


def gradient_of_groups(logits, advantages_of):
    """Return E[Σ ∇ log π Â] for the first episode of a group of two."""
    every, total = list(stopping(logits)), 0.0
    for (continues, rewards, log_prob), (_, others, likely) in itertools.product(every, repeat=2):
        probability = (log_prob + likely).exp().detach()
        for t, (on, advantage) in enumerate(zip(continues, advantages_of(rewards, others), strict=True)):
            total += probability * torch.nn.functional.logsigmoid(logits[t] if on else -logits[t]) * advantage
    return torch.autograd.grad(total, logits)[0]


def pair(rewards, others):
    """Return a rollout with two episodes."""
    length = max(len(rewards), len(others))
    columns = [[*one, *[0.0] * (length - len(one))] for one in (rewards, others)]
    dones = torch.zeros(length, 2, dtype=torch.bool)
    mask = torch.zeros(length, 2, dtype=torch.bool)
    for env, one in enumerate((rewards, others)):
        dones[len(one) - 1, env] = True
        mask[: len(one), env] = True
    reward = torch.tensor(columns, dtype=torch.float64).T
    empty = torch.zeros(length, 2, dtype=torch.float64)
    return Rollout([None] * 2 * length, empty.long(), empty, empty, reward, dones, empty[0], [None] * 2, mask=mask)


def test_the_group_baseline_is_unbiased_by_length():
    """In verl's issue 7244, a baseline per turn that is summed up to the end of the episode penalises every turn."""
    logits = torch.tensor([0.3, -0.4, 0.2], dtype=torch.float64, requires_grad=True)
    exact = torch.autograd.grad(
        sum(log_prob.exp() * sum(rewards) for _, rewards, log_prob in stopping(logits)), logits
    )[0]

    def ours(rewards, others):
        rollout = pair(rewards, others)
        return leave_one_out(rollout, returns_to_go(rollout.rewards, rollout.dones, 1.0))[:, 0][: len(rewards)]

    def by_turn(rewards, others):
        relative = [r - (others[t] if t < len(others) else 0.0) for t, r in enumerate(rewards)]
        return [sum(relative[t:]) for t in range(len(rewards))]

    torch.testing.assert_close(gradient_of_groups(logits, ours), exact, atol=1e-6, rtol=0)
    biased = gradient_of_groups(logits, by_turn)
    assert (biased[:2] < exact[:2] - 0.01).all()


def rollout_of(rewards, dones, groups=None):
    shape = rewards.shape
    empty = torch.zeros(shape)
    return Rollout(
        [None] * rewards.numel(),
        empty.long(),
        empty,
        empty,
        rewards,
        dones,
        empty[0],
        [None] * shape[1],
        groups=groups,
    )


def test_steps_at_one_state_are_compared():
    rewards = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    dones = torch.tensor([[False] * 3, [False] * 3, [True] * 3])
    states = torch.tensor([[7, 7, 7], [8, 9, 8], [1, 8, 3]])
    rollout = rollout_of(rewards, dones)
    returns = returns_to_go(rewards, dones, 1.0)  # 1 2 0, 1 2 0, 0 2 0
    of_steps = torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(anchored(rollout, returns, states, scale="none"), of_steps)
    torch.testing.assert_close(anchored(rollout, returns, states)[0], of_steps[0] / (1 + 1e-4))


def test_gigpo_discounts_steps_but_not_episodes():
    """In Feng et al. 2025, only the steps' returns contain γ, so that long successes are as good as short ones."""
    rewards = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    dones = torch.tensor([[False] * 3, [True, False, False], [True, True, True]])
    mask = torch.tensor([[True] * 3, [True] * 3, [False, True, True]])
    states = torch.tensor([[7, 7, 7], [8, 9, 10], [1, 2, 3]])
    rollout = replace(rollout_of(rewards, dones, torch.zeros(3).long()), mask=mask, states=states)
    algorithm = GiGPO(gamma=0.5, step_weight=2.0, scale_rewards="none")
    computed = algorithm.compare(rollout, rewards, returns_to_go(rewards, dones, 0.5))
    of_episodes = torch.tensor([1 / 3, 1 / 3, -2 / 3])
    torch.testing.assert_close(computed[1:] * mask[1:], of_episodes.expand(2, 3) * mask[1:])
    torch.testing.assert_close(computed[0], of_episodes + 2 * torch.tensor([0.5 - 0.25, 0.0, -0.25]))


def test_states_are_compared_within_a_group():
    rewards = torch.tensor([[1.0, 0.0, 5.0, 4.0]])
    dones = torch.ones(1, 4, dtype=torch.bool)
    rollout = rollout_of(rewards, dones, groups=torch.tensor([0, 0, 1, 1]))
    computed = anchored(rollout, rewards, torch.zeros(1, 4).long(), scale="none")
    torch.testing.assert_close(computed, torch.tensor([[0.5, -0.5, 0.5, -0.5]]))
