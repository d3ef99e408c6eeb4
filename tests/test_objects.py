"""Runs created from Python objects: env, model, tokenizer and reward function."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertTokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import groundling as gl
from groundling.lm.load.model_files import STARTERS
from tests.envs.test_objects import Plain

_SMALL = ["world.num_envs=2", "world.num_steps=4", "device=cpu", "evaluation.num_envs=2"]


class Line(Plain):
    """An env with named actions."""

    action_names = ("stay", "go")


def shortness(generations: list[str]) -> list[float]:
    return [-float(len(text)) for text in generations]


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(STARTERS["starter-causal"])


def _model(seed: int = 0, kind: type[PreTrainedModel] = LlamaForCausalLM) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(LlamaConfig(vocab_size=len(_tokenizer()), **sizes))


def _train(folder: Path, **changes: Any) -> gl.Run:
    arguments: dict[str, Any] = {"world": Line, "model": _model(), "tokenizer": _tokenizer(), "steps": 8}
    arguments |= {"reward": {"env": 1.0, shortness: 0.1}, "run_dir": folder, "overrides": _SMALL} | changes
    return gl.train(**arguments)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gl.Run]:
    yield _train(tmp_path_factory.mktemp("objects") / "run")
    gymnasium.registry.pop("Line-v0", None)


def test_a_run_of_objects_resumes_with_the_same_call(run: gl.Run) -> None:
    settings = (run.folder / "config.yaml").read_text()
    for line in ("Line-v0: tests.test_objects:Line", "shortness: tests.test_objects:shortness", "- stay\n  - go"):
        assert line in settings
    assert f"path: {run.folder}/model\n" in settings and "LlamaForCausalLM" in settings
    again = _train(run.folder, steps=16)
    assert [row["step"] for row in again.metrics] == [8, 16]
    with pytest.raises(gl.ConfigError, match=r"run/model contains weights .* pass model='.*' to resume, or"):
        _train(run.folder, model=_model(seed=1), steps=16)


def test_a_run_keeps_its_env_when_its_name_is_given_to_another(run: gl.Run, tmp_path: Path) -> None:
    made = gl.train(world=lambda: Line(2), model="starter-causal", steps=8, run_dir=tmp_path / "run", overrides=_SMALL)
    world = gl.make_world(Line, num_envs=1)
    assert (world.config.env, world.config.num_envs) == ("Line-v0", 1)
    lengths = {episode.figures["length"] for episode in made.evaluate(episodes=2).played["trained"].episodes}
    assert lengths == {2.0}


def test_another_process_needs_the_env_only_to_play(run: gl.Run) -> None:
    gymnasium.registry.pop("Line-v0", None)
    agent = gl.load(run.folder)
    assert agent.act("A line of 3.") in (0, 1) and agent.act({"text": "1 of 3.", "steps": 1}) in (0, 1)
    assert agent.probabilities is not None and agent.probabilities.keys() == {"stay", "go"}
    needed = r"unknown env 'Line-v0': .*made from the Python object tests\.test_objects:Line: repeat the call to groun"
    with pytest.raises(gl.ConfigError, match=needed):
        gl.Run(run.folder).evaluate(episodes=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": None}, r"a model object needs its tokenizer: pass tokenizer=AutoTokenizer\.from_pretrained\("),
        ({"model": torch.nn.Linear(1, 1)}, "model must be a folder, a hub id or a Transformers model, got a Linear"),
        ({"model": _model(kind=LlamaModel)}, "lacks some of this model's weights"),
        ({"model": type("Mine", (LlamaForCausalLM,), {})(_model().config)}, "Mine is not a Transformers class"),
        ({"tokenizer": 3}, "tokenizer must be a folder, a hub id or a Transformers tokenizer, got a int"),
        ({"world": 3}, "world must be an env id, an env class"),
        (
            {"world": gymnasium.wrappers.TimeLimit},
            r"TimeLimit is a wrapper: pass a function that creates .*, lambda: TimeLimit\(MyEnv\(\)\)",
        ),
        (
            {"model": _model().requires_grad_(False)},
            r"weights of the LlamaForCausalLM are frozen, .*requires_grad_\(\)",
        ),
        ({"reward": {shortness: "much"}}, r"reward\.shortness\.coefficient must be a number"),
        (
            {"world": type("Dumb", (Plain,), {"reset": lambda self, **args: "text"})},
            r"must return \(observation, info\)",
        ),
    ],
)
def test_objects_that_cannot_be_used_get_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(gl.GroundlingError, match=message) as raised:
        _train(tmp_path / "run", **changes)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400
    assert not (tmp_path / "run").exists()


def test_a_model_folder_that_changes_after_training_is_not_the_initial_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in (_model(), _tokenizer()):
        part.save_pretrained(tmp_path / "model")
    run = _train(tmp_path / "run", model=str(tmp_path / "model"), tokenizer=None)
    assert {"trained", "zero-shot"} <= run.evaluate(episodes=2).figures.keys()
    _model(seed=1).save_pretrained(tmp_path / "model")
    with pytest.warns(UserWarning, match="has changed since the checkpoint"):
        _train(tmp_path / "run", model=str(tmp_path / "model"), tokenizer=None, steps=16)
    assert "zero-shot" not in run.evaluate(episodes=2).figures  # the extended run still knows its first model
    assert "has changed since training, so it is not the run's initial model" in capsys.readouterr().err


def test_constant_weights_are_not_frozen_ones(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 512}
    size = len(_tokenizer())
    model = PegasusForConditionalGeneration(PegasusConfig(vocab_size=size, decoder_start_token_id=0, **sizes, **heads))
    assert not all(weight.requires_grad for weight in model.parameters())
    assert _train(tmp_path / "run", model=model)


def test_a_tokenizer_of_another_type_than_the_models_is_kept(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab1,", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"), eos_token="[SEP]")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(words), num_key_value_heads=1, **sizes))
    run = _train(tmp_path / "run", model=model, tokenizer=tokenizer)
    for folder in (run.folder / "model", run.folder / "checkpoints" / "000001"):
        kept = gl.LanguageModel.from_pretrained(folder).tokenizer
        assert kept("ab \u0e01")["input_ids"] == tokenizer("ab \u0e01")["input_ids"] == [2, 5, 9, 1, 3]
    assert gl.Run(run.folder).evaluate(episodes=1).figures["trained"]
