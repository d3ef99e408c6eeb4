"""From a path or a name to a Transformers model and its tokenizer, with every way to fail told in one line."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from groundling.errors import ConfigError, GroundlingError, is_out_of_memory, pass_out_of_memory
from groundling.lm.load.gguf import SMOLLM2, dequantised, is_gguf
from groundling.lm.load.model_files import check_model_files
from groundling.lm.load.text_only import load_text_only, sees, text_config
from groundling.registry import did_you_mean
from groundling.runtime.devices import free_memory, launched, share_of_gpus

if TYPE_CHECKING:  # a second of imports, which commands that load no model do without
    from transformers import PreTrainedModel

Init = Literal["pretrained", "random", "embeddings"]

_ALIGNMENT = 64
"""Bytes of which PyTorch's allocator gives multiples on CPUs."""
STARTERS = {
    "starter": Path(__file__).parents[1] / "starter" / "encoder_decoder",
    "starter-causal": Path(__file__).parents[1] / "starter" / "causal",
}
_NAMES = (*STARTERS, SMOLLM2)


@dataclass(frozen=True)
class Source:
    """Where a model comes from: a local folder or a hub id, and how to ask for it."""

    path: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments that every Auto class understands."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        return options | ({"revision": self.revision} if self.revision else {})

    def at(self, path: str) -> Source:
        """The same revision, elsewhere: of the weights that an adapter stands on."""
        return Source(path, self.revision, self.trust_remote_code)


@contextmanager
def quietly() -> Iterator[None]:
    """Without Transformers' progress bars and warnings, which every checkpoint of a run would print.

    The warnings repeat names that stand in files. What matters of them, missing weights, `load_pretrained` tells.
    """
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def resolve(path: str | Path) -> str:
    """A starter's name to its folder, a GGUF file to one that holds its weights dequantised, an existing folder to its
    absolute path; anything else is a hub id.
    """
    if str(path) in STARTERS:
        return str(STARTERS[str(path)])
    if is_gguf(path):
        with quietly():
            return str(dequantised(path))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if folder.is_file() and folder.suffix == ".model":
        raise GroundlingError(
            f"{path} is a SentencePiece model file, and a folder with a Transformers tokenizer is expected: name that "
            "of the model it belongs to. GLAM's unigram file for DRRN has none: copy it to FOLDER/spiece.model, pip "
            'install sentencepiece, convert it with python -c "from transformers import T5Tokenizer as T; '
            "T.from_pretrained('FOLDER', extra_ids=0).save_pretrained('FOLDER')\", and name FOLDER"
        )
    if folder.exists() or folder.is_absolute() or str(path).startswith((".", "~")) or str(path).count("/") > 1:
        raise GroundlingError(
            f"no model folder at {path}: give a folder, a GGUF file, a hub id, 'starter', 'starter-causal' or 'smollm2'"
        )
    if "/" not in str(path) and (hint := did_you_mean(str(path), _NAMES, 0.8)):
        raise GroundlingError(f"no model is called {str(path)!r}: {hint.strip()}")
    return str(path)


