"""Scores and generated texts of a family, compared with its plain forward on one text at a time, as table rows."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.read.scoring import ScoringQuestion
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling
from tests.lm.families import VOCABULARY
from tests.lm.reference import plain_ids_log_probs
from tests.lm.tiny import ORIGINAL, WINDOW, tiny_config, tiny_model, with_rope, with_window

EXACT = 1e-4
ROPES = ("yarn", "llama3", "dynamic", "linear")
ALL_ROPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt_neox", "stablelm", "granite")
"""Families that are tested with all kinds of RoPE; other families use the same code for it."""


class Row(NamedTuple):
    """A family in one variant. Errors are the largest differences of log-probabilities, or an error's line."""

    family: str
    model: str
    variant: str
    """"plain", "window 24", or a kind of RoPE with the length of the original context."""
    score: str
    """Packed candidates for prompts of different lengths, compared with each candidate alone."""
    shared: str
    """The same for prompts with a common prefix."""
    padded: str
    """`generate` on a batch of prompts of different lengths."""
    sampled: str
    """The same with the decoder that generates rollouts."""
    read: float
    """The body's tokens for a long prompt and its candidates, divided by the prompt's number of tokens."""
    warnings: str
    """Warnings, joined by " | "."""


def variants(family: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the config changes of each variant."""
    yield "plain", {}
    if spans := with_window(family):
        yield f"window {WINDOW}", spans
    for kind in ROPES if family in ALL_ROPES else ():
        if changes := with_rope(tiny_config(family), kind):
            yield f"{kind} {ORIGINAL}", changes


def lm_of(family: str, changes: dict[str, Any], tokenizers: Any) -> LanguageModel:
    """Return a tiny model of that variant."""
    config = tiny_config(family, **changes)
    return LanguageModel(tiny_model(config), tokenizers[bool(config.is_encoder_decoder)])


def row_of(family: str, variant: str, lm: LanguageModel) -> Row:
    """Return all figures of a variant in the table."""
    # On both sides of windows and original contexts, and close enough for candidates to cross the limits.
    lengths, alike = [7, 12, 3, 64, 50, 38, 44], [35, 39, 33, 38, 64]
    announcements: list[str] = []
    score = _outcome(lambda: score_error(lm, [_ids(index, n) for index, n in enumerate(lengths)]), announcements)
    start = _ids(99, 30)
    shared = _outcome(
        lambda: max(
            score_error(lm, [(start + _ids(50 + index, n))[:n] for index, n in enumerate(alike)]),
            score_error(lm, [(_ids(98, 45) + _ids(70 + index, n))[:n] for index, n in enumerate([60, 65, 50])]),
        ),
        announcements,
    )
    padded = _outcome(lambda: max(written_error(lm, lengths[:3]), written_error(lm, [38, 22, 45, 22])), announcements)
    sampled = _outcome(lambda: max(sampled_error(lm, lengths[:3]), sampled_error(lm, [36, 22, 45, 22])), announcements)
    read = 0.0 if "refused" in score else read_share(lm, _ids(7, 64))
    return Row(
        family,
        type(lm.model).__name__,
        variant,
        score,
        shared,
        padded,
        sampled,
        round(read, 2),
        " | ".join(announcements),
    )


def _outcome(error: Callable[[], float], announcements: list[str]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = f"{error():.0e}"
        except GroundlingError as refusal:
            assert "\n" not in str(refusal)
            outcome = f"refused: {refusal}"
    announcements += [
        line
        for line in dict.fromkeys(str(w.message) for w in caught)
        if "slower" in line and line not in announcements
    ]
    return outcome


def _ids(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()


CANDIDATES = [_ids(100, 1), _ids(101, 2), _ids(102, 3), [*_ids(102, 3)[:2], *_ids(103, 2)], _ids(104, 4), _ids(105, 1)]


@torch.no_grad()
def plain_scores(lm: LanguageModel, prompts: Sequence[list[int]]) -> Tensor:
    return torch.stack([plain_ids_log_probs(lm, prompt, c).sum() for prompt in prompts for c in CANDIDATES])


@torch.no_grad()
def score_error(lm: LanguageModel, prompts: Sequence[list[int]]) -> float:
    scores, _ = lm._scorer([ScoringQuestion(prompt, CANDIDATES) for prompt in prompts])
    return float((scores - plain_scores(lm, prompts)).abs().max())


@torch.no_grad()
def read_share(lm: LanguageModel, prompt: list[int]) -> float:
    """Return the tokens embedded for a prompt and its candidates, divided by the prompt's, after all checks."""
    counted: list[int] = []

    def count(_: Any, given: Any, embedded: Tensor) -> None:
        counted.append(embedded.shape[:-1].numel())

    # Some encoder-decoder families share one embedding, and others have two; the encoder's embedding counts.
    part: Any = lm.model.get_encoder() if lm.is_encoder_decoder else lm.model
    hook = part.get_input_embeddings().register_forward_hook(count)
    try:
        lm._scorer([ScoringQuestion(prompt, CANDIDATES)])
    finally:
        hook.remove()
    return sum(counted) / len(prompt)


def _text_error(lm: LanguageModel, prompt: list[int], ids: list[int], log_probs: Tensor) -> float:
    """Compare each token with a forward pass over all previous tokens."""
    errors = [0.0]
    for step, token in enumerate(ids):
        before = ids[:step]
        if lm.is_encoder_decoder:
            expected = plain_ids_log_probs(lm, prompt, [*before, token])[-1]
        else:
            expected = plain_ids_log_probs(lm, prompt + before, [token])[0]
        errors.append(float((log_probs[step] - expected).abs()))
    return max(errors)


@torch.no_grad()
def written_error(lm: LanguageModel, lengths: Sequence[int]) -> float:
    prompts = [_ids(40 + index, length) for index, length in enumerate(lengths)]
    texts = lm.generate(prompts, max_new_tokens=4)
    return max(
        _text_error(lm, prompt, text.token_ids.tolist(), text.raw_token_log_probs)
        for prompt, text in zip(prompts, texts, strict=True)
    )


@torch.no_grad()
def sampled_error(lm: LanguageModel, lengths: Sequence[int]) -> float:
    prompts = [_ids(40 + index, length) for index, length in enumerate(lengths)]
    uniforms = torch.rand(len(prompts), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decoded = Decoder(lm)(prompts, Sampling(), uniforms)
    return max(
        _text_error(lm, prompt, decoded.tokens[row, : decoded.lengths[row]].tolist(), decoded.raw_log_probs[row])
        for row, prompt in enumerate(prompts)
    )
