"""Playing held-out episodes, and what they come to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import torch

from groundling.envs.babyai_text import Expert, ExpertError
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import held_out_seed
from groundling.envs.vector import Episode, Step, TextVectorEnv
from groundling.policies.policy import Policy
from groundling.policies.random import RandomPolicy
from groundling.worlds.episode import HeldOutEpisode


@dataclass(frozen=True, slots=True)
class Choice:
    """What a player does in some envs."""

    actions: Sequence[int]
    log_probs: Sequence[float] | None = None
    """Of the actions; None of a player that has no probabilities."""
    texts: Sequence[str] | None = None
    """What it wrote to come to them; None of a player that does not write."""
    invalid: Sequence[bool] | None = None
    """Likewise, where that named no admissible action."""


Player = Callable[[TextVectorEnv, Sequence[int], Sequence[TextObservation]], Choice]
"""Chooses an action for each of the envs with these indices, which show these observations."""
Witness = Callable[[Sequence[int], Sequence[TextObservation], Choice, Step], None]
"""Sees which envs were stepped, what they showed, what was chosen there, and what it gave."""


def held_out_seed_of(num_envs: int) -> Callable[[int, int], int]:
    """Deals the held-out episodes to ``num_envs`` envs: episode k is the same, whatever their number."""
    return lambda env, episode: held_out_seed(episode * num_envs + env)


def play(
    player: Player,
    envs: TextVectorEnv,
    num_episodes: int,
    on_episode: Callable[[], None] = lambda: None,
    on_step: Witness = lambda indices, observations, choice, step: None,
) -> list[Episode]:
    """Play the first ``num_episodes`` episodes of ``envs``, in their order.

    Every env plays its own share to the end, so that short episodes are not counted more often than long
    ones, as they would be if the first to finish were taken.
    """
    observations = envs.reset()
    finished: dict[int, Episode] = {}
    invalid_turns: dict[int, list[bool]] = {}  # by the number of an episode, of a player that writes
    present = {i: i for i in range(envs.num_envs) if i < num_episodes}  # env -> number of its episode
    while present:
        indices = list(present)
        shown = [observations[i] for i in indices]
        choice = player(envs, indices, shown)
        chosen = dict(zip(indices, choice.actions, strict=True))
        step = envs.step([chosen.get(i) for i in range(envs.num_envs)])
        on_step(indices, shown, choice, step)
        for env, invalid in zip(indices, choice.invalid or (), strict=False):
            invalid_turns.setdefault(present[env], []).append(invalid)
        observations = step.observations
        for episode in step.episodes:
            env, number = episode.env_index, present[episode.env_index]
            if number in invalid_turns:  # one more than its steps where its env was lost
                share = sum(invalid_turns[number]) / len(invalid_turns[number])
                episode = replace(episode, figures={**episode.figures, "invalid_actions": share})
            finished[number] = episode
            on_episode()
            present[env] = number + envs.num_envs
            if present[env] >= num_episodes:
                del present[env]
    return [finished[k] for k in sorted(finished)]


@contextmanager
def policy_player(policy: Policy, deterministic: bool, seed: int) -> Iterator[Player]:
    """A player that follows ``policy``, drawing its actions with ``seed`` unless deterministic.

    As long as it plays, the policy's weights must not change.
    """
    generator = torch.Generator().manual_seed(seed)
    memories: dict[int, torch.Tensor] = {}  # env -> (memory_size,)

    def choose(
        envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]
    ) -> Choice:
        memory = policy.initial_memory(len(indices))  # (len(indices), memory_size), or None
        starts = envs.at_start()
        for row, env in enumerate(indices):
            if memory is not None and not starts[env]:
                memory[row] = memories[env]
        action = policy.act(observations, memory=memory, deterministic=deterministic, generator=generator)
        if action.memory is not None:
            memories.update(zip(indices, action.memory, strict=True))
        turns, tokens = action.turns, action.tokens
        return Choice(
            action.actions.tolist(),
            action.log_probs.tolist(),
            None if turns is None else [turn.text for turn in turns],
            None if tokens is None else tokens.invalid.tolist(),
        )

    with policy.unchanged():
        yield choose


@contextmanager
def expert_player() -> Iterator[Player]:
    """A player that follows BabyAI's bot, which sees the whole state of the env.

    It raises `ExpertError` where the bot does not know the env, or wants an action that the env's actions lack.
    """
    experts: dict[int, Expert] = {}

    def choose(
        envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]
    ) -> Choice:
        if not envs.envs:
            raise ExpertError(
                "the expert needs the env itself, which is in a worker process: set world.num_workers=0"
            )
        experts.update({i: Expert(envs.envs[i]) for i in indices if i not in experts})
        actions = [experts[i].act() for i in indices]
        assert envs.actions is not None  # those of BabyAI's
        if max(actions) >= len(envs.actions):
            raise ExpertError(
                f"the expert wants action {max(actions)} of the env, and world.actions names 0 to "
                f"{len(envs.actions) - 1} ({', '.join(envs.actions)}): name more of them"
            )
        return Choice(actions)

    yield choose


def player_of(
    agent: str, policy: Policy | None, deterministic: bool, seed: int
) -> AbstractContextManager[Player]:
    """The player that follows ``policy``; without one, BabyAI's expert, or one that draws at random."""
    if policy is not None:
        return policy_player(policy, deterministic, seed)
    return expert_player() if agent == "expert" else policy_player(RandomPolicy(), False, seed)


def record_of(number: int, episode: Episode) -> HeldOutEpisode:
    """What an episode comes to, in the record of all worlds."""
    figures = {
        "success": float(episode.success),
        **episode.figures,
        "return": episode.episode_return,
        "length": float(episode.length),
    }
    about: dict[str, str | int] = {"seed": episode.seed, "task": episode.task, "mission": episode.mission}
    return HeldOutEpisode(number, figures, about, episode)
