"""Exactness checks: compare each method of reading texts with a model's plain forward pass before using it.

`groundling.lm.backbone.Layers` determines which methods are checked, and at which lengths. A method that fails is not
used; a model for which all methods fail is rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from groundling.errors import ConfigError, pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.model_files import first_line
from groundling.lm.read.batching import ScoringQuestion

Way = Literal["tree", "lines"]  # How candidates are read: all in one row with the prompt, or each in its own row

Scores = Callable[[list[ScoringQuestion]], Tensor]  # Returns float32 (total number of candidates,), in order

REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError, AssertionError,
            NotImplementedError)  # fmt: skip
"""Errors that models raise for unsupported arguments."""
REASON_LENGTH = 120  # Maximum number of characters to quote from each such error in a message


def example_tokens(backbone: Backbone, count: int, step: int = 7, start: int = 5) -> list[int]:
    """Return a fixed sequence of ``count`` token ids from a model's vocabulary."""
    vocabulary = backbone.model.config.get_text_config().vocab_size
    return [(step * index + start) % vocabulary for index in range(count)]


def agree(backbone: Backbone, one: Callable[[], Sequence[Tensor]], other: Callable[[], Sequence[Tensor]]) -> bool:
    """Return True if two computations yield the same tensors; False if they differ or one is not supported."""
    # Autocast is off, since its rounding would look like an error.
    try:
        with torch.autocast(backbone.device.type, enabled=False):
            pairs = zip(one(), other(), strict=True)
            return all((a - b).abs().max() <= backbone.tolerance * (1 + b.abs().max()) for a, b in pairs)
    except REFUSALS as error:
        pass_out_of_memory(error)
        return False


@torch.no_grad()
def find_way(backbone: Backbone, start_token: int, ways: Mapping[Way, Scores], length: int) -> tuple[Way, str]:
    """Return the first exact method for prompts of ``length`` tokens (0: short), and why earlier methods failed."""
    name, tokens = type(backbone.model).__name__, example_tokens(backbone, length + 3 if length else 12)
    candidates = [[tokens[0]], tokens[1:3], [tokens[1], *tokens[3:5]]]
    questions = [ScoringQuestion(tokens[:length], candidates)]
    if not length:
        candidates = [*candidates, tokens[5:9], []]
        questions = [ScoringQuestion(tokens[:7], candidates), ScoringQuestion(tokens[7:11], candidates)]
    with torch.autocast(backbone.device.type, enabled=False):
        try:
            expected = torch.cat([plain_scores(backbone, start_token, question) for question in questions])
        except REFUSALS as error:
            pass_out_of_memory(error)
            raise ConfigError(
                f"{name} cannot be scored: its forward pass does not accept a prompt and a text "
                f"({first_line(error, REASON_LENGTH)}); use a causal or encoder-decoder language model from a "
                "different family"
            ) from error
        reasons, computed = [], None
        for way, scores in ways.items():
            computed = None
            try:
                computed = scores(questions).to(expected.device)  # outputs may be on a different device
            except REFUSALS as error:
                pass_out_of_memory(error)
                reasons.append(first_line(error, REASON_LENGTH))
                continue
            if torch.allclose(computed, expected, atol=backbone.tolerance, rtol=backbone.tolerance / 10):
                return way, "; ".join(reasons)
            reasons.append(f"log-probabilities differ by {(computed - expected).abs().max():.2g}")
    if not backbone.exact and computed is not None:  # in half precision, differences may be due to rounding
        return "lines", "; ".join(reasons)
    raise ConfigError(
        f"{name} cannot be scored here: no way of reading candidates matches its plain forward pass "
        f"({'; '.join(reasons)}); use a language model from a different family"
    )


def plain_scores(backbone: Backbone, start_token: int, question: ScoringQuestion) -> Tensor:
    """Return float32 scores (num_candidates,) from the model's own forward pass, one candidate at a time."""
    scores = []
    for candidate in question.candidates:
        logits = plain_logits(backbone, start_token, question.prompt, candidate)
        targets = torch.tensor([*candidate], dtype=torch.long, device=logits.device)
        log_probs = logits[: len(targets)].float().log_softmax(-1)
        scores.append(log_probs.gather(1, targets[:, None]).sum())
    return torch.stack(scores)


def plain_logits(backbone: Backbone, start_token: int, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
    """Return logits (len(text) + 1, vocabulary) for each token of a text after a prompt, and for the next one."""
    model, device = backbone.model, backbone.device
    if backbone.is_encoder_decoder:
        decoder_ids = torch.tensor([[start_token, *text]], device=device)
        input_ids = torch.tensor([list(prompt)], device=device)
        return model(input_ids=input_ids, decoder_input_ids=decoder_ids, use_cache=False).logits[0]
    input_ids = torch.tensor([[*prompt, *text]], device=device)
    return model(input_ids=input_ids, use_cache=False).logits[0, len(prompt) - 1 :]
