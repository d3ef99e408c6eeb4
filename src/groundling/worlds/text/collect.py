"""Rollouts from envs: a policy acts in them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.observation import TextObservation
from groundling.envs.text_episode import Step, TextEpisode
from groundling.envs.vector import TextVectorEnv
from groundling.errors import RunError
from groundling.judges.preferences.segments import caption_id, caption_ids
from groundling.policies.policy import Action, Policy
from groundling.policies.turns import Turn, TurnTokens
from groundling.rewards import Captions, EnvPart, EpisodeCounts, Rewarded, RewardSum, Stretch
from groundling.worlds.collector import Collector
from groundling.worlds.episode import Episode
from groundling.worlds.text.episodes import episode_of
from groundling.worlds.text.pairs import caption_in_context, context


class EnvCollector(Collector):
    """Lets a policy act for ``num_steps`` steps in every env, each time going on from where the envs stand.

    Args:
        envs: Where; already reset, or about to be loaded.
        num_steps: Steps of each env in a rollout.
        memory: A recurrent policy's memory ``(num_envs, memory_size)`` at the beginning of its episodes.
        others: How many envs before and after these ones other processes step: their numbers are drawn here too and
            dropped, so that the generators stay alike and an env's draw does not depend on who steps it.
        reward: What is learnt from; by default what the envs pay.
        group_size: So many envs play the same episodes: a rollout is one of each env, and knows which states are alike.
            None: it goes on where the last one stopped.
        bootstrap: The discount factor with which a time-out is worth the value of the observation that it cut off
            (Pardo et al. 2018, arXiv 1712.00378). None: a time-out is an end, as in GLAM.
        step_limits: Steps after which an episode is truncated, as training begins and as it ends; linear between.
            None: the envs have their own limits alone.
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
        self._reward = reward or RewardSum({"env": EnvPart()})
        self._reads = bool(self._reward.needs - {"env"})
        self._counts = {name: EpisodeCounts(envs.num_envs) for name in ("captions", "judged")}
        self._bootstrap, self._group_size = bootstrap, group_size
        self._has_warned = False

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Episode]]:
        """See `Collector.collect`.

        Raises:
            RunError: an env gave a reward that is not finite.
        """
        envs, memory = self.envs, self.memory
        if self._step_limits is not None:
            first, last = self._step_limits
            envs.step_limit = round(last + (first - last) * self.remaining)
        play = _Play(envs.num_envs, self._counts if self._reads else {})
        if self._group_size is not None:
            self._begin_anew()
        present, starts = envs.observations(), torch.from_numpy(envs.at_start())  # (num_envs,)
        plays = np.ones(envs.num_envs, dtype=bool)
        with policy.unchanged():
            for _ in range(self._num_steps):
                memory = None if memory is None else memory * ~starts[:, None]  # (num_envs, memory_size)
                torch.rand(self._others[0], dtype=torch.float64, generator=generator)
                action = self._act(policy, present, memory, generator, plays)
                torch.rand(self._others[1], dtype=torch.float64, generator=generator)
                chosen = action.actions.tolist()
                step = envs.step([one if acts else None for one, acts in zip(chosen, plays, strict=True)])
                if not np.isfinite(step.rewards).all():
                    raise RunError(
                        f"an env gave the rewards {step.rewards.tolist()}: nothing can be learnt from those"
                    )
                play.note(present, starts, memory, action, step, plays)
                if self._bootstrap is not None:
                    play.truncation_values.append(
                        self._bootstrap * _truncation_values(policy, step, action.memory)
                    )
                present, starts, memory = step.observations, torch.from_numpy(envs.at_start()), action.memory
                on_step(int(plays.sum()))
                if self._group_size is not None:
                    plays = plays & ~step.dones
            if self._group_size is not None:
                # The next rollout begins these anew: without them, only episodes that are soon over would be counted.
                play.episodes += [envs.cut(i) for i in np.flatnonzero(plays).tolist()]
            last_memory = None if memory is None else memory * ~starts[:, None]
            last_values = policy.values(present, last_memory).detach().cpu()
        self.memory = memory
        rewarded = self._reward(
            Stretch(
                (self._num_steps, envs.num_envs),
                torch.stack(play.paid),
                captions=play.read["captions"].read() if self._reads else None,
                judged=play.read["judged"].read() if self._reads else None,
            )
        )
        rollout = play.rollout(policy, rewarded, last_values, present)
        episodes = [episode_of(episode.number, episode) for episode in play.episodes]
        return rollout if self._group_size is None else self._grouped(rollout, play), episodes

    def _begin_anew(self) -> None:
        """Begin the next episode of every env that the last rollout left in the midst of one."""
        cut = np.flatnonzero(~self.envs.at_start()).tolist()
        self.envs.reset(cut)
        for counts in self._counts.values():
            counts.end(cut)

    def _act(
        self,
        policy: Policy,
        present: Sequence[TextObservation],
        memory: Tensor | None,
        generator: torch.Generator,
        plays: np.ndarray,
    ) -> Action:
        """What the policy does in every env, where at least one plays."""
        if plays.any():
            return policy.act(present, memory=memory, generator=generator)
        # Other processes may still play, and draw.
        torch.rand(len(present), dtype=torch.float64, generator=generator)
        nothing = torch.zeros(len(present), device="cpu" if policy.writes_turns else policy.device)
        turns = [Turn(observation, (), ()) for observation in present] if policy.writes_turns else None
        tokens = None if turns is None else TurnTokens.none(len(turns))
        return Action(nothing.long(), nothing, nothing, memory, turns, tokens)

    def state_dict(self) -> list[dict[str, Any]]:
        states = self.envs.state_dict()
        for name, counts in self._counts.items() if self._reads else ():
            states = [
                {**state, name: count} for state, count in zip(states, counts.state_dict(), strict=True)
            ]
        return states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.envs.load_state_dict(states)
        for name, counts in self._counts.items():
            counts.load_state_dict([state.get(name, {}) for state in states])

    def _grouped(self, rollout: Rollout, play: "_Play") -> Rollout:
        """A rollout of single episodes, with what it knows besides: which steps count, and what is alike."""
        if cut := int((play.plays[-1] & ~rollout.dones[-1].numpy()).sum()):
            self._warn_of_cut_episodes(cut)
        seen = ["\n".join([o.goal, *o.descriptions[-1], *o.actions]) for o in play.observations]
        columns = self._others[0] + torch.arange(self.envs.num_envs)
        mask = torch.from_numpy(np.stack(play.plays))
        return replace(
            rollout,
            rewards=rollout.rewards * mask,
            parts={name: rewards * mask for name, rewards in rollout.parts.items()},
            mask=mask,
            groups=columns // (self._group_size or 1),
            states=torch.from_numpy(caption_ids(seen)).view(rollout.actions.shape),
        )

    def _warn_of_cut_episodes(self, count: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{count} of {self.envs.num_envs} episodes were not over after world.num_steps={self._num_steps} "
                "steps: they are learnt from as far as they went, and count as failures; raise it to let them end",
                stacklevel=2,
            )

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = tensors.get("memory")

    def incidents(self) -> dict[str, int]:
        """What went wrong in the envs' workers, if they have any."""
        return ({} if self.envs.envs else asdict(self.envs.incidents)) | self._reward.figures()

    def save_shared(self, folder: Path) -> None:
        self._reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        self._reward.load(folder)

    def close(self) -> None:
        self._reward.close()
        self.envs.close()


