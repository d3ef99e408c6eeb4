import importlib
import runpy
import sys
from pathlib import Path

import pytest

from groundling.errors import ConfigError
from groundling.registry import Registry

toys: Registry[object] = Registry("toy")


def test_components_are_made_by_id_and_mistakes_name_the_nearest() -> None:
    registry: Registry[str] = Registry("toy")

    @registry.register("train")
    def train(wheels: int = 4) -> str:
        return f"train on {wheels} wheels"

    assert registry.create("train", wheels=6) == "train on 6 wheels"
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        registry.create("trian")
    with pytest.raises(ConfigError, match="did you mean 'wheels'"):
        registry.create("train", wheel=6)
    registry.register("ship")(lambda name, flag, *rest, sails=3: f"{name} under {flag}")
    assert registry.create("ship", "Argo", flag="red") == "Argo under red"
    with pytest.raises(ConfigError, match=r"toy 'ship' needs name, flag$"):
        registry.create("ship", sails=2)
    with pytest.raises(ConfigError, match=r"toy 'ship' needs flag$"):
        registry.create("ship", "Argo")
    with pytest.raises(ConfigError, match="already registered"):
        registry.register("train")(lambda: "another")
    registry.register("train")(train)  # registering the same object again, as a reloaded module does, is allowed


def test_a_script_may_be_imported_under_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may also be reloaded."""
    script = tmp_path / "own_toy.py"
    script.write_text(
        "from tests.test_registry import toys\n"
        "@toys.register('own')\nclass Own: ...\n"
        "if __name__ == '__main__':\n    import own_toy\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    module = importlib.reload(sys.modules["own_toy"])
    assert toys.get("own") is module.Own
    del sys.modules["own_toy"]
