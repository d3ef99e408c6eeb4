"""Which settings Transformers' generate takes."""

from collections.abc import Collection

from groundling.errors import ConfigError
from groundling.registry import unknown

_BESIDE = ("custom_generate", "trust_remote_code")
"""Arguments of generate that are none of its configuration."""


def check_generation(key: str, names: Collection[str], others: Collection[str] = ()) -> None:
    """Check settings' names before hours of training lead to them; no model is loaded.

    Args:
        key: Where they stand, for the message: ``evaluation.generation``, say.
        names: Of the settings.
        others: Names that are something else's.

    Raises:
        ConfigError: generate takes none of that name.
    """
    if not names:
        return
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name in names:
        if name not in known and name not in _BESIDE and name not in others:
            raise ConfigError(unknown(f"setting of {key}", name, known))
