"""The types of errors, which docstrings name."""

import re
from pathlib import Path
from typing import Any

import pytest

import groundling as gl
from groundling import metrics, rewards
from tests.envs.test_objects import Plain
from tests.test_finetune import ROWS, digits

SOURCE = Path(gl.__file__).parent


class Raising(Plain):
    def step(self, action: Any) -> Any:
        raise KeyError("door")


def test_each_error_says_whether_the_config_or_the_run_is_wrong() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert not re.findall(r".*(?:raise|return) GroundlingError\(.*", text)
    assert re.findall(r"class (\w+)\(GroundlingError\b", text) == ["ConfigError", "RunError"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda run: gl.train(world=Plain, model="./nowhere", run_dir=run), gl.ConfigError),
        (lambda run: gl.train(world=Plain, model="nowhere.gguf", run_dir=run), gl.ConfigError),
        (lambda run: gl.train(world=Raising, model="starter", steps=8, run_dir=run), gl.RunError),
        (lambda run: gl.finetune("./nowhere", digits, ROWS, run_dir=run), gl.ConfigError),
        (lambda run: gl.finetune("starter-causal", digits, [{"prompt": ""}], run_dir=run), gl.ConfigError),
        (lambda run: gl.load(run), gl.ConfigError),
        (lambda run: gl.load("demo", overrides=["model.path=./nowhere"]), gl.ConfigError),
        (lambda run: gl.LanguageModel.from_pretrained("./nowhere"), gl.ConfigError),
        (lambda run: gl.LanguageModel.from_pretrained("starter").score("a", "b"), gl.ConfigError),
        (lambda run: gl.LanguageModel.from_pretrained("starter-causal").score(["a " * 9999], ["b"]), gl.RunError),
        (lambda run: metrics.create("perplexity", lm="./nowhere").check(), gl.ConfigError),
        (lambda run: metrics.create("rouge").compute(["a"], ["b"], []), gl.RunError),
        (lambda run: rewards.create("learned_reward", model_name="./nowhere").check(), gl.ConfigError),
    ],
)
def test_errors_are_of_the_documented_type(call: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error) as raised:
        call(tmp_path / "run")
    assert "\n" not in str(raised.value)
