"""Argument types shared by several policies: objects that a run provides, and prompt settings."""

from collections.abc import Mapping
from typing import Annotated

from groundling.fields import Ge, Gt, OnlyWith, Provided, ReadByModel, are_texts
from groundling.lm import LanguageModel
from groundling.lm.write.sampling import MaskType

TrainedModel = Annotated[LanguageModel, Provided("lm", decided_by="model.path")]  # The model at ``model.path``
ReferenceModel = Annotated[LanguageModel | None, Provided("reference", decided_by="model.path")]
"""The initial model, if the algorithm penalises divergence from it."""
ValueBase = Annotated[LanguageModel | None, Provided("value_base", decided_by="model.path")]
"""The initial model, used as the base of the value function's adapter."""
NumActions = Annotated[int, Provided("num_actions", settable=int)]  # Maximum number of admissible actions
Language = Annotated[str, Provided("language", settable=str)]  # The language of the env's texts
Critic = Annotated[bool, Provided("critic", settable=bool)]  # True if the algorithm learns a value function
Replacements = Annotated[Mapping[str, str] | None, ReadByModel.when(are_texts)]  # Maps words to replacements
SystemPrompt = Annotated[str | None, ReadByModel]  # Replaces the system prompt of a conversation
Temperature = Annotated[float, Gt(0)]
MaskKind = MaskType | None
TopMask = Annotated[float | None, Gt(0), OnlyWith("mask_type")]
MinTokens = Annotated[int | None, Ge(1), OnlyWith("mask_type", ("learned_top_p",))]
