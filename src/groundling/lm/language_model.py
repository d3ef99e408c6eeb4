"""The language model: candidate scoring, hidden states for heads, and generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from groundling.errors import ConfigError
from groundling.lm.read.batching import RowStates, ScoringQuestion, Tokens
from groundling.lm.read.guided import guided_log_probs
from groundling.lm.read.scoring import CandidateScorer, CandidateScores, Normalize, normalised
from groundling.lm.tokens import Prompts, growing
from groundling.lm.transformers_model import TransformersModel
from groundling.lm.write.generation import DEFAULT_NEW_TOKENS, Generation, Generator
from groundling.tokenization.detokenize import Continuation

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LanguageModel(TransformersModel):
    """A causal or encoder-decoder language model with candidate scoring, hidden states for heads, and generation.

    Dropout is always off, so results do not depend on `train()` or `eval()`.

    Args:
        model: A Transformers model with a language-modelling head.
        gradient_checkpointing: Recompute activations in the backward pass, which saves memory but takes more time.
        max_prompt_tokens: Truncate longer prompts to their last tokens. If None, overlong prompts raise an error.
        add_special_tokens: Add the tokenizer's special tokens (such as T5's ``</s>`` or Llama's ``<s>``) to prompts
            passed as strings. False raises an error if the tokenizer does not add any.
        keep_base: Save the frozen weights together with a LoRA adapter, because the base model cannot be loaded again.
        compiled: Compile the forward passes used for scoring with `torch.compile`; generation is not compiled.

    Attributes:
        backbone: The model's encoder, decoder body and head.
        filler: Id of the padding token.
        start_token: Id of the first token that a decoder reads.
        max_positions: The model's context length in tokens; None if unlimited.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        self._scorer = CandidateScorer(self.backbone, self.start_token)

    @cached_property
    def generator(self) -> Generator:
        """A wrapper around Transformers' `generate` that also returns log-probabilities."""
        return Generator(self.backbone, self.tokenizer, self.filler, self.start_token)

    def score(
        self,
        prompts: Prompts,
        candidates: Sequence[str] | Sequence[Sequence[str]],
        normalize: Normalize = "sum",
        compat: Literal["glam"] | None = None,
    ) -> list[Tensor]:
        """Return log P(candidate | prompt) for each prompt's candidates, with gradients if they are enabled.

        Args:
            prompts: Strings or token ids. An empty string is read as the start of a text.
            candidates: One list for all prompts, or one per prompt. An empty candidate has log-probability 0.
            normalize: "sum" over the candidate's tokens, or the mean per "token" or per whitespace-separated "word".
            compat: "glam" computes the scores of the released GLAM scorer, which are not log-probabilities but sums of
                raw logits, plus 1 for each token by which a candidate is shorter than the longest one in the call.

        Returns:
            For each prompt, a float32 tensor (num_candidates,).

        Raises:
            ConfigError: A prompt has no candidates.
            RunError: A prompt is too long for the model.
        """
        scored = self.score_candidates(prompts, candidates, normalize, compat)
        return [log_probs[mask] for log_probs, mask in zip(scored.log_probs, scored.mask, strict=True)]

    def score_candidates(
        self,
        prompts: Prompts,
        candidates: Sequence[str] | Sequence[Sequence[str]],
        normalize: Normalize = "sum",
        compat: Literal["glam"] | None = None,
    ) -> CandidateScores:
        """Like `score`, but return padded log-probabilities and the prompts' states, both from the same pass."""
        texts, questions = self.questions(prompts, candidates)
        if not questions:
            return CandidateScores.of([], *self._no_scores)
        scores, states = self._scorer(questions, compat == "glam", growing(prompts))
        # If a model is spread over several devices, its output is on the last one.
        scores = normalised(scores.to(self.device), texts, questions, normalize, compat)
        return CandidateScores.of([len(question.candidates) for question in questions], scores, states.to(self.device))

    # Module wrappers (DistributedDataParallel, torch.compile) wrap `forward`.
    forward = score_candidates

    def score_guided(
        self, prompts: Prompts, candidates: Sequence[str] | Sequence[Sequence[str]], temperature: float = 1.0
    ) -> CandidateScores:
        """Return the log-probability with which guided decoding generates each candidate.

        Only tokens that continue one of the prompt's candidates are allowed (see `groundling.lm.read.guided`), so each
        prompt's probabilities sum to 1. The pass is shorter than that of `score_candidates`, because tokens after a
        candidate's last branching point have probability 1. Candidates with equal tokens share a probability equally.

        Args:
            prompts: See `score`.
            candidates: See `score`. An empty candidate means an empty text. A candidate that is a prefix of another
                one can end with any of the model's `end_tokens`, whose probabilities are summed.
            temperature: Divides the logits.

        Raises:
            ConfigError, RunError: See `score`. `ConfigError` is also raised if the model has no end token.
        """
        if not self.end_tokens.ids:
            raise ConfigError(
                "this model has no end token in its tokenizer, generation config or chat template, so a candidate "
                "that is a prefix of another cannot end: set tokenizer.eos_token (for BERT, to its sep_token)"
            )
        _, questions = self.questions(prompts, candidates)
        if not questions:
            return CandidateScores.of([], *self._no_scores)
        log_probs, state = guided_log_probs(
            self._scorer, questions, self.end_tokens.ids, temperature, growing(prompts)
        )
        counts = [len(question.candidates) for question in questions]
        return CandidateScores.of(counts, log_probs.to(self.device), state.to(self.device))

    def read(self, questions: Sequence[ScoringQuestion], growing: bool = False) -> list[RowStates]:
        """Return each question's final hidden states; ``growing`` means that prompts may extend each other."""
        return self._scorer.read(questions, growing)

    def encode(self, prompts: Prompts) -> Tensor:
        """Return the prompts' states without scoring candidates, float32 (num_prompts, hidden_size)."""
        if not prompts:
            return self._no_scores[1]
        return self._scorer.states(self.prompt_tokens(prompts), growing(prompts)).to(self.device)

    @property
    def _no_scores(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(0, device=self.device), torch.zeros(0, self.hidden_size, device=self.device)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within this context and without gradients, read only the new tokens of prompts that continue earlier ones.

        The weights must not change. Keys and values are kept for the latest prompts, up to the number of prompts in
        the largest call. For encoder-decoders, the encoder states of the last `read` call's prompts are kept.
        """
        with self._scorer.keeping():
            yield

    @property
    def kept_bytes(self) -> int:
        """Size in bytes of the keys and values kept at the end of the last `keeping` context."""
        return self._scorer.kept_bytes

    def generate(self, prompts: Sequence[str] | Sequence[Sequence[int]], **generation: Any) -> list[Generation]:
        """Continue each prompt, in batches; sampling uses torch's global generator.

        Args:
            prompts: Strings or token ids.
            generation: Keyword arguments of Transformers' `generate` (`max_new_tokens`, by default 32, `do_sample`,
                `temperature`, `top_p`, `num_beams`, `num_return_sequences`, ...). Texts end at any of the model's
                `end_tokens` unless `eos_token_id` or a `generation_config` is passed.

        Returns:
            One `Generation` per prompt, or `num_return_sequences` of them, in the order of the prompts.

        Raises:
            ConfigError: A setting cannot be used, or the model cannot generate texts.
            RunError: A prompt and its new tokens exceed the model's context length.
        """
        if isinstance(prompts, str):
            raise ConfigError("prompts must be a list of strings: wrap a single string in a list")
        if refused := {"stop_strings", "stopping_criteria"} & generation.keys():
            raise ConfigError(f"{', '.join(refused)} cannot be used: set eos_token_id to end texts")
        if generation.get("max_new_tokens", 1) < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, got {generation['max_new_tokens']}")
        new_tokens = generation.get("max_new_tokens", 0 if "max_length" in generation else DEFAULT_NEW_TOKENS)
        if self.is_encoder_decoder and not new_tokens:
            new_tokens = generation["max_length"] - 1  # max_length includes the start token
        tokens = self.prompt_tokens(prompts, new_tokens)
        if not tokens:
            return []
        if self.end_tokens.ids and "generation_config" not in generation:
            generation = {"eos_token_id": list(self.end_tokens.ids)} | generation
        with self.caching():
            return self.generator(tokens, generation)

    def continuation(self, prompt: Sequence[int]) -> Continuation:
        """Return an incremental decoder for the tokens that the model generates after a prompt (token ids)."""
        return Continuation(self.tokenizer, () if self.is_encoder_decoder else prompt)


# Answers that are generated token by token and evaluated later

Among = tuple[int, ...] | None  # The tokens that could be chosen; None for the whole vocabulary


def states_after(lm: LanguageModel, prompts: Sequence[Tokens], answers: Sequence[Tokens]) -> Tensor:
    """Return the states that predict each answer's next token, (num_prompts, hidden), on the model's device."""
    # Within `LanguageModel.keeping`, only new tokens are read, and each prompt is encoded once.
    if lm.is_encoder_decoder:  # a candidate's last token is predicted, never read
        questions = [_question(prompt, [*ids, 0]) for prompt, ids in zip(prompts, answers, strict=True)]
        states = [one.rows[one.targets[0, -1]] for one in lm.read(questions)]
        return torch.stack(states).to(lm.device)
    texts = [(*prompt, *ids) for prompt, ids in zip(prompts, answers, strict=True)]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    read = lm.read([_question(text, []) for text in places], growing=True)
    return torch.stack([read[places[text]].rows[0] for text in texts]).to(lm.device)


def answer_states(lm: LanguageModel, prompts: Sequence[Tokens], answers: Sequence[Tokens], growing: bool) -> Tensor:
    """Return the states (num_tokens, hidden) that predict each token of the nonempty answers, with gradients."""
    read = lm.read([_question(*pair) for pair in zip(prompts, answers, strict=True)], growing)
    firsts = torch.tensor([0, *(len(one.rows) for one in read[:-1])]).cumsum(0).tolist()
    places = torch.cat([first + one.targets[0] for first, one in zip(firsts, read, strict=True)])
    states = torch.cat([one.rows for one in read])
    # One embedding look-up for all answers needs one addition in the backward pass and one copy of indices.
    return F.embedding(places.to(states.device), states).to(lm.device)


def log_probs_among(logits: Tensor, among: Sequence[Among], temperature: float, ends: Sequence[int] = ()) -> Tensor:
    """Return log-probabilities (num_tokens, vocabulary) over the allowed tokens; -inf for all others."""
    # An allowed end token (one of ``ends``) is assigned the total probability of all end tokens.
    rows = [row for row, ids in enumerate(among) if ids is not None]
    places = [(row, token) for row in rows for token in among[row] or ()]
    ending = [(row, token) for row, token in places if token in ends]
    if ending and len(ends) > 1:
        at = tuple(torch.tensor(ending, device=logits.device).T)
        of_ends = logits[at[0]][:, list(ends)] / temperature  # (number of rows that may end, number of ends)
        logits = logits.index_put(at, of_ends.logsumexp(-1) * temperature)
    if rows:
        left_out = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
        left_out[torch.tensor(rows, device=logits.device)] = True
        left_out[tuple(torch.tensor(places, device=logits.device).T)] = False
        logits = logits.masked_fill(left_out, -torch.inf)
    return (logits / temperature).log_softmax(-1)


def _question(prompt: Tokens, answer: Tokens) -> ScoringQuestion:
    return ScoringQuestion(list(prompt), [list(answer)])