def find_dtype(name: str | torch.dtype) -> torch.dtype:
    """The floating-point type of that name."""
    if isinstance(name, torch.dtype):
        return name
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise GroundlingError(f"unknown dtype {name!r}: use one of {', '.join(known)}")
    return known[name]


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub id.

    Raises:
        GroundlingError: there is none, or it cannot be read.
    """
    folder = Path(source.path)
    check_model_files(folder)
    if folder.is_dir() and not any(folder.glob("*token*")) and not any(folder.glob("*.model")):
        # Transformers would otherwise make up an empty tokenizer from the model's type.
        raise GroundlingError(f"{folder} holds no tokenizer: save the model's tokenizer into the same folder")
    try:
        with quietly():
            return AutoTokenizer.from_pretrained(source.path, **source.options)
    except Exception as error:
        pass_out_of_memory(error)
        reason = first_line(error)
        needs_conversion = any(folder.glob("*.model")) and not (folder / "tokenizer.json").exists()
        if needs_conversion and importlib.util.find_spec("sentencepiece") is None:
            reason = "it is a SentencePiece model file, which needs sentencepiece: pip install sentencepiece"
        raise GroundlingError(f"the tokenizer of {source.path} cannot be read: {reason}") from error


@dataclass(frozen=True)
class Placement:
    """Where weights go, and how they are kept there."""

    device: torch.device
    device_map: str | Mapping[str, Any] | None = None
    """Transformers' and accelerate's: spreads a model over several devices."""
    in_4bit: bool = False
    """NF4 with double quantisation, computed in bfloat16 (QLoRA, arXiv 2305.14314)."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `from_pretrained`; none where a plain `to(device)` does."""
        if not self.in_4bit:
            return {} if self.device_map is None else self._spread()
        if importlib.util.find_spec("bitsandbytes") is None:
            raise GroundlingError("4-bit weights need bitsandbytes: pip install 'groundling[lora]'")
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        spread = self._spread() if self.device_map else {"device_map": {"": self.device}}
        return spread | {"quantization_config": quantization}

    def _spread(self) -> dict[str, Any]:
        """The device map; of several processes on a machine (``LOCAL_WORLD_SIZE``), over this one's share of GPUs.

        Raises:
            ConfigError: the GPUs cannot be shared equally, or the device map counts from GPU 0.
        """
        processes = launched("LOCAL_WORLD_SIZE", 1)
        if processes == 1 or not isinstance(self.device_map, str):
            return {"device_map": self.device_map}
        if self.device_map == "balanced_low_0":
            raise ConfigError(
                "model.device_map=balanced_low_0 keeps GPU 0 free, which only one of this machine's processes has: set "
                "model.device_map=auto"
            )
        gpus: dict[int | str, int] = {gpu: free_memory(torch.device("cuda", gpu)) for gpu in share_of_gpus()}
        return {
            "device_map": self.device_map,
            "max_memory": gpus | {"cpu": free_memory(torch.device("cpu")) // processes},
        }


def load_model(
    source: Source, init: Init, seed: int | None, dtype: torch.dtype, attention: str | None, placement: Placement
) -> PreTrainedModel:
    """A causal or encoder-decoder model, without dropout; of a vision-language model its language model.

    Args:
        source: A folder or hub id.
        init: "pretrained" weights; "random" ones, from the config alone; or "embeddings": random, but for the
            pretrained input embeddings (and the output ones where they are tied).
        seed: Of the random weights; None takes them from torch's global generator.
        dtype: Of the weights.
        attention: Transformers' `attn_implementation`; None for its own choice, and "eager" where that is faster.
        placement: Where the weights go.

    Raises:
        GroundlingError: not there, not readable, not a language model, or weights missing.
    """
    config = _load_config(source)
    if attention is None:  # otherwise it has the last word
        refuse_kernels(config, source.path)
    whole = config if sees(config) else None
    if whole is not None:
        try:
            config = text_config(whole, source.path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # of a config that is like no other
            raise GroundlingError(f"the config of {source.path} cannot be read: {first_line(error)}") from error
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    placed = placement.options
    biased = hasattr(config, "relative_attention_num_buckets")
    if attention is None and biased and not placed and placement.device.type == "cpu":
        # T5's bias of positions learns. On CPUs fused attention has no gradient for it, and what PyTorch takes instead
        # is slower than plain products: a pass with its gradients takes a fourteenth longer.
        attention = "eager"
    options = source.options | {"dtype": dtype} | ({"attn_implementation": attention} if attention else {})
    if placed and init != "pretrained":
        raise GroundlingError(
            f"init={init!r} makes whole weights on one device: leave device_map and load_in_4bit out"
        )
    free = free_memory(placement.device)  # of which a part is taken where loading fails
    try:
        if init == "pretrained" and whole is not None:
            model = load_text_only(source.path, whole, config, options, placed)
            return model if placed else model.to(placement.device)  # type: ignore[arg-type]
        if init == "pretrained":
            model = load_pretrained(auto, source.path, config=config, **options, **placed)
            return model if placed else model.to(placement.device)  # type: ignore[arg-type]
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            options.pop("revision", None)
            model = auto.from_config(config, **options)
    except GroundlingError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            needed = _bytes_needed(auto, config, dtype)
            raise GroundlingError(
                f"the model {source.path} does not fit into memory: its weights need {needed} in {dtype}, and "
                f"{free / 2**30:.1f} GiB of {placement.device} were free "
                f"({first_line(error, 120)}). Set model.dtype=bfloat16 (2 bytes a weight) or model.load_in_4bit=true, "
                "spread it over GPUs with model.device_map=auto, end other programs, or take a smaller model"
            ) from error
        raise GroundlingError(f"the model {source.path} cannot be loaded: {first_line(error)}") from error
    model.name_or_path = source.path
    if init == "embeddings":
        pretrained = load_model(source, "pretrained", None, dtype, attention, Placement(torch.device("cpu")))
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(pretrained.get_input_embeddings().weight)
    return model.to(placement.device)


def _bytes_needed(auto: Any, config: PretrainedConfig, dtype: torch.dtype) -> str:
    """Memory of a model's weights in bytes, from a copy on the meta device."""
    try:
        with quietly(), torch.device("meta"):
            count = sum(weight.numel() for weight in auto.from_config(config).parameters())
    except Exception:  # of a model that needs more than its config
        return "more than is free"
    return f"{count * dtype.itemsize / 2**30:.1f} GiB"


def _load_config(source: Source) -> PretrainedConfig:
    folder = Path(source.path)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise GroundlingError(f"{folder} is no model folder: it has no config.json")
    check_model_files(folder)
    try:
        config = AutoConfig.from_pretrained(source.path, **source.options)
    except Exception as error:
        pass_out_of_memory(error)
        if folder.is_dir():
            raise GroundlingError(f"the config of {folder} cannot be read: {first_line(error)}") from error
        raise GroundlingError(
            f"no model {source.path!r}: there is no such folder here, and the hub does not give it "
            f"({first_line(error)})"
        ) from error
    refuse_adapter(source.path, source.revision)
    return config


def refuse_adapter(path: str, revision: str | None = None) -> None:
    """Raise `GroundlingError` if a model, in a folder or on the hub, has an adapter beside its weights.

    Transformers would read the adapter's settings unasked, and peft import the module that they name (megatron_core).
    Where an adapter is asked for, `groundling.lm.load.adapters` reads its settings first, and its base model has none.
    """
    if find_adapter_config_file(path, revision=revision) is not None:
        raise GroundlingError(
            f"the model {path} has an adapter of its own (adapter_config.json), which may name a module to import, "
            "and no file may run code: delete that file, or take the model without the adapter"
        )


def refuse_kernels(config: PretrainedConfig, path: str) -> None:
    """Raise `GroundlingError` if a model's config names a kernel of the hub: compiled code, which would be loaded."""
    for part in (config, *(one for one in vars(config).values() if isinstance(one, PretrainedConfig))):
        name = str(getattr(part, "_attn_implementation", None))
        if "/" in name:
            raise GroundlingError(
                f"the config of {path} names {name!r:.80}, code from the hub, for its attention, and no file may "
                "run code: take attn_implementation out of its config.json, or set model.attention=…"
            )


def load_pretrained(auto: Any, path: str, **options: Any) -> PreTrainedModel:
    """What an Auto class makes of a folder or hub id, with all of its weights.

    Raises:
        GroundlingError: weights are missing.
        Exception: Transformers cannot load it.
    """
    with quietly():
        model, report = auto.from_pretrained(path, output_loading_info=True, **options)
    if report["missing_keys"]:
        # Transformers fills these at random and only warns.
        missing = sorted(report["missing_keys"])
        raise GroundlingError(f"{path} lacks weights of this model, among them {', '.join(missing[:3])}")
    return model


def align(weights: Iterable[torch.nn.Parameter]) -> None:
    """Moves ``weights`` in the CPU's memory to where PyTorch would have put them, if they lie elsewhere.

    Those of a file lie where safetensors has mapped it. Matrix products of MKL round by the addresses of what they
    multiply, and a run that is resumed must compute as one that went on.
    """
    for weight in weights:
        if weight.device.type == "cpu" and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def switch_dropout_off(model: PreTrainedModel) -> None:
    """Sets every dropout of a model to 0, in its modules and in its config.

    PPO compares probabilities of one and the same policy before and after an update: with dropout the ratio is noise,
    and gradient checkpointing needs the training mode in which dropout would be on.
    """
    _zero_dropout(model.config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        _zero_dropout(module)


def fuse_activations(model: PreTrainedModel) -> None:
    """Computes GPT-2's approximation of GELU by one kernel instead of seven, in both passes; the same to rounding."""
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


def _zero_dropout(holder: object) -> None:
    """Zeroes the numbers whose name says dropout (or layerdrop, `attn_pdrop`, ...), in nested configs too."""
    for key, value in vars(holder).items():
        if isinstance(value, PretrainedConfig):
            _zero_dropout(value)
        elif "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(holder, key, type(value)(0))  # some configs take whole numbers alone


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Makes the backward pass recompute each layer's activations instead of keeping them."""
    with warnings.catch_warnings():
        # Renamed in Transformers 5.23; this is the name that 5.3 knows too.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@functools.cache
def check_compiler(device: str) -> None:
    """Raise `ConfigError` where `torch.compile` does not work; tried on one small function."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(8, device=device))
    except Exception as error:
        pass_out_of_memory(error)
        raise ConfigError(
            f"model.compile=true, but torch.compile does not work here ({first_line(error)}): CPUs need a C++ "
            "compiler (g++) and Python's headers, GPUs Triton; or leave model.compile out"
        ) from error


def is_sharded(model: PreTrainedModel) -> bool:
    """Whether a run's processes have parts of its layers."""
    return any(hasattr(module, "unshard") for module in model.modules())


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """As `state_dict`, which puts layers that are sharded, and whole for now, into parts again."""
    if not is_sharded(model):
        return model.state_dict()
    kept = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)} | buffers


def first_line(error: BaseException, most: int | None = None) -> str:
    """An error's kind and the line that it says first, or that line's first ``most`` characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:most] if lines else ''}".strip(": ")
