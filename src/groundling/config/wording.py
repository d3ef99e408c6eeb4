"""OmegaConf's and Hydra's explanations, in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import ConfigCompositionException, HydraException
from omegaconf.errors import (
    ConfigKeyError,
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
        return f"{error.full_key}: the value that ${{…}} names there is of another type than {error.full_key} must be"
    if isinstance(error, InterpolationKeyError) and (named := _QUOTED.search(lines[0])):
        name = f"${{{named[1]}}}"
        return f"{error.full_key}: {name} names no key: name one, as in ${{world.env}}, or write the value itself"
    reason = error.__context__
    if _is_of_laying_over(error) and isinstance(reason, OmegaConfBaseException):
        place = lines[0].partition(": ")[0]  # In 'experiment/mine'
        if isinstance(reason, ConfigKeyError) and reason.full_key == "experiment":
            return f"{place}: its keys would lie under 'experiment': begin the file with the line # @package _global_"
        return f"{place}: {' '.join(str(reason).splitlines()[:1])}"
    key = next((line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")), "")
    sentence = f"{key}: {lines[0]}" if key and lines else " ".join(lines[:1]) or type(error).__name__
    cause = error.__cause__
    return f"{sentence} ({one_line(cause)})" if isinstance(cause, OmegaConfBaseException) else sentence


def _is_of_laying_over(error: BaseException) -> bool:
    """Whether Hydra could not lay a file over the others: of all that it makes of OmegaConf's, this has no cause."""
    return isinstance(error, ConfigCompositionException) and error.__cause__ is None
