"""A Transformers model with its tokenizer: loading, saving, copying and adapters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from groundling.errors import ConfigError
from groundling.lm.backbone import Backbone
from groundling.lm.kernels import use_block_attention
from groundling.lm.load import adapters
from groundling.lm.load.model import Init, Placement, find_dtype, load_model, load_tokenizer, sees
from groundling.lm.load.model_files import (
    BASE_FOLDER,
    STARTERS,
    Source,
    adapter_base,
    align,
    checkpoint_gradients,
    fuse_activations,
    is_sharded,
    quietly,
    resolve,
    switch_dropout_off,
    weights_of,
)
from groundling.lm.tokens import ModelTokens
from groundling.runtime.devices import FastLinear, find_device, linear
from groundling.tokenization.encoding import EndTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TransformersModel(ModelTokens, nn.Module):
    """A Transformers model with its tokenizer and adapters; for arguments and errors, see `LanguageModel`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        gradient_checkpointing: bool = False,
        max_prompt_tokens: int | None = None,
        add_special_tokens: bool = True,
        keep_base: bool = False,
        compiled: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        if not add_special_tokens and not tokenizer.num_special_tokens_to_add():
            raise ConfigError(
                "add_special_tokens=false does nothing: this model's tokenizer adds no special tokens; leave it at "
                "true (in a run, model.add_special_tokens=true)"
            )
        embeddings: Any = model.get_input_embeddings()
        size = embeddings.weight.shape[0]
        if tokenizer.vocab_size > size:  # added tokens may never occur
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model has only {size:,}: use the model's "
                f"tokenizer, or call model.resize_token_embeddings({tokenizer.vocab_size}) and train the new embeddings"
            )
        switch_dropout_off(model)
        fuse_activations(model)
        speed_up_linear_layers(model)
        if model.config._attn_implementation == "eager":  # T5 on CPUs
            use_block_attention(model)
        self.model = model
        self._gradient_checkpointing = gradient_checkpointing
        self._keep_base = keep_base
        if gradient_checkpointing:
            checkpoint_gradients(model)
        self.filler = _first_known(tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        beginning = _first_known(tokenizer.bos_token_id, tokenizer.eos_token_id, self.filler)
        self.start_token = _first_known(
            getattr(model.config, "decoder_start_token_id", None),
            model.generation_config.decoder_start_token_id if model.generation_config else None,
            beginning,
        )
        ModelTokens.__init__(
            self,
            tokenizer,
            size,
            beginning,
            _max_positions(model.config.get_text_config()),
            bool(model.config.is_encoder_decoder),
            max_prompt_tokens,
            add_special_tokens,
        )
        self.backbone = Backbone(model, compiled)
        self.train(False)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        init: Init = "pretrained",
        seed: int | None = None,
        dtype: str | torch.dtype = "float32",
        device: str | torch.device = "cpu",
        device_map: str | Mapping[str, Any] | None = None,
        load_in_4bit: bool = False,
        lora: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        attention: str | None = None,
        tokenizer: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        max_prompt_tokens: int | None = None,
        add_special_tokens: bool = True,
        compile: bool = False,
    ) -> Self:
        """Load a causal or encoder-decoder model, depending on its config.

        Args:
            path: A folder (including one written by `save_pretrained`, with its LoRA adapter), a GGUF file, a hub id,
                "starter" (encoder-decoder), "starter-causal" or "smollm2".
            init: "pretrained", "random" (from the config alone), or "embeddings" (random except for the pretrained
                input embeddings, as in GLAM's NPAE baseline).
            seed: Seed for random weights. If None, torch's global generator is used.
            dtype: Data type of the weights: "float32", "bfloat16" or "float16".
            device: "cpu", "cuda", "cuda:1", or "auto" for a GPU if available.
            device_map: "auto", "balanced" or an Accelerate device map, to use several devices; overrides `device`.
            load_in_4bit: Keep the weights in NF4, for training with `lora` (QLoRA). Needs the `lora` extra.
            lora: Keyword arguments of `peft.LoraConfig`; the rest of the model is frozen. Needs the `lora` extra.
            gradient_checkpointing: Recompute activations in the backward pass, which saves memory but takes more time.
            attention: Transformers' `attn_implementation`. If None, "eager" for T5 on CPUs, otherwise the default.
            tokenizer: Folder, hub id or starter model to load the tokenizer from. If None, the model's own is used.
            revision: Revision of a hub model.
            trust_remote_code: Allow a hub model to run its own code.
            max_prompt_tokens: Truncate longer prompts to their last tokens. If None, overlong prompts raise an error.
            add_special_tokens: Add the tokenizer's special tokens to prompts passed as strings.
            compile: Compile the forward passes used for scoring with `torch.compile`.

        Raises:
            ConfigError: A file or setting is missing or invalid; the message is one line.
        """
        source, target = Source(resolve(path), revision, trust_remote_code), find_device(device)
        if init not in get_args(Init):
            raise ConfigError(f"unknown init {init!r}: use 'pretrained', 'random' or 'embeddings'")
        base = adapter_base(source.path)
        weights = replace(source, path=base) if base else source
        placement = Placement(target, device_map, load_in_4bit)
        with quietly():
            model = load_model(weights, init, seed, find_dtype(dtype), attention, placement)
            if base:
                adapters.load_adapter(model, source.path, lora)
            elif lora is not None:
                adapters.add_lora(model, lora)
        if sees(model.config):  # images are never read
            parts: list[Any] = [model.get_decoder(), model.get_output_embeddings()]
            used = {id(p) for part in parts for p in part.parameters()}
            for weight in model.parameters():
                weight.requires_grad_(weight.requires_grad and id(weight) in used)
        # Bundled models are part of the installed package, whose path differs on other machines.
        saved_with_base = base is not None and Path(base).parent == Path(source.path)
        keep_base = not load_in_4bit and (init != "pretrained" or str(path) in STARTERS or saved_with_base)
        # Other frozen weights stay memory-mapped, so that processes share their pages.
        align(p for p in model.parameters() if p.requires_grad or keep_base)
        named = source if tokenizer is None else Source(resolve(tokenizer), None, trust_remote_code)
        return cls(
            model,
            load_tokenizer(named),
            gradient_checkpointing=gradient_checkpointing,
            max_prompt_tokens=max_prompt_tokens,
            add_special_tokens=add_special_tokens,
            keep_base=keep_base,
            compiled=compile,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the weights as safetensors (with LoRA, only the adapter's), the config and the tokenizer.

        `from_pretrained(folder)` loads the same model, and so do Transformers' Auto classes. An adapter's base weights
        are loaded from their original source, or saved with the adapter if `init` was not "pretrained".
        """
        folder = Path(folder)
        with quietly():
            weights = weights_of(self.model) if is_sharded(self.model) else None
            self.model.save_pretrained(folder, state_dict=weights)
            backend = getattr(self.tokenizer, "backend_tokenizer", None)
            if backend is not None:  # undo the last call's truncation and padding
                backend.no_truncation()
                backend.no_padding()
            self.tokenizer.save_pretrained(folder)
            if self.has_adapter:
                adapters.name_base(folder)
            if self._keep_base and self.has_adapter:
                adapters.save_base(self.model, folder / BASE_FOLDER)

    @property
    def hidden_size(self) -> int:
        """Size of `CandidateScores.state`, the input of value and action heads."""
        head: Any = self.model.get_output_embeddings()
        return int(head.weight.shape[1])

    @property
    def end_tokens(self) -> EndTokens:
        """Tokens that end a text or a turn."""
        return EndTokens.of(self.tokenizer, self.model.generation_config, self.vocabulary_size)

    @property
    def device(self) -> torch.device:
        """The device that input tokens must be on."""
        return self.backbone.device

    @property
    def has_adapter(self) -> bool:
        """True if the model has a LoRA adapter."""
        return bool(getattr(self.model, "_hf_peft_config_loaded", False))

    def copy(self) -> Self:
        """Return a copy with its own trainable weights; frozen weights are shared."""
        frozen = {id(p): p for p in self.parameters() if not p.requires_grad}
        return copy.deepcopy(self, {id(self.tokenizer): self.tokenizer, **frozen})

    def with_new_adapter(self, lora: Mapping[str, Any]) -> Self:
        """Return a copy with a new LoRA adapter (`peft.LoraConfig` arguments) instead of the model's own."""
        made = self.copy()
        if made.has_adapter:
            made.model.delete_adapter(list(made.model.peft_config))
        adapters.add_lora(made.model, lora)
        return made

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, which does not affect results (see `LanguageModel`)."""
        # Transformers checkpoints gradients only in training mode, so `gradient_checkpointing` sets that mode for the
        # modules that need it. The others stay in evaluation mode: in training mode, expert routers add noise.
        super().train(mode)
        self._set_mode(self._gradient_checkpointing)
        return self

    def _set_mode(self, training: bool) -> None:
        self.model.train(False)
        for module in self.model.modules():
            if module is self.model or hasattr(module, "gradient_checkpointing"):
                module.training = training
            if type(module).__name__ == "Linear4bit":
                module.train()  # in evaluation mode, bitsandbytes repacks weights on CPUs, without gradients

    @contextmanager
    def caching(self) -> Iterator[None]:
        """Within this context, the model can use a key-value cache, which gradient checkpointing would disable."""
        if not self._gradient_checkpointing:
            yield
            return
        self._set_mode(False)
        try:
            yield
        finally:
            self._set_mode(True)

    def autocast(self) -> torch.autocast:
        """Return a bfloat16 autocast context, disabled if unsupported and on CPUs, where bfloat16 is much slower."""
        device = self.device.type
        supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        enabled = device != "cpu" and supported is not None and supported()
        return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)


def _max_positions(config: Any) -> int | None:
    """Return a model's context length; with longrope (arXiv 2402.13753), the length before its extension."""
    # Beyond this length, longrope encodes all positions differently, so no single pass yields a text's probability.
    given = getattr(config, "rope_parameters", None) or {}
    limits: list[int | None] = [getattr(config, "max_position_embeddings", None)]
    for part in (given, *(one for one in given.values() if isinstance(one, Mapping))):  # for each layer type
        if part.get("rope_type", part.get("type")) == "longrope":
            original = getattr(config, "original_max_position_embeddings", None)
            limits.append(part.get("original_max_position_embeddings") or original)
    return min((limit for limit in limits if limit is not None), default=None)


def _first_known(*token_ids: int | None) -> int:
    return next(token for token in token_ids if token is not None)


class FastConv1D(Conv1D):
    """GPT-2's `Conv1D`, a linear layer with transposed weights, computed with `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Compute a model's linear layers with `linear`; only their class changes."""
    faster = {nn.Linear: FastLinear, Conv1D: FastConv1D}
    for module in model.modules():
        if type(module) in faster:
            module.__class__ = faster[type(module)]
