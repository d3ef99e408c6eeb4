"""Trained agents for custom loops, other programs and notebooks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch

from groundling.errors import ConfigError
from groundling.evaluation.target import Target, find
from groundling.io.terminal import warn
from groundling.worlds.protocols import ActsElsewhere


class Agent:
    """A trained policy with its prompt and its memory of the current episode. Load a separate agent for each env.

    Attributes:
        policy: The policy, a `torch.nn.Module`.
        name: The name of the run.
    """

    def __init__(self, target: Target, seed: int = 0) -> None:
        """Create an agent from a run, checkpoint or published folder; raise `ConfigError` if it cannot be loaded."""
        policy, world = target.policy(target.agent), target.world
        if policy is None:
            raise ConfigError(f"{target.agent} is not a trained agent: pass a run's folder")
        if not isinstance(world, ActsElsewhere):
            name = world.spec.name
            raise ConfigError(f"agents trained in {name} do not support custom loops: evaluate or watch the run")
        self.name, self.policy = target.config.name, policy
        self._actor = world.actor(policy, torch.Generator().manual_seed(seed))

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {type(self.policy).__name__})"

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Create a new env from the agent's training world. Keyword arguments, such as ``render_mode="human"``, are
        added to the run's env arguments. Raise `ConfigError` if the env is not registered or the agent generates text.
        """
        return self._actor.make_env(**args)

    def reset(self) -> None:
        """Start a new episode and clear the memory of the last one."""
        self._actor.reset()

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Choose an action or generate a text, sampled or greedy as in the run's evaluations.

        Args:
            observation: The env's observation, or the prompt to respond to.
            info: In a text world, the env's info, if it contains the goal, descriptions or admissible actions.

        Returns:
            The action for the env's ``step``, or the generated text.

        Raises:
            ConfigError: The observation lacks an input that the agent requires.
        """
        return self._actor.act(observation, info or {})

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Probability of each action in the last call to `act`; None if the agent has no action probabilities."""
        return self._actor.probabilities


def load(
    name: str | Path,
    *,
    device: str = "auto",
    seed: int = 0,
    revision: str | None = None,
    overrides: Sequence[str] = (),
) -> Agent:
    """Load a trained agent.

    No code from the files is executed: they contain only safetensors and settings, which are validated. Import the
    modules that define your own policies, prompts and other components first. The env's module is required only by
    `Agent.make_env`; without it, `Agent.act` returns an action's name instead of its index in the env's action list.

    Args:
        name: A run's folder, a checkpoint, a published policy's folder or hub id, or an experiment. An experiment's
            model is untrained; ``overrides=["model.path=FOLDER"]`` loads any other model in Transformers' format.
        device: PyTorch device; ``auto`` selects an accelerator if one is available.
        seed: Seed for sampling actions.
        revision: Branch, tag or commit of a hub repository.
        overrides: Overrides of the agent's configuration, as on the command line.

    Raises:
        ConfigError: The agent does not exist, its kind of world is not registered, or its model cannot be loaded.
        RunError: A file is corrupt, or the hub cannot be reached.
    """
    words = [f"device={device}", *overrides]
    return Agent(find(str(name), words, warn, "acting", revision=revision), seed)
