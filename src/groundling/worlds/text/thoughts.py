"""Mutual information between prompts and the thoughts that an agent writes before it acts."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.envs.text_episode import Step
from groundling.policies.action_generating import ActionGeneratingPolicy
from groundling.policies.policy import Policy, Turn
from groundling.worlds.episode import Episode
from groundling.worlds.text.episodes import Choice

_MOST = 32  # Maximum number of thoughts, each of which is scored given every prompt
_ROWS = 1024  # Number of tokens scored at once


@dataclass
class TurnSampler:
    """Draws one turn of each episode uniformly, regardless of how episodes are distributed over envs."""

    turns: dict[int, Turn] = field(default_factory=dict)  # by the episode's seed
    _streams: dict[int, tuple[random.Random, int]] = field(default_factory=dict)  # with the number of turns so far

    def __call__(
        self, indices: Sequence[int], observations: Sequence[TextObservation], choice: Choice, step: Step
    ) -> None:
        for turn in choice.turns or ():
            seed = turn.observation.episode
            stream, count = self._streams.get(seed, (random.Random(seed), 0))
            if stream.randrange(count + 1) == 0:
                self.turns[seed] = turn
            self._streams[seed] = stream, count + 1


def information(log_probs: Tensor) -> Tensor:
    """Estimate the mutual information of prompts and thoughts in nats (RAGEN-2, arXiv 2604.06268): its mean is
    Î = E_i[log P(z_i | x_i) - log 1/N Σ_j P(z_i | x_j)] ≤ log N.

    Args:
        log_probs: log P(z_i | x_j) of thought i given prompt j, float ``(N, N)``.

    Returns:
        The summands, ``(N,)``.
    """
    return log_probs.diagonal() - (log_probs.logsumexp(1) - math.log(len(log_probs)))


def with_information(policy: Policy | None, episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Add ``thought_information`` and ``thought_retrieval`` (1 if a thought is most likely given its own prompt) to the
    first episodes with different prompts, for a policy that writes thoughts.
    """
    if not isinstance(policy, ActionGeneratingPolicy) or policy.rules.thought_ends is None:
        return episodes
    turns = {e.number: e.turn for e in episodes if e.turn is not None}
    prompts = policy.prompts([turn.observation for turn in turns.values()]) if turns else []
    different = list({text: number for number, text in reversed(list(zip(turns, prompts, strict=True)))}.values())
    chosen = sorted(different)[:_MOST]
    if len(chosen) < 2:
        return episodes
    seen = [turns[number].observation for number in chosen]
    rows = []
    with torch.no_grad(), policy.unchanged():
        for number in chosen:
            thought = policy.without_action(turns[number])
            copies, size = [replace(thought, observation=one) for one in seen], len(thought.tokens)
            several = max(1, _ROWS // size)
            parts = [copies[first : first + several] for first in range(0, len(copies), several)]
            scores = [policy.evaluate(part, torch.zeros(len(part), size)).log_probs.sum(-1) for part in parts]
            rows.append(torch.cat(scores))
    log_probs = torch.stack(rows).double().cpu()
    values, best = information(log_probs).tolist(), log_probs.argmax(1).tolist()
    figures = {
        number: {"thought_information": value, "thought_retrieval": float(place == row)}
        for row, (number, value, place) in enumerate(zip(chosen, values, best, strict=True))
    }
    return [replace(e, figures={**e.figures, **figures.get(e.number, {})}) for e in episodes]
