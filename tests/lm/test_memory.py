"""Exhausted memory is reported as such, not as an error in the model or its files."""

import errno
from collections.abc import Callable

import pytest
import torch
from safetensors import SafetensorError

from groundling.cli import list as listing
from groundling.cli.main import main
from groundling.errors import GroundlingError, is_out_of_memory
from groundling.lm import LanguageModel
from groundling.lm.load import model
from groundling.lm.read import exactness

_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "99 bytes. Error code 12 (Cannot allocate memory)"
)
_ERRORS = [
    MemoryError(),
    RuntimeError(_ALLOCATOR),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    SafetensorError("Error while deserializing header: I/O error: Cannot allocate memory (os error 12)"),
]
_IDS = [type(error).__name__ for error in _ERRORS]


def _raising(error: Exception) -> Callable[..., object]:
    def raises(*args: object, **kwargs: object) -> object:
        raise error

    return raises


@pytest.mark.parametrize("error", _ERRORS, ids=_IDS)
def test_a_model_that_does_not_fit_says_so(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "load_pretrained", _raising(error))
    with pytest.raises(GroundlingError, match=r"does not fit in the memory of cpu in torch\.float32") as caught:
        LanguageModel.from_pretrained("starter-causal")
    assert "family" not in str(caught.value) and "model.dtype=bfloat16" in str(caught.value)


@pytest.mark.parametrize("error", _ERRORS[:3], ids=_IDS[:3])
@pytest.mark.parametrize("place", ["plain_scores", "plain_logits"])
def test_out_of_memory_in_an_exactness_check_is_raised(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = LanguageModel.from_pretrained("starter-causal")
    monkeypatch.setattr(exactness, place, _raising(error))
    with pytest.raises(type(error)) as caught:
        lm.score(["go"], [["left", "right"]])
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("error", _ERRORS, ids=_IDS)
def test_a_command_without_memory_prints_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "inventory", _raising(error))
    assert main(["list"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and "memory" in lines[0]
