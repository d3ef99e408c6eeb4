"""Check the files of a model folder before Transformers, tokenizers or peft open any of them."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PretrainedConfig
from transformers.utils import logging as transformers_logging

from groundling.errors import ConfigError, GroundlingError, did_you_mean
from groundling.io.documents import SETTINGS, read_object
from groundling.lm.load.gguf import SMOLLM2, dequantised, is_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASE_FOLDER = "base"  # Subfolder of a saved adapter for base weights that cannot be loaded from elsewhere
ADAPTER_CONFIG = "adapter_config.json"
_LARGE = ("tokenizer.json", "vocab.json", "added_tokens.json")  # Vocabularies, which do not refer to files
_READ_WHOLE = (".json", ".jinja", ".txt", ".model")  # Suffixes of files that are read into memory in full
_MOST_BYTES = 2**28  # Maximum size of such a file; the largest vocabularies take about 30 MB
_PATIENCE = 5.0  # Seconds to wait for the hub
_TEMPLATES = "additional_chat_templates"  # Subfolder of a model folder that Transformers also reads
# Suffixes of JSON keys that record a model's origin; the files that they name are not opened.
_NOT_OPENED = ("name_or_path", "special_tokens_map_file")


def check_model_files(folder: str | Path) -> None:
    """Reject a model folder that contains anything but regular files, or whose JSON files name files outside it.

    Links are followed, because the Hugging Face cache links files to the ``blobs`` of the same repository. Only JSON
    files are opened, so devices and pipes are rejected unread. Files read into memory are limited to 256 MiB.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    files = [
        path for path in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*")) if path.exists() and not path.is_dir()
    ]
    for path in files:
        _check(path, roots, f"{folder} contains the file {path.relative_to(folder)}")
        if path.suffix in _READ_WHOLE and (size := path.stat().st_size) > _MOST_BYTES:
            raise ConfigError(
                f"{path} has {size:,} bytes, but files that are read into memory may have at most {_MOST_BYTES:,}: "
                "replace it with the original file"
            )
    for path in files:
        if path.suffix == ".json" and path.name not in _LARGE and path.parent == folder:
            for name in dict.fromkeys(_texts(_json(path))):
                place = folder / name  # an absolute path replaces the folder
                if os.path.lexists(place) and not place.is_dir():
                    _check(place, roots, f"{path} names the file {name!r:.80}")


def _json(path: Path) -> Any:
    """Read JSON as Transformers does, without the limits of `groundling.io.documents`; None if it is invalid."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None  # Transformers reports the error


def _check(path: Path, roots: list[Path], what: str) -> None:
    place = Path(os.path.realpath(path))  # resolve() raises for circular links
    if not any(place.is_relative_to(root) for root in roots):
        raise ConfigError(f"{what}, which lies outside the folder, at {place}: copy it into the folder")
    if place.exists() and not (place.is_dir() or place.is_file()):
        raise ConfigError(f"{what}, which is a device, pipe or socket, not a regular file: replace it")


def _texts(node: Any) -> Iterator[str]:
    """Yield the strings in nested JSON that may name a file."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, dict):
        for key, value in node.items():
            if not key.endswith(_NOT_OPENED):
                yield from _texts(value)


STARTERS = {
    "starter": Path(__file__).parents[1] / "starter" / "encoder_decoder",
    "starter-causal": Path(__file__).parents[1] / "starter" / "causal",
}


@dataclass(frozen=True)
class Source:
    """A local folder or hub id, with its download options."""

    path: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for any Auto class's `from_pretrained`."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        return options | ({"revision": self.revision} if self.revision else {})


def resolve(path: str | Path) -> str:
    """Resolve a starter model, GGUF file or folder to an absolute path; anything else is a hub id."""
    name, folder = str(path), Path(path).expanduser()
    if name in STARTERS:
        return str(STARTERS[name])
    if is_gguf(path):
        with quietly():
            return str(dequantised(path))
    if folder.is_dir():
        return str(folder.resolve())
    if folder.is_file() and folder.suffix == ".model":
        raise ConfigError(
            f"{path} is a SentencePiece model file, but a folder with a Transformers tokenizer is expected: pass its "
            "model's folder. GLAM's unigram file for DRRN has no such folder: copy it to FOLDER/spiece.model, pip "
            'install sentencepiece, convert it with python -c "from transformers import T5Tokenizer as T; '
            "T.from_pretrained('FOLDER', extra_ids=0).save_pretrained('FOLDER')\", and pass FOLDER"
        )
    if folder.exists() or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name:
        raise ConfigError(
            f"no model folder at {path}: use a folder, a GGUF file, a hub id, 'starter', 'starter-causal' or 'smollm2'"
        )
    if "/" not in name and (hint := did_you_mean(name, (*STARTERS, SMOLLM2), 0.8)):
        raise ConfigError(f"there is no model {name!r}: {hint.strip()}")
    return name


