"""Many text envs stepped together, with automatic reset, seeds per episode, and exact resume."""

import functools
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.first_interaction import FirstInteraction, read_first_interaction
from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import training_seed
from groundling.envs.slot import Slot
from groundling.envs.text_env import (
    ACTIONS,
    TextStep,
    read_reset,
    read_step,
    read_success,
    read_text_step,
    success_key,
)
from groundling.envs.workers import EnvLost, EnvRaised, Incidents, LocalEnvs, WorkerEnvs
from groundling.errors import ConfigError, ForeignError, RunError


class UnequalEpisode(RunError):
    """An env did not come back to where it stood, by its seed and the actions taken since."""


@dataclass(frozen=True, slots=True)
class TextEpisode:
    """A finished episode, or one that was cut: enough to count it, and to play it again."""

    env_index: int
    number: int
    """How many episodes this env had finished before."""
    seed: int
    mission: str
    task: str
    """The mission's family, where the env has several (as `LocalLevel`); else the env's id."""
    actions: tuple[int, ...]
    episode_return: float
    """Sum of the env's own rewards, without scale or shaping."""
    success: bool
    """By the last step's info (`groundling.envs.text_env.read_success`); without such a key, whether the env ended the
    episode with a positive reward, as GLAM counts it. False if it was cut."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else is to be logged of it."""
    first: FirstInteraction | None = None
    """Which thing the agent first dealt with, where the env tells."""
    success_key: str | None = None
    """The info's key that decided about success; None: the last reward did, or the episode was cut."""

    @property
    def length(self) -> int:
        """Its steps."""
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Step:
    """What one synchronised step of all envs gave; arrays have shape ``(num_envs,)``."""

    observations: list[TextObservation]
    """The next observations; after the end of an episode, the first one of the next episode."""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observations: dict[int, TextObservation]
    """By env index, the last observation of each episode that ended with this step."""
    episodes: list[TextEpisode]

    @property
    def dones(self) -> np.ndarray:
        """Bool: the episode ended with this step, by itself or by its time limit."""
        return np.asarray(self.terminated | self.truncated)


