"""The language model that the values of a policy's texts are read off."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.registry import unknown

Value = Literal["separate", "lora", "shared"]


def make_trunk(
    value: Value, lm: LanguageModel, base: LanguageModel | None, lora: Mapping[str, Any]
) -> LanguageModel | None:
    """What `TokenPolicy` describes; None where ``lm``, the policy's own, gives the hidden states.

    An adapter of the values is one of a copy that shares all frozen weights, and no second one of the same model: so
    nothing has to be switched between two passes, where a trace or a recomputation in the backward pass would take
    the wrong one.

    Raises:
        ConfigError: there is no such value function, or nothing frozen for its adapter.
        GroundlingError: peft is not installed, or a setting of ``lora`` is wrong.
    """
    if value not in get_args(Value):
        raise ConfigError(unknown("value function", value, get_args(Value)))
    if lora and value != "lora":
        raise ConfigError(f"policy.args.value_lora is for value=lora, this one is {value}: leave it out")
    if value == "shared":
        return None
    return _without_output(lm.copy() if value == "separate" else _adapted(lm, base, lora))


def _adapted(lm: LanguageModel, base: LanguageModel | None, lora: Mapping[str, Any]) -> LanguageModel:
    if lm.has_adapter:
        return lm.with_new_adapter(lora) if lora else lm.copy()
    if base is None:
        raise ConfigError(
            "policy.args.value=lora needs frozen weights for its adapter, and here all are trained, with neither "
            "value_base nor reference: set model.lora={r: 16}, or value=separate or shared"
        )
    return base.requires_grad_(False).with_new_adapter(lora)


def _without_output(trunk: LanguageModel) -> LanguageModel:
    """The same, whose output layer, for which values have no use, is not trained where it is one of its own."""
    head, embeddings = trunk.model.get_output_embeddings(), trunk.model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        head.requires_grad_(False)
    return trunk
