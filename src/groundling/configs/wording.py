"""OmegaConf's and Hydra's explanations, in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationValidationError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from groundling.errors import ConfigError

_QUOTED = re.compile("'(.*)'")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Raise what OmegaConf and Hydra raise as `ConfigError`."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The first sentence of an explanation, with the key that it is about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingMandatoryValue) and error.full_key:
        return f"{error.full_key} is not set: give {error.full_key} a value"
    if isinstance(error, InterpolationValidationError):
        return f"{error.full_key}: what ${{…}} names there is of another type than {error.full_key} must be"
    if isinstance(error, InterpolationKeyError) and (named := _QUOTED.search(lines[0])):
        name = f"${{{named[1]}}}"
        return f"{error.full_key}: {name} names no key: name one, as in ${{world.env}}, or write the value itself"
    if lines and lines[0].endswith("raised while composing config:") and len(lines) > 1:
        place, reason = lines[0].partition(": ")[0], lines[1]
        if reason.startswith("Key 'experiment' not in"):
            reason = "its keys would lie under 'experiment': begin the file with the line # @package _global_"
        return f"{place}: {reason}"
    key = next((line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")), "")
    said = f"{key}: {lines[0]}" if key and lines else " ".join(lines[:1]) or type(error).__name__
    cause = error.__cause__
    return f"{said} ({one_line(cause)})" if isinstance(cause, OmegaConfBaseException) else said