class _Play:
    """What happens in a rollout, step by step.

    Args:
        num_envs: In how many envs.
        counts: By the kind of captions that the reward reads, how often each has come up in the present episodes.
    """

    def __init__(self, num_envs: int, counts: Mapping[str, EpisodeCounts]) -> None:
        self.observations: list[TextObservation] = []  # num_steps * num_envs
        self.episodes: list[TextEpisode] = []
        self.paid: list[Tensor] = []  # num_steps of (num_envs,), as those below
        self.truncation_values: list[Tensor] = []
        self.plays: list[np.ndarray] = []
        self.read = {name: _Captions(kind) for name, kind in counts.items()}
        self._num_envs = num_envs
        self._turns: list[Turn] = []
        self._actions: list[Action] = []
        self._dones: list[np.ndarray] = []
        self._memories: list[tuple[Any, Tensor]] = []

    def note(
        self,
        present: Sequence[TextObservation],
        starts: Tensor,
        memory: Tensor | None,
        action: Action,
        step: Step,
        plays: np.ndarray,
    ) -> None:
        """Note a step of all envs.

        Args:
            present: What was seen.
            starts: ``(num_envs,)`` bool: it was an episode's first observation.
            memory: ``(num_envs, memory_size)`` before the action.
            action: What was done.
            step: What came of it.
            plays: ``(num_envs,)`` bool: whose step it is; the others wait.
        """
        self._caption(present, action.actions.tolist(), step, plays)
        self.observations += present
        self.episodes += step.episodes
        self.paid.append(torch.from_numpy(step.rewards))
        self.plays.append(plays)
        self._turns += action.turns or []
        self._actions.append(action)
        self._dones.append(step.dones)
        self._memories.append((memory, starts))

    def _caption(
        self, present: Sequence[TextObservation], actions: Sequence[int], step: Step, plays: np.ndarray
    ) -> None:
        """Note what is read of a step; of an episode that ended with it, its last observation."""
        if not self.read:
            return
        for env, (before, action) in enumerate(zip(present, actions, strict=True)):
            if not plays[env]:
                continue
            reached = step.final_observations.get(env, step.observations[env])
            place = len(self.observations) + env
            self.read["captions"].add(env, place, "\n".join(reached.descriptions[-1]), reached.goal)
            judged = caption_in_context(before, before.actions[action])
            self.read["judged"].add(env, place, judged, before.goal, context(before))
        for captions in self.read.values():
            captions.counts.end(step.final_observations)

    def rollout(
        self, policy: Policy, rewarded: Rewarded, last_values: Tensor, present: Sequence[TextObservation]
    ) -> Rollout:
        """All of it, with the KL of each action to the policy's reference, if it has one."""
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
        remembers = self._memories[0][0] is not None
        return Rollout(
            observations=seen,
            actions=actions,
            log_probs=log_probs,
            values=torch.stack([a.values.detach() for a in self._actions]).cpu(),
            rewards=rewarded.total,
            truncation_values=torch.stack(self.truncation_values) if self.truncation_values else None,
            dones=torch.from_numpy(np.stack(self._dones)),
            last_values=last_values,
            last_observations=present,
            memories=torch.stack([m for m, _ in self._memories]) if remembers else None,
            starts=torch.stack([s for _, s in self._memories]) if remembers else None,
            kl=kl,
            tokens=written,
            parts=rewarded.by_part,
        )


