"""Sample one token from a model's logits, with temperature, filters and NLPO's mask."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor
from torch.nn import functional as F

from groundling.errors import ConfigError, unknown
from groundling.fields import Ge, Gt, Le, Section

_NOT_OF_CONFIG = ("custom_generate", "trust_remote_code")  # Arguments of `generate` that are not in its config
_COUNTS = ("num_beams", "num_return_sequences")


def check_generation(key: str, settings: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Check settings of `generate` without loading a model, so that errors do not surface after hours of training.

    Rejects unknown names, invalid values, and settings that have no effect in combination with the others, such as
    a temperature without sampling. Error messages start with ``key``, the config key. The names in ``others`` are
    also allowed. A null value means Transformers' default.
    """
    if not settings:
        return
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")} - {"stop_strings"}
    for name in settings:
        if name not in known and name not in _NOT_OF_CONFIG and name not in others:
            raise ConfigError(unknown(f"setting of {key}", name, known))
    settings = {name: settings[name] for name in known & settings.keys() if settings[name] is not None}
    for name in _COUNTS:
        if type(count := settings.get(name, 1)) is not int or count < 1:
            raise ConfigError(f"{key}.{name} must be an integer of at least 1, got {count!r}")
    try:
        Sampling.of({name: settings[name] for name in Sampling.model_fields if name in settings})
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    config = GenerationConfig()
    for name, value in settings.items():  # passed as arguments, they would cause multi-line warnings
        setattr(config, name, value)
    try:
        config.validate(strict=True)
    except (ValueError, TypeError) as error:
        lines = str(error).splitlines()
        reasons = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        raise ConfigError(f"{key} cannot be used: {(reasons or lines)[0]}") from error


_BLOCK = 64  # Number of tokens per block of the cumulative distribution (see `draw`)


class Sampling(Section):
    """Sampling settings. The defaults leave the model's distribution unchanged."""

    model_config = ConfigDict(frozen=True)

    do_sample: bool = True  # If False, take the most likely token
    temperature: Annotated[float, Gt(0)] = 1.0  # Divides the logits
    top_k: Annotated[int, Ge(0)] = 0  # Keep the k most likely tokens (including ties); 0 keeps all
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Keep the smallest set of most likely tokens whose total probability is at least this (arXiv 1904.09751)."""
    min_new_tokens: Annotated[int, Ge(0)] = 0  # Minimum number of tokens in a text, excluding its end token
    min_length: Annotated[int, Ge(0)] = 0  # The same, but counting a causal model's prompt or a decoder's start token
    max_new_tokens: Annotated[int, Ge(1)] | None = None  # Maximum number of tokens; None if set by the caller
    terminate_on_eos: bool = True  # If False, continue after an end token

    @property
    def chooses_a_set(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    def first_end(self, given: int) -> int:
        """Return the first step (starting at 0) at which a text may end after ``given`` tokens of context."""
        return max(self.min_new_tokens, self.min_length - given, 0)


MaskType = Literal["learned_top_p", "learned_top_k", "topk"]


@dataclass(frozen=True)
class Mask:
    """NLPO's action mask (arXiv 2210.01241, section 4.2): only likely tokens are allowed."""

    mask_type: MaskType
    """Top-p or top-k tokens of the mask model, a delayed copy of the policy; "topk" uses the policy itself."""
    top_mask: float  # The value of p or k
    min_tokens_to_keep: int  # Minimum number of tokens that a top-p mask allows
    special: Tensor  # int64, special tokens, which are always allowed

    def __call__(self, logits: Tensor) -> Tensor:
        """Return a bool mask of the allowed tokens for logits (rows, vocabulary) of the mask model or policy."""
        size = logits.shape[-1]
        if self.mask_type == "learned_top_p":
            allowed = _top_p(logits, self.top_mask, min(self.min_tokens_to_keep, size))
        else:
            allowed = _top_k(logits, min(int(self.top_mask), size))
        # Indexed assignment would synchronise with the GPU.
        return allowed.index_fill_(1, self.special.to(allowed.device), True)


