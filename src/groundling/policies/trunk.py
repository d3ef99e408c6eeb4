"""The language model that the values of a policy's texts are read off."""

from typing import Literal, get_args

from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.registry import unknown

Value = Literal["separate", "shared"]


def make_trunk(value: Value, lm: LanguageModel) -> LanguageModel | None:
    """What `TokenPolicy` describes; None where ``lm``, the policy's own, gives the hidden states.

    Raises:
        ConfigError: there is no such value function.
    """
    if value not in get_args(Value):
        raise ConfigError(unknown("value function", value, get_args(Value)))
    if value == "shared":
        return None
    return _without_output(lm.copy())


def _without_output(trunk: LanguageModel) -> LanguageModel:
    """The same, whose output layer, for which values have no use, is not trained where it is one of its own."""
    head, embeddings = trunk.model.get_output_embeddings(), trunk.model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        head.requires_grad_(False)
    return trunk
