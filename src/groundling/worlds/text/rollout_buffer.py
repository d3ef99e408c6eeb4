"""The steps of a rollout in text envs, while they are collected."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.observation import TextObservation
from groundling.envs.text_episode import Step, TextEpisode
from groundling.judges.preferences.segments import caption_id, caption_ids
from groundling.policies.policy import Action, Policy
from groundling.policies.turns import Turn, TurnTokens
from groundling.rewards import Captions, EpisodeCounts, Rewarded
from groundling.worlds.text.pairs import caption_in_context, context


class RolloutBuffer:
    """Steps of all envs.

    Args:
        num_envs: Number of envs.
        counts: For each kind of captions that the reward reads, the numbers of their occurrences in the present
            episodes.
    """

    def __init__(self, num_envs: int, counts: Mapping[str, EpisodeCounts]) -> None:
        self.observations: list[TextObservation] = []  # num_steps * num_envs
        self.episodes: list[TextEpisode] = []
        self.env_rewards: list[Tensor] = []  # num_steps of (num_envs,), as those below
        self.truncation_values: list[Tensor] = []
        self.acting: list[np.ndarray] = []
        self.captions = {name: _CaptionBuffer(kind) for name, kind in counts.items()}
        self._num_envs = num_envs
        self._turns: list[Turn] = []
        self._actions: list[Action] = []
        self._dones: list[np.ndarray] = []
        self._memories: list[Tensor | None] = []
        self._starts: list[Tensor] = []

    def add(
        self,
        observations: Sequence[TextObservation],
        starts: Tensor,
        memory: Tensor | None,
        action: Action,
        step: Step,
        acting: np.ndarray,
    ) -> None:
        """Add a step of all envs.

        Args:
            observations: The observations before it.
            starts: ``(num_envs,)`` bool: they are the first of an episode.
            memory: ``(num_envs, memory_size)`` before the action.
            action: The policy's actions.
            step: The envs' results.
            acting: ``(num_envs,)`` bool: the envs that took the step; the others wait.
        """
        self._add_captions(observations, action.actions.tolist(), step, acting)
        self.observations += observations
        self.episodes += step.episodes
        self.env_rewards.append(torch.from_numpy(step.rewards))
        self.acting.append(acting)
        self._turns += action.turns or []
        self._actions.append(action)
        self._dones.append(step.dones)
        self._memories.append(memory)
        self._starts.append(starts)

    def _add_captions(
        self, observations: Sequence[TextObservation], actions: Sequence[int], step: Step, acting: np.ndarray
    ) -> None:
        if not self.captions:
            return
        for env in np.flatnonzero(acting).tolist():
            before = observations[env]
            reached = step.final_observations.get(env, step.observations[env])
            place = len(self.observations) + env
            self.captions["captions"].add(env, place, "\n".join(reached.descriptions[-1]), reached.goal)
            judged = caption_in_context(before, before.actions[actions[env]])
            self.captions["judged"].add(env, place, judged, before.goal, context(before))
        for captions in self.captions.values():
            captions.counts.end(step.final_observations)

    def rollout(
        self, policy: Policy, rewarded: Rewarded, last_values: Tensor, last: Sequence[TextObservation]
    ) -> Rollout:
        """Return the rollout, with the KL of each action to the policy's reference, if it has one."""
        actions = torch.stack([a.actions.detach() for a in self._actions]).cpu()  # (num_steps, num_envs)
        log_probs = torch.stack([a.log_probs.detach() for a in self._actions]).cpu()
        tokens = [a.tokens for a in self._actions if a.tokens is not None]
        written = TurnTokens.joined(tokens, dim=0).as_steps(len(actions)) if tokens else None
        seen: Sequence[Any] = self._turns or self.observations
        reference = policy.reference_log_probs(
            seen, actions.flatten() if written is None else written.ids.flatten(0, 1)
        )
        kl = None
        if reference is not None and written is not None:
            written.kl = written.log_probs - reference.cpu().view_as(written.log_probs)
            kl = written.kl.sum(-1)
        elif reference is not None:
            kl = log_probs - reference.cpu().view_as(log_probs)
        memories = [memory for memory in self._memories if memory is not None]
        return Rollout(
            observations=seen,
            actions=actions,
            log_probs=log_probs,
            values=torch.stack([a.values.detach() for a in self._actions]).cpu(),
            rewards=rewarded.total,
            truncation_values=torch.stack(self.truncation_values) if self.truncation_values else None,
            dones=torch.from_numpy(np.stack(self._dones)),
            last_values=last_values,
            last_observations=last,
            memories=torch.stack(memories) if memories else None,
            starts=torch.stack(self._starts) if memories else None,
            kl=kl,
            tokens=written,
            parts=rewarded.by_part,
        )


class _CaptionBuffer:
    """Captions of one kind; ``counts`` has the numbers of their occurrences in the present episodes."""

    def __init__(self, counts: EpisodeCounts) -> None:
        self._rows: list[tuple[int, str, str, str, int]] = []  # place, text, goal, context, number of occurrences
        self.counts = counts

    def add(self, env: int, place: int, text: str, goal: str, context: str = "") -> None:
        """Add a caption; ``place`` is its number among the steps of all envs."""
        self._rows.append((place, text, goal, context, self.counts.add(env, caption_id(text))))

    def read(self) -> Captions:
        places, texts, goals, contexts, numbers = map(list, zip(*self._rows, strict=True))
        return Captions(
            lambda rows: [texts[row] for row in rows],
            goals,
            torch.from_numpy(caption_ids(texts)),
            torch.tensor(numbers, dtype=torch.float32),
            torch.tensor(places),
            contexts,
        )