def filtered(
    logits: Tensor, sampling: Sampling, banned: Tensor | None = None, allowed: Tensor | None = None
) -> Tensor:
    """Return the log-probabilities that tokens are sampled from, with -inf for excluded tokens.

    Args:
        logits: (rows, vocabulary), float32.
        banned: bool (rows, vocabulary), end tokens that would come too early; None if there are no such tokens.
        allowed: bool (rows, vocabulary), NLPO's mask.
    """
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(~_top_k(logits, sampling.top_k), -torch.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(~_top_p(logits, sampling.top_p, 1, reached=True), -torch.inf)
    return logits.log_softmax(-1)


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample one token for each row of ``log_probs`` (rows, vocabulary) from ``uniforms`` (rows,) in [0, 1)."""
    # Invert the cumulative distribution of blocks, then of tokens in a block, which is 9 times as fast for GPT-2.
    size = log_probs.shape[-1]
    blocks = F.pad(log_probs.exp(), (0, -size % _BLOCK)).unflatten(-1, (-1, _BLOCK))  # (rows, blocks, tokens)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    # Scale by the last sum, which differs from 1 because of rounding.
    block, sought = _seek(ends, uniforms[:, None].to(ends.device) * ends[:, -1:])
    rest = sought - F.pad(ends, (1, 0)).gather(1, block)
    chosen_block = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0]
    place, _ = _seek(chosen_block.cumsum(-1, dtype=torch.float64), rest)
    return (block * _BLOCK + place)[:, 0]


def _seek(cumulative: Tensor, sought: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index (rows, 1) at which the sum first exceeds ``sought``, and ``sought`` capped below the total."""
    sought = sought.minimum(cumulative[:, -1:].nextafter(sought.new_zeros(())))
    return torch.searchsorted(cumulative, sought, right=True), sought


def _top_k(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.topk(k, dim=-1).values[:, -1:]


def _top_p(logits: Tensor, p: float, at_least: int, reached: bool = False) -> Tensor:
    """Return a mask of the fewest top tokens with a total above p or, if ``reached`` (as in Transformers), >= p."""
    probabilities, order = logits.softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    keep = before < p if reached else before <= p
    keep[:, :at_least] = True
    keep &= probabilities > 0
    return torch.zeros_like(keep).scatter_(1, order, keep)


class SetKeeper:
    """Collects the sets of allowed tokens for a batch of texts step by step, and returns them for each text."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self._waiting: list[Tensor] = []
        self._steps: list[tuple[int, Tensor]] = []
        self._bits: list[Tensor] = []

    def add(self, step: int, rows: Tensor, allowed: Tensor) -> None:
        """Add a step's sets, bool (rows, vocabulary), for the texts ``rows`` (rows,)."""
        self._steps.append((step, rows))
        self._waiting.append(allowed)

    def pack(self) -> None:
        """Pack all added sets into bits on the host; each takes 6 KiB for GPT-2."""
        if self._waiting:
            packed = np.packbits(torch.cat(self._waiting).cpu().numpy(), axis=1, bitorder="little")
            self._bits += torch.from_numpy(packed).split([len(allowed) for allowed in self._waiting])
            self._waiting = []

    def sets(self, lengths: Tensor) -> list[Tensor] | None:
        """Return the sets for texts of ``lengths`` tokens, uint8 (length, vocabulary / 8); None if none exist."""
        self.pack()
        if not self._bits:
            return None
        rows = torch.cat([rows for _, rows in self._steps]).cpu()  # one copy to the host for all steps
        steps = torch.tensor([step for step, rows in self._steps for _ in range(len(rows))])
        whole = self._bits[0].new_zeros(self.num_texts, 1 + int(steps.max()), len(self._bits[0][0]))
        whole[rows, steps] = torch.cat(self._bits)
        # Clones, because pickling a view copies the whole tensor.
        return [of_text[:length].clone() for of_text, length in zip(whole, lengths.tolist(), strict=True)]


def allowed_tokens(sets: Sequence[Tensor], vocabulary: int, device: torch.device) -> Tensor:
    """Return the tokens allowed at each position of all texts, bool (num_positions, vocabulary), on ``device``."""
    bits = torch.cat(list(sets)).to(device)[:, :, None]
    return (bits & 2 ** torch.arange(8, dtype=torch.uint8, device=device)).bool().flatten(1)[:, :vocabulary]
