"""Reward models, trained on judges' preferences."""

from pathlib import Path

import torch
from safetensors import SafetensorError

from groundling.errors import ConfigError, pass_out_of_memory
from groundling.io.documents import SETTINGS, read_object
from groundling.judges.reward_models.models import (
    CharacterRewardModel,
    ClassifierRewardModel,
    LanguageRewardModel,
    MotifRewardModel,
    TableRewardModel,
)
from groundling.judges.reward_models.reward_model import DESCRIPTION, Normalization, RewardModel, reward_models
from groundling.runtime.devices import find_device

__all__ = [
    "CharacterRewardModel",
    "ClassifierRewardModel",
    "LanguageRewardModel",
    "MotifRewardModel",
    "RewardModel",
    "TableRewardModel",
    "load_reward_model",
    "reward_models",
]


def load_reward_model(folder: str | Path, device: str | torch.device = "cpu") -> RewardModel:
    """Load a model written by `RewardModel.save` or `groundling distill`; nothing is unpickled.

    Raises:
        ConfigError: The folder contains no reward model, a broken one, one of an unknown kind, or a file that is a
            device or a pipe or that links outside the folder.
    """
    from groundling.lm.load.model_files import check_model_files  # slow to import

    folder = Path(folder)
    if not (folder / DESCRIPTION).is_file():
        raise ConfigError(f"no reward model in {folder}: train one with `groundling distill … --output {folder}`")
    check_model_files(folder)
    try:
        description = read_object(folder / DESCRIPTION, SETTINGS)
        kind = reward_models.get(description["model"])
        assert isinstance(kind, type) and issubclass(kind, RewardModel)
        model = kind._load(folder, description["args"])
        if description["normalization"] is not None:
            values = description["normalization"]
            model.normalization = Normalization(values["mean"], values["variance"], tuple(values["quantiles"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        pass_out_of_memory(error)
        raise ConfigError(f"{folder} contains no readable reward model: {error!r}") from error
    return model.to(find_device(device)).eval()