class TextVectorEnv:
    """Steps ``num_envs`` text envs and resets each as soon as its episode ends.

    An env tells its goal, its sentences and, if they change, its admissible actions (see `read_text_step`), and equal
    seeds must give equal episodes: a checkpoint keeps each env's seed and the actions taken since, and
    `load_state_dict` plays them again. An env may tell which thing was first dealt with in
    ``info["first_interaction"]`` (see `FirstInteraction`).

    Args:
        make_env: Makes one env, with a `Discrete` action space, or a `Text` one, whose actions are texts.
        num_envs: How many.
        actions: The admissible actions as strings; action ``i`` is the env's action ``i``, and names past
            the env's last action are its last one (in BabyAI "done", which does nothing), as in GLAM. None: the env
            lists them at every step; action ``i`` is then the ``i``-th of the present list.
        seed_of: Gives the seed of env ``i``'s ``n``-th episode (see `groundling.envs.seeds`).
        history: How many observations a `TextObservation` holds at most (3 in GLAM); None: all of its episode.
        num_workers: Processes that step them, for slow envs and for such as crash: an env that raises, dies or hangs
            is made anew there and brought back to where it stood; lost twice at one step, its episode is truncated.
            0: this process steps them.
        timeout: Seconds without an answer after which a worker counts as hung.
        warn: Is told of lost envs.

    Attributes:
        envs: The envs; none where workers have them.
        step_limit: Steps after which an episode is truncated, if its env does not end it before; None: no limit.
        incidents: What went wrong in workers.

    Raises:
        ConfigError: the env has another action space, or cannot be seeded.
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
        self.step_limit: int | None = None
        self._seed_of = seed_of
        space = first.action_space
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Text):
            raise ConfigError(
                f"{first} has the action space {space}: a text env needs a Discrete or a Text one"
            )
        _check_reset(first)
        self._last_action = int(space.n) - 1 if isinstance(space, gymnasium.spaces.Discrete) else None
        self._id = str(getattr(first.spec, "id", ""))
        self._name = self._id or str(first)
        self._slots = [Slot.remembering(history) for _ in range(num_envs)]
        self.incidents = Incidents()
        self._warn = warn
        self._stepper: LocalEnvs | WorkerEnvs
        if num_workers:
            first.close()
            self._stepper = WorkerEnvs(make_env, num_envs, num_workers, timeout, warn)
        else:
            self._stepper = LocalEnvs(self.envs)

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
        """``num_envs`` envs of one id, in this process, with the episodes of a run of that seed.

        Args:
            id: What Gymnasium knows the env by.
            num_envs: How many.
            seed: Episodes follow from it, from an env's place and from its count of episodes.
            actions: The actions' names; None takes those of BabyAI and MiniGrid, or the env's own lists.
            language: ``english`` or ``french``.
            history: As of the class.
            args: The env's keyword arguments.

        Raises:
            ConfigError: there is no such env or argument, or its actions are not those named.
        """
        names = name_actions(id, args, language, actions).names
        seeds = functools.partial(training_seed, seed)
        return cls(TextEnvMaker.of(id, language=language, **args), num_envs, names, seeds, history)

    @property
    def num_envs(self) -> int:
        return len(self._slots)

    def reset(self, envs: Iterable[int] | None = None) -> list[TextObservation]:
        """Begin the next episode of some envs, or of every one; what all of them show."""
        reset = list(range(self.num_envs) if envs is None else envs)
        for i in reset:
            self._send_reset(i)
        for i in reset:
            self._take_reset(i)
        return self.observations()

    def step(self, actions: Sequence[int | None]) -> Step:
        """Take one action in every env.

        ``actions`` are indices into the ``actions`` of the observation that each env shows; an env whose action is None
        stays as it is.

        Raises:
            RunError: an index is none of them, or an env no longer tells what a text env tells.
        """
        finals, episodes = {}, []
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        stepped = [(i, int(action)) for i, action in enumerate(actions) if action is not None]
        for i, action in stepped:
            admissible = self._slots[i].admissible
            if not 0 <= action < len(admissible):
                raise RunError(
                    f"the policy chose action {action} of {len(admissible)}: {', '.join(admissible)}"
                )
            self._send_step(i, action)
        for i, action in stepped:
            reward, has_terminated, is_truncated = self._take_step(i, action)
            if self.step_limit is not None and len(self._slots[i].actions) >= self.step_limit:
                is_truncated = not has_terminated
            if reward:
                rewards[i] = reward
            if has_terminated or is_truncated:
                terminated[i], truncated[i] = has_terminated, is_truncated
                finals[i] = self._observe(i)
                episodes.append(self._finish(i, has_terminated, float(rewards[i])))
                self._send_reset(i)
        for i in finals:
            self._take_reset(i)
        return Step(self.observations(), rewards, terminated, truncated, finals, episodes)

    def observations(self) -> list[TextObservation]:
        """The present observation of every env."""
        return [self._observe(i) for i in range(self.num_envs)]

    def cut(self, i: int) -> TextEpisode:
        """The present episode of env ``i`` as if it ended here, unsuccessfully; the env stays as it is."""
        return self._episode(i, success=False)

    def at_start(self) -> np.ndarray:
        """Bool ``(num_envs,)``: which envs show the first observation of an episode."""
        return np.array([not slot.actions for slot in self._slots])

    def close(self) -> None:
        self._stepper.close()

    def state_dict(self) -> list[dict[str, Any]]:
        """Position of each env as JSON: number and seed of its episode, its actions, the current observation."""
        states: list[dict[str, Any]] = [
            {"episode": s.episode, "seed": s.seed, "actions": list(s.actions), "seen": self._fingerprint(s)}
            for s in self._slots
        ]
        if any(asdict(self.incidents).values()):
            states[0]["incidents"] = asdict(self.incidents)  # of all envs here
        return states

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Bring every env to where it stood, by playing its episode again from its seed.

        Raises:
            UnequalEpisode: the episode is not the one that was saved.
            RunError: the state was saved with another scheme of episode seeds.
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
            self._slots[i].episode = saved["episode"] - 1
            self._send_reset(i)
        for i in range(len(state)):
            self._take_reset(i)
        ended = self._play_again([saved["actions"] for saved in state])
        for i, saved in enumerate(state):
            if i in ended or self._fingerprint(self._slots[i]) != saved["seen"]:
                raise UnequalEpisode(
                    f"env {i} did not return to the state of its checkpoint: equal seeds do not give equal episodes "
                    "in it (draw_task=construction does that; so does another version of the env's package)"
                )

    def _play_again(self, actions: Sequence[Sequence[int]]) -> set[int]:
        """Take each env's actions, all envs together; which envs' episodes ended or did not have such an action."""
        ended: set[int] = set()
        for number in range(max(map(len, actions), default=0)):
            taken = {
                i: of_env[number]
                for i, of_env in enumerate(actions)
                if number < len(of_env) and i not in ended
            }
            for i, action in taken.items():
                if not 0 <= action < len(self._slots[i].admissible):
                    ended.add(i)  # another episode, whose lists are shorter
                else:
                    self._send_step(i, action)
            for i, action in taken.items():
                if i not in ended:
                    _, terminated, truncated = self._take_step(i, action)
                    ended |= {i} if terminated or truncated else set()
        return ended

    def _send_reset(self, i: int) -> None:
        slot = self._slots[i]
        slot.begin_episode()
        slot.seed = self._seed_of(i, slot.episode)
        self._stepper.send(i, "reset", slot.seed)

    def _take_reset(self, i: int) -> None:
        slot = self._slots[i]
        try:
            returned = self._stepper.receive(i)
        except EnvLost:
            self.incidents.lost_envs += 1
            returned = self._reset_again(i)
        except EnvRaised as raised:
            raise self._foreign(i, "reset", raised) from raised.__cause__
        try:
            slot.raw, info = read_reset(returned)
            shown = read_text_step(slot.raw, info)
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
        self._tell(i, shown)

    def _send_step(self, i: int, action: int) -> None:
        slot, last = self._slots[i], self._last_action
        chosen = slot.admissible[action] if last is None else action if action < last else last
        slot.chosen.append(chosen)
        self._stepper.send(i, "step", chosen)

    def _take_step(self, i: int, action: int) -> tuple[float, bool, bool]:
        slot = self._slots[i]
        try:
            returned = self._stepper.receive(i)
        except EnvLost as lost:
            self.incidents.lost_envs += 1
            returned = self._step_again(i, lost)
            if returned is None:  # lost again: the episode ends here
                return 0.0, False, True
        except EnvRaised as raised:
            raise self._foreign(i, f"step {slot.admissible[action]!r:.80}", raised) from raised.__cause__
        name = slot.admissible[action]
        slot.actions.append(action)
        slot.past_actions.append(name)
        if self.actions is None:
            slot.past_choices.append(slot.admissible)
        try:
            slot.raw, reward, terminated, truncated, slot.info = read_step(returned)
            shown = read_text_step(slot.raw, slot.info, slot.goal, has_lists=self.actions is None)
        except ConfigError as error:
            raise RunError(f"{self._where(i)}: {error}") from None
        slot.episode_return += reward
        self._tell(i, shown, ended=terminated or truncated)
        return reward, terminated, truncated

    def _reset_again(self, i: int) -> Any:
        """What a lost env returns to the reset in which it was lost.

        Raises:
            RunError: it is lost once more.
        """
        self._stepper.send(i, "reset", self._slots[i].seed)
        try:
            return self._stepper.receive(i)
        except EnvLost as lost:
            raise RunError(f"{self._where(i)}: it {lost}, twice in its reset") from None

    def _step_again(self, i: int, lost: EnvLost) -> Any:
        """Bring a lost env to where it stood, and step it again; None if it is lost once more.

        Raises:
            RunError: equal seeds and actions do not bring it there.
        """
        slot = self._slots[i]
        try:
            raw, info = self._reset_again(i)
            goal = None
            for chosen in slot.chosen[:-1]:
                goal = read_text_step(raw, info, goal).goal
                self._stepper.send(i, "step", chosen)
                raw, _, _, _, info = self._stepper.receive(i)
            shown = read_text_step(raw, info, goal)
            if (shown.goal, shown.descriptions) != (slot.goal, slot.descriptions[-1]):
                raise RunError(
                    f"{self._where(i)}: it {lost}, and its seed and the actions taken since do not bring it back to "
                    "where it stood: equal seeds must give equal episodes"
                )
            self._stepper.send(i, "step", slot.chosen[-1])
            return self._stepper.receive(i)
        except EnvLost as again:
            self.incidents.lost_envs += 1
            self.incidents.cut_episodes += 1
            self._warn(f"{self._where(i)}: it {again}, twice at this step: the episode is cut off")
            return None

    def _tell(self, i: int, shown: TextStep, ended: bool = False) -> None:
        """Take up what an env shows now; at an episode's end nothing need be admissible."""
        slot = self._slots[i]
        slot.goal = shown.goal
        slot.descriptions.append(shown.descriptions)
        if self.actions is not None:
            slot.admissible = self.actions
            return
        listed = shown.actions or ()
        if listed != slot.admissible and len(set(listed)) < len(listed):
            raise RunError(
                f"{self._where(i)}: an action is listed twice ({', '.join(listed):.80}): list each once"
            )
        slot.admissible = listed
        if shown.actions is None and not ended:
            raise RunError(
                f"{self._where(i)}: the list of admissible actions is missing, and the episode has not ended: expected "
                f"a list of texts at every step, as {', '.join(ACTIONS)}"
            )
        if not slot.admissible and not ended:
            raise RunError(f"{self._where(i)}: no action is admissible, and the episode has not ended")
        if self._last_action is not None and len(slot.admissible) > self._last_action + 1:
            raise RunError(
                f"{self._where(i)}: {len(slot.admissible)} actions are admissible, and the action space has "
                f"{self._last_action + 1}: make it Discrete(N) of the longest list, or Text"
            )

    def _where(self, i: int) -> str:
        slot = self._slots[i]
        return f"{self._name}, env {i}, seed {slot.seed}, step {len(slot.actions)}"

    def _foreign(self, i: int, doing: str, raised: EnvRaised) -> ForeignError:
        slot, cause = self._slots[i], raised.__cause__
        # Gymnasium's wrappers unpack what an env returned before it can be looked at here.
        unpacked = isinstance(cause, ValueError) and "to unpack" in str(cause)
        returns = (
            "reset must return (observation, info), step (observation, reward, terminated, truncated, info); "
        )
        return ForeignError(
            f"env {i} ({self._name}) raised {type(cause).__name__} in its {doing}: seed {slot.seed}, episode "
            f"{slot.episode}, after {len(slot.actions)} steps; {returns if unpacked else ''}its traceback follows"
        )

    def _observe(self, i: int) -> TextObservation:
        slot = self._slots[i]
        return TextObservation(
            slot.goal,
            tuple(slot.descriptions),
            tuple(slot.past_actions),
            slot.admissible,
            _raw(slot.raw),
            tuple(slot.past_choices),
            slot.seed,
        )

    def _finish(self, i: int, terminated: bool, reward: float) -> TextEpisode:
        info = self._slots[i].info
        try:
            success = read_success(info, terminated and reward > 0)
        except ConfigError as error:
            raise RunError(f"{self._where(i)}: {error}") from None
        return self._episode(i, success, success_key(info))

    def _episode(self, i: int, success: bool, key: str | None = None) -> TextEpisode:
        slot = self._slots[i]
        first = read_first_interaction(slot.info)
        return TextEpisode(
            env_index=i,
            number=slot.episode,
            seed=slot.seed,
            mission=slot.goal,
            task=self._task(i),
            actions=tuple(slot.actions),
            episode_return=slot.episode_return,
            success=success,
            figures={} if first is None else first.figures,
            first=first,
            success_key=key,
        )

    def _fingerprint(self, slot: Slot) -> str:
        """A hash of the goal, of the sentences on view and, where they change, of the admissible actions."""
        texts = [slot.goal, *slot.descriptions, *([slot.admissible] if self.actions is None else [])]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def _task(self, i: int) -> str:
        family = getattr(self.envs[i].unwrapped, "current_task", None) if self.envs else None
        return family or str(self._slots[i].info.get("task") or self._id)


def _raw(observation: Any) -> Mapping[str, Any]:
    """What policies see that do not read: the env's arrays by name, none of an env that shows a text."""
    return observation if type(observation) is dict or isinstance(observation, Mapping) else {}


def _check_reset(env: gymnasium.Env[Any, Any]) -> None:
    while isinstance(env, gymnasium.Wrapper) and type(env).__module__.startswith("gymnasium."):
        env = env.env  # such a one takes both, whatever the env within takes
    parameters = inspect.signature(env.reset).parameters.values()
    for name in ("seed", "options"):
        if not any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters):
            raise ConfigError(
                f"the reset of {type(env).__name__} takes no {name}: define it as reset(self, *, seed=None, "
                "options=None), and begin it with super().reset(seed=seed)"
            )