def is_offline() -> bool:
    """Return True if the hub is unreachable, because its client would then retry each request for 20 s."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # raised by the HTTP client, or because of HF_HUB_OFFLINE
        return True
    return False


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Transformers' progress bars and warnings, which would be repeated at every checkpoint."""
    # `load_pretrained` reports the only important warning: missing weights.
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
    """Return an error's type and the first line of its message, truncated to ``most`` characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:most] if lines else ''}".strip(": ")


_ALIGNMENT = 64  # Alignment, in bytes, of tensors from PyTorch's CPU allocator


def align(weights: Iterable[torch.nn.Parameter]) -> None:
    """Move CPU weights to addresses with the alignment of PyTorch's allocator."""
    # safetensors maps a file's weights to arbitrary addresses. Rounding in MKL's matrix products depends on the
    # addresses of their arguments, and a resumed run must produce the same results as an uninterrupted one.
    for weight in weights:
        if weight.device.type == "cpu" and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def switch_dropout_off(model: PreTrainedModel) -> None:
    """Set all dropout probabilities of a model to 0, in its modules and in its config."""
    # PPO compares a policy's probabilities before and after an update, and dropout would make the ratio noisy.
    # Gradient checkpointing needs training mode, in which dropout would be on.
    _zero_dropout(model.config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        _zero_dropout(module)


def _zero_dropout(holder: object) -> None:
    """Set numeric attributes with "drop" in their name (`attn_pdrop`, ...) to 0, also in nested configs."""
    for key, value in vars(holder).items():
        if isinstance(value, PretrainedConfig):
            _zero_dropout(value)
        elif "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(holder, key, type(value)(0))  # some configs accept integers only


def fuse_activations(model: PreTrainedModel) -> None:
    """Compute GPT-2's approximate GELU with one kernel per pass instead of seven; results are equal up to rounding."""
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    with warnings.catch_warnings():
        # The method was renamed in Transformers 5.23; this name also works in 5.3.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def is_sharded(model: PreTrainedModel) -> bool:
    """Return True if the layers are sharded over a run's processes (FSDP2)."""
    return any(hasattr(module, "unshard") for module in model.modules())


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return a model's state dict; calling `state_dict` would reshard layers that have been gathered."""
    if not is_sharded(model):
        return model.state_dict()
    kept = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)} | buffers


def fingerprint(path: str) -> dict[str, str]:
    """Return a hash of a local model folder's config and weights (sizes and first MiB), keyed by path; {} without one."""
    digest, folder = hashlib.sha256(), Path(path)
    for file in sorted((*folder.glob("*.json"), *folder.glob("*.safetensors"))):
        with file.open("rb") as opened:
            digest.update(f"{file.name} {file.stat().st_size}".encode() + opened.read(2**20))
    return {path: digest.hexdigest()} if folder.is_dir() else {}


def adapter_base(path: str) -> str | None:
    """Return the source of an adapter folder's base weights; None if `path` is not an adapter folder.

    Rejects settings that would import a module, and adapters of models that are not on this machine.
    """
    saved = Path(path) / ADAPTER_CONFIG
    if not saved.exists():
        return None
    check_model_files(path)
    own_base = saved.parent / BASE_FOLDER
    try:
        settings = read_object(saved, SETTINGS)
        base = settings["base_model_name_or_path"]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{saved} cannot be read: {first_line(error)}") from error
    if settings.get("megatron_config"):  # peft would import the module that megatron_core names
        raise ConfigError(f"{saved} would import a module (megatron_core): set its megatron_config to null")
    if own_base.is_dir():
        return str(own_base)
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{saved} does not specify which model the adapter belongs to (base_model_name_or_path is "
            f"{json.dumps(base):.80}): set it to a folder or a hub id, or put the model at {own_base}"
        )
    try:
        return resolve(base)
    except GroundlingError as error:
        raise ConfigError(
            f"the adapter in {path} belongs to the model {base}, which is not on this machine: put that folder, or "
            f"a link to it, at {own_base}"
        ) from error
