"""The interface of a reward model, which maps captions to numbers and is trained on a judge's preferences."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.errors import ConfigError, RunError
from groundling.io.files import replace_file, share_mode, write_atomically
from groundling.registry import Registry


def preference_loss(rewards: Tensor, targets: Tensor) -> Tensor:
    """Bradley-Terry cross-entropy: the mean of -Σ_i p_i log softmax(r)_i (Motif, arXiv 2310.00166, equation 1).

    Args:
        rewards: Float ``(batch, 2)``: rewards of each pair's two segments.
        targets: Float ``(batch, 2)``, rows that sum to 1: (1, 0) if the first is preferred, (0.5, 0.5) for a tie.
    """
    return -(targets * rewards.log_softmax(-1)).sum(-1).mean()


def segment_means(scores: Tensor, mask: Tensor) -> Tensor:
    """Average scores ``(..., L)`` where ``mask`` is True (at least once per row), regardless of length (Motif)."""
    return torch.where(mask, scores, 0.0).sum(-1) / mask.sum(-1)


QUANTILE_LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))  # 0.05, 0.1, ..., 0.95
WEIGHTS, DESCRIPTION = "reward_model.safetensors", "reward_model.json"
CHUNK = 1024  # captions scored in one batch
_PRIOR_COUNT = 1e-4  # weight of the prior (mean 0, variance 1) in Motif's running moments


@dataclass(frozen=True)
class Normalization:
    """The distribution of a reward model's rewards over its training captions."""

    mean: float
    variance: float
    quantiles: tuple[float, ...]  # The quantiles 0.05, 0.1, ..., 0.95 of the normalised rewards of distinct captions

    @classmethod
    def of(cls, rewards: Tensor, counts: Tensor) -> Self:
        """Create it from the rewards and occurrence counts of distinct captions, each ``(num_distinct,)``.

        The mean and unbiased variance include all occurrences, as running moments (Chan et al. 1979) that start from
        Motif's prior (mean 0, variance 1, count 1e-4). Quantiles are over distinct captions, with interpolation.
        """
        values, weights = rewards.double().cpu(), counts.double().cpu()
        if not values.isfinite().all():
            raise RunError("a reward became NaN or infinite: train with a lower learning_rate")
        count = weights.sum().item()
        mean = (values * weights).sum().item() / count
        squares = (weights * (values - mean).square()).sum().item()
        variance = squares / (count - 1) if count > 1 else 0.0
        total = count + _PRIOR_COUNT
        drift = mean**2 * count * _PRIOR_COUNT / total  # the prior's mean is 0
        mean, variance = mean * count / total, (variance * count + 1.0 * _PRIOR_COUNT + drift) / total
        normalized = (values.numpy() - mean) / np.sqrt(variance)
        return cls(mean, variance, tuple(np.quantile(normalized, QUANTILE_LEVELS).tolist()))

    def threshold(self, quantile: float) -> float:
        """Return a quantile of the normalised rewards, interpolated; -inf for 0, which means no threshold."""
        if quantile == 0:
            return -np.inf
        if not QUANTILE_LEVELS[0] <= quantile <= QUANTILE_LEVELS[-1]:
            raise ConfigError(f"threshold_quantile must be 0 (no threshold) or between 0.05 and 0.95, got {quantile}")
        return float(np.interp(quantile, QUANTILE_LEVELS, self.quantiles))


def chunks(captions: Sequence[str]) -> Iterator[Sequence[str]]:
    return (captions[start : start + CHUNK] for start in range(0, len(captions), CHUNK))


class RewardModel(nn.Module, ABC):
    """Maps captions to rewards. A caption is a NetHack message, an observation with an action, or a whole text.

    ``forward`` returns scores with gradients, for training; `rewards` returns the agent's rewards, usually the scores.

    Attributes:
        id: Id of the registered class.
        gives_labels: True if rewards are labels 0 and 1, which are not normalised.
        reads_messages: True if the model reads only NetHack messages.
        args: The constructor's keyword arguments.
        normalization: Statistics computed during training; None for labels.
    """

    id: ClassVar[str]
    gives_labels: ClassVar[bool] = False
    reads_messages: ClassVar[bool] = False

    def __init__(self, **args: Any) -> None:
        super().__init__()
        self.args = args
        self.normalization: Normalization | None = None
        self._fingerprint: int | None = None

    @abstractmethod
    def forward(self, captions: Sequence[str]) -> Tensor:
        """Return the captions' scores, float32 ``(n,)`` on the model's device, with gradients."""

    def loss(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Return the loss to minimise, by default the `preference_loss` of the segments' mean scores.

        Args:
            scores: Float32 ``(batch, 2, L)``; for labelled captions ``(batch, 1, 1)``.
            targets: Float32 ``(batch, 2)``: probabilities of being preferred; for labelled captions ``(batch, 1)``.
            mask: Bool with the shape of ``scores``: False past the end of a segment.
        """
        return preference_loss(segment_means(scores, mask), targets)

    @torch.no_grad()
    def rewards(self, captions: Sequence[str]) -> Tensor:
        """Return the captions' rewards, float32 ``(n,)`` on the CPU, without gradients."""
        return torch.cat([torch.zeros(0), *(self._reward(chunk).float().cpu() for chunk in chunks(captions))])

    def _reward(self, captions: Sequence[str]) -> Tensor:
        reward: Tensor = self(captions)
        return reward

    @property
    def device(self) -> torch.device:
        return next((p.device for p in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    @property
    def version(self) -> int:
        """A 64-bit hash of the id, arguments and weights; rewards computed with a different version are out of date."""
        if self._fingerprint is None:
            digest = hashlib.sha256(f"{self.id} {json.dumps(self.args, sort_keys=True)}".encode())
            for name, tensor in sorted(self.state_dict().items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
            self._fingerprint = int.from_bytes(digest.digest()[:8], signed=True)
        return self._fingerprint

    def mark_changed(self) -> None:
        """Invalidate `version`; must be called after the weights have changed."""
        self._fingerprint = None

    def take_up(self, other: "RewardModel") -> None:
        """Copy the weights and normalisation from a model of the same kind."""
        self._set_state(other.state_dict())
        self.normalization = other.normalization

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        for name, _ in list(self.named_buffers(recurse=False)):
            setattr(self, name, state[name].to(self.device))  # a table's size may differ
        self.load_state_dict(state)
        self.mark_changed()

    def save(self, folder: Path, about: Mapping[str, Any] | None = None) -> None:
        """Write ``reward_model.safetensors`` and, last, ``reward_model.json``, which marks the model as complete.

        ``about`` contains additional entries for the JSON, such as how the model was trained.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DESCRIPTION).unlink(missing_ok=True)  # its normalisation belongs to the previous weights
        self._save_weights(folder)
        description = {
            "model": self.id,
            "args": self.args,
            "normalization": None if self.normalization is None else asdict(self.normalization),
            "quantile_levels": QUANTILE_LEVELS,
            "about": dict(about or {}),
        }
        write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")
        for path in folder.rglob("*.safetensors"):
            share_mode(path, folder / DESCRIPTION)

    def _save_weights(self, folder: Path) -> None:
        replace_file(folder / WEIGHTS, lambda partial: save_file(self.state_dict(), partial))

    @classmethod
    def _load(cls, folder: Path, args: Mapping[str, Any]) -> Self:
        """Create the model that `save` wrote, without its normalisation."""
        model = cls(**args)
        model._set_state(load_file(folder / WEIGHTS))
        return model


reward_models: Registry[RewardModel] = Registry("reward model")
