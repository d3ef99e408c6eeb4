"""Which ways of reading are exact for a model: tried on small examples against its plain forward, one text at a time.

The config (`groundling.lm.read.layers`) decides what is tried, and at which lengths. A way that fails is not used;
a model for which none is left is refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from groundling.errors import GroundlingError, pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.loading import first_line
from groundling.lm.read.packing import ScoringQuestion

Way = Literal["tree", "after", "steps", "lines"]
"""How candidates are read: in one row with the prompt; each after a copy of what the model remembers of the prompt, at
once or token by token; or each with the whole prompt."""

Scores = Callable[[list[ScoringQuestion]], Tensor]
"""Float32 (number of candidates,), question by question."""

REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError, AssertionError,
            NotImplementedError)  # fmt: skip
"""What bodies raise, each in its own way, where they do not take what they are given."""
REASON_LENGTH = 120
"""Characters of what they say that are told: several reasons go on one line."""


def words_of(backbone: Backbone, count: int, step: int, start: int) -> list[int]:
    """Token ids of an example."""
    vocabulary = backbone.model.config.get_text_config().vocab_size
    return [(step * index + start) % vocabulary for index in range(count)]


@torch.no_grad()
def find_way(backbone: Backbone, start_token: int, ways: Mapping[Way, Scores], least: int) -> tuple[Way, str]:
    """The first of the ways that is exact, and why those before it are not.

    Args:
        backbone: The model.
        start_token: What a decoder reads first.
        ways: In the order in which they are tried.
        least: Tokens that a prompt has at least (`Layers.least`).

    Raises:
        GroundlingError: none is.
    """
    questions = _questions(backbone, least)
    name = type(backbone.model).__name__
    # Not in the half precision of an autocast around the first call: its rounding would look like an error.
    with torch.autocast(backbone.device.type, enabled=False):
        try:
            expected = torch.cat([plain_scores(backbone, start_token, question) for question in questions])
        except REFUSALS as error:
            pass_out_of_memory(error)
            raise GroundlingError(
                f"{name} cannot be scored: its forward does not read a prompt and a text "
                f"({first_line(error, REASON_LENGTH)}); use a causal or encoder-decoder language model of another "
                "family"
            ) from error
        reasons = []
        for way, scores in ways.items():
            computed = None
            try:
                computed = scores(questions).to(expected.device)  # a model over several devices ends on another
            except REFUSALS as error:
                pass_out_of_memory(error)
                reasons.append(first_line(error, REASON_LENGTH))
                continue
            # What a memory has of a prompt may be nearly right where it is not.
            near = backbone.tolerance / (10 if backbone.exact and way in ("after", "steps") else 1)
            if torch.allclose(computed, expected, atol=near, rtol=near / 10):
                return way, "; ".join(reasons)
            reasons.append(f"log-probabilities differ by {(computed - expected).abs().max():.2g}")
    if not backbone.exact and computed is not None:  # in half precision rounding may be all the difference
        return "lines", "; ".join(reasons)
    raise GroundlingError(
        f"{name} cannot be scored here: no way of reading it agrees with its plain forward "
        f"({'; '.join(reasons)}); use a language model of another family"
    )


def learns_alike(backbone: Backbone, start_token: int, scores: Scores, least: int) -> bool:
    """Whether gradients are those of the plain forward, seen on the first of the body's vectors that is trained."""
    weight = next((p for p in backbone.body.parameters() if p.requires_grad and p.ndim == 1), None)
    weight = next((p for p in backbone.body.parameters() if p.requires_grad), None) if weight is None else weight
    if weight is None:
        return True
    questions = _questions(backbone, least)[-1:]
    gradients = []
    with torch.autocast(backbone.device.type, enabled=False):
        for scored in (scores, lambda asked: plain_scores(backbone, start_token, asked[0])):
            try:
                gradients.append(torch.autograd.grad(scored(questions).sum(), weight, allow_unused=True)[0])
            except REFUSALS as error:
                pass_out_of_memory(error)
                return False
    computed, expected = gradients
    if computed is None or expected is None:
        return computed is expected
    return bool((computed - expected).norm() <= backbone.tolerance * (1 + expected.norm()))


@torch.no_grad()
def agree(backbone: Backbone, one: Callable[[], Tensor], other: Callable[[], Tensor]) -> bool:
    """Whether two ways of computing are the same."""
    try:
        with torch.autocast(backbone.device.type, enabled=False):
            return torch.allclose(one(), other(), atol=backbone.tolerance, rtol=backbone.tolerance)
    except REFUSALS as error:
        pass_out_of_memory(error)
        return False


def _questions(backbone: Backbone, least: int) -> list[ScoringQuestion]:
    if least:  # long ones are few
        words = words_of(backbone, least + 3, 7, 5)
        candidates = [[words[0]], words[1:3], [words[1], *words[3:5]]]
        return [ScoringQuestion(words[:least], candidates)]
    words = words_of(backbone, 12, 7, 5)
    candidates = [[words[0]], words[1:3], [words[1], *words[3:5]], words[5:9], []]
    return [ScoringQuestion(words[:7], candidates), ScoringQuestion(words[7:11], candidates)]


def plain_scores(backbone: Backbone, start_token: int, question: ScoringQuestion) -> Tensor:
    """Float32 (num_candidates,) scores from the model's own forward, one candidate at a time, as a reference."""
    scores = []
    for candidate in question.candidates:
        logits = plain_logits(backbone, start_token, question.prompt, candidate)
        line = torch.tensor([*candidate], dtype=torch.long, device=logits.device)
        scores.append(logits[: len(line)].float().log_softmax(-1).gather(1, line[:, None]).sum())
    return torch.stack(scores)


def plain_logits(backbone: Backbone, start_token: int, prompt: Sequence[int], written: Sequence[int]) -> Tensor:
    """(len(written) + 1, vocabulary): of each token written after a prompt, and of the one after it."""
    model, device = backbone.model, backbone.device
    if backbone.is_encoder_decoder:
        line = torch.tensor([[start_token, *written]], device=device)
        read = torch.tensor([list(prompt)], device=device)
        return model(input_ids=read, decoder_input_ids=line, use_cache=False).logits[0]
    read = torch.tensor([[*prompt, *written]], device=device)
    return model(input_ids=read, use_cache=False).logits[0, len(prompt) - 1 :]
