"""Rollouts of a policy that acts in text envs."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import TextObservation
from groundling.envs.text_episode import Step, TextEpisode
from groundling.envs.vector import TextVectorEnv
from groundling.errors import RunError
from groundling.judges.preferences.pairs import caption_id, caption_ids
from groundling.policies.policy import Action, Policy, Turn, TurnTokens
from groundling.rewards import Captions, EnvPart, EpisodeCounts, Rewarded, RewardInputs, RewardSum
from groundling.worlds.episode import Episode
from groundling.worlds.text.episodes import episode_of
from groundling.worlds.text.pairs import caption_in_context, context
from groundling.worlds.world import Collector


class RolloutBuffer:
    """Steps of all envs while a rollout is collected; ``counts``: occurrences of captions in the present episodes."""

    def __init__(self, counts: Mapping[str, EpisodeCounts]) -> None:
        self.observations: list[TextObservation] = []  # num_steps * num_envs
        self.episodes: list[TextEpisode] = []
        self.env_rewards: list[Tensor] = []  # num_steps of (num_envs,), as those below
        self.truncation_values: list[Tensor] = []
        self.acting: list[np.ndarray] = []
        self.captions = {name: _CaptionBuffer(kind) for name, kind in counts.items()}
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
        """Add a step of all envs. ``observations`` and ``memory`` ``(num_envs, memory_size)`` are those before it,
        ``starts`` ``(num_envs,)`` bool is True for the first of an episode, ``acting`` ``(num_envs,)`` bool for envs
        that do not wait.
        """
        if self.captions:
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
    """Captions of one kind, with the numbers of their occurrences in the present episodes."""

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


_CAPTIONS = ("captions", "judged")  # of the observation after a step, and of the step as a judge reads it


class EnvCollector(Collector):
    """Lets a policy act for ``num_steps`` steps in every env, continuing where the last rollout ended.

    Args:
        envs: The envs, reset already or about to be loaded.
        memory: A recurrent policy's memory ``(num_envs, memory_size)`` at the beginning of episodes.
        others: Numbers of envs before and after these that other processes step. Their random numbers are drawn here
            and dropped, so that an env's draw does not depend on the process that steps it.
        group_size: Number of envs that play the same episodes: a rollout is one episode of each env, with groups and
            equal states. None: a rollout continues episodes.
        bootstrap: Discount factor of the value of the observation at a time-out (Pardo et al. 2018, arXiv 1712.00378).
            None: a time-out is an end, as in GLAM.
        step_limits: Steps after which an episode is truncated at the beginning and at the end of training, with linear
            interpolation. None: only the envs' own limits.
    """

    def __init__(
        self,
        envs: TextVectorEnv,
        num_steps: int,
        memory: Tensor | None = None,
        *,
        others: tuple[int, int] = (0, 0),
        reward: RewardSum | None = None,
        bootstrap: float | None = None,
        group_size: int | None = None,
        step_limits: tuple[int, int] | None = None,
    ) -> None:
        self.envs, self.memory = envs, memory
        self._step_limits = step_limits
        self._num_steps, self._others = num_steps, others
        self.reward = reward or RewardSum({"env": EnvPart()})
        reads = bool(self.reward.needs - {"env"})
        self._counts = {name: EpisodeCounts(envs.num_envs) for name in _CAPTIONS} if reads else {}
        self._bootstrap, self._group_size = bootstrap, group_size
        self._has_warned = False

    @torch.no_grad()
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        """Collect a rollout (see `Collector.collect`); raise `RunError` if an env's reward is not finite."""
        envs = self.envs
        if self._step_limits is not None:
            first, last = self._step_limits
            envs.step_limit = round(last + (first - last) * self.remaining)
        if self._group_size is not None:
            begun = np.flatnonzero(~envs.at_start()).tolist()  # envs in the middle of an episode
            envs.reset(begun)
            for counts in self._counts.values():
                counts.end(begun)
        buffer = RolloutBuffer(self._counts)
        with policy.unchanged():
            present = self._play(policy, buffer, generator, on_step)
            last_values = policy.values(present, self._present_memory()).detach().cpu()
        captions = {name: one.read() for name, one in buffer.captions.items()}
        inputs = RewardInputs(
            (self._num_steps, envs.num_envs),
            torch.stack(buffer.env_rewards),
            captions.get("captions"),
            captions.get("judged"),
        )
        rewarded = self.reward(inputs)
        rollout = buffer.rollout(policy, rewarded, last_values, present)
        if self._group_size is not None:
            rollout = self._grouped(rollout, buffer)
        return rollout, [episode_of(episode.number, episode) for episode in buffer.episodes]

    def _play(
        self, policy: Policy, buffer: RolloutBuffer, generator: torch.Generator, on_step: Callable[[int], None]
    ) -> list[TextObservation]:
        envs, present = self.envs, self.envs.observations()
        acting = np.ones(envs.num_envs, dtype=bool)
        for _ in range(self._num_steps):
            starts, memory = torch.from_numpy(envs.at_start()), self._present_memory()  # (num_envs,)
            torch.rand(self._others[0], dtype=torch.float64, generator=generator)
            action = self._act(policy, present, memory, generator, acting)
            torch.rand(self._others[1], dtype=torch.float64, generator=generator)
            chosen = action.actions.tolist()
            step = envs.step([one if acts else None for one, acts in zip(chosen, acting, strict=True)])
            if not np.isfinite(step.rewards).all():
                raise RunError(f"an env gave the rewards {step.rewards.tolist()}: nothing can be learnt from those")
            buffer.add(present, starts, memory, action, step, acting)
            if self._bootstrap is not None:
                values = _truncation_values(policy, step, action.memory)
                buffer.truncation_values.append(self._bootstrap * values)
            present, self.memory = step.observations, action.memory
            on_step(int(acting.sum()))
            if self._group_size is not None:
                acting = acting & ~step.dones
        if self._group_size is not None:
            # The next rollout begins new ones; without these, only short episodes would be counted.
            buffer.episodes += [envs.cut(i) for i in np.flatnonzero(acting).tolist()]
        return present

    def _present_memory(self) -> Tensor | None:
        """Return the memory ``(num_envs, memory_size)``, 0 at the beginning of episodes."""
        if self.memory is None:
            return None
        return self.memory * ~torch.from_numpy(self.envs.at_start())[:, None]

    def _act(
        self,
        policy: Policy,
        present: Sequence[TextObservation],
        memory: Tensor | None,
        generator: torch.Generator,
        acting: np.ndarray,
    ) -> Action:
        if acting.any():
            return policy.act(present, memory=memory, generator=generator)
        # Other processes may still act, and draw.
        torch.rand(len(present), dtype=torch.float64, generator=generator)
        nothing = torch.zeros(len(present), device="cpu" if policy.writes_turns else policy.device)
        turns = [Turn(observation, (), ()) for observation in present] if policy.writes_turns else None
        tokens = None if turns is None else TurnTokens.none(len(turns))
        return Action(nothing.long(), nothing, nothing, memory, turns, tokens)

    def _grouped(self, rollout: Rollout, buffer: RolloutBuffer) -> Rollout:
        """Add to a rollout of single episodes its mask, groups and equal states."""
        cut = int((buffer.acting[-1] & ~rollout.dones[-1].numpy()).sum())
        if cut and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{cut} of {self.envs.num_envs} episodes were not over after world.num_steps={self._num_steps} steps: "
                "they are learnt from as far as they went, and count as failures; raise it to let them end",
                stacklevel=2,
            )
        seen = ["\n".join([o.goal, *o.descriptions[-1], *o.actions]) for o in buffer.observations]
        columns = self._others[0] + torch.arange(self.envs.num_envs)
        mask = torch.from_numpy(np.stack(buffer.acting))
        return replace(
            rollout,
            rewards=rollout.rewards * mask,
            parts={name: rewards * mask for name, rewards in rollout.parts.items()},
            mask=mask,
            groups=columns // (self._group_size or 1),
            states=torch.from_numpy(caption_ids(seen)).view(rollout.actions.shape),
        )

    def state_dict(self) -> list[dict[str, Any]]:
        states = self.envs.state_dict()
        for name, counts in self._counts.items():
            states = [{**state, name: count} for state, count in zip(states, counts.state_dict(), strict=True)]
        return states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.envs.load_state_dict(states)
        for name, counts in self._counts.items():
            counts.load_state_dict([state.get(name, {}) for state in states])

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = tensors.get("memory")

    def incidents(self) -> dict[str, int]:
        return ({} if self.envs.envs else asdict(self.envs.incidents)) | super().incidents()

    def close(self) -> None:
        super().close()
        self.envs.close()


def _truncation_values(policy: Policy, step: Step, memory: Tensor | None) -> Tensor:
    """Return float32 ``(num_envs,)``: the value of the last observation of a truncated episode, else 0."""
    values = torch.zeros(len(step.rewards))
    truncated = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if truncated:
        finals = [step.final_observations[i] for i in truncated]
        values[truncated] = policy.values(finals, None if memory is None else memory[truncated]).cpu()
    return values
