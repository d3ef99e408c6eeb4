"""Libraries and models that are loaded when a metric first needs them."""

import importlib
from typing import Any

from groundling.errors import GroundlingError


def library(module: str, extra: str) -> Any:
    """Import ``module``.

    Raises:
        GroundlingError: it is not installed; the message says which extra of ours has it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GroundlingError(
            f"{module.partition('.')[0]} is not installed: pip install 'groundling[{extra}]' ({error})"
        ) from error
