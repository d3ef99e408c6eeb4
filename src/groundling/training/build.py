"""Build the components that a config specifies."""

import inspect
import logging
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groundling.algorithms.algorithm import Algorithm, algorithms, check_trains, penalises
from groundling.config.checks import check
from groundling.config.schema import Config, ModelConfig
from groundling.errors import ConfigError, warn_caller
from groundling.lm.load.model_files import adapter_base, resolve
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.policy import Policy, Turn, check_accepts, has_model, policies
from groundling.policies.prompt_policy import TokenMask
from groundling.registry import ComponentConfig, provided
from groundling.runtime import devices
from groundling.runtime.devices import find_device, launched, share_of_gpus
from groundling.runtime.processes import Processes
from groundling.worlds import World, WorldSpec, kind
from groundling.worlds.protocols import RandomPlay, TrainingMeasures


def world_of(config: Config, checkpoint: Path | None = None, suite: str | None = None) -> World:
    """Return the config's world without loading or starting anything; see `World.checkpoint` and `World.suite`."""
    device = config.device
    if config.model.device_map is not None and launched("LOCAL_WORLD_SIZE", 1) > 1 and device in ("auto", "cuda"):
        device = f"cuda:{share_of_gpus()[0]}"  # the first GPU of this process's share
    return kind(config.world.id)(
        config.world, config.evaluation, config.reward, config.policy, config.seed, device, checkpoint, suite
    )


def check_suits(policy: ComponentConfig, model: ModelConfig, algorithm: ComponentConfig, world: World) -> None:
    """Raise `GroundlingError`, before anything is loaded, if the sections of a config are incompatible."""
    if model.load_in_4bit and not model.lora:
        raise ConfigError("model.load_in_4bit=true loads weights that cannot be trained: also set model.lora={r: 16}")
    check_accepts(policy.id, world.spec)
    check_trains(algorithm.id, algorithm.args, policy.id, policy.args, world.spec)
    for name, one in provided(policies.get(policy.id)).items():
        if one.role == "num_actions":
            _num_actions(policy.args.get(name), policy.id, world.spec)
    factory, num_steps = policies.get(policy.id), world.config.steps_per_row
    policy_class = factory if isinstance(factory, type) and issubclass(factory, Policy) else Policy
    if (unused := policy_class.unused_argument(policy.args, world.spec)) is not None:
        raise ConfigError(f"policy.args.{unused}")
    parameter = inspect.signature(factory).parameters.get("recurrence")
    length = policy.args.get(
        "recurrence", getattr(factory, "recurrence", 1) if parameter is None else parameter.default
    )
    if length > 0 and num_steps % length:  # the policy itself rejects other values
        raise ConfigError(f"world.num_steps={num_steps} must be a multiple of policy.args.recurrence={length}")
    offline = getattr(algorithms.get(algorithm.id), "offline", False)
    with_model = [] if offline else [name for name, part in world.reward.parts.items() if part.needs_model]
    if with_model and not has_model(policy.id):
        key = f"reward.{with_model[0]}"
        raise ConfigError(
            f"{key} uses the language model being trained, but policy {policy.id!r} has none: set {key}.args.lm"
        )


def make_policy(
    policy: ComponentConfig,
    model: ModelConfig,
    algorithm: ComponentConfig,
    world: World,
    *,
    learns: bool = False,
    start: Path | None = None,
) -> Policy:
    """Build a config's policy, with its initial weights or those of the world's checkpoint.
    New weights (heads, random models) depend only on the config's seed. By default, critics that are not needed are omitted.

    Args:
        policy, model, algorithm: Sections of the config.
        world: The world of the same config.
        learns: True if the policy will be trained; a KL penalty's reference model is built only in this case.
        start: Checkpoint with the initial weights, e.g. of a cloned policy. If None, those of ``model`` are used.
    """
    devices.configure()
    if learns:
        check_suits(policy, model, algorithm, world)
    spec = world.spec
    check_accepts(policy.id, spec)
    roles = {one.role: name for name, one in provided(policies.get(policy.id)).items()}
    needs_values = getattr(algorithms.get(algorithm.id), "needs_values", True)
    given: dict[str, Any] = {"language": spec.language, "critic": needs_values}  # by role; overridden by the config
    if "num_actions" in roles:
        given["num_actions"] = _num_actions(policy.args.get(roles["num_actions"]), policy.id, spec)

    language_model = partial(_make_language_model, model, world.seed, world.device)
    with torch.random.fork_rng():
        torch.manual_seed(world.seed)
        if "lm" in roles:
            given["lm"] = language_model(world.checkpoint or start)
        compares = getattr(algorithms.get(algorithm.id), "needs_reference", False)
        if "reference" in roles and learns and (compares or penalises(algorithm.id, algorithm.args)):
            # With its new, untrained adapter disabled, the model itself serves as the reference.
            is_base = start is None and bool(model.lora) and adapter_base(resolve(model.path)) is None
            given["reference"] = given["lm"] if is_base else language_model(start)
        adapts_values = policy.args.get("critic", needs_values) and policy.args.get("value") == "lora"
        if "value_base" in roles and adapts_values and not given["lm"].has_adapter and "reference" not in given:
            given["value_base"] = language_model(start)
        args = {roles[role]: value for role, value in given.items() if role in roles} | policy.args
        made = policies.create(policy.id, **args)
    if "lm" not in roles:  # a language model is already on its device
        made.to(find_device(world.device))
    if (checkpoint := world.checkpoint or start) is not None:
        made.load_weights(checkpoint)
        if world.checkpoint is None and isinstance(made, TokenMask):
            made.refresh_mask()  # the clone's checkpoint has the mask of the model before cloning
    elif isinstance(made, ActionTextPolicy) and made.calibration:
        if not isinstance(world, RandomPlay):
            raise ConfigError(f"{spec.name} does not support random play: remove policy.args.calibration")
        made.calibrate(world.random_play(made.calibration))
    return made


