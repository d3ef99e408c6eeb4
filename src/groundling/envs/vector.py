"""Many text envs stepped together, with automatic reset, a seed for each episode, and exact resume."""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.text_env import (
    ACTIONS,
    TextObservation,
    TextStep,
    read_reset,
    read_step,
    read_success,
    read_text_step,
    success_key,
)
from groundling.envs.text_episode import EpisodeState, Step, TextEpisode, read_first_interaction, training_seed
from groundling.envs.worker_pool import EnvLost, Incidents, WorkerEnvs
from groundling.errors import ConfigError, ForeignError, GroundlingError, RunError, foreign


class UnequalEpisode(RunError):
    """An env did not return to its state by its seed and the actions taken since."""


class EnvRaised(Exception):
    """An env in this process raised, or asked to exit: its ``__cause__``."""


class TextVectorEnv:
    """Steps ``num_envs`` text envs, and resets each as soon as its episode ends.

    An env gives its goal, its descriptions and, if they change, its admissible actions (see `read_text_step`). Equal
    seeds must give equal episodes: a checkpoint keeps each env's seed and actions, and `load_state_dict` plays them
    again. An env may report the first interaction in ``info["first_interaction"]`` (see `FirstInteraction`).

    Args:
        make_env: Makes one env, with a `Discrete` action space, or a `Text` one, whose actions are texts.
        num_envs: Number of envs.
        actions: The admissible actions as strings. Action ``i`` is the env's action ``i``, and names past the env's
            last action are its last one (in BabyAI "done", which does nothing), as in GLAM. None: the env lists them
            at every step; action ``i`` is then the ``i``-th of the present list.
        seed_of: Returns the seed of env ``i``'s ``n``-th episode (see `groundling.envs.text_episode`).
        history: Number of observations that a `TextObservation` holds at most (3 in GLAM); None: all of its episode.
        num_workers: Processes that step the envs, for slow envs and envs that crash: an env that raises, dies or hangs
            is made again and returned to its state; lost twice at one step, its episode is truncated. 0: this process.
        timeout: Seconds without an answer after which a worker counts as hung.
        warn: Called with a message for each lost env.

    Attributes:
        envs: The envs; empty with workers.
        step_limit: Steps after which an episode is truncated, unless its env ends it before; None: no limit.
        incidents: Problems in workers.

    Raises:
        ConfigError: The env has another action space, or cannot be seeded.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        actions: Sequence[str] | None,
        seed_of: Callable[[int, int], int],
        history: int | None = 3,
        *,
        num_workers: int = 0,
        timeout: float = 60.0,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        first = make_env()
        self.envs = [] if num_workers else [first, *(make_env() for _ in range(num_envs - 1))]
        self.actions = None if actions is None else tuple(actions)
        self.num_envs = num_envs
        self.step_limit: int | None = None
        self.incidents = Incidents()
        space = first.action_space
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Text):
            raise ConfigError(f"{first} has the action space {space}: a text env needs a Discrete or a Text one")
        self._last_action = int(space.n) - 1 if isinstance(space, gymnasium.spaces.Discrete) else None
        self._id = str(getattr(first.spec, "id", ""))
        self._name = self._id or str(first)
        self._seed_of, self._warn = seed_of, warn
        self._states = [EpisodeState(history) for _ in range(num_envs)]
        self._stepper: LocalEnvs | WorkerEnvs = LocalEnvs(self.envs)
        if num_workers:
            first.close()
            self._stepper = WorkerEnvs(make_env, num_envs, num_workers, timeout, warn)

    @classmethod
    def make(
        cls,
        id: str,
        num_envs: int,
        *,
        seed: int = 0,
        actions: Sequence[str] | None = None,
        language: str = "english",
        history: int | None = 3,
        **args: Any,
    ) -> "TextVectorEnv":
        """Make ``num_envs`` envs of one id in this process, with the training episodes of a run of this ``seed``.

        ``args`` are those of the env. ``actions`` default to BabyAI's and MiniGrid's, or the env's own lists.

        Raises:
            ConfigError: There is no such env or argument, or its actions are not those named.
        """
        names = name_actions(id, args, language, actions).names
        seeds = functools.partial(training_seed, seed)
        return cls(TextEnvMaker.of(id, language=language, **args), num_envs, names, seeds, history)

    def reset(self, envs: Iterable[int] | None = None) -> list[TextObservation]:
        """Begin the next episode of some envs, or of all; return the observations of all envs."""
        reset = list(range(self.num_envs) if envs is None else envs)
        for i in reset:
            state = self._states[i]
            state.begin(state.episode + 1, self._seed_of(i, state.episode + 1))
            self._stepper.send(i, "reset", state.seed)
        for i in reset:
            try:
                returned = self._stepper.receive(i)
            except EnvLost:
                self.incidents.lost_envs += 1
                returned = self._reset_again(i)
            except EnvRaised as raised:
                raise self._foreign(i, "reset", raised) from raised.__cause__
            try:
                raw, info = read_reset(returned)
                shown = read_text_step(raw, info)
            except ConfigError as error:
                raise ConfigError(f"{self._name} is no text env: {error}") from None
            if shown.actions is None and self.actions is None:
                raise ConfigError(
                    f"{self._name} does not name its actions: set world.actions=[…] to one name for each, or let its info "
                    f"list the admissible ones at every step, as {', '.join(ACTIONS)}"
                )
            if shown.actions is not None and self.actions is not None:
                raise ConfigError(
                    f"{self._name} lists its admissible actions itself ({', '.join(shown.actions)[:80]}): leave "
                    "world.actions out"
                )
            self._show(i, raw, shown)
        return self.observations()

    def step(self, actions: Sequence[int | None]) -> Step:
        """Take one action in every env: indices into the ``actions`` of its observation, or None to wait.

        Raises:
            RunError: An index is out of range, or an env no longer returns what a text env returns.
        """
        finals, episodes = {}, []
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        stepped = {i: int(action) for i, action in enumerate(actions) if action is not None}
        for i, action in stepped.items():
            admissible = self._states[i].admissible
            if not 0 <= action < len(admissible):
                raise RunError(f"the policy chose action {action} of {len(admissible)}: {', '.join(admissible)}")
        for i, (reward, has_terminated, is_truncated) in self._step(stepped):
            state = self._states[i]
            if self.step_limit is not None and len(state.actions) >= self.step_limit:
                is_truncated = not has_terminated
            rewards[i] = reward
            if has_terminated or is_truncated:
                terminated[i], truncated[i] = has_terminated, is_truncated
                finals[i] = state.observation()
                try:
                    success = read_success(state.info, has_terminated and bool(rewards[i] > 0))
                except ConfigError as error:
                    raise RunError(f"{self._where(i)}: {error}") from None
                episodes.append(self._episode(i, success, success_key(state.info)))
        return Step(self.reset(finals), rewards, terminated, truncated, finals, episodes)

    def observations(self) -> list[TextObservation]:
        return [state.observation() for state in self._states]

    def cut(self, i: int) -> TextEpisode:
        """Return the present episode of env ``i`` as if it ended here, without success; the env stays as it is."""
        return self._episode(i, success=False)

    def at_start(self) -> np.ndarray:
        """Return bool ``(num_envs,)``: the envs that show the first observation of an episode."""
        return np.array([not state.actions for state in self._states])

    def close(self) -> None:
        self._stepper.close()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return each env's position as JSON: its episode's number, seed and actions, and a hash of what it shows."""
        states: list[dict[str, Any]] = [
            {"episode": s.episode, "seed": s.seed, "actions": list(s.actions), "seen": s.fingerprint(not self.actions)}
            for s in self._states
        ]
        if any(asdict(self.incidents).values()):
            states[0]["incidents"] = asdict(self.incidents)  # of all envs here
        return states

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Return every env to its position by playing its episode again from its seed.

        Raises:
            UnequalEpisode: The episode is not the one that was saved.
            RunError: The state was saved with another scheme of episode seeds.
        """
        for i, saved in enumerate(state):
            before, seed = saved.get("seed"), self._seed_of(i, saved["episode"])
            if before != seed:
                of_before = "another seed" if before is None else f"seed {before}"
                raise RunError(
                    f"env {i}'s episode {saved['episode']} is of {of_before} in the checkpoint and of seed {seed} in "
                    "this version, which hashes seeds otherwise: the run cannot be continued; finish it with the "
                    "version of Groundling that began it, or begin a new run from its weights "
                    "(model.path=RUN/checkpoints/NNNNNN run_dir=NEW)"
                )
            for name, count in saved.get("incidents", {}).items():
                setattr(self.incidents, name, getattr(self.incidents, name) + count)
            self._states[i].episode = saved["episode"] - 1
        self.reset(range(len(state)))
        ended: set[int] = set()  # also those without such an action, which belongs to another episode
        for number in range(max((len(saved["actions"]) for saved in state), default=0)):
            taken = {i: saved["actions"][number] for i, saved in enumerate(state) if number < len(saved["actions"])}
            ended |= {i for i, action in taken.items() if not 0 <= action < len(self._states[i].admissible)}
            steps = self._step({i: action for i, action in taken.items() if i not in ended})
            ended |= {i for i, (_, terminated, truncated) in steps if terminated or truncated}
        for i, saved in enumerate(state):
            if i in ended or self._states[i].fingerprint(not self.actions) != saved["seen"]:
                raise UnequalEpisode(
                    f"env {i} did not return to the state of its checkpoint: equal seeds do not give equal episodes "
                    "in it (draw_task=construction does that; so does another version of the env's package)"
                )

    def _step(self, actions: Mapping[int, int]) -> Iterator[tuple[int, tuple[float, bool, bool]]]:
        """Take an action in each of some envs; yield each env's reward, terminated and truncated."""
        for i, action in actions.items():
            state, last = self._states[i], self._last_action
            state.chosen.append(state.admissible[action] if last is None else min(action, last))
            self._stepper.send(i, "step", state.chosen[-1])
        for i, action in actions.items():
            state = self._states[i]
            try:
                returned = self._stepper.receive(i)
            except EnvLost as lost:
                self.incidents.lost_envs += 1
                returned = self._step_again(i, lost)
                if returned is None:  # lost again: the episode ends here
                    yield i, (0.0, False, True)
                    continue
            except EnvRaised as raised:
                raise self._foreign(i, f"step {state.admissible[action]!r:.80}", raised) from raised.__cause__
            state.take(action, keep_choices=self.actions is None)
            try:
                raw, reward, terminated, truncated, state.info = read_step(returned)
                shown = read_text_step(raw, state.info, state.goal, has_lists=self.actions is None)
            except ConfigError as error:
                raise RunError(f"{self._where(i)}: {error}") from None
            state.episode_return += reward
            self._show(i, raw, shown, ended=terminated or truncated)
            yield i, (reward, terminated, truncated)

    def _reset_again(self, i: int) -> Any:
        """Reset an env that was lost in its reset; raise `RunError` if it is lost once more."""
        self._stepper.send(i, "reset", self._states[i].seed)
        try:
            return self._stepper.receive(i)
        except EnvLost as lost:
            raise RunError(f"{self._where(i)}: it {lost}, twice in its reset") from None

    def _step_again(self, i: int, lost: EnvLost) -> Any:
        """Return a lost env to its state, else raise `RunError`, and step it again; None if it is lost once more."""
        state, goal, ended = self._states[i], None, False
        try:
            raw, info = read_reset(self._reset_again(i))
            for chosen in state.chosen[:-1]:
                goal = read_text_step(raw, info, goal).goal
                self._stepper.send(i, "step", chosen)
                raw, _, terminated, truncated, info = read_step(self._stepper.receive(i))
                ended = ended or terminated or truncated
            shown = read_text_step(raw, info, goal)
            if ended or (shown.goal, shown.descriptions) != (state.goal, state.descriptions[-1]):
                raise RunError(
                    f"{self._where(i)}: it {lost}, and its seed and the actions taken since do not return it to its "
                    "state: equal seeds must give equal episodes"
                )
            self._stepper.send(i, "step", state.chosen[-1])
            return self._stepper.receive(i)
        except ConfigError as error:
            raise RunError(f"{self._where(i)}: it {lost}, and then {error}") from None
        except EnvLost as again:
            self.incidents.lost_envs += 1
            self.incidents.cut_episodes += 1
            self._warn(f"{self._where(i)}: it {again}, twice at this step: the episode is cut off")
            return None

    def _show(self, i: int, raw: Any, shown: TextStep, ended: bool = False) -> None:
        """Record what an env shows; at an episode's end no action need be admissible."""
        state, listed, problem = self._states[i], shown.actions, None
        if self.actions is not None:
            state.show(raw, shown, self.actions)
            return
        if listed is None and not ended:
            problem = (
                "the list of admissible actions is missing, and the episode has not ended: expected a list of texts at "
                f"every step, as {', '.join(ACTIONS)}"
            )
        elif listed is not None and len(set(listed)) < len(listed):
            problem = f"an action is listed twice ({', '.join(listed):.80}): list each once"
        elif not listed and not ended:
            problem = "no action is admissible, and the episode has not ended"
        elif listed is not None and self._last_action is not None and len(listed) > self._last_action + 1:
            problem = (
                f"{len(listed)} actions are admissible, and the action space has {self._last_action + 1}: make it "
                "Discrete(N) of the longest list, or Text"
            )
        if problem is not None:
            raise RunError(f"{self._where(i)}: {problem}")
        state.show(raw, shown, listed or ())

    def _where(self, i: int) -> str:
        state = self._states[i]
        return f"{self._name}, env {i}, seed {state.seed}, step {len(state.actions)}"

    def _foreign(self, i: int, doing: str, raised: EnvRaised) -> ForeignError:
        state = self._states[i]
        return ForeignError(
            f"env {i} ({self._name}) raised {type(raised.__cause__).__name__} in its {doing}: seed {state.seed}, "
            f"episode {state.episode}, after {len(state.actions)} steps; its traceback follows"
        )

    def _episode(self, i: int, success: bool, key: str | None = None) -> TextEpisode:
        state = self._states[i]
        family = getattr(self.envs[i].unwrapped, "current_task", None) if self.envs else None
        return TextEpisode(
            env_index=i,
            number=state.episode,
            seed=state.seed,
            mission=state.goal,
            task=family or str(state.info.get("task") or self._id),
            actions=tuple(state.actions),
            episode_return=state.episode_return,
            success=success,
            first=read_first_interaction(state.info),
            success_key=key,
        )


@dataclass
class LocalEnvs:
    """Envs in this process."""

    envs: Sequence[gymnasium.Env[Any, Any]]
    _commands: dict[int, tuple[str, Any]] = field(default_factory=dict)  # by env

    def send(self, env: int, command: str, value: Any) -> None:
        """Note a command, which `receive` carries out."""
        self._commands[env] = command, value

    def receive(self, env: int) -> Any:
        """Carry out an env's command; raise `EnvRaised` if the env raises anything but a `GroundlingError`."""
        command, value = self._commands[env]
        try:
            return self.envs[env].step(value) if command == "step" else self.envs[env].reset(seed=value)
        except (GroundlingError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an env that calls sys.exit() ends no training
            raise EnvRaised from error

    def close(self) -> None:
        for number, env in enumerate(self.envs):
            with foreign(f"env {number} ({env}), as it was closed,"):
                env.close()