class _Captions:
    """One kind of captions of a rollout, as they are gathered.

    Args:
        counts: How often each has come up in the present episodes.
    """

    def __init__(self, counts: EpisodeCounts) -> None:
        self._places: list[int] = []  # among the steps of all envs; those that wait take none
        self._texts: list[str] = []
        self._goals: list[str] = []
        self._contexts: list[str] = []
        self._numbers: list[int] = []  # how often each has come up
        self.counts = counts

    def add(self, env: int, place: int, text: str, goal: str, context: str = "") -> None:
        self._places.append(place)
        self._texts.append(text)
        self._goals.append(goal)
        self._contexts.append(context)
        self._numbers.append(self.counts.add(env, caption_id(text)))

    def read(self) -> Captions:
        """All of them."""
        counts = torch.tensor(self._numbers, dtype=torch.float32)
        ids = torch.from_numpy(caption_ids(self._texts))
        return Captions(
            lambda places: [self._texts[place] for place in places],
            self._goals,
            ids,
            counts,
            torch.tensor(self._places),
            self._contexts,
        )


def _truncation_values(policy: Policy, step: Step, memory: Tensor | None) -> Tensor:
    """float32 ``(num_envs,)``: the value of the last observation where a time limit truncated the episode, else 0."""
    values = torch.zeros(len(step.rewards))
    truncated = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if truncated:
        finals = [step.final_observations[i] for i in truncated]
        values[truncated] = policy.values(finals, None if memory is None else memory[truncated]).cpu()
    return values
