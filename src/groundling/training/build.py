"""From a config to the parts that it names."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.configs.schema import Config
from groundling.devices import find_device
from groundling.envs import nethack
from groundling.envs.make import ActionNames, TextEnvMaker, has_symbols, name_actions
from groundling.envs.seeds import training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, check_accepts, policies
from groundling.processes import Processes
from groundling.registry import Registry, unknown
from groundling.training.collect import EnvCollector
from groundling.training.collector import Collector
from groundling.training.demonstrations import Demonstrations
from groundling.worlds import WorldSpec
from groundling.worlds.world import Offer

if TYPE_CHECKING:
    from groundling.training.sharding import Shards
    from groundling.training.writing import PromptEncoder


def actions_of(config: Config) -> ActionNames:
    """What the actions are called: by the config, by NetHack, by GLAM in the env's language, or by the env."""
    env = config.env
    if env.id in nethack.TASKS:
        return ActionNames(tuple(nethack.ACTIONS), len(nethack.ACTIONS))
    return name_actions(env.id, env.args, env.language, env.actions)


def world_spec(config: Config) -> WorldSpec:
    """What the config's world offers a policy.

    Raises:
        ConfigError: there is no such env, or its actions are not those that env.actions names.
    """
    env = config.env
    if config.pool.id is not None:
        return WorldSpec(f"pool {config.pool.id}", frozenset({"prompt"}), "token")
    if env.id in nethack.TASKS:
        return WorldSpec(env.id, frozenset({"glyphs"}), "choice", len(nethack.ACTIONS))
    offers: set[Offer] = {"words"}
    if has_symbols(env.id, env.args, env.language):
        offers.add("symbols")
    return WorldSpec(env.id, frozenset(offers), "choice", actions_of(config).most)


