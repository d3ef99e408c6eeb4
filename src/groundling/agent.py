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
    """A trained policy with its prompt and its memory of the current episode; load another one for a second env.

    Attributes:
        policy: The policy, a `torch.nn.Module`.
        name: The name of its run.
    """

    def __init__(self, target: Target, seed: int = 0) -> None:
        """Make the agent of a run, a checkpoint or a published folder; raise `ConfigError` if it cannot act here."""
        policy, world = target.policy(target.agent), target.world
        if policy is None:
            raise ConfigError(f"{target.agent} is not a trained agent: name a run's folder")
        if not isinstance(world, ActsElsewhere):
            raise ConfigError(
                f"an agent of {world.spec.name} cannot be loaded to act elsewhere: evaluate or watch the run"
            )
        self.name, self.policy = target.config.name, policy
        self._actor = world.actor(policy, torch.Generator().manual_seed(seed))

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {type(self.policy).__name__})"

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Make a new env of the world in which the agent was trained, with keyword arguments in addition to the run's,
        such as ``render_mode="human"``; raise `ConfigError` if it is not registered here, or the agent writes texts.
        """
        return self._actor.make_env(**args)

    def reset(self) -> None:
        """Begin a new episode and forget the last one."""
        self._actor.reset()

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Choose an action, or write a text; drawn or the likeliest, as in the run's evaluations.

        Args:
            observation: The env's observation, or the prompt of a text.
            info: The env's info in a text world: descriptions, and the admissible actions where these change.

        Returns:
            The action for the env's ``step``, or the text.

        Raises:
            ConfigError: the observation lacks something that the agent reads.
        """
        return self._actor.act(observation, info or {})

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Probability of each action at the last `act`; None for agents without them."""
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

    No code in the files is run: they hold settings, which are checked, and safetensors. First import the modules of
    your own policies, prompts and other components. The env's module is needed only for `Agent.make_env`; without it,
    an agent of an env that lists its actions returns the action's text, not its index.

    Args:
        name: A run's folder, a checkpoint, a published policy's folder or hub id, or an experiment, whose model acts
            untrained: with ``overrides=["model.path=FOLDER"]`` any model in Transformers' format, as of RL4LMs.
        device: PyTorch device; ``auto`` takes the accelerator if there is one.
        seed: Seed of sampled actions.
        revision: Branch, tag or commit of a hub id.
        overrides: Changes to its configuration, as on the command line.

    Raises:
        ConfigError: there is no such agent, or its kind of world is not registered.
        RunError: a file is broken, or the hub cannot be reached.
    """
    words = [f"device={device}", *overrides]
    return Agent(find(str(name), words, warn, "acting", revision=revision), seed)
