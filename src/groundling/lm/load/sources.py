"""Names of models and tokenizers, resolved to folders or hub ids."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from groundling.errors import GroundlingError, did_you_mean
from groundling.lm.load.gguf import SMOLLM2, dequantised, is_gguf

STARTERS = {
    "starter": Path(__file__).parents[1] / "starter" / "encoder_decoder",
    "starter-causal": Path(__file__).parents[1] / "starter" / "causal",
}


@dataclass(frozen=True)
class Source:
    """A local folder or hub id, with the options of its download."""

    path: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of every Auto class's `from_pretrained`."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        return options | ({"revision": self.revision} if self.revision else {})


def resolve(path: str | Path) -> str:
    """Resolve a starter's name, a GGUF file or a folder to an absolute folder; anything else is a hub id."""
    name, folder = str(path), Path(path).expanduser()
    if name in STARTERS:
        return str(STARTERS[name])
    if is_gguf(path):
        with quietly():
            return str(dequantised(path))
    if folder.is_dir():
        return str(folder.resolve())
    if folder.is_file() and folder.suffix == ".model":
        raise GroundlingError(
            f"{path} is a SentencePiece model file, and a folder with a Transformers tokenizer is expected: name that "
            "of the model it belongs to. GLAM's unigram file for DRRN has none: copy it to FOLDER/spiece.model, pip "
            'install sentencepiece, convert it with python -c "from transformers import T5Tokenizer as T; '
            "T.from_pretrained('FOLDER', extra_ids=0).save_pretrained('FOLDER')\", and name FOLDER"
        )
    if folder.exists() or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise GroundlingError(
            f"no model folder at {path}: give a folder, a GGUF file, a hub id, 'starter', 'starter-causal' or 'smollm2'"
        )
    if "/" not in name and (hint := did_you_mean(name, (*STARTERS, SMOLLM2), 0.8)):
        raise GroundlingError(f"no model is called {name!r}: {hint.strip()}")
    return name


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Transformers' progress bars and warnings, which would repeat at every checkpoint of a run."""
    # The warnings repeat names from files. `load_pretrained` reports the important one, missing weights.
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def first_line(error: BaseException, most: int | None = None) -> str:
    """Return an error's type and the first line of its message, or ``most`` characters of that line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:most] if lines else ''}".strip(": ")
