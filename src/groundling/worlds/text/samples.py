"""Sample episodes of an evaluation: played again with the policy's prompts and probabilities, or with pictures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.observation import TextObservation
from groundling.envs.text_episode import TextEpisode
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.envs import make_envs

_NUM_SAMPLES = 4


def select(episodes: Sequence[TextEpisode]) -> list[TextEpisode]:
    """Choose a few episodes to show: successes first, and a failure if there is one."""
    successes = [e for e in episodes if e.success]
    failures = [e for e in episodes if not e.success]
    return [*successes[: _NUM_SAMPLES - bool(failures)], *failures][:_NUM_SAMPLES]


def sample_of(config: TextConfig, policy: Policy, episode: TextEpisode) -> dict[str, Any]:
    """Play ``episode`` again and return the policy's prompts and probabilities at each step, as JSON."""
    played = _replay(config, episode.seed, episode.actions, episode.task)
    observations = [observation for observation, _ in played]
    nothing = [None] * len(observations)
    prompts = policy.prompts(observations) or nothing
    outputs = policy.outputs(observations)
    probabilities = nothing if outputs is None else outputs.log_probs.exp().tolist()
    return {
        "seed": episode.seed,
        "task": episode.task,
        "mission": episode.mission,
        "success": episode.success,
        "return": episode.episode_return,
        "actions": list(episode.actions),
        "first": None if episode.first is None else asdict(episode.first),
        "steps": [
            {
                "descriptions": observation.descriptions[-1],
                "prompt": prompt,
                "action": observation.actions[action],
                "probabilities": None if p is None else dict(zip(observation.actions, p, strict=False)),
            }
            for observation, prompt, action, p in zip(
                observations, prompts, episode.actions, probabilities, strict=True
            )
        ],
    }


def pictures_of(config: TextConfig, sample: Mapping[str, Any]) -> list[np.ndarray | None]:
    """Draw a sample before each action: uint8 ``(height, width, 3)``; None for an env without pictures."""
    played = _replay(config, sample["seed"], sample["actions"], sample.get("task"), render=True)
    return [picture for _, picture in played]


def _replay(
    config: TextConfig, seed: int, actions: Sequence[int], task: str | None, render: bool = False
) -> Iterator[tuple[TextObservation, np.ndarray | None]]:
    """Yield the observation (and picture) before each of the ``actions`` of the episode with this seed and task."""
    if config.args.get("draw_task") == "construction":  # the seed does not determine the task
        config = replace(config, args={**config.args, "task": task})
    single = replace(config, num_workers=0)
    envs = drawing_env(config, seed) if render else make_envs(single, 1, lambda env, episode: seed)
    observation = envs.reset()[0]
    for action in actions:
        yield observation, picture_of(envs.envs[0]) if render else None
        observation = envs.step([action]).observations[0]
    envs.close()


def drawing_env(config: TextConfig, seed: int) -> TextVectorEnv:
    """Make one env whose every episode has this seed; it draws pictures if it can."""
    config = replace(config, num_workers=0)
    envs = make_envs(config, 1, lambda env, episode: seed)
    if "rgb_array" in envs.envs[0].metadata.get("render_modes", ()):
        # A subclass of a MiniGrid env inherits the mode and may not accept it.
        with suppress(ConfigError):
            drawing = make_envs(config, 1, lambda env, episode: seed, render_mode="rgb_array")
            envs.close()
            return drawing
    return envs


def picture_of(env: gymnasium.Env[Any, Any]) -> np.ndarray | None:
    """Draw an env: uint8 ``(height, width, 3)``; None if it draws no picture."""
    if env.render_mode != "rgb_array":
        return None
    with suppress(NotImplementedError):
        picture: Any = env.render()
        return picture if isinstance(picture, np.ndarray) else None
    return None
