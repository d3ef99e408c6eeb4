"""Checks of settings for Transformers' `generate`."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from groundling.errors import ConfigError, unknown

_NOT_OF_CONFIG = ("custom_generate", "trust_remote_code")  # Arguments of generate that its configuration does not have
_COUNTS = ("num_beams", "num_return_sequences")


def check_generation(key: str, settings: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Check settings of `generate` before hours of training lead to them, without loading a model.

    Refuses unknown names, invalid values, and settings that have no effect with the others, such as temperature
    without sampling. ``key`` is the config key for messages; ``others`` are names that are not settings of generate.
    null: Transformers' default.
    """
    if not settings:
        return
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name in settings:
        if name not in known and name not in _NOT_OF_CONFIG and name not in others:
            raise ConfigError(unknown(f"setting of {key}", name, known))
    _check_values(key, {name: settings[name] for name in known & settings.keys() if settings[name] is not None})


def _check_values(key: str, settings: Mapping[str, Any]) -> None:
    from transformers import GenerationConfig

    from groundling.lm.write.sampling import Sampling

    for name in _COUNTS:
        if type(count := settings.get(name, 1)) is not int or count < 1:
            raise ConfigError(f"{key}.{name} must be a whole number of at least 1, got {count!r}")
    config = GenerationConfig()
    for name, value in settings.items():  # as arguments they would cause warnings of several lines
        setattr(config, name, value)
    refused: Exception | None = None
    try:
        config.validate(strict=True)
    except ValueError as error:
        lines = str(error).splitlines()
        reasons = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        raise ConfigError(f"{key} cannot be used: {(reasons or lines)[0]}") from error
    except TypeError as error:  # a wrong type, for which `Sampling` has better messages
        refused = error
    try:
        Sampling(**{f.name: settings[f.name] for f in fields(Sampling) if f.name in settings})
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    if refused is not None:
        raise ConfigError(f"{key} cannot be used: {refused}") from refused