def _num_actions(given: int | None, policy: str, spec: WorldSpec) -> int:
    """Return the number of actions, for policies with one output per action; ``given`` is the config's value."""
    most = spec.num_actions
    if most is None:
        if given is None:
            raise ConfigError(
                f"policy {policy!r} has one output per action, but {spec.name} has a varying number of actions: set "
                "policy.args.num_actions to the maximum"
            )
        return given
    if given not in (None, most):
        raise ConfigError(f"{spec.name} has {most} actions: remove policy.args.num_actions={given}")
    return most


def make_algorithm(algorithm: ComponentConfig, policy: Policy, processes: Processes | None = None) -> Algorithm:
    """Build a config's algorithm, set up for ``policy`` and for the processes that share its work."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError(f"a {type(policy).__name__} has no weights to train: choose a different policy.id")
    if rounded := {p.dtype for p in trained} - {torch.float32}:
        dtype = str(rounded.pop()).removeprefix("torch.")
        warn_caller(
            f"model.dtype={dtype} rounds away updates smaller than about 0.4% of a weight, which are common with "
            "small learning rates: keep float32 (GPUs still compute in bfloat16) or train an adapter (model.lora)"
        )
    made: Algorithm = algorithms.create(algorithm.id, **algorithm.args)
    made.processes = processes or Processes()
    made.setup(policy)
    return made


def _make_language_model(model: ModelConfig, seed: int, device: str, checkpoint: Path | None) -> Any:
    from transformers.utils import logging as transformers_logging

    from groundling.lm import LanguageModel

    transformers_logging.disable_progress_bar()  # it would interfere with the run's own progress bar
    transformers_logging.set_verbosity_error()
    # When peft imports bitsandbytes, it warns about a missing kernel from the hub.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    return LanguageModel.from_pretrained(
        checkpoint or model.path,
        init="pretrained" if checkpoint else model.init,
        seed=seed,
        dtype=model.dtype,
        device=device,
        device_map=model.device_map,
        load_in_4bit=model.load_in_4bit,
        lora=None if checkpoint else model.lora or None,  # a checkpoint has its own adapter
        gradient_checkpointing=model.gradient_checkpointing,
        attention=model.attention,
        tokenizer=None if checkpoint else model.tokenizer,
        revision=model.revision,  # also for the base model of a checkpoint's adapter
        trust_remote_code=model.trust_remote_code,
        max_prompt_tokens=model.max_prompt_tokens,
        add_special_tokens=model.add_special_tokens,
        compile=model.compile,
    )


@dataclass(frozen=True)
class DryRun:
    """Results of a dry run."""

    device: str
    parameters: int
    trainable: int
    updates: int
    memory_bytes: int
    """Bytes for weights (including a frozen reference), gradients and Adam's two moments. Activations, which depend on
    the micro-batch size, and the models of metrics and rewards are not included."""
    seconds: float  # Extrapolated from a few steps and one gradient step
    prompt: str | None  # The first prompt, if the policy reads one


def dry_run(config: Config) -> DryRun:
    """Build everything, take a few steps and one optimizer step, without writing files or querying a judge."""
    check(config)
    # Compilation does not pay off for so few steps.
    config = config.model_copy(update={"model": config.model.model_copy(update={"compile": False})})
    world = world_of(config)
    policy = make_policy(config.policy, config.model, config.algorithm, world, learns=True)
    algorithm: Any = make_algorithm(config.algorithm, policy)
    short = world.shortened(policy.recurrence, algorithm.steps_per_gradient)
    collector = short.collector(policy, algorithm, slice(0, short.config.num_rows))
    epochs, steps, updates = config.training.epochs, config.training.steps, 0
    if epochs is not None:
        whole = world.collector(policy, algorithm, slice(0, config.world.num_rows))
        steps, updates = whole.in_passes(epochs)
    if isinstance(world, TrainingMeasures):
        world.check_measures(policy)
    generator = torch.Generator().manual_seed(config.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* episodes had not ended after")  # expected after so few steps
        collector.collect(policy, generator=generator)  # warm-up
        started = time.monotonic()
        rollout, _ = collector.collect(policy, generator=generator)
    collected = time.monotonic()
    algorithm.update(policy, rollout, generator=generator)
    learnt = time.monotonic()
    collector.close()
    transitions = rollout.num_transitions
    learnt_from = transitions - transitions % algorithm.steps_per_gradient
    seconds = (collected - started) / transitions + (learnt - collected) / learnt_from
    first = rollout.observations[0]
    prompts = policy.prompts([first.observation if isinstance(first, Turn) else first])
    reference = getattr(getattr(policy, "reference", None), "language_model", None)
    both = [*policy.parameters(), *(() if reference is None else reference.parameters())]
    parameters = {id(parameter): parameter for parameter in both}.values()  # the two may share weights
    return DryRun(
        device=str(find_device(config.device)),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        updates=updates or -(-steps // (config.world.steps_per_row * config.world.num_rows)),
        memory_bytes=sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in parameters),
        seconds=seconds * steps,
        prompt=prompts[0] if prompts else None,
    )
