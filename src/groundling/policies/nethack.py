"""Motif's NetHack agent: convolutions over the map around the hero, a message encoder, and a recurrent memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from groundling.envs.nethack.observation import FEATURES, MESSAGE_LENGTH
from groundling.envs.nethack.rendering import GlyphRenderer
from groundling.fields import Ge
from groundling.policies import arguments
from groundling.policies.policy import policies
from groundling.policies.recurrent import RecurrentPolicy
from groundling.runtime.devices import FastGRU, FastLinear

_BUCKET = 32  # The number of distinct windows is padded to a multiple of 32: CPU kernels are compiled per batch size
# Number of windows per pass in training. With 800, each pass must allocate new memory and is 20% slower on a CPU.
_CHUNK = 128
_CACHE_SIZE = 10_000  # Maximum number of windows with cached features, 2.3 KB each


@dataclass(frozen=True, slots=True)
class NetHackObservations(Sequence["NetHackObservations"]):
    """The agent's view at ``n`` steps. An integer index drops the first axis; a slice or an array keeps it."""

    chars: np.ndarray  # uint8 (n, WINDOW, WINDOW)
    colours: np.ndarray  # uint8 (n, WINDOW, WINDOW), below 16
    vector: np.ndarray  # float32 (n, 27)
    messages: np.ndarray  # uint8 (n, MESSAGE_LENGTH), padded with zeros

    def __len__(self) -> int:
        return len(self.chars)

    def __getitem__(self, index: int | slice | np.ndarray) -> "NetHackObservations":
        return NetHackObservations(*(array[index] for array in _arrays(self)))

    @classmethod
    def stack(cls, observations: Sequence["NetHackObservations"]) -> "NetHackObservations":
        """Stack single steps; steps that are already stacked are returned unchanged."""
        if isinstance(observations, NetHackObservations):
            return observations
        return cls(*map(np.stack, zip(*map(_arrays, observations), strict=True)))

    @classmethod
    def concatenate(cls, observations: Sequence["NetHackObservations"]) -> "NetHackObservations":
        return cls(*map(np.concatenate, zip(*map(_arrays, observations), strict=True)))


_arrays = attrgetter("chars", "colours", "vector", "messages")


