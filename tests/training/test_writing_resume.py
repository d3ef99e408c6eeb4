"""A run that writes, killed and resumed, ends like an undisturbed one."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundling.config.schema import ModelConfig, TrainingConfig
from groundling.io.row_files import read_rows
from groundling.registry import ComponentConfig
from groundling.rewards import RewardPartConfig
from groundling.training.tracking import read_metrics
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation
from tests.thorough import THOROUGH, thorough
from tests.training.test_resume import _UPDATES, _assert_goes_on_exactly

_CLIPPED = {"minibatch_size": 8, "learning_rate": 1e-2, "kl_coefficient": 0.1, "kl_target": 0.05}
_MASK = {"mask_type": "learned_top_p", "top_mask": 0.6, "min_tokens_to_keep": 5}
_LORA = {"r": 2, "target_modules": "all-linear"}


def _parts(folder: Path, algorithm: ComponentConfig, model: ModelConfig, **policy: Any) -> dict[str, Any]:
    """Of a config: 4 texts of exactly 4 tokens in every update, measured in every third."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"ask": f"go {i}", "say": f"{i} turn left {i}"}) + "\n" for i in range(9))
    )
    columns = {"prompt_column": "ask", "reference_column": "say"}
    generation = {"terminate_on_eos": False, "top_k": 200, "temperature": 1.1}
    return {
        "world": WritingConfig(
            pool="jsonl",
            args={"path": {"train": str(rows), "val": str(rows)}, **columns},
            num_texts=4,
            num_tokens=4,
            max_prompt_length=8,
        ),
        "reward": {"chrf": RewardPartConfig()},
        "model": model,
        "policy": ComponentConfig("token", {"generation": generation, **policy}),
        "algorithm": algorithm,
        "training": TrainingConfig(steps=_UPDATES * 4 * 4),
        "evaluation": WritingEvaluation(episodes=3, every=3, metrics=[ComponentConfig("diversity")]),
    }


@pytest.mark.parametrize(
    ("algorithm", "family"),
    [
        *(("nlpo", "bart"), ("supervised", "gpt2")),
        *thorough(("ppo", "gpt2"), ("ppo", "bart"), ("nlpo", "gpt2"), ("supervised", "bart")),
    ],
)
def test_a_writer_resumes_exactly(
    algorithm: str, family: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    args: dict[str, Any] = {"minibatch_size": 2, "learning_rate": 1e-3}
    if algorithm != "supervised":
        args = {**_CLIPPED, "epochs": 2} | ({"target_update_iterations": 2} if algorithm == "nlpo" else {})
    parts = _parts(
        tmp_path,
        ComponentConfig(algorithm, args),
        ModelConfig(path=str(model_folder(family))),
        **(_MASK if algorithm == "nlpo" else {}),
    )
    _assert_goes_on_exactly(tmp_path, **parts)
    last = f"checkpoints/{_UPDATES:06d}"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(tmp_path / run / last / name).read_bytes() for run in ("whole", "killed")}) == 1, name
    whole, killed = (read_rows(tmp_path / name / "validation.jsonl") for name in ("whole", "killed"))
    assert whole == killed and [row["update"] for row in whole] == [0, 3, 6]
    whole, killed = (read_rows(tmp_path / name / "samples" / "train.jsonl") for name in ("whole", "killed"))
    assert whole == killed and bool(whole) == (algorithm != "supervised")  # which writes nothing
    for row in read_metrics(tmp_path / "killed") if whole else []:
        texts = [text for text in killed if text["update"] == row["update"]]
        assert len(texts) == 4 and {text["step"] for text in texts} == {row["step"]}
        assert sum(text["reward"] for text in texts) / 4 == pytest.approx(row["return_mean"])
        assert all(text["prompt"].startswith("go ") and text["generation"] for text in texts)
    if algorithm != "supervised":
        coefficients = [row["kl_coefficient"] for row in read_metrics(tmp_path / "killed")]
        assert len(set(coefficients)) == _UPDATES  # it was steered all the time


@THOROUGH
@pytest.mark.parametrize("family", ["llama", *thorough("bart")])
def test_adapters_resume_exactly_with_the_base_model_as_reference(
    family: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    importlib.import_module("peft")  # seconds, which every child would take
    model = ModelConfig(path=str(model_folder(family)), lora=_LORA)
    args = {**_CLIPPED, "epochs": 2, "target_update_iterations": 2}
    parts = _parts(tmp_path, ComponentConfig("nlpo", args), model, **_MASK)
    _assert_goes_on_exactly(tmp_path, **parts)
    kl = [row["kl_mean"] for row in read_metrics(tmp_path / "killed")]
    assert kl[0] == pytest.approx(0, abs=1e-5) and max(map(abs, kl[1:])) > 1e-3
    _assert_saved_as_an_adapter(tmp_path / "killed")


@THOROUGH
@pytest.mark.parametrize(
    ("family", "adapter", "value_lora"), [("llama", True, {"r": 3}), *thorough(("bart", False, {"r": 2}))]
)
def test_an_adapter_for_values_resumes_exactly(
    family: str,
    adapter: bool,
    value_lora: dict[str, Any],
    tmp_path: Path,
    model_folder: Callable[[str], Path],
) -> None:
    importlib.import_module("peft")
    model = ModelConfig(path=str(model_folder(family)), lora=_LORA if adapter else {})
    algorithm = ComponentConfig("ppo", {**_CLIPPED, "epochs": 2})
    _assert_goes_on_exactly(
        tmp_path, **_parts(tmp_path, algorithm, model, value="lora", value_lora=value_lora)
    )
    if adapter:
        _assert_saved_as_an_adapter(tmp_path / "killed")


def _assert_saved_as_an_adapter(run_dir: Path) -> None:
    last = run_dir / "checkpoints" / f"{_UPDATES:06}"
    assert (last / "adapter_model.safetensors").exists() and not (last / "model.safetensors").exists()
