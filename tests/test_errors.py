"""The types of errors, which docstrings name."""

import re
from pathlib import Path
from typing import Any

import pytest

import groundling as gl
from groundling import metrics, rewards
from tests.envs.test_objects import Plain
from tests.test_finetune import ROWS, SMALL, digits

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


def _untouched(folder: Path) -> gl.LanguageModel:
    return gl.LanguageModel.from_pretrained("starter-causal", max_prompt_tokens=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: gl.make_world(type("Nameless", (Plain,), {})).spec, "does not name its 2 actions"),
        (lambda run: _untouched(run).score(["1 2 3 4 5"], ["6"]), "max_prompt_tokens"),
        (
            lambda run: metrics.create("rouge", compat="rl4lms").compute(["a"], ["日本語"], [["日本語"]]),
            "drops letters",
        ),
        (
            lambda run: gl.finetune(
                "starter-causal", digits, ROWS, steps=8, run_dir=run, overrides=["world.max_prompt_length=1", *SMALL]
            ),
            "max_prompt_length",
        ),
    ],
    ids=["env", "model", "metric", "finetune"],
)
def test_warnings_point_at_the_users_line(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=message) as warned:
        call(tmp_path / "run")
    assert {Path(one.filename).name for one in warned if one.category is UserWarning} == {"test_errors.py"}
