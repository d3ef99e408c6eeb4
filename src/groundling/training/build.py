"""From a config to the parts that it names."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.configs.schema import Config
from groundling.envs.make import make_text_env
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, policies


def device_of(config: Config) -> torch.device:
    """The device that the config asks for; "auto" takes the accelerator if there is one.

    Raises:
        ConfigError: the device is not there.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if config.device == "auto":
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(config.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = "cpu" if accelerator is None else f"cpu, {accelerator}"
        raise ConfigError(
            f"device={config.device} cannot be used on this machine: there is {there}"
        ) from error
    return device


def make_envs(
    config: Config, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """The config's envs, not yet reset."""
    args = {**config.env.args, "language": config.env.language}
    if render_mode is not None:
        args["render_mode"] = render_mode
    return TextVectorEnv(
        lambda: make_text_env(config.env.id, **args),
        num_envs,
        config.env.actions,
        seed_of=seed_of,
        history=config.env.history,
    )


def make_policy(config: Config, checkpoint: Path | None = None) -> Policy:
    """The config's policy: as training begins, or with the weights of ``checkpoint``.

    New weights (heads, random models) depend on the config's seed alone.
    """
    factory = policies.get(config.policy.id)
    parameters = inspect.signature(factory).parameters
    args: dict[str, Any] = dict(config.policy.args)
    if "language" in parameters:
        args.setdefault("language", config.env.language)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        if "lm" in parameters:
            args["lm"] = _make_language_model(config, checkpoint)
        policy = policies.create(config.policy.id, **args)
    if checkpoint is not None:
        policy.load_weights(checkpoint)
    return policy


def make_algorithm(config: Config, policy: Policy) -> Algorithm:
    """The config's algorithm, set up for ``policy``.

    Raises:
        ConfigError: the policy has nothing to train.
    """
    if not any(p.requires_grad for p in policy.parameters()):
        raise ConfigError(f"policy {config.policy.id!r} has no weights to train: choose another policy.id")
    algorithm: Algorithm = algorithms.create(config.algorithm.id, **config.algorithm.args)
    algorithm.setup(policy)
    return algorithm


def _make_language_model(config: Config, checkpoint: Path | None) -> Any:
    from transformers.utils import logging

    from groundling.lm import LanguageModel

    logging.disable_progress_bar()  # at every checkpoint it would break into the run's own
    logging.set_verbosity_error()
    model = config.model
    return LanguageModel.from_pretrained(
        checkpoint or model.path,
        init="pretrained" if checkpoint else model.init.value,
        seed=config.seed,
        dtype=model.dtype,
        device=device_of(config),
        lora=None if checkpoint else model.lora or None,  # a checkpoint brings its adapter
        gradient_checkpointing=model.gradient_checkpointing,
        attention=model.attention,
        revision=model.revision,  # also of the weights that a checkpoint's adapter stands on
        trust_remote_code=model.trust_remote_code,
        max_prompt_tokens=model.max_prompt_tokens,
    )
