"""A Transformers language model with its tokenizer, wrapped once for everything that policies and judges ask of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError
from groundling.lm.backbone import Backbone
from groundling.lm.kernels import speed_up_linear_layers
from groundling.lm.load import adapters, loading
from groundling.lm.read.packing import ScoringQuestion
from groundling.lm.read.padding import Batches
from groundling.lm.read.reader import RowStates
from groundling.lm.read.relative_attention import read_long_prompts_in_blocks
from groundling.lm.read.scoring import CandidateScores, Normalize, Scorer, normalised
from groundling.lm.read.trie import guided_log_probs
from groundling.lm.tokens import TextTokens
from groundling.lm.write.generation import DEFAULT_NEW_TOKENS, Generation, generate
from groundling.runtime.devices import find_device
from groundling.tokenization.chat import Chat
from groundling.tokenization.detokenize import Continuation
from groundling.tokenization.end_tokens import EndTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Prompts = Sequence[str] | Sequence[list[int]]
"""Texts, or token ids, special ones included. Long ones that begin with each other, as the steps of a conversation do,
are read once where that is exact."""


_ROOM_TO_ANSWER = 128


class LanguageModel(nn.Module):
    """A causal or encoder-decoder language model, with candidate scoring, states for heads, and generation.

    Dropout is off for good: what is scored does not depend on `train()` or `eval()`.

    Args:
        model: A Transformers model with a language-modelling head.
        tokenizer: Its tokenizer.
        gradient_checkpointing: Recompute activations in the backward pass, for less memory and more time.
        max_prompt_tokens: Longer prompts keep their last tokens; None raises where they do not fit the model.
        add_special_tokens: Add the tokenizer's special tokens to prompts given as text: T5's ``</s>``, Llama's ``<s>``.
        keep_base: Save the frozen weights beside a LoRA adapter (for bases that cannot be loaded from elsewhere).
        compiled: Scoring and reading go through `torch.compile`; generation does not.

    Raises:
        GroundlingError: ``add_special_tokens=False``, and the tokenizer adds none anyway.

    Attributes:
        filler: The token that pads.
        padding: Which prompts can be continued in one batch.
        start_token: The token that a decoder reads first.
        max_positions: How many tokens the model has room for; None where there is no limit.
    """

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
        super().__init__()
        loading.switch_dropout_off(model)
        loading.fuse_activations(model)
        speed_up_linear_layers(model)
        if model.config._attn_implementation == "eager":  # T5's on CPUs
            read_long_prompts_in_blocks(model)
        self.model = model
        self.tokenizer = tokenizer
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self._gradient_checkpointing = gradient_checkpointing
        self._keep_base = keep_base
        self._max_prompt_tokens = max_prompt_tokens
        if not add_special_tokens and not tokenizer.num_special_tokens_to_add():
            raise GroundlingError(
                "add_special_tokens=false does nothing: this model's tokenizer adds no special tokens; leave it at "
                "true (of a run model.add_special_tokens=true)"
            )
        self.add_special_tokens = add_special_tokens
        if gradient_checkpointing:
            loading.checkpoint_gradients(model)
        self.filler = _first_known(tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        beginning = _first_known(tokenizer.bos_token_id, tokenizer.eos_token_id, self.filler)
        embeddings: Any = model.get_input_embeddings()
        self._chat: Chat | None = None
        self._tokens = TextTokens(
            tokenizer, embeddings.weight.shape[0], beginning, max_prompt_tokens, add_special_tokens
        )
        config = model.config.get_text_config()
        start = _first_known(
            getattr(model.config, "decoder_start_token_id", None),
            model.generation_config.decoder_start_token_id if model.generation_config else None,
            beginning,
        )
        self.start_token = start
        self._scorer = Scorer(Backbone(model, compiled), start)
        self.padding = Batches(Backbone(model), self.filler, start)
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.train(False)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        init: loading.Init = "pretrained",
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
        """Loads a model: causal or encoder-decoder is found out from its config.

        Args:
            path: A folder, a hub id, "starter" (encoder-decoder), "starter-causal" or "smollm2", or a GGUF file; also
                what `save_pretrained` wrote, with its LoRA adapter.
            init: "pretrained", "random" (from the config alone), or "embeddings" (random but for the pretrained
                input embeddings, as GLAM's NPAE baseline).
            seed: Of random weights; None takes them from torch's global generator.
            dtype: Of the weights: "float32", "bfloat16" or "float16".
            device: "cpu", "cuda", "cuda:1", or "auto" for a GPU where there is one.
            device_map: Spreads the layers over several devices ("auto", "balanced", ..., or a map of accelerate's);
                takes the place of `device`.
            load_in_4bit: Keep the weights in NF4, for training with `lora` (QLoRA). Needs the `lora` extra.
            lora: Keyword arguments of `peft.LoraConfig`; the rest of the model is frozen. Needs the `lora` extra.
            gradient_checkpointing: Less memory for more time in the backward pass.
            attention: Transformers' `attn_implementation`; None for its own choice, and "eager" for T5 on CPUs.
            tokenizer: Folder, hub id or starter whose tokenizer is taken; None for the model's own.
            revision: Of a hub model.
            trust_remote_code: Run the code that comes with a hub model.
            max_prompt_tokens: Longer prompts keep their last tokens; None raises where they do not fit the model.
            add_special_tokens: Add the tokenizer's special tokens to prompts given as text.
            compile: Scoring and reading go through `torch.compile`.

        Raises:
            GroundlingError: what is missing or wrong, in one line.
        """
        source = loading.Source(loading.resolve(path), revision, trust_remote_code)
        if compile:
            loading.check_compiler(str(find_device(device)))
        target, number = find_device(device), loading.find_dtype(dtype)
        if init not in ("pretrained", "random", "embeddings"):
            raise GroundlingError(f"unknown init {init!r}: use 'pretrained', 'random' or 'embeddings'")
        base = adapters.adapter_base(source.path)
        placement = loading.Placement(target, device_map, load_in_4bit)
        with loading.quietly():
            model = loading.load_model(source.at(base) if base else source, init, seed, number, attention, placement)
            if base:
                adapters.load_adapter(model, source.path, lora)
            elif lora is not None:
                adapters.add_lora(model, lora)
        # The bundled models lie in the installed package, whose place another machine does not share.
        keep_base = not load_in_4bit and (
            init != "pretrained"
            or str(path) in loading.STARTERS
            or (base is not None and Path(base).parent == Path(source.path))
        )
        # Other frozen weights come from the same file again, whose pages processes share.
        loading.align(p for p in model.parameters() if p.requires_grad or keep_base)
        return cls(
            model,
            loading.load_tokenizer(
                source
                if tokenizer is None
                else loading.Source(loading.resolve(tokenizer), trust_remote_code=trust_remote_code)
            ),
            gradient_checkpointing=gradient_checkpointing,
            max_prompt_tokens=max_prompt_tokens,
            add_special_tokens=add_special_tokens,
            compiled=compile,
            keep_base=keep_base,
        )

    @property
    def hidden_size(self) -> int:
        """Width of `state`: what heads take in."""
        head: Any = self.model.get_output_embeddings()
        return int(head.weight.shape[1])

    @property
    def end_tokens(self) -> EndTokens:
        """Tokens that end a text or a turn."""
        return EndTokens.of(self.tokenizer, self.model.generation_config, self._tokens.vocabulary_size)

    @property
    def backbone(self) -> Backbone:
        """The model's encoder, decoder body and head, one by one."""
        return self._scorer.backbone

    @property
    def device(self) -> torch.device:
        """Where the model reads its tokens."""
        return self._scorer.backbone.device

    @property
    def room(self) -> int | None:
        """How many tokens a prompt may have: as was asked for, or what the model has room for less some for what
        follows; None: any number.
        """
        if self._max_prompt_tokens is not None or self.max_positions is None:
            return self._max_prompt_tokens
        return self.max_positions - min(_ROOM_TO_ANSWER, self.max_positions // 4)

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter stands on frozen weights."""
        return bool(getattr(self.model, "_hf_peft_config_loaded", False))

    def copy(self) -> Self:
        """The same model with trained weights of its own; frozen ones are shared, and take no memory."""
        frozen = {id(p): p for p in self.parameters() if not p.requires_grad}
        return copy.deepcopy(self, {id(self.tokenizer): self.tokenizer, **frozen})

    def with_new_adapter(self, lora: Mapping[str, Any]) -> Self:
        """A copy under a LoRA adapter that has learnt nothing yet, in the place of its own if it has one.

        Args:
            lora: Keyword arguments of `peft.LoraConfig`.

        Raises:
            GroundlingError: peft is not installed, or a setting is wrong.
        """
        made = self.copy()
        if made.has_adapter:
            made.model.delete_adapter(list(made.model.peft_config))
        adapters.add_lora(made.model, lora)
        return made

    def train(self, mode: bool = True) -> Self:
        """Changes nothing in what is computed: see the class.

        Transformers checkpoints gradients in training mode only, so that mode follows the option, not the caller. It is
        that of what checkpoints alone: in it routers of experts add noise, or draw.
        """
        super().train(mode)
        self._set_mode(self._gradient_checkpointing)
        return self

    def _set_mode(self, training: bool) -> None:
        self.model.train(False)
        for module in self.model.modules():
            if module is self.model or hasattr(module, "gradient_checkpointing"):
                module.training = training
            if type(module).__name__ == "Linear4bit":
                module.train()  # on CPUs bitsandbytes repacks weights in evaluation, and then gives no gradients

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Within this context the model can keep a cache, which checkpointing gradients would switch off."""
        if not self._gradient_checkpointing:
            yield
            return
        self._set_mode(False)
        try:
            yield
        finally:
            self._set_mode(True)

    def autocast(self) -> torch.autocast:
        """Bfloat16 where the device says that it computes it; on CPUs it is several times slower than float32."""
        device = self.device.type
        says = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        enabled = device != "cpu" and says is not None and says()
        return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)

    # Scoring

    def score(
        self,
        prompts: Prompts,
        candidates: Sequence[str] | Sequence[Sequence[str]],
        normalize: Normalize = "sum",
        compat: Literal["glam"] | None = None,
    ) -> list[Tensor]:
        """The log P(candidate | prompt) of each prompt's candidates, with gradients where torch records them.

        Args:
            prompts: A text each, or its token ids; an empty text is read as the beginning of one.
            candidates: One list for all prompts, or one list per prompt. An empty candidate has log-probability 0.
            normalize: "sum" over the candidate's tokens; or its mean per "token" or per "word" (runs of non-blanks).
            compat: "glam" gives the released GLAM scorer's figures, which are not log-probabilities: sums of raw
                logits, plus 1 for each token a candidate is shorter than the longest of the call.

        Returns:
            For each prompt float32 (its number of candidates,).

        Raises:
            GroundlingError: a prompt without candidates, or too long for the model.
        """
        texts, questions = self._questions(prompts, candidates)
        if not questions:
            return []
        scores, _ = self._scored(texts, questions, normalize, compat, _grow(prompts))
        return list(scores.split([len(question.candidates) for question in questions]))

    def score_candidates(
        self,
        prompts: Prompts,
        candidates: Sequence[str] | Sequence[Sequence[str]],
        normalize: Normalize = "sum",
        compat: Literal["glam"] | None = None,
    ) -> CandidateScores:
        """`score` and the prompts' states from one and the same pass, padded to the most candidates.

        Arguments and errors as those of `score`.
        """
        texts, questions = self._questions(prompts, candidates)
        scored = self._scored(texts, questions, normalize, compat, _grow(prompts)) if questions else self._nothing
        return CandidateScores.of([len(question.candidates) for question in questions], *scored)

    # So that what wraps a module (distributed data parallel, compile) wraps scoring.
    forward = score_candidates

    def score_guided(
        self, prompts: Prompts, candidates: Sequence[str] | Sequence[Sequence[str]], temperature: float = 1.0
    ) -> CandidateScores:
        """Like `score_candidates`, with the log-probability that guided decoding writes each candidate.

        At each token only those that continue one of the prompt's candidates can come (see `groundling.lm.read.trie`),
        so a prompt's probabilities sum to 1. Nothing is drawn: they follow from one pass, shorter than that of
        `score_candidates`, because the tokens after a candidate's last choice are certain. Candidates of equal tokens
        share their probability.

        Args:
            prompts: As of `score_candidates`.
            candidates: Likewise. An empty one is the end of the text alone. A candidate that another one begins with
                ends by any of the model's `end_tokens`, whose probabilities are added.
            temperature: Divides the logits of tokens.

        Raises:
            GroundlingError: as `score_candidates`, or there is no end token.
        """
        if not self.end_tokens.ids:
            raise GroundlingError(
                "this model has no end token (in its tokenizer, generation config or chat template), without which a "
                "text that begins a longer one cannot end: name another tokenizer"
            )
        _, questions = self._questions(prompts, candidates)
        scored = self._nothing
        if questions:
            log_probs, state = guided_log_probs(
                self._scorer, questions, self.end_tokens.ids, temperature, _grow(prompts)
            )
            scored = log_probs.to(self.device), state.to(self.device)
        return CandidateScores.of([len(question.candidates) for question in questions], *scored)

    def read(self, questions: Sequence[ScoringQuestion], growing: bool = False) -> list[RowStates]:
        """Final hidden states of each question's prompt and candidates, the prompt read once where that is exact.

        Args:
            questions: In token ids.
            growing: Whether it is worth looking for prompts that begin with each other.
        """
        return self._scorer.read(questions, growing)

    def encode(self, prompts: Prompts) -> Tensor:
        """Float32 (num_prompts, hidden_size): the states of `score_candidates`, when no candidate is scored."""
        if not prompts:
            return self._nothing[1]
        return self._scorer.states(self.prompt_tokens(prompts, 0), _grow(prompts)).to(self.device)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within this context, and without gradients, prompts that go on from earlier ones are read from there on.

        The weights must stay as they are. Kept are keys and values of the last prompts, as many as one call has had:
        2 x layers x width of keys x tokens numbers of each. Of an encoder-decoder they are the encoder's states of the
        prompts of the last call of `read`.
        """
        with self._scorer.keeping():
            yield

    @property
    def kept_bytes(self) -> int:
        """The memory of the keys and values that were kept at the end of the last `keeping`."""
        return self._scorer.kept_bytes

    @property
    def chat(self) -> Chat:
        """Conversations by the tokenizer's chat template.

        Raises:
            GroundlingError: the template cannot be used.
        """
        if self._chat is None or self._chat.source != self.tokenizer.chat_template:
            self._chat = Chat(self.tokenizer)
            self._tokens.encoder = self._chat.encoder
        return self._chat

    def mask(self, words: str) -> str:
        """Words of a world in which the control tokens that they spell are read as plain text."""
        return self._tokens.encoder.mask(words)

    def unmask(self, text: str) -> str:
        """A text with the words as they were before `mask`."""
        return self._tokens.encoder.unmask(text)

    def candidate_tokens(self, texts: Sequence[str], answers: bool = False) -> list[list[int]]:
        """Token ids of texts that come after a prompt.

        Args:
            texts: The texts.
            answers: After a conversation, as its template's text continues with them; otherwise, and where a decoder
                reads them, each is encoded as a text of its own.
        """
        if not answers or self.is_encoder_decoder or not self.tokenizer.chat_template:
            return self._tokens.candidates(texts)
        tokens = [[*self.chat.lead, *ids] for ids in self.chat.answers(texts)]
        for text, ids in zip(texts, tokens, strict=True):
            self._tokens.check(text, ids)
        return tokens

    def token_lengths(self, prompts: Sequence[str]) -> list[int]:
        """How many tokens the model reads for each prompt; remembered, so asking is cheap."""
        return [len(tokens) for tokens in self._tokens.prompts(prompts)]

    @property
    def _nothing(self) -> tuple[Tensor, Tensor]:
        """Scores and states of no prompts."""
        return torch.zeros(0, device=self.device), torch.zeros(0, self.hidden_size, device=self.device)

    def _questions(
        self, prompts: Prompts, candidates: Sequence[str] | Sequence[Sequence[str]]
    ) -> tuple[list[Sequence[str]], list[ScoringQuestion]]:
        """Each prompt's candidate texts, and the same as token ids."""
        if isinstance(prompts, str) or isinstance(candidates, str):
            raise GroundlingError("prompts and candidates must be lists of texts: put a single text into a list")
        shared = all(isinstance(candidate, str) for candidate in candidates)
        texts = cast(list[Sequence[str]], [candidates] * len(prompts) if shared else list(candidates))
        if len(texts) != len(prompts):
            raise GroundlingError(f"{len(prompts)} prompts, but candidates for {len(texts)}")
        for index, options in enumerate(texts):
            if not len(options):
                raise GroundlingError(f"prompt {index} has no candidates: there is nothing to choose from")
        flat = iter(self.candidate_tokens([text for options in texts for text in options]))
        tokens = [[next(flat) for _ in options] for options in texts]
        for index, prompt in enumerate(cast(Sequence[Sequence[int]], prompts) if _grow(prompts) else ()):
            if self._asks(prompt):
                tokens[index] = self.candidate_tokens(texts[index], answers=True)
        room = max((max(map(len, options)) for options in tokens), default=0)
        return texts, [
            ScoringQuestion(prompt, options)
            for prompt, options in zip(self.prompt_tokens(prompts, room), tokens, strict=True)
        ]

    def _asks(self, prompt: Sequence[int]) -> bool:
        """Return True for a prompt that ends with the template's generation prompt."""
        try:
            return bool(self.tokenizer.chat_template) and self.chat.asks(prompt)
        except GroundlingError:  # raised again where a conversation is encoded
            return False

    def prompt_tokens(self, prompts: Sequence[str] | Sequence[Sequence[int]], room: int = 0) -> list[list[int]]:
        """Token ids of prompts, each checked to fit the model with ``room`` tokens after it.

        Raises:
            GroundlingError: one does not.
        """
        tokens = self._in_tokens(prompts)
        self._check_room(tokens, room)
        return tokens

    def _in_tokens(self, prompts: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        if all(isinstance(prompt, str) for prompt in prompts):
            return self._tokens.prompts(cast(Sequence[str], prompts))
        return [list(prompt) for prompt in cast(Sequence[Sequence[int]], prompts)]

    def _check_room(self, tokens: Sequence[Sequence[int]], room: int) -> None:
        """Raise `GroundlingError` if a prompt's tokens, with `room` tokens after them, do not fit the model."""
        if self.max_positions is None:
            return
        if self.is_encoder_decoder and room > self.max_positions:
            raise GroundlingError(
                f"{room} tokens are to come after a prompt, but this model's decoder has room for "
                f"{self.max_positions}: ask for fewer (max_new_tokens), or for shorter candidates"
            )
        # The last token of a candidate is predicted, never read; an encoder-decoder reads it elsewhere.
        limit = self.max_positions - (0 if self.is_encoder_decoder else max(0, room - 1))
        for index, ids in enumerate(tokens):
            if len(ids) > limit:
                raise GroundlingError(
                    f"prompt {index} has {len(ids)} tokens, but this model has room for {limit}: shorten it, or load "
                    f"the model with max_prompt_tokens={limit} (of a run model.max_prompt_tokens={limit}) to keep the "
                    "last ones"
                )

    def _scored(
        self,
        texts: Sequence[Sequence[str]],
        questions: Sequence[ScoringQuestion],
        normalize: Normalize,
        compat: str | None,
        growing: bool,
    ) -> tuple[Tensor, Tensor]:
        """Scores (total number of candidates,) and states (num_prompts, hidden_size), both where prompts are read:
        a model spread over several devices ends on another one.
        """
        scores, states = self._scorer(questions, compat == "glam", growing)
        scores = normalised(scores.to(self.device), texts, questions, normalize, compat)
        return scores, states.to(self.device)

    # Writing

    def generate(self, prompts: Sequence[str] | Sequence[Sequence[int]], **generation: Any) -> list[Generation]:
        """Continues each prompt, in batches; sampling draws from torch's global generator.

        Args:
            prompts: One text each, or its token ids.
            generation: Anything that Transformers' `generate` takes (`max_new_tokens`, by default 32, `do_sample`,
                `temperature`, `top_p`, `num_beams`, `num_return_sequences`, ...). Texts end at each of the model's
                `end_tokens`, unless `eos_token_id` or a `generation_config` is given.

        Returns:
            One `Generation` per prompt, or `num_return_sequences` of each prompt in turn.

        Raises:
            GroundlingError: a prompt too long for the model and what is to be written.
        """
        if isinstance(prompts, str):
            raise GroundlingError("prompts must be a list of texts: put a single text into a list")
        if generation.get("max_new_tokens", 1) < 1:
            raise GroundlingError(f"max_new_tokens must be at least 1, got {generation['max_new_tokens']}")
        new_tokens = generation.get("max_new_tokens", 0 if "max_length" in generation else DEFAULT_NEW_TOKENS)
        if self.is_encoder_decoder and not new_tokens:
            new_tokens = generation["max_length"] - 1  # which counts what a decoder reads first
        tokens = self.prompt_tokens(prompts, new_tokens)
        if not tokens:
            return []
        if self.end_tokens.ids and "generation_config" not in generation:
            generation = {"eos_token_id": list(self.end_tokens.ids)} | generation
        with self.remembering():
            return generate(self.model, self.tokenizer, tokens, self.padding, generation)

    def continuation(self, prompt: Sequence[int]) -> Continuation:
        """A decoder of the text that the model writes after a prompt, both in token ids."""
        return Continuation(self.tokenizer, () if self.is_encoder_decoder else prompt)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes weights (safetensors), config and tokenizer; with LoRA, the adapter.

        `from_pretrained(folder)` gives the same model back, and so do Transformers' Auto classes. An adapter's frozen
        weights are found where they came from; those that came from nowhere (`init` other than "pretrained") are
        saved beside it.
        """
        folder = Path(folder)
        with loading.quietly():
            weights = loading.weights_of(self.model) if loading.is_sharded(self.model) else None
            self.model.save_pretrained(folder, state_dict=weights)
            backend = getattr(self.tokenizer, "backend_tokenizer", None)
            if backend is not None:  # how the last call cut and padded is no part of the tokenizer
                backend.no_truncation()
                backend.no_padding()
            self.tokenizer.save_pretrained(folder)
            if self.has_adapter:
                adapters.name_base(folder)
            if self._keep_base and self.has_adapter:
                adapters.save_base(self.model, folder / adapters.BASE_FOLDER)


def _grow(prompts: Prompts) -> bool:
    """Whether prompts may be the steps of conversations: they are given as token ids."""
    return not isinstance(prompts[0], str) if len(prompts) else False


def _first_known(*token_ids: int | None) -> int:
    return next(token for token in token_ids if token is not None)
