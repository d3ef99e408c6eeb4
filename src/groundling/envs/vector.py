"""Vectorized text envs with automatic resets, a seed for each episode, and exact resumption."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.local_envs import EnvRaised, LocalEnvs
from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.seeds import training_seed
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
from groundling.envs.text_episode import EpisodeState, Step, TextEpisode, read_first_interaction, read_metrics
from groundling.envs.worker_pool import EnvLost, Incidents, WorkerEnvs
from groundling.errors import ConfigError, ForeignError, RunError, warn_caller

_MOST_CUT = 3  # Number of consecutive episodes of an env that are cut off before the run ends


class UnequalEpisode(RunError):
    """An env did not return to its saved state when its seed and actions were replayed."""


class TextVectorEnv:
    """Steps ``num_envs`` text envs, and resets each as soon as its episode ends.

    An env provides a goal, descriptions and, if they change, the admissible actions (see `read_text_step`). A seed
    must always produce the same episode, because a checkpoint stores each env's seed and actions, and `load_state_dict`
    replays them. An env may report the first interaction in ``info["first_interaction"]`` (see `FirstInteraction`).

    Args:
        make_env: Creates one env with a `Discrete` action space, or a `Text` one, whose actions are strings.
        num_envs: Number of envs.
        actions: The admissible actions as strings. Action ``i`` is the env's action ``i``; as in GLAM, surplus names
            stand for the env's last action ("done" in BabyAI, which does nothing). If None, the env lists them at
            every step, and action ``i`` is the ``i``-th of the current list. If empty, any text is an action.
        seed_of: Returns the seed of env ``i``'s ``n``-th episode (see `groundling.envs.text_episode`).
        history: Maximum number of observations in a `TextObservation` (3 in GLAM); if None, there is no limit.
        num_workers: Number of processes that step the envs, for envs that are slow or crash; 0 uses this process. An
            env that raises, dies or hangs is recreated and restored to its state. If this happens twice at the same
            step, its episode ends, and after three such episodes in a row, the run ends.
        timeout: Seconds without an answer after which a worker is considered hung.
        warn: Called with a message for each lost env.

    Attributes:
        envs: The envs; empty if they run in workers.
        step_limit: Number of steps after which an episode is truncated, unless it ends earlier; None for no limit.
        incidents: Problems in workers and servers.
        remote: True if the envs run on a server, so the connection to them may be lost.
        may_differ: True if the same seed may produce different episodes: on a server, or if the env has an attribute
            ``may_differ``. Episodes that cannot be replayed are cut off or started again, with a warning.

    Raises:
        ConfigError: The action space is neither `Discrete` nor `Text`, or the env cannot be seeded.
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
        warn: Callable[[str], None] = warn_caller,
    ) -> None:
        first = make_env()
        self.envs = [] if num_workers else [first, *(make_env() for _ in range(num_envs - 1))]
        self.actions = None if actions is None else tuple(actions)
        self.num_envs = num_envs
        self.step_limit: int | None = None
        self.incidents = Incidents()
        self.remote = bool(getattr(first.unwrapped, "remote", False))
        self.may_differ = self.remote or bool(getattr(first.unwrapped, "may_differ", False))
        self._differs = "does not use seeds" if self.remote else "produces different episodes for the same seed"
        space = first.action_space
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Text):
            raise ConfigError(f"{first} has the action space {space}: a text env needs a Discrete or Text space")
        self._last_action = int(space.n) - 1 if isinstance(space, gymnasium.spaces.Discrete) else None
        self._id = str(getattr(first.spec, "id", ""))
        self._name = self._id or str(first)
        self._seed_of, self._warn = seed_of, warn
        self._states = [EpisodeState(history) for _ in range(num_envs)]
        self._cut: list[set[int]] = [set() for _ in range(num_envs)]  # numbers of the episodes that were cut off
        self._stepper: LocalEnvs | WorkerEnvs = LocalEnvs(self.envs, warn)
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
        """Create ``num_envs`` envs with the same id in this process. They play the training episodes of a run with this
        ``seed``. ``args`` are the env's arguments. ``actions`` default to GLAM's for BabyAI and MiniGrid, and
        otherwise to the env's own.

        Raises:
            ConfigError: The env or an argument does not exist, or ``actions`` do not match the env's actions.
        """
        names = name_actions(id, args, language, actions).names
        seeds = functools.partial(training_seed, seed)
        return cls(TextEnvMaker.of(id, language=language, **args), num_envs, names, seeds, history)

    def reset(self, envs: Iterable[int] | None = None) -> list[TextObservation]:
        """Start the next episode of some envs (default: all); return the observations of all envs."""
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
                raise ConfigError(f"{self._name} is not a text env: {error}") from None
            if shown.actions is None and self.actions is None:
                raise ConfigError(
                    f"{self._name} does not name its actions: set world.actions=[…] with a name for each, or list the "
                    f"admissible actions in its info at every step, under one of the keys {', '.join(ACTIONS)}"
                )
            if shown.actions is not None and self.actions is not None:
                raise ConfigError(
                    f"{self._name} lists its admissible actions itself ({', '.join(shown.actions)[:80]}): remove "
                    "world.actions"
                )
            self._show(i, raw, shown)
        return self.observations()

    def step(self, actions: Sequence[int | str | None]) -> Step:
        """Take one action in every env: an index into its observation's ``actions``, a string if any text is an
        action, or None to skip this env.

        Raises:
            RunError: An index is out of range, or an env returns an invalid value.
        """
        finals, episodes = {}, []
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        stepped = {
            i: action if isinstance(action, str) else int(action)
            for i, action in enumerate(actions)
            if action is not None
        }
        for i, action in stepped.items():
            if not self._is_admissible(i, action):
                admissible = self._states[i].admissible
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
                    episodes.append(self._episode(i, success, success_key(state.info)))
                except ConfigError as error:
                    raise RunError(f"{self._where(i)}: {error}") from None
        return Step(self.reset(finals), rewards, terminated, truncated, finals, episodes)

    def observations(self) -> list[TextObservation]:
        return [state.observation() for state in self._states]

    def cut(self, i: int) -> TextEpisode:
        """Return the current episode of env ``i`` as if it ended here, without success; the env is not changed."""
        return self._episode(i, success=False)

    def at_start(self) -> np.ndarray:
        """Return bool ``(num_envs,)``: True for envs at the first observation of an episode."""
        return np.array([not state.actions for state in self._states])

    def close(self) -> None:
        self._stepper.close()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return each env's state as JSON: its episode's number, seed and actions, and a hash of the observation."""
        states: list[dict[str, Any]] = [
            {"episode": s.episode, "seed": s.seed, "actions": list(s.actions), "seen": s.fingerprint(not self.actions)}
            for s in self._states
        ]
        if any(asdict(self.incidents).values()):
            states[0]["incidents"] = asdict(self.incidents)  # of all envs together
        return states

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Restore the saved state of every env by replaying its episode from its seed.

        Raises:
            UnequalEpisode: The replayed episode differs from the saved one.
            RunError: The state was saved with a different seeding scheme.
        """
        for i, saved in enumerate(state):
            before, seed = saved.get("seed"), self._seed_of(i, saved["episode"])
            if before != seed:
                of_before = "a different seed" if before is None else f"seed {before}"
                raise RunError(
                    f"env {i}'s episode {saved['episode']} has {of_before} in the checkpoint and seed {seed} in this "
                    "version, which derives seeds differently, so the run cannot be continued: finish it with the "
                    "version of Groundling that started it, or start a new run from its weights "
                    "(model.path=RUN/checkpoints/NNNNNN run_dir=NEW)"
                )
            for name, count in saved.get("incidents", {}).items():
                setattr(self.incidents, name, getattr(self.incidents, name) + count)
            self._states[i].episode = saved["episode"] - 1
        self.reset(range(len(state)))
        ended: set[int] = set()  # also envs in which a saved action is not admissible in the replayed episode
        for number in range(max((len(saved["actions"]) for saved in state), default=0)):
            taken = {i: saved["actions"][number] for i, saved in enumerate(state) if number < len(saved["actions"])}
            ended |= {i for i, action in taken.items() if not self._is_admissible(i, action)}
            steps = self._step({i: action for i, action in taken.items() if i not in ended})
            ended |= {i for i, (_, terminated, truncated) in steps if terminated or truncated}
        unequal = [
            i
            for i, saved in enumerate(state)
            if i in ended or self._states[i].fingerprint(not self.actions) != saved["seen"]
        ]
        if unequal and not self.may_differ:
            raise UnequalEpisode(
                f"env {unequal[0]} did not return to the state in its checkpoint: the same seed does not always "
                "produce the same episode (causes: draw_task=construction, or a different version of the env's package)"
            )
        if unequal:
            self._warn(
                f"{self._name} {self._differs}: the unfinished episodes of {len(unequal)} of {len(state)} envs "
                "start again, so the run continues, but not exactly as it would have without the interruption"
            )
            for i in unequal:
                self._states[i].episode -= 1
            self.reset(unequal)

    def _is_admissible(self, i: int, action: int | str) -> bool:
        if self.actions == ():
            return isinstance(action, str)
        return not isinstance(action, str) and 0 <= action < len(self._states[i].admissible)

    def _step(self, actions: Mapping[int, int | str]) -> Iterator[tuple[int, tuple[float, bool, bool]]]:
        """Take an action in each env of ``actions``; yield its index, reward, terminated and truncated."""
        for i, action in actions.items():
            state, last = self._states[i], self._last_action
            state.chosen.append(state.text_of(action) if last is None else min(int(action), last))
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
                raise self._foreign(i, f"step {state.text_of(action)!r:.80}", raised) from raised.__cause__
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
        """Reset an env that was lost during its reset; raise `RunError` if it is lost again."""
        self._stepper.send(i, "reset", self._states[i].seed)
        try:
            return self._stepper.receive(i)
        except EnvLost as lost:
            raise RunError(f"{self._where(i)}: it {lost}, twice during reset") from None

    def _step_again(self, i: int, lost: EnvLost) -> Any:
        """Restore a lost env's state (or raise `RunError`), and step it again; return None if it is lost again."""
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
                if self.may_differ:
                    return self._cut_off(i, f"{lost}, and did not return to its state, as it {self._differs}")
                raise RunError(
                    f"{self._where(i)}: it {lost}, and replaying its seed and actions did not return it to its state: "
                    "the same seed must always produce the same episode"
                )
            self._stepper.send(i, "step", state.chosen[-1])
            return self._stepper.receive(i)
        except ConfigError as error:
            raise RunError(f"{self._where(i)}: it {lost}, and then {error}") from None
        except EnvLost as again:
            self.incidents.lost_envs += 1
            return self._cut_off(i, f"{again}, twice at this step")

    def _cut_off(self, i: int, reason: str) -> None:
        """Warn that an env's episode is cut off; raise `RunError` if too many in a row were cut off."""
        self.incidents.cut_episodes += 1
        self._cut[i].add(number := self._states[i].episode)
        if self._cut[i].issuperset(range(number - _MOST_CUT + 1, number + 1)):
            raise RunError(
                f"{self._where(i)}: it {reason}, and its last {_MOST_CUT} episodes were all cut off: fix the env "
                "or, if it is only slow, increase world.timeout, and continue from the last checkpoint"
            )
        self._warn(f"{self._where(i)}: it {reason}; the episode is cut off")

    def _show(self, i: int, raw: Any, shown: TextStep, ended: bool = False) -> None:
        """Record an env's observation. At the end of an episode, the env need not list any admissible actions."""
        state, listed, problem = self._states[i], shown.actions, None
        if self.actions is not None:
            state.show(raw, shown, self.actions)
            return
        if listed is None and not ended:
            problem = (
                "the list of admissible actions is missing, but the episode has not ended: expected a list of strings "
                f"at every step, under one of the keys {', '.join(ACTIONS)}"
            )
        elif listed is not None and len(set(listed)) < len(listed):
            problem = f"an action is listed twice ({', '.join(listed):.80}): list each action once"
        elif not listed and not ended:
            problem = "no action is admissible, but the episode has not ended"
        elif listed is not None and self._last_action is not None and len(listed) > self._last_action + 1:
            problem = (
                f"{len(listed)} actions are admissible, but the action space has {self._last_action + 1}: make it "
                "Discrete(N) with N the length of the longest list, or Text"
            )
        if problem is not None:
            raise RunError(f"{self._where(i)}: {problem}")
        state.show(raw, shown, listed or ())

    def _where(self, i: int) -> str:
        state = self._states[i]
        return f"{self._name}, env {i}, seed {state.seed}, step {len(state.actions)}"

    def _foreign(self, i: int, doing: str, raised: EnvRaised) -> ForeignError:
        state, cause = self._states[i], raised.__cause__
        lacks = "argument 'seed'" in str(cause) or "argument 'options'" in str(cause)
        advice = "declare def reset(self, *, seed=None, options=None); " if doing == "reset" and lacks else ""
        return ForeignError(
            f"env {i} ({self._name}) raised {type(cause).__name__} during {doing}: seed {state.seed}, "
            f"episode {state.episode}, after {len(state.actions)} steps; {advice}its traceback follows"
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
            metrics=read_metrics(state.info),
        )
