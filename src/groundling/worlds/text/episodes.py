"""Create a text world's envs, and play episodes with a policy, an expert, NetHack's explorer or a random agent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium
import torch

from groundling.envs.babyai_text import Expert, ExpertError
from groundling.envs.make import ActionNames, TextEnvMaker, inspect_env, is_available, name_actions
from groundling.envs.seeds import held_out_seed
from groundling.envs.text_env import ACTIONS, TextObservation, read_text_step
from groundling.envs.text_episode import EpisodeState, Step, TextEpisode
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, UnknownEnv
from groundling.policies import RandomPolicy
from groundling.policies.policy import Outputs, Policy, Turn
from groundling.worlds.episode import Episode
from groundling.worlds.protocols import Actor
from groundling.worlds.text.config import TextConfig
from groundling.worlds.world import CannotPlay, Demonstrator, Player


class TextActor(Actor):
    """A policy that remembers the part of the current episode that its prompt needs. If the env is not registered in
    this process and ``world.actions`` is not set, actions are strings.
    """

    def __init__(self, config: TextConfig, policy: Policy, deterministic: bool, generator: torch.Generator) -> None:
        self._policy, self._deterministic, self._generator = policy, deterministic, generator
        known = known_actions_of(config)
        self._names, self._config = known.names, config
        is_here = is_available(config.env)
        # Indices above the env's last action are clipped, as in `TextVectorEnv`; None if it accepts strings.
        most = inspect_env(config.env, config.args, config.language).num_actions if is_here else known.most
        self._last = None if most is None else most - 1
        self.reset()

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        config = self._config
        return _maker_of(config, **args)()

    def reset(self) -> None:
        self._state, self._memory = EpisodeState(self._config.history), self._policy.initial_memory(1)
        self.probabilities = None

    def act(self, observation: Any, info: Mapping[str, Any]) -> int | str:
        """Return the argument for the env's ``step``: an action's index, or its name if the env accepts strings. Raise
        `ConfigError` if there is no text or no list of actions.
        """
        state, goal = self._state, self._config.reads_goal
        if goal is not None:  # also in an env that `make_env` did not create
            read = goal(observation, info) if callable(goal) else goal
            info = {**info, "goal": state.goal if read is None else read}
        present = state.goal if state.descriptions else None
        shown = read_text_step(observation, info, present, has_lists=self._names is None)
        actions = self._names if shown.actions is None else shown.actions
        if actions is None and self._policy.writes_text:
            actions = ()
        if actions is None:
            raise ConfigError(f"info has no list of admissible actions; expected one of the keys {', '.join(ACTIONS)}")
        self._state.show(observation, shown, actions)
        seen = self._state.observation()
        with torch.no_grad():
            action = self._policy.act(
                [seen], memory=self._memory, deterministic=self._deterministic, generator=self._generator
            )
            outputs = self._policy.outputs([seen])
        self._memory, self.probabilities = action.memory, probabilities_of(outputs, seen)
        (chosen,) = action.chosen
        self._state.take(chosen, keep_choices=self._names is None)
        return seen.action_text(chosen) if self._last is None else min(int(chosen), self._last)


def probabilities_of(outputs: Outputs | None, observation: TextObservation) -> dict[str, float] | None:
    """Return the probabilities of an observation's actions by name; None if the policy has none."""
    if outputs is None:
        return None
    return dict(zip(observation.actions, outputs.log_probs[0].exp().tolist(), strict=False))


def actions_of(config: TextConfig) -> ActionNames:
    """Return the names of the actions: those in the config, GLAM's in the env's language, or the env's own."""
    return name_actions(config.env, config.args, config.language, config.actions)


def known_actions_of(config: TextConfig) -> ActionNames:
    """Return the result of `actions_of`, or ``world.actions`` if the env is not registered in this process."""
    try:
        return actions_of(config)
    except UnknownEnv:
        return (
            ActionNames(None, None) if config.actions is None else ActionNames((*config.actions,), len(config.actions))
        )


