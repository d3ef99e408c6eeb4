"""Episodes and steps of text envs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from groundling.envs.first_interaction import FirstInteraction
from groundling.envs.observation import TextObservation


@dataclass(frozen=True, slots=True)
class TextEpisode:
    """An episode that ended or was cut, with what plays it again."""

    env_index: int
    number: int  # number of episodes that this env had finished before
    seed: int
    mission: str
    task: str  # the mission's family, in an env with several (such as `LocalLevel`); else the env's id
    actions: tuple[int, ...]
    episode_return: float  # sum of the env's rewards, without scale or shaping
    success: bool
    """By the last step's info (`groundling.envs.text_env.read_success`); without such a key, True if the env ended the
    episode with a positive reward, as in GLAM. False if the episode was cut."""
    first: FirstInteraction | None = None  # the first interaction, if the env reports it
    success_key: str | None = None  # the info's key that decided; None: the last reward did, or it was cut
    invalid_actions: float | None = None  # share of the turns whose written action was invalid, if actions are written

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures of the first interaction, and the share of invalid actions."""
        figures = {} if self.first is None else dict(self.first.figures)
        return figures if self.invalid_actions is None else {**figures, "invalid_actions": self.invalid_actions}

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Step:
    """A synchronised step of all envs; arrays have shape ``(num_envs,)``."""

    observations: list[TextObservation]  # after the end of an episode, the first one of the next episode
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observations: dict[int, TextObservation]  # last observations of episodes that ended, by env index
    episodes: list[TextEpisode]

    @property
    def dones(self) -> np.ndarray:
        """Bool: the episode ended with this step, by itself or by its time limit."""
        return np.asarray(self.terminated | self.truncated)
