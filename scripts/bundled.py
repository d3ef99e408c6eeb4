"""What `groundling list` tells of the packages that take seconds to import, as their registries tell it.

python -m scripts.bundled     # writes src/groundling/cli/bundled.json anew
"""

import json

import groundling.worlds  # noqa: F401  (so that the registries are asked)
from groundling.cli.inventory import BUNDLED, inventory

_QUICK = ("envs", "prompts", "pools")
"""Kinds whose modules import neither torch nor Transformers."""


def table() -> str:
    """The file's text."""
    kinds = {kind: look() for kind, look in inventory().items() if kind not in _QUICK}
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    BUNDLED.write_text(table(), encoding="utf-8")
