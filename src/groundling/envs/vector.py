"""Many text envs stepped together, with automatic reset, seeds per episode, and exact resume."""

import hashlib
import inspect
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.first_interaction import FirstInteraction, read_first_interaction
from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError, RunError


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode: enough to count it, and to play it again."""

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
    """The env ended the episode with a positive reward (as GLAM counts it)."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else is to be logged of it."""
    first: FirstInteraction | None = None
    """Which thing the agent first dealt with, where the env tells."""

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
    episodes: list[Episode]


class TextVectorEnv:
    """Steps ``num_envs`` text envs in this process and resets each as soon as its episode ends.

    An env must put its sentences into ``info["descriptions"]`` and its mission into ``obs["mission"]``,
    and equal seeds must give equal episodes: a checkpoint keeps each env's seed and the actions taken
    since, and `load_state_dict` plays them again. An env may tell which thing was first dealt with in
    ``info["first_interaction"]`` (see `FirstInteraction`).

    Args:
        make_env: Makes one env.
        num_envs: How many.
        actions: The admissible actions as strings; action ``i`` is the env's action ``i``, and names past
            the env's last action are its last one (in BabyAI "done", which does nothing), as in GLAM.
        seed_of: Gives the seed of env ``i``'s ``n``-th episode (see `groundling.envs.seeds`).
        history: How many observations a `TextObservation` holds at most (3 in GLAM).
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        actions: Sequence[str],
        seed_of: Callable[[int, int], int],
        history: int = 3,
    ) -> None:
        self.envs = [make_env() for _ in range(num_envs)]
        self.actions = tuple(actions)
        self._seed_of = seed_of
        space = self.envs[0].action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise ConfigError(f"{self.envs[0]} has the action space {space}: a text env needs a Discrete one")
        parameters = inspect.signature(self.envs[0].reset).parameters.values()
        if not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
            raise ConfigError(f"{self.envs[0]} cannot be seeded: its reset must take a keyword argument seed")
        self._last_action = int(space.n) - 1
        self._slots = [_Slot(deque(maxlen=history), deque(maxlen=max(history - 1, 0))) for _ in self.envs]

    @property
    def num_envs(self) -> int:
        return len(self.envs)

    def reset(self) -> list[TextObservation]:
        """Begin every env's next episode."""
        return [self._reset_env(i) for i in range(self.num_envs)]

    def step(self, actions: Sequence[int | None]) -> Step:
        """Take one action in every env.

        ``actions`` are indices into ``self.actions``; an env whose action is None stays as it is.

        Raises:
            RunError: an index is none of them.
        """
        observations, finals, episodes = [], {}, []
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        for i, action in enumerate(actions):
            if action is None:
                observations.append(self._observe(i))
                continue
            if not 0 <= action < len(self.actions):
                raise RunError(
                    f"the policy chose action {action} of {len(self.actions)}: {', '.join(self.actions)}"
                )
            observation, rewards[i], terminated[i], truncated[i] = self._step_env(i, int(action))
            if terminated[i] or truncated[i]:
                finals[i] = observation
                episodes.append(self._finish(i, bool(terminated[i]), float(rewards[i])))
                observation = self._reset_env(i)
            observations.append(observation)
        return Step(observations, rewards, terminated, truncated, finals, episodes)

    def observations(self) -> list[TextObservation]:
        """The present observation of every env."""
        return [self._observe(i) for i in range(self.num_envs)]

    def at_start(self) -> np.ndarray:
        """Bool ``(num_envs,)``: which envs show the first observation of an episode."""
        return np.array([not slot.actions for slot in self._slots])

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each env stands, as JSON: its episode's number, the actions taken in it, what is seen now."""
        return [
            {"episode": s.episode, "actions": list(s.actions), "seen": _fingerprint(s.raw, s.descriptions)}
            for s in self._slots
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Bring every env to where it stood, by playing its episode again from its seed.

        Raises:
            RunError: the episode is not the one that was saved.
        """
        for i, saved in enumerate(state):
            self._slots[i].episode = saved["episode"] - 1
            self._reset_env(i)
            ended = False
            for action in saved["actions"]:
                _, _, terminated, truncated = self._step_env(i, action)
                ended |= terminated or truncated
            slot = self._slots[i]
            if ended or _fingerprint(slot.raw, slot.descriptions) != saved["seen"]:
                raise RunError(
                    f"env {i} did not come back to where its checkpoint left it: equal seeds do not give it equal "
                    "episodes (draw_task=construction does that; so does another version of the env's package)"
                )

    def _reset_env(self, i: int) -> TextObservation:
        slot = self._slots[i]
        slot.begin_episode()
        slot.seed = self._seed_of(i, slot.episode)
        slot.raw, info = self.envs[i].reset(seed=slot.seed)
        if "descriptions" not in info or "mission" not in slot.raw:
            raise ConfigError(
                f"{self.envs[i]} is no text env: it must put its sentences into info['descriptions'] and its mission "
                "into obs['mission']"
            )
        slot.descriptions.append(tuple(info["descriptions"]))
        return self._observe(i)

    def _step_env(self, i: int, action: int) -> tuple[TextObservation, float, bool, bool]:
        slot = self._slots[i]
        slot.raw, reward, terminated, truncated, info = self.envs[i].step(min(action, self._last_action))
        slot.actions.append(action)
        slot.episode_return += float(reward)
        slot.past_actions.append(self.actions[action])
        slot.descriptions.append(tuple(info["descriptions"]))
        slot.info = info
        return self._observe(i), float(reward), terminated, truncated

    def _observe(self, i: int) -> TextObservation:
        slot = self._slots[i]
        return TextObservation(
            slot.raw["mission"], tuple(slot.descriptions), tuple(slot.past_actions), self.actions, slot.raw
        )

    def _finish(self, i: int, terminated: bool, reward: float) -> Episode:
        slot = self._slots[i]
        first = read_first_interaction(slot.info)
        return Episode(
            env_index=i,
            number=slot.episode,
            seed=slot.seed,
            mission=slot.raw["mission"],
            task=self._task(i),
            actions=tuple(slot.actions),
            episode_return=slot.episode_return,
            success=terminated and reward > 0,
            figures={} if first is None else first.figures,
            first=first,
        )

    def _task(self, i: int) -> str:
        family: str | None = getattr(self.envs[i].unwrapped, "current_task", None)
        return family or str(getattr(self.envs[i].spec, "id", ""))


@dataclass
class _Slot:
    """What the vector env remembers of one env's present episode."""

    descriptions: deque[tuple[str, ...]]
    past_actions: deque[str]
    episode: int = -1
    seed: int = 0
    episode_return: float = 0.0

    def __post_init__(self) -> None:
        self.actions: list[int] = []
        self.raw: Any = None
        self.info: Mapping[str, Any] = {}  # of its last step

    def begin_episode(self) -> None:
        self.episode += 1
        self.episode_return = 0.0
        self.actions.clear()
        self.descriptions.clear()
        self.past_actions.clear()


def _fingerprint(raw: Any, descriptions: deque[tuple[str, ...]]) -> str:
    """A hash of the mission and of the sentences on view."""
    return hashlib.sha256(json.dumps([raw["mission"], *descriptions]).encode()).hexdigest()[:16]