def _maker_of(config: TextConfig, **args: Any) -> TextEnvMaker:
    args = {**config.args, "language": config.language, **args}
    return replace(TextEnvMaker.of(config.env, **args), goal=config.reads_goal)


def make_envs(
    config: TextConfig, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """Create envs without resetting them; ``seed_of`` maps an env's index and its episode's number to a seed."""
    drawing = {} if render_mode is None else {"render_mode": render_mode}
    return TextVectorEnv(
        _maker_of(config, **drawing),
        num_envs,
        actions_of(config).names,
        seed_of=seed_of,
        history=config.history,
        num_workers=config.num_workers,
        timeout=config.timeout,
    )


@dataclass(frozen=True, slots=True)
class Choice:
    actions: Sequence[int | str]  # as in `TextVectorEnv.step`
    log_probs: Sequence[float] | None = None  # log-probabilities of the actions; None if the player has none
    turns: Sequence[Turn] | None = None  # turns that a policy generated to choose the actions
    invalid: Sequence[bool] | None = None  # True if the text contained no admissible action


Chooser = Callable[[TextVectorEnv, Sequence[int], Sequence[TextObservation]], Choice]
"""Chooses an action for each of the envs with these indices and observations."""
StepListener = Callable[[Sequence[int], Sequence[TextObservation], Choice, Step], None]
"""Called with the indices of the envs, their observations, the choice, and the step's result."""


def held_out_seed_of(num_envs: int) -> Callable[[int, int], int]:
    """Return a ``seed_of`` for `make_envs` with which the same held-out episodes are played for any ``num_envs``."""
    return lambda env, episode: held_out_seed(episode * num_envs + env)


def play(
    choose: Chooser,
    envs: TextVectorEnv,
    num_episodes: int,
    on_step: StepListener = lambda indices, observations, choice, step: None,
) -> Iterator[tuple[int, TextEpisode]]:
    """Play the first ``num_episodes`` episodes, and yield each with its number when it ends. Every env plays a fixed
    share of them, because taking the first episodes to finish would favour short ones.
    """
    observations = envs.reset()
    invalid_turns: dict[int, list[bool]] = {}  # by episode number, if the player writes text
    present = {i: i for i in range(envs.num_envs) if i < num_episodes}  # env -> number of its episode
    while present:
        indices = list(present)
        shown = [observations[i] for i in indices]
        choice = choose(envs, indices, shown)
        chosen = dict(zip(indices, choice.actions, strict=True))
        step = envs.step([chosen.get(i) for i in range(envs.num_envs)])
        on_step(indices, shown, choice, step)
        for env, invalid in zip(indices, choice.invalid or (), strict=False):
            invalid_turns.setdefault(present[env], []).append(invalid)
        observations = step.observations
        for episode in step.episodes:
            env, number = episode.env_index, present[episode.env_index]
            if number in invalid_turns:  # one more entry than steps if the env was lost
                share = sum(invalid_turns[number]) / len(invalid_turns[number])
                episode = replace(episode, invalid_actions=share)
            present[env] = number + envs.num_envs
            if present[env] >= num_episodes:
                del present[env]
            yield number, episode


@contextmanager
def policy_chooser(policy: Policy, deterministic: bool, seed: int) -> Iterator[Chooser]:
    """Choose actions with ``policy``, whose weights must not change during play; ``seed`` is for sampling."""
    generator = torch.Generator().manual_seed(seed)
    memories: dict[int, torch.Tensor] = {}  # env -> (memory_size,)

    def choose(envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]) -> Choice:
        memory = policy.initial_memory(len(indices))  # (len(indices), memory_size), or None
        starts = envs.at_start()
        for row, env in enumerate(indices):
            if memory is not None and not starts[env]:
                memory[row] = memories[env]
        action = policy.act(observations, memory=memory, deterministic=deterministic, generator=generator)
        if action.memory is not None:
            memories.update(zip(indices, action.memory, strict=True))
        tokens = action.tokens
        return Choice(
            action.chosen,
            action.log_probs.tolist(),
            action.turns,
            None if tokens is None or not observations[0].actions else tokens.invalid.tolist(),
        )

    with policy.unchanged():
        yield choose


