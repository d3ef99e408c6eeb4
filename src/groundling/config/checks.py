"""Check a complete config before anything is loaded, and report settings that have no effect."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import algorithms, penalises
from groundling.config.facts import Purpose, components
from groundling.config.schema import Config, config_of
from groundling.errors import ConfigError, UnknownEnv, UnusedKey, unknown
from groundling.lm.load.model_files import adapter_base, resolve
from groundling.policies.policy import has_model, policies
from groundling.registry import missing_modules
from groundling.rewards import check_parts, chosen_parts, parts
from groundling.rewards.part import check_name
from groundling.worlds import World, kind
from groundling.worlds.config import Use


def check(config: Config, said: Mapping[str, Any] = {}, purpose: Purpose = "training") -> None:
    """Check a config before anything is loaded; ``said`` contains the `leaves` set on the command line."""
    # Only training, and evaluation without an env reward, require the modules that register all parts of the reward.
    is_measured = purpose == "playing" and "env" not in kind(config.world.id).offers.evidence
    for name, part in list(config.reward.items()):
        check_name(name)
        is_said = any(key.startswith(f"reward.{name}.") for key in said)
        if part and purpose != "training" and not is_said and (part.id or name) not in parts:
            if is_measured:
                raise ConfigError(
                    f"unknown reward {part.id or name!r}, which evaluates the texts: if it is a function in a file, "
                    f"add --import FILE.py:{part.id or name} (in Python, register it with groundling.rewards.register), "
                    f"or remove it with ~reward.{name}"
                )
            config.reward[name] = None
    # Recorded results can be shown without the modules that the run used.
    lacking = purpose == "showing" and bool(missing_modules(config.imports))
    for key, registry, id, args in components("", config_of(config.world.id), config):
        if not (lacking and registry in (policies, algorithms)):
            registry.check(id, args, key)
    for name, part in config.reward.items():
        factory = None if part is None else parts.get(part.id or name)
        if part is not None and inspect.isclass(factory) and not lacking:  # its constructor may check more
            try:
                factory(**part.args)
            except ConfigError as error:
                raise ConfigError(f"reward.{name}.args: {error}") from error
    try:
        config.world.check()
    except UnknownEnv:
        if purpose not in ("acting", "showing"):
            raise
    config.evaluation.check()
    id, baselines = config.world.id, config.evaluation.baselines
    known = (*(() if config.cloning.episodes is None else ("clone",)), "zero-shot", *kind(id).baselines)
    for name in baselines:
        if name not in known:
            raise ConfigError(unknown(f"baseline of a {id} world (evaluation.baselines)", name, known))
        if baselines.count(name) > 1:
            raise ConfigError(f"evaluation.baselines lists {name} twice: list each baseline once")
    if not lacking:
        check_used(config)


def check_used(config: Config) -> None:
    """Raise `UnusedKey` for settings without effect and `ConfigError` for rewards that are 0 or cannot be computed."""
    world, use = kind(config.world.id), _use(config)
    policy, model = config.policy, config.model
    idle = dict(config.world.unused(use))
    if not has_model(policy.id) and _can_act(config, world):
        idle["model"] = f"policy {policy.id!r} has no language model"
    # The base model of a local adapter may be on the hub.
    if model.revision is not None and Path(resolve(model.path)).is_dir() and adapter_base(resolve(model.path)) is None:
        idle["model.revision"] = f"model.path={model.path} is a local folder, which has no revisions"
    if policy.args.get("prompt") == "conversation":
        idle["model.add_special_tokens"] = "the chat template formats conversations"
    if config.device.partition(":")[0] == "cpu":
        idle["model.device_map"] = f"device={config.device} has no GPUs to spread layers over"
    if use.demonstrated:
        idle["cloning"] = "the algorithm itself clones a dataset"
    elif config.cloning.episodes is None:
        idle["cloning"] = "it only applies if cloning.episodes is set"
    if not use.demonstrated:
        idle["training.epochs"] = (
            f"algorithm {config.algorithm.id} learns from the policy's own episodes or texts (set training.steps)"
        )
    present, usual = config.model_dump(), config_of(config.world.id).defaults()
    for key, reason in idle.items():
        section, _, name = key.partition(".")
        names = [name] if name else list(usual[section])  # empty for the reward, whose parts are optional
        pairs = {f"{section}.{one}": (present[section][one], usual[section][one]) for one in names}
        if not names and any(present[section].values()):
            pairs = {section: (present[section], usual[section])}
        for one, (value, default) in pairs.items():
            if value != default:
                raise UnusedKey(one, f"{one}={_text(value)} does nothing: {reason}; leave it at {_text(default)}")
    check_parts(config.reward, world.offers)
    chosen = chosen_parts(config.reward, world.offers)
    if (
        chosen
        and not any(part.coefficient for part in chosen.values())
        and not penalises(config.algorithm.id, config.algorithm.args)
    ):
        zeros = ", ".join(f"reward.{name}" for name in chosen)
        raise ConfigError(f"there is no reward to learn from: the coefficients of {zeros} are all 0; change one")


def _use(config: Config) -> Use:
    """Return how the components use the world; a component that declares nothing is assumed to use everything."""
    world, learner = kind(config.world.id), algorithms.get(config.algorithm.id)
    needs = getattr(policies.get(config.policy.id), "needs", ())
    chosen = chosen_parts(config.reward, world.offers)
    read = [getattr(parts.get(part.id or name), "needs", ("captions",)) for name, part in chosen.items()]
    return Use(
        demonstrated=bool(getattr(learner, "offline", False)),
        learns_values=bool(getattr(learner, "needs_values", True)),
        tells_entropy=bool(getattr(learner, "reports_entropy", True)),
        policy_reads=not needs or not {"words", "prompt"}.isdisjoint(needs) or not _can_act(config, world),
        captions_read=any("captions" in evidence for evidence in read),
    )


def _can_act(config: Config, world: type[World]) -> bool:
    """Return True if the policy can act in the world; if not, that error is reported instead of unused keys."""
    accepts = getattr(policies.get(config.policy.id), "accepts", None)
    return accepts is None or accepts(world.offers) is None


def _text(value: Any) -> str:
    """Format a value as in an override."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
