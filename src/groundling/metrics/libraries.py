"""Libraries and models that metrics load at first use."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from groundling.errors import GroundlingError, pass_out_of_memory
from groundling.runtime.devices import find_device


def library(module: str) -> Any:
    """Import ``module``, which the extra ``metrics`` installs; raise `GroundlingError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise GroundlingError(f"{name} is not installed: pip install 'groundling[metrics]' ({error})") from error


def check_library(name: str) -> None:
    """Raise `GroundlingError` if the package ``name`` is not installed, without importing it."""
    if importlib.util.find_spec(name) is None:
        raise GroundlingError(f"{name} is not installed: pip install 'groundling[metrics]'")


def check_model(kind: str, name: str) -> Any:
    """Load the config of the Transformers model ``name``, a folder or hub id, without its weights.
    Raises `GroundlingError` if the model is missing, has an adapter, or needs the hub's code.
    """
    from transformers import AutoConfig

    from groundling.lm.load.model import refuse_adapter, refuse_kernels
    from groundling.lm.load.model_files import check_model_files
    from groundling.lm.load.sources import quietly

    check_model_files(name)
    with loading(kind, name), quietly():
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    refuse_adapter(name)
    refuse_kernels(config, name)
    return config


def load_model(kind: str, name: str, auto_class: str, device: str, **tokenizer_options: Any) -> tuple[Any, Any]:
    """Load tokenizer and Transformers model ``name`` for inference by ``auto_class``; raises as `check_model`."""
    check_model(kind, name)
    import transformers

    from groundling.lm.load.model import load_pretrained
    from groundling.lm.load.sources import quietly

    with loading(kind, name):
        with quietly():
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **tokenizer_options)
        model: Any = load_pretrained(getattr(transformers, auto_class), name, trust_remote_code=False)
    return tokenizer, model.eval().to(find_device(device))


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
