"""Trained agents, to be taken along: into an env of one's own loop, another program, a notebook."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch

from groundling.config.trust import ENV
from groundling.errors import ConfigError
from groundling.evaluation.target import Target, find
from groundling.io.console import warn
from groundling.policies.policy import Policy
from groundling.worlds.protocols import ActsElsewhere


class Agent:
    """A policy with its weights, the prompt that it reads, and what it remembers of an episode; from `load`.

    It acts in one env: load it again for a second one.

    Attributes:
        policy: The policy, a `torch.nn.Module`.
        name: What its run was called.
    """

    def __init__(self, name: str, policy: Policy, target: Target, seed: int) -> None:
        self.name, self.policy = name, policy
        world = target.world
        if not isinstance(world, ActsElsewhere):
            raise ConfigError(
                f"an agent of {world.spec.name} cannot be loaded to act elsewhere: evaluate or watch the run"
            )
        self._actor = world.actor(policy, torch.Generator().manual_seed(seed))

    @classmethod
    def of(cls, target: Target, seed: int = 0) -> "Agent":
        """That of a run, a checkpoint or a published folder.

        Raises:
            ConfigError: the target is not trained, or does not suit its world.
        """
        policy = target.policy(target.agent)
        if policy is None:
            raise ConfigError(f"{target.agent} is no trained agent: name a run's folder")
        return cls(target.config.name, policy, target, seed)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {type(self.policy).__name__})"

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """A new env of the world that it was trained in; not of a writer.

        Args:
            args: Keyword arguments of the env beside the run's, such as ``render_mode="human"``.

        Raises:
            ConfigError: there is no such env here.
        """
        return self._actor.make_env(**args)

    def reset(self) -> None:
        """Tell it that an episode begins, so that it forgets the last one."""
        self._actor.reset()

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Choose an action, or write a text: drawn, or the likeliest, as the run's evaluations have it.

        Args:
            observation: Of a text world or NetHack what the env shows; of a writer the prompt.
            info: Of a text world what the env gives beside it: descriptions, and the admissible actions where these
                change.

        Returns:
            What the env's ``step`` takes; of a writer the text.

        Raises:
            ConfigError: what is shown lacks what the agent reads.
        """
        return self._actor.act(observation, info or {})

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Of each action at the last `act`; None of agents that tell none."""
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

    Nothing in the files is run or unpickled: they hold settings, which are checked, and safetensors. Policies, prompts
    and other components of yours must be registered before, by importing their modules. The env need not be:
    `Agent.act` reads what your own loop gives it, and only `Agent.make_env` needs the module. Without it, an agent of
    an env that lists its actions returns the action's text, not its index.

    Args:
        name: A run's folder, one of its checkpoints, a folder that ``groundling publish`` wrote, or its hub id. Or an
            experiment, whose model acts untrained: with ``overrides=["model.path=FOLDER"]`` any language model in
            Transformers' layout, such as one that RL4LMs saved, acts or writes as the experiment has it.
        device: Where it computes; ``auto`` takes the accelerator if there is one.
        seed: Of its draws.
        revision: Of a hub id: branch, tag or commit.
        overrides: Changes to its configuration, as on the command line.

    Raises:
        ConfigError: there is no such agent, or it is of a world that is not here.
        RunError: a file is broken, or the hub cannot be reached.
    """
    words = [f"device={device}", *overrides]
    return Agent.of(find(str(name), words, warn, ENV, revision=revision), seed)