def make_envs(
    config: Config, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """The config's envs, not yet reset."""
    args = {**config.env.args, "language": config.env.language}
    if render_mode is not None:
        args["render_mode"] = render_mode
    return TextVectorEnv(
        TextEnvMaker.of(config.env.id, **args),
        num_envs,
        actions_of(config).names,
        seed_of=seed_of,
        history=config.env.history,
        num_workers=config.env.num_workers,
        timeout=config.env.timeout,
    )


def make_collector(config: Config, policy: Policy, algorithm: Algorithm, own: slice) -> Collector:
    """What a run's rollouts come from: the config's envs on training seeds, or its dataset.

    Args:
        config: The run's.
        policy: Acts in them.
        algorithm: Learns from them.
        own: Which of the envs, or of the dataset's columns, are this process's.
    """
    training, env = config.training, config.env
    if config.pool.id is not None:
        return _make_writing(config, policy, algorithm, own)
    if config.data.path is not None:
        return Demonstrations(
            Path(config.data.path),
            env.num_envs,
            own,
            actions_of(config).names,
            env.history,
            config.seed,
            training.steps_per_update,
        )
    if env.id in nethack.TASKS:
        from groundling.training.nethack import make_nethack_collector  # which imports nle

        return make_nethack_collector(config, own)
    count = own.stop - own.start
    envs = make_envs(config, count, lambda i, k: training_seed(config.seed, own.start + i, k))
    envs.reset()
    return EnvCollector(
        envs,
        training.steps_per_update,
        policy.initial_memory(count),
        others=(own.start, env.num_envs - own.stop),
        reward_scale=env.reward_scale,
        bootstrap=algorithm.gamma if env.bootstrap_truncated else None,
    )


def _make_writing(config: Config, policy: Policy, algorithm: Algorithm, own: slice) -> Collector:
    """Texts that the policy writes, or of an algorithm that clones the references, to the pool's prompts."""
    from groundling.envs.text_generation import SampleOrder, pools
    from groundling.training.writing import References, WrittenTexts, as_writer, check_lengths

    pool, num_texts, num_tokens = config.pool, config.env.num_envs, config.training.steps_per_update
    assert pool.id is not None
    samples = pools.create(pool.id, **pool.args).prepare("train")
    if algorithm.demonstrated:
        order = SampleOrder(samples, config.seed, replacement=False)
        encode, has_decoder = make_prompt_encoder(config, policy), as_writer(policy).lm.is_encoder_decoder
        return References(order, encode, num_texts, own, num_tokens, has_decoder)
    reward = make_reward(config, as_writer(policy))
    if reward is None:
        raise ConfigError("a run that writes needs a reward: set reward.id (see `groundling list rewards`)")
    order = SampleOrder(samples, config.seed, pool.replacement)
    encode = make_prompt_encoder(config, policy)
    check_lengths(as_writer(policy), encode.max_prompt_length, num_tokens)
    return WrittenTexts(
        order, encode, reward, num_texts, own, num_tokens, pool.texts_per_prompt, algorithm.processes
    )


def in_steps(config: Config, collector: Collector) -> Config:
    """The config with training.steps for training.epochs, if it has these.

    Raises:
        ConfigError: there are no data to go through.
    """
    epochs = config.training.epochs
    if epochs is None:
        return config
    return replace(config, training=replace(config.training, steps=collector.steps_of(epochs)))


def make_prompt_encoder(config: Config, policy: Policy) -> "PromptEncoder":
    """How the config's prompts are read by the policy's language model.

    Raises:
        ConfigError: the policy does not write, or env.args is not about prompts.
    """
    from groundling.training.writing import PromptEncoder, as_writer

    known = ("max_prompt_length", "prompt_truncation_side")
    for name in config.env.args:
        if name not in known:
            raise ConfigError(unknown("argument of a run that writes, env.args", name, known))
    return PromptEncoder(as_writer(policy).lm.tokenizer, **config.env.args)


def make_reward(config: Config, policy: Any) -> Any:
    """The config's reward of texts; None if it names none. As for `lm`: see `make_metrics`."""
    if config.reward.id is None:
        return None
    from groundling.rewards import rewards

    return _made_of_text(rewards, config.reward.id, config.reward.args, policy)


def make_metrics(config: Config, policy: Any) -> list[Any]:
    """The config's metrics of texts, what it repeats left out.

    One with an argument called ``lm`` gets the policy's, unless told another.
    """
    from groundling.metrics import metrics

    named = config.evaluation.metrics
    distinct = [metric for place, metric in enumerate(named) if metric not in named[:place]]
    return [_made_of_text(metrics, metric.id, metric.args, policy) for metric in distinct]


def _made_of_text(registry: Registry[Any], id: str, args: Mapping[str, Any], policy: Any) -> Any:
    """A metric or reward that has what it needs: what is missing is told before anything is written for it."""
    asks = "lm" in inspect.signature(registry.get(id)).parameters
    made = registry.create(id, **({"lm": policy.lm} if asks else {}) | dict(args))
    made.check()
    return made


def make_policy(config: Config, checkpoint: Path | None = None, *, learns: bool = False) -> Policy:
    """The config's policy: as training begins, or with the weights of ``checkpoint``.

    New weights (heads, random models) depend on the config's seed alone.

    Args:
        config: The run's.
        checkpoint: A checkpoint's folder.
        learns: Whether it is going to be trained: only then it has the reference of a KL penalty.

    Raises:
        ConfigError: it is going to be trained, and cannot be.
    """
    if learns and config.model.load_in_4bit and not config.model.lora:
        raise ConfigError(
            "model.load_in_4bit=true keeps weights that cannot be trained: give model.lora={r: 16} too"
        )
    check_accepts(config.policy.id, world_spec(config))
    factory = policies.get(config.policy.id)
    parameters = inspect.signature(factory).parameters
    args: dict[str, Any] = dict(config.policy.args)
    if "language" in parameters:
        args.setdefault("language", config.env.language)
    if "num_actions" in parameters:
        args["num_actions"] = _num_actions(config)
    if "critic" in parameters:
        args.setdefault("critic", getattr(algorithms.get(config.algorithm.id), "needs_values", True))
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        if "lm" in parameters:
            args["lm"] = _make_language_model(config, checkpoint)
        if "reference" in parameters and learns and _penalises(config):
            args["reference"] = args["lm"] if _has_new_adapter(config) else _make_language_model(config, None)
        if "value_base" in parameters and _needs_value_base(args):
            args["value_base"] = _make_language_model(config, None)
        policy = policies.create(config.policy.id, **args)
    if "lm" not in parameters:  # a language model is where it belongs already
        policy.to(find_device(config.device))
    if checkpoint is not None:
        policy.load_weights(checkpoint)
    return policy


def _num_actions(config: Config) -> int:
    """For policies that have one output for each action: how many there are at most."""
    most = actions_of(config).most
    given: int | None = config.policy.args.get("num_actions")
    if most is None:
        if given is None:
            raise ConfigError(
                f"policy {config.policy.id!r} has an output for each action, and those of env {config.env.id} are "
                "texts of any number: set policy.args.num_actions to the length of its longest list"
            )
        return given
    if given not in (None, most):
        raise ConfigError(
            f"policy.args.num_actions={given}, and env {config.env.id} has {most}: leave it out"
        )
    return most


def _penalises(config: Config) -> bool:
    """Whether the algorithm has a KL penalty, for which the policy needs the weights that training began with."""
    default = getattr(algorithms.get(config.algorithm.id), "kl_coefficient", 0)
    return bool(config.algorithm.args.get("kl_coefficient", default))


def _needs_value_base(args: Mapping[str, Any]) -> bool:
    """Whether an adapter of the values needs the weights that training began with, and no reference has them."""
    adapted = args.get("critic", True) and args.get("value") == "lora"
    return adapted and not args["lm"].has_adapter and "reference" not in args


def _has_new_adapter(config: Config) -> bool:
    """Whether training began with an adapter that had learnt nothing: the model without it is then the reference."""
    from groundling.lm import loading

    return bool(config.model.lora) and loading.adapter_base(loading.resolve(config.model.path)) is None


def make_algorithm(config: Config, policy: Policy, processes: Processes | None = None) -> Algorithm:
    """The config's algorithm, set up for ``policy`` and for the processes that share its work.

    Raises:
        ConfigError: the policy has nothing to train, or the algorithm does not suit it or the data.
    """
    if not any(p.requires_grad for p in policy.parameters()):
        raise ConfigError(f"policy {config.policy.id!r} has no weights to train: choose another policy.id")
    if any(p.requires_grad and p.dtype != torch.float32 for p in policy.parameters()):
        warnings.warn(
            f"model.dtype={config.model.dtype} rounds away updates of less than about 0.4 % of a weight, as small "
            "learning rates make them: keep float32 (GPUs compute in bfloat16 all the same) or train model.lora",
            stacklevel=2,
        )
    algorithm: Algorithm = algorithms.create(config.algorithm.id, **config.algorithm.args)
    if algorithm.demonstrated and config.data.path is None and config.pool.id is None:
        raise ConfigError(
            f"algorithm {config.algorithm.id} learns from a dataset: set data.path=FOLDER (see `groundling collect`)"
        )
    if config.data.path is not None and not algorithm.demonstrated:
        raise ConfigError(
            f"algorithm {config.algorithm.id} learns from what the policy does itself: data.path must be null"
        )
    algorithm.processes = processes or Processes()
    algorithm.setup(policy)
    return algorithm


def make_shards(config: Config, policy: Policy, processes: Processes) -> "Shards | None":
    """What deals the policy's layers out over the processes, if the config wants it.

    Raises:
        ConfigError: they cannot be dealt out.
    """
    if not config.model.fsdp:
        return None
    from groundling.training.sharding import shard  # and torch.distributed, where there are several processes

    return shard(config, policy, processes)


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
        device=config.device,
        device_map=model.device_map,
        load_in_4bit=model.load_in_4bit,
        lora=None if checkpoint else model.lora or None,  # a checkpoint brings its adapter
        gradient_checkpointing=model.gradient_checkpointing,
        attention=model.attention,
        tokenizer=None if checkpoint else model.tokenizer,
        revision=model.revision,  # also of the weights that a checkpoint's adapter stands on
        trust_remote_code=model.trust_remote_code,
        max_prompt_tokens=model.max_prompt_tokens,
        compile=model.compile,
    )
