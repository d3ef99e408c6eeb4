"""Rollouts of a policy that acts in text envs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import TextObservation
from groundling.envs.text_episode import Step
from groundling.envs.vector import TextVectorEnv
from groundling.errors import RunError, warn_caller
from groundling.judges.preferences.pairs import caption_id, caption_ids
from groundling.policies.policy import Action, Policy, Turn, TurnTokens
from groundling.rewards import Captions, EnvPart, EpisodeCounts, Rewarded, RewardInputs, RewardSum
from groundling.worlds.episode import Episode
from groundling.worlds.text.episodes import episode_of
from groundling.worlds.text.pairs import caption_in_context, context
from groundling.worlds.world import Collector


class _Taken(NamedTuple):
    """A step of all envs."""

    observations: Sequence[TextObservation]  # before the step
    starts: Tensor  # (num_envs,) bool: True at the first step of an episode
    memory: Tensor | None  # (num_envs, memory_size), before the step
    action: Action
    step: Step
    acting: np.ndarray  # (num_envs,) bool: False for envs that are waiting
    truncation_values: Tensor | None  # (num_envs,)


def _rollout(
    policy: Policy, taken: Sequence[_Taken], rewarded: Rewarded, last_values: Tensor, last: Sequence[TextObservation]
) -> Rollout:
    """Return the rollout, with each action's KL from the policy's reference if it has one."""
    done = [one.action for one in taken]
    actions = torch.stack([a.actions.detach() for a in done]).cpu()  # (num_steps, num_envs)
    log_probs = torch.stack([a.log_probs.detach() for a in done]).cpu()
    tokens = [a.tokens for a in done if a.tokens is not None]
    written = TurnTokens.joined(tokens, dim=0).as_steps(len(actions)) if tokens else None
    turns = [turn for a in done for turn in a.turns or ()]
    seen: Sequence[Any] = turns or [observation for one in taken for observation in one.observations]
    reference = policy.reference_log_probs(seen, actions.flatten() if written is None else written.ids.flatten(0, 1))
    kl = None
    if reference is not None and written is not None:
        written.kl = written.log_probs - reference.cpu().view_as(written.log_probs)
        kl = written.kl.sum(-1)
    elif reference is not None:
        kl = log_probs - reference.cpu().view_as(log_probs)
    memories = [one.memory for one in taken if one.memory is not None]
    truncation_values = [one.truncation_values for one in taken if one.truncation_values is not None]
    return Rollout(
        observations=seen,
        actions=actions,
        log_probs=log_probs,
        values=torch.stack([a.values.detach() for a in done]).cpu(),
        rewards=rewarded.total,
        truncation_values=torch.stack(truncation_values) if truncation_values else None,
        dones=torch.from_numpy(np.stack([one.step.dones for one in taken])),
        last_values=last_values,
        last_observations=last,
        memories=torch.stack(memories) if memories else None,
        starts=torch.stack([one.starts for one in taken]) if memories else None,
        kl=kl,
        tokens=written,
        parts=rewarded.by_part,
    )


_CAPTIONS = ("captions", "judged")  # captions of the observation after a step, and of the step as a judge is shown it


class EnvCollector(Collector):
    """Collects ``num_steps`` steps of a policy in every env, continuing where the last rollout ended.

    Args:
        memory: Initial memory ``(num_envs, memory_size)`` of a recurrent policy.
        others: Numbers of envs, before and after these, that other processes step. This process draws and discards
            their random numbers, so that an env's random numbers do not depend on the process that steps it.
        group_size: Number of envs that play the same episodes. If set, a rollout is one episode of each env, and
            records the groups and which states are equal. If None, rollouts continue unfinished episodes.
        bootstrap: Discount factor for the value of the observation at a time-out (Pardo et al. 2018, arXiv
            1712.00378). If None, a time-out counts as a termination, as in GLAM.
        step_limits: Numbers of steps after which episodes are truncated at the start and at the end of training,
            linearly interpolated in between. If None, only the envs' own limits apply.
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
        with policy.unchanged():
            taken, present = self._play(policy, generator, on_step)
            last_values = policy.values(present, self._present_memory()).detach().cpu()
        env_rewards = torch.stack([torch.from_numpy(one.step.rewards) for one in taken])
        captions = self._captions(taken) if self._counts else ()
        rewarded = self.reward(RewardInputs((self._num_steps, envs.num_envs), env_rewards, *captions))
        rollout = _rollout(policy, taken, rewarded, last_values, present)
        episodes = [episode for one in taken for episode in one.step.episodes]
        if self._group_size is not None:
            rollout = self._grouped(rollout, taken)
            # The next rollout starts new episodes; omitting the unfinished ones would bias metrics towards short ones.
            cut = np.flatnonzero(taken[-1].acting & ~taken[-1].step.dones).tolist()
            episodes += [envs.cut(i) for i in cut]
        return rollout, [episode_of(episode.number, episode) for episode in episodes]

    def _play(
        self, policy: Policy, generator: torch.Generator, on_step: Callable[[int], None]
    ) -> tuple[list[_Taken], list[TextObservation]]:
        """Step the envs; return the steps and the observations after them."""
        taken, envs, present = list[_Taken](), self.envs, self.envs.observations()
        acting = np.ones(envs.num_envs, dtype=bool)
        for _ in range(self._num_steps):
            starts = torch.from_numpy(envs.at_start())  # (num_envs,)
            memory = self._present_memory()
            torch.rand(self._others[0], dtype=torch.float64, generator=generator)
            action = self._act(policy, present, memory, generator, acting)
            torch.rand(self._others[1], dtype=torch.float64, generator=generator)
            chosen = action.chosen
            step = envs.step([one if acts else None for one, acts in zip(chosen, acting, strict=True)])
            if not np.isfinite(step.rewards).all():
                raise RunError(f"rewards must be finite, but an env returned {step.rewards.tolist()}")
            values = None
            if self._bootstrap is not None:
                values = self._bootstrap * _truncation_values(policy, step, action.memory)
            taken.append(_Taken(present, starts, memory, action, step, acting, values))
            present, self.memory = step.observations, action.memory
            on_step(int(acting.sum()))
            if self._group_size is not None:
                acting = acting & ~step.dones
        return taken, present

    def _captions(self, taken: Sequence[_Taken]) -> list[Captions]:
        """Return the `_CAPTIONS` of the acting envs, with the number of times each has occurred in its episode."""
        rows: dict[str, list[tuple[int, str, str, str, int]]] = {name: [] for name in _CAPTIONS}
        for number, one in enumerate(taken):
            chosen = one.action.chosen
            for env in np.flatnonzero(one.acting).tolist():
                before = one.observations[env]
                reached = one.step.final_observations.get(env, one.step.observations[env])
                judged = caption_in_context(before, before.action_text(chosen[env]))
                for name, text, goal, about in (
                    ("captions", "\n".join(reached.descriptions[-1]), reached.goal, ""),
                    ("judged", judged, before.goal, context(before)),
                ):
                    place, count = number * self.envs.num_envs + env, self._counts[name].add(env, caption_id(text))
                    rows[name].append((place, text, goal, about, count))
            for counts in self._counts.values():
                counts.end(one.step.final_observations)
        return [_captions_of(rows[name]) for name in _CAPTIONS]

    def _present_memory(self) -> Tensor | None:
        """Return the memory ``(num_envs, memory_size)``, which is 0 at the start of episodes."""
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
        # Other processes may still be acting, so the same random numbers are drawn here.
        torch.rand(len(present), dtype=torch.float64, generator=generator)
        nothing = torch.zeros(len(present), device="cpu" if policy.writes_turns else policy.device)
        turns = [Turn(observation, (), ()) for observation in present] if policy.writes_turns else None
        tokens = (
            None if turns is None else TurnTokens.of(turns, [()] * len(turns), [()] * len(turns), [False] * len(turns))
        )
        return Action(nothing.long(), nothing, nothing, memory, turns, tokens)

    def _grouped(self, rollout: Rollout, taken: Sequence[_Taken]) -> Rollout:
        """Add the mask, the groups and the ids of identical states to a rollout with one episode per env."""
        cut = int((taken[-1].acting & ~taken[-1].step.dones).sum())
        if cut and not self._has_warned:
            self._has_warned = True
            warn_caller(
                f"{cut} of {self.envs.num_envs} episodes had not ended after world.num_steps={self._num_steps} steps: "
                "they are used for training as they are, and count as failures; raise world.num_steps to let them end"
            )
        seen = ["\n".join([o.goal, *o.descriptions[-1], *o.actions]) for one in taken for o in one.observations]
        columns = self._others[0] + torch.arange(self.envs.num_envs)
        mask = torch.from_numpy(np.stack([one.acting for one in taken]))
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
            counts.end(np.flatnonzero(self.envs.at_start()).tolist())  # including restarted episodes

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = tensors.get("memory")

    def incidents(self) -> dict[str, int]:
        can_lose = self.envs.remote or not self.envs.envs
        return (asdict(self.envs.incidents) if can_lose else {}) | super().incidents()

    def close(self) -> None:
        super().close()
        self.envs.close()


def _captions_of(rows: Sequence[tuple[int, str, str, str, int]]) -> Captions:
    """Convert rows of (position among all envs' steps, text, goal, context, number of occurrences) to captions."""
    places, texts, goals, contexts, counts = map(list, zip(*rows, strict=True))
    ids, counted = torch.from_numpy(caption_ids(texts)), torch.tensor(counts, dtype=torch.float32)
    return Captions(lambda rows: [texts[row] for row in rows], goals, ids, counted, torch.tensor(places), contexts)


def _truncation_values(policy: Policy, step: Step, memory: Tensor | None) -> Tensor:
    """Return the values of truncated episodes' last observations and 0 for other envs, as float32 ``(num_envs,)``."""
    values = torch.zeros(len(step.rewards))
    truncated = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if truncated:
        finals = [step.final_observations[i] for i in truncated]
        values[truncated] = policy.values(finals, None if memory is None else memory[truncated]).cpu()
    return values
