"""Libraries and models that metrics load at first use."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from groundling.errors import GroundlingError, pass_out_of_memory


def library(module: str, extra: str) -> Any:
    """Import ``module``.

    Raises:
        GroundlingError: it is not installed; the message names the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GroundlingError(
            f"{module.partition('.')[0]} is not installed: pip install 'groundling[{extra}]' ({error})"
        ) from error


def check_library(module: str, extra: str) -> None:
    """Raise the `GroundlingError` of `library` if ``module`` is not installed, without importing it."""
    name = module.partition(".")[0]
    if importlib.util.find_spec(name) is None:
        raise GroundlingError(f"{name} is not installed: pip install 'groundling[{extra}]'")


def check_model(kind: str, name: str) -> Any:
    """Load the config of the Transformers model ``name``, a folder or hub id, without its weights.

    Raises:
        GroundlingError: the model is missing (the message names its ``kind``), has an adapter, or needs the hub's code.
    """
    from transformers import AutoConfig

    from groundling.lm.load.loading import quietly, refuse_adapter, refuse_kernels
    from groundling.lm.load.model_files import check_model_files

    check_model_files(name)
    with loading(kind, name), quietly():
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    refuse_adapter(name)
    refuse_kernels(config, name)
    return config


@contextmanager
def loading(kind: str, name: str) -> Iterator[None]:
    """Convert errors of Transformers, while it loads the model ``name``, to `GroundlingError`."""
    try:
        yield
    except GroundlingError:
        raise
    except Exception as error:  # Transformers raises many kinds
        pass_out_of_memory(error)
        raise GroundlingError(
            f"the {kind} {name} cannot be loaded (a folder or a hub id is needed, and the hub must be reachable for "
            f"the latter): {(str(error).splitlines() or [''])[0]}"
        ) from error
