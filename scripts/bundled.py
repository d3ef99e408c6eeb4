"""Write the list of bundled components, which `groundling list` prints without importing slow packages.

python -m scripts.bundled     # write src/groundling/cli/bundled.json
"""

import json

import groundling.worlds  # noqa: F401  (registers the worlds)
from groundling.cli.list import BUNDLED, inventory

_QUICK = ("envs", "prompts", "pools")
"""Kinds whose modules import neither torch nor Transformers."""


def table() -> str:
    """Return the contents of the file."""
    kinds = {kind: look() for kind, look in inventory().items() if kind not in _QUICK}
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    BUNDLED.write_text(table(), encoding="utf-8")
