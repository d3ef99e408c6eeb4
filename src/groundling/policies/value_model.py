"""The language model that the values of a policy's texts are computed from."""

from collections.abc import Mapping
from typing import Any, Literal

from groundling.errors import ConfigError
from groundling.lm import LanguageModel

Value = Literal["separate", "lora", "shared"]


def make_value_model(
    value: Value, lm: LanguageModel, base: LanguageModel | None, lora: Mapping[str, Any]
) -> LanguageModel | None:
    """Make the value function's model from the arguments of `TokenPolicy`; None if it is the policy's own."""
    # The LoRA adapter of the values belongs to a copy that shares all frozen weights. A second adapter of the same
    # model would have to be switched between passes, and a trace, or recomputation in the backward pass, would take
    # the wrong one.
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


def _without_output(model: LanguageModel) -> LanguageModel:
    """Freeze the output layer, which values do not use, unless it is tied to the input embeddings."""
    head, embeddings = model.model.get_output_embeddings(), model.model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        head.requires_grad_(False)
    return model