@policies.register("nethack")
class NetHackPolicy(RecurrentPolicy):
    """The network of Motif (Klissarov et al. 2023, arXiv 2310.00166, appendix), with 2.8 million parameters.

    The window of the map around the hero is rendered as an image of 72 x 72 pixels on the policy's device, so that
    characters and colours, not pixels, are copied to it. Features are computed once per distinct window and message.

    Args:
        num_actions: Number of admissible actions.
        hidden_size: Size of the recurrent hidden state.
        core: "gru", as in the original, or "lstm".
        recurrence: Number of steps to backpropagate through; `world.num_steps` must be a multiple of it.
    """

    needs = frozenset({"glyphs"})
    weights_file = "nethack.safetensors"
    critic: nn.Linear

    def __init__(
        self,
        num_actions: arguments.NumActions,
        hidden_size: Annotated[int, Ge(1)] = 512,
        core: Literal["gru", "lstm"] = "gru",
        recurrence: Annotated[int, Ge(1)] = 32,
    ) -> None:
        super().__init__()
        self.recurrence = recurrence
        self.memory_size = hidden_size * (2 if core == "lstm" else 1)  # an LSTM's hidden state and cell
        self.renderer = GlyphRenderer()
        self.image = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4),
            nn.ELU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ELU(),
            nn.Conv2d(64, 128, 3, stride=2),
            nn.ELU(),
            nn.Flatten(),
            FastLinear(128 * 3 * 3, 512),
            nn.ELU(),
        )  # (batch, 3, 72, 72) to (batch, 512)
        self.vector = _two_layers(len(FEATURES))
        self.message = _two_layers(MESSAGE_LENGTH)
        recurrent = nn.LSTM if core == "lstm" else FastGRU
        self.core = recurrent(512 + 128 + len(FEATURES) + 128, hidden_size)
        self.actor = nn.Linear(hidden_size, num_actions)
        self.critic = nn.Linear(hidden_size, 1)
        self.apply(_initialize)

    @property
    def device(self) -> torch.device:
        return self.critic.weight.device  # used at every step; faster than searching all modules

    def features(self, observations: Sequence[Sequence[NetHackObservations]]) -> Tensor:
        seen = NetHackObservations.concatenate([NetHackObservations.stack(part) for part in observations])
        windows = np.stack([seen.chars, seen.colours], axis=1)
        messages, message_of = _distinct(seen.messages)
        message = self.message(self._floats(messages) / 255)  # (distinct messages, 128)
        vector = self._floats(seen.vector)
        image = self._image_features if torch.is_grad_enabled() else self._cached_image_features
        return torch.cat(
            [image(windows), self.vector(vector), vector, message.index_select(0, message_of.to(self.device))], dim=-1
        )  # (total, 795)

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden, memory = self._recur(features[None], memory)
        return hidden[0], memory

    def unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        # The fused kernel runs until an episode starts in one of the segments, which is rare.
        features, starts = features.transpose(0, 1).contiguous(), starts.T
        begins = [0, *(t for t in range(1, len(features)) if starts[t].any())]
        parts = []
        for begin, end in pairwise([*begins, len(features)]):
            memory = memory * ~starts[begin, :, None].to(memory.device)
            hidden, memory = self._recur(features[begin:end], memory)
            parts.append(hidden)
        return torch.cat(parts).transpose(0, 1)

    def _recur(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states for features ``(length, batch, num_features)``, and the memory after them."""
        if isinstance(self.core, nn.LSTM):
            hidden, cell = memory[None].chunk(2, dim=-1)
            states, last = self.core(features, (hidden.contiguous(), cell.contiguous()))
            return states, torch.cat(last, dim=-1)[0]
        states, last = self.core(features, memory[None])
        return states, last[0]

    def _image_features(self, windows: np.ndarray) -> Tensor:
        """Return features ``(batch, 512)`` of characters and colours, uint8 ``(batch, 2, WINDOW, WINDOW)``."""
        distinct, window_of = _distinct(windows, bucket=_BUCKET)
        chunks = np.split(distinct, range(_CHUNK, len(distinct), _CHUNK))
        images = torch.cat([self.image(self._render(chunk)) for chunk in chunks])
        return images.index_select(0, window_of.to(self.device))

    def _cached_image_features(self, windows: np.ndarray) -> Tensor:
        """Return the features of `_image_features` without gradients, computing each window once."""
        cache = {} if self._cache is None else self._cache
        if len(cache) > _CACHE_SIZE:
            cache.clear()
        keys = [window.tobytes() for window in windows]
        new = {key: i for i, key in enumerate(keys) if key not in cache}
        if new:
            images = self.image(self._render(windows[list(new.values())]))  # (new windows, 512)
            cache.update(zip(new, images, strict=True))
        return torch.stack([cache[key] for key in keys])

    def _render(self, windows: np.ndarray) -> Tensor:  # (batch, 3, 72, 72) from 0 to 1
        chars, colours = torch.from_numpy(windows).to(self.device).unbind(1)
        return self.renderer(chars, colours).float().div_(255)

    def _floats(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device).float()


def _distinct(rows: np.ndarray, *, bucket: int = 1) -> tuple[np.ndarray, Tensor]:
    """Return distinct rows, padded to a multiple of ``bucket`` with the last, and each input row's index among them."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    keys = flat.view(np.dtype((np.void, flat.shape[1])))[:, 0]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    first = np.pad(first, (0, -len(first) % bucket), mode="edge")
    return rows[first], torch.from_numpy(place)


def _two_layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())


def _initialize(module: nn.Module) -> None:
    """Initialise weights orthogonally (for each gate of a recurrent layer), and biases to zero."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.GRU | nn.LSTM):
        gates = {FastGRU: 3, nn.LSTM: 4}.get(type(module), 1)
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                for gate in parameter.data.chunk(gates):
                    nn.init.orthogonal_(gate)
