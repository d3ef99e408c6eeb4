"""Models that are nowhere, without a connection."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import close_session

import groundling as gl
from groundling import metrics


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gl.LanguageModel.from_pretrained("models/x"), "^no model 'models/x': there is no such local folder"),
        (
            lambda: gl.LanguageModel.from_pretrained("starter", tokenizer="models/x"),
            "^the tokenizer of models/x cannot",
        ),
        (lambda: metrics.create("bert_score", model_name="models/x").check(), "models/x cannot be loaded"),
        (lambda: gl.load("models/x"), "models/x from the hub: the hub cannot be reached, and its cache has no copy$"),
    ],
    ids=["model", "tokenizer", "metric", "agent"],
)
def test_a_missing_model_is_reported_at_once(
    call: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    monkeypatch.setattr(time, "sleep", waits.append)  # between the hub client's attempts
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    close_session()  # the next one reads the variable
    try:
        with pytest.raises(gl.GroundlingError, match=message):
            call()
    finally:
        close_session()
    assert not waits


def test_a_path_is_never_a_hub_id() -> None:
    for path in ("./folder", "../folder", "/tmp/folder", "~/folder", "models/x/y", r"models\x"):
        with pytest.raises(gl.ConfigError, match=r"^no model folder at"):
            gl.LanguageModel.from_pretrained(path)
