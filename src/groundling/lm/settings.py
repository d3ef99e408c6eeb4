"""Which settings Transformers' generate takes."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from groundling.errors import ConfigError
from groundling.registry import unknown

_BESIDE = ("custom_generate", "trust_remote_code")
"""Arguments of generate that are none of its configuration."""
_COUNTS = ("num_beams", "num_return_sequences")


def check_generation(key: str, settings: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Check settings before hours of training lead to them; no model is loaded.

    Args:
        key: Where they stand, for the message: ``evaluation.generation``, say.
        settings: By name; null is Transformers' default.
        others: Names that are something else's.

    Raises:
        ConfigError: generate takes none of that name, a value cannot be followed, or a setting does nothing beside the
            others, as temperature where nothing is sampled.
    """
    if not settings:
        return
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name in settings:
        if name not in known and name not in _BESIDE and name not in others:
            raise ConfigError(unknown(f"setting of {key}", name, known))
    _check_values(key, {name: settings[name] for name in known & settings.keys() if settings[name] is not None})


def _check_values(key: str, settings: Mapping[str, Any]) -> None:
    """What rollouts and generate share is checked as rollouts' settings are, the rest by Transformers."""
    from transformers import GenerationConfig

    from groundling.lm.write.sampling import Sampling

    for name in _COUNTS:
        if type(count := settings.get(name, 1)) is not int or count < 1:
            raise ConfigError(f"{key}.{name} must be a whole number of at least 1, got {count!r}")
    config = GenerationConfig()
    for name, value in settings.items():  # called with them, it would warn in several lines
        setattr(config, name, value)
    refused: Exception | None = None
    try:
        config.validate(strict=True)
    except ValueError as error:
        lines = str(error).splitlines()
        reasons = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        raise ConfigError(f"{key} cannot be used: {(reasons or lines)[0]}") from error
    except TypeError as error:  # of a value of another type, which is said better below, where it is known
        refused = error
    try:
        Sampling(**{f.name: settings[f.name] for f in fields(Sampling) if f.name in settings})
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    if refused is not None:
        raise ConfigError(f"{key} cannot be used: {refused}") from refused
