"""Arguments of policies that their run gives."""

from typing import Annotated

from groundling.fields import Provided
from groundling.lm import LanguageModel

TrainedModel = Annotated[LanguageModel, Provided("lm", decided_by="model.path")]
"""The language model of ``model.path``."""
ReferenceModel = Annotated[LanguageModel | None, Provided("reference", decided_by="model.path")]
"""The model as training began, where the algorithm penalises the distance from it."""
ValueBase = Annotated[LanguageModel | None, Provided("value_base", decided_by="model.path")]
"""The model as training began, for an adapter of the values."""
NumActions = Annotated[int, Provided("num_actions", settable=int)]
"""The largest number of admissible actions."""
Language = Annotated[str, Provided("language", settable=str)]
"""The language of the env's sentences."""
Critic = Annotated[bool, Provided("critic", settable=bool)]
"""Whether the algorithm learns a value function."""
