"""What is set in vain is an error: the message says why it does nothing, or who would use it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import algorithms, penalises
from groundling.config.schema import Config
from groundling.errors import ConfigError, UnusedKey
from groundling.lm.load.adapters import adapter_base
from groundling.lm.load.sources import resolve
from groundling.policies.policy import has_model, policies
from groundling.registry import ComponentConfig
from groundling.rewards import RewardPartConfig, check_parts, chosen_parts, parts
from groundling.worlds import World, kind
from groundling.worlds.config import Use


def check_used(config: Config) -> None:
    """Check that everything that is set, and is not as the schema has it, is used by the parts that are chosen.

    Raises:
        UnusedKey: something does nothing; the message says why.
        ConfigError: a part of the reward looks at what there is not, or nothing is learnt from.
    """
    world = kind(config.world.id)
    use = _use(config.policy, config.algorithm, config.reward, world)
    idle = {**config.world.unused(use), **_unused(config, world, use.demonstrated)}
    usual = Config(name=config.name, world=world.config_class(), evaluation=world.evaluation_class())
    defaults = dict(_leaves("", usual))
    for key, value in _leaves("", config):
        reason = idle.get(key) or idle.get(key.partition(".")[0])
        if key == "reward" and not any(config.reward.values()):  # whose parts have all been taken out
            continue
        if reason is not None and value != defaults[key]:
            raise UnusedKey(
                key, f"{key}={_value_text(value)} does nothing: {reason}; leave it at {_value_text(defaults[key])}"
            )
    check_parts(config.reward, world.offers)
    chosen = chosen_parts(config.reward, world.offers)
    if (
        chosen
        and not any(part.coefficient for part in chosen.values())
        and not penalises(config.algorithm.id, config.algorithm.args)
    ):
        raise ConfigError(
            "there is no reward to learn from: the coefficients of "
            f"{', '.join(f'reward.{name}' for name in chosen)} are all 0; set one of them to another number"
        )


def check_said(config: Config, said: Mapping[str, Any]) -> None:
    """Check that what the command line says is used where an experiment may have both, and one of them decides.

    Raises:
        UnusedKey: steps are said, and the length is in epochs.
    """
    epochs = config.training.epochs
    if "training.steps" in said and epochs is not None:
        raise UnusedKey(
            "training.steps",
            f"training.steps={config.training.steps} does nothing: training.epochs={epochs} says how long the data are "
            "learnt from; leave it out, or give training.epochs=null, too",
        )


def _use(
    policy: ComponentConfig,
    algorithm: ComponentConfig,
    reward: Mapping[str, RewardPartConfig | None],
    world: type[World],
) -> Use:
    """What these sections make of a world; a component that does not say is taken to use all."""
    learner = algorithms.get(algorithm.id)
    needs = getattr(policies.get(policy.id), "needs", ())
    chosen = chosen_parts(reward, world.offers)
    looked_at = [getattr(parts.get(part.id or name), "needs", ("captions",)) for name, part in chosen.items()]
    return Use(
        demonstrated=bool(getattr(learner, "offline", False)),
        learns_values=bool(getattr(learner, "needs_values", True)),
        tells_entropy=bool(getattr(learner, "reports_entropy", True)),
        policy_reads=not needs or not {"words", "prompt"}.isdisjoint(needs) or not _can_act(policy, world),
        captions_read=any("captions" in evidence for evidence in looked_at),
    )


def _can_act(policy: ComponentConfig, world: type[World]) -> bool:
    """Whether a policy may act in this kind of world: one that cannot is refused for that, and not for idle keys."""
    accepts = getattr(policies.get(policy.id), "accepts", None)  # a function that makes a policy does not say
    return accepts is None or accepts(world.offers) is None


def _unused(config: Config, world: type[World], demonstrated: bool) -> dict[str, str]:
    """By key or section, why nothing that the config chooses uses it, whatever the world."""
    policy, model = config.policy, config.model
    idle = {}
    if not has_model(policy.id) and _can_act(policy, world):
        idle["model"] = f"policy {policy.id!r} has no language model"
    if model.revision is not None and _is_local(model.path):
        idle["model.revision"] = f"model.path={model.path} is a folder on this machine, which has no revisions"
    if policy.args.get("prompt") == "conversation":
        idle["model.add_special_tokens"] = "conversations are written by the chat template"
    if config.device.partition(":")[0] == "cpu":
        idle["model.device_map"] = f"device={config.device} has one device, and no GPUs to spread layers over"
    if demonstrated:
        idle["cloning"] = "its algorithm clones a dataset itself"
    elif config.cloning.episodes is None:
        idle["cloning"] = "it is for a run that clones first (cloning.episodes)"
    if not demonstrated:
        idle["training.epochs"] = (
            f"algorithm {config.algorithm.id} learns from the policy's own episodes or texts: set training.steps"
        )
    return idle


def _is_local(path: str) -> bool:
    """Whether a model is a folder here; not of an adapter, which may stand on weights of the hub's."""
    folder = Path(resolve(path))
    return folder.is_dir() and adapter_base(str(folder)) is None


def _leaves(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    """By dotted key every value; free arguments are one value."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from _leaves(f"{prefix}{f.name}.", value)
        else:
            yield prefix + f.name, value


def _value_text(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return _value_text(asdict(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_value_text(one)}" for name, one in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