def expert_chooser() -> Chooser:
    """Choose actions with BabyAI's bot; raise `CannotPlay` if it does not support the env or ``world.actions``."""
    experts: dict[int, Expert] = {}

    def choose(envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]) -> Choice:
        if not envs.envs:
            raise CannotPlay("the expert cannot access the env, which is in a worker process: set world.num_workers=0")
        try:
            experts.update({i: Expert(envs.envs[i]) for i in indices if i not in experts})
            actions = [experts[i].act() for i in indices]
        except ExpertError as error:
            raise CannotPlay(str(error)) from error
        assert envs.actions is not None  # BabyAI's envs always have them
        if max(actions) >= len(envs.actions):
            raise CannotPlay(
                f"the expert needs the env's action {max(actions)}, but world.actions lists only 0 to "
                f"{len(envs.actions) - 1} ({', '.join(envs.actions)}): add the missing actions"
            )
        return Choice(actions)

    return choose


def explorer_chooser() -> Chooser:
    """Choose actions with NetHack's explorer; raise `CannotPlay` in other envs or with workers."""

    def choose(envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]) -> Choice:
        if not envs.envs:
            raise CannotPlay("the explorer cannot access the env, which is in a worker: set world.num_workers=0")
        try:
            return Choice([envs.envs[i].get_wrapper_attr("explore")() for i in indices])
        except AttributeError:
            raise CannotPlay(
                f"explorer cannot play {getattr(envs.envs[0].spec, 'id', 'this env')}: it plays only NetHack"
            ) from None

    return choose


def chooser_of(player: Player, deterministic: bool, seed: int) -> AbstractContextManager[Chooser]:
    if player.policy is not None:
        return policy_chooser(player.policy, deterministic, seed)
    scripted = {"expert": expert_chooser, "explorer": explorer_chooser}
    if player.name in scripted:
        return nullcontext(scripted[player.name]())
    return policy_chooser(RandomPolicy(), False, seed)


def episode_of(number: int, episode: TextEpisode) -> Episode:
    figures = {
        "success": float(episode.success),
        **episode.figures,
        "return": episode.episode_return,
        "length": float(episode.length),
    }
    about: dict[str, str | int] = {"seed": episode.seed, "task": episode.task, "mission": episode.mission}
    return Episode(figures, number, about, episode)


class Transition(NamedTuple):
    """A step of a recorded episode."""

    observation: TextObservation  # before the step
    action: int | str
    log_prob: float | None
    reward: float
    done: bool
    reached: TextObservation


def play_training_episodes(
    player: Demonstrator, first: int, count: int, seed: int
) -> Iterator[tuple[int, TextEpisode, list[Transition]]]:
    """Play the training episodes ``first`` to ``first + count - 1``, and yield each with its number and steps when it
    ends. They are the episodes of a run's first env, regardless of the number of envs that play them.
    """
    world = player.world
    num_envs = min(world.evaluation.num_envs, count)
    present: dict[int, list[Transition]] = {}  # of the current episodes, by env

    def seed_of(env: int, episode: int) -> int:
        return world.training_seed(0, first + episode * num_envs + env)

    def note(indices: Sequence[int], observations: Sequence[TextObservation], choice: Choice, step: Step) -> None:
        log_probs: Sequence[float | None] = choice.log_probs or [None] * len(indices)
        for env, seen, action, log_prob in zip(indices, observations, choice.actions, log_probs, strict=True):
            reached = step.final_observations.get(env, step.observations[env])
            taken = Transition(seen, action, log_prob, float(step.rewards[env]), bool(step.dones[env]), reached)
            present.setdefault(env, []).append(taken)

    envs, chooser = (
        make_envs(world.config, num_envs, seed_of),
        chooser_of(player, world.evaluation.deterministic, seed),
    )
    with closing(envs), chooser as choose:
        for number, episode in play(choose, envs, count, note):
            yield first + number, episode, present.pop(episode.env_index)
