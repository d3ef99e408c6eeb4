"""Folders of tiny models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from groundling.lm import LanguageModel
from tests.lm.conftest import make_lm, tokenizers

__all__ = ["make_lm", "model_folder", "tokenizers"]


@pytest.fixture(scope="session")
def model_folder(
    make_lm: Callable[..., LanguageModel], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return `model_folder(family)`, which returns the folder of a tiny random model with its tokenizer."""
    folders: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            make_lm(family).save_pretrained(folders[family])
        return folders[family]

    return get
