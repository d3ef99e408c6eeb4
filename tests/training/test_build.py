"""Components that are built from a config."""

import subprocess
import sys

from tests.thorough import THOROUGH


@THOROUGH
def test_adding_adapters_gives_no_warning() -> None:
    """bitsandbytes, which peft imports, would warn that it has no kernel from the hub."""
    code = (
        "from groundling.config.schema import ModelConfig; from groundling.training import build; "
        "build._make_language_model(ModelConfig(path='starter-causal', lora={'r': 2}), 1, 'cpu', None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
