"""Motif's agent, which plays NetHack: convolutions over the map around the hero, the message, and a memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groundling.envs.nethack.observation import MESSAGE_LENGTH, VECTOR_SCALE
from groundling.envs.nethack.rendering import GlyphRenderer
from groundling.errors import ConfigError
from groundling.policies.policy import Action, Evaluation, Policy, Segment, policies
from groundling.policies.weights import read_into
from groundling.runtime.kernels import FastGRU, FastLinear

_BUCKET = 32
"""Distinct windows are padded to a multiple: a CPU's kernels are made anew for every number of images."""
_CHUNK = 128
"""Windows that are seen at once when learning: of 800, pixels and activations would fill new memory at every pass, and
take a CPU a fifth longer."""
_MOST_REMEMBERED = 10_000
"""Windows whose features are kept while the weights stay: 2.3 KB each."""


@dataclass(frozen=True, slots=True)
class NetHackObservations(Sequence["NetHackObservations"]):
    """What the agent sees at ``n`` steps, as `groundling.envs.nethack.observation` tells it: 652 bytes a step.

    An integer gives one step's, without the first axis; a slice or an array of indices gives several steps'.
    """

    chars: np.ndarray
    """uint8 ``(n, WINDOW, WINDOW)``."""
    colours: np.ndarray
    """uint8 ``(n, WINDOW, WINDOW)``, below 16."""
    vector: np.ndarray
    """float32 ``(n, 27)``."""
    messages: np.ndarray
    """uint8 ``(n, MESSAGE_LENGTH)``, padded with zeros."""

    def __len__(self) -> int:
        return len(self.chars)

    @overload
    def __getitem__(self, index: int) -> "NetHackObservations": ...

    @overload
    def __getitem__(self, index: slice | np.ndarray) -> "NetHackObservations": ...

    def __getitem__(self, index: int | slice | np.ndarray) -> "NetHackObservations":
        return NetHackObservations(*(array[index] for array in self.arrays()))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.chars, self.colours, self.vector, self.messages

    @classmethod
    def stack(cls, observations: Sequence["NetHackObservations"]) -> "NetHackObservations":
        """Single steps' as several steps'; those are given back as they are."""
        if isinstance(observations, NetHackObservations):
            return observations
        return cls(*map(np.stack, zip(*(o.arrays() for o in observations), strict=True)))

    @classmethod
    def concatenate(cls, observations: Sequence["NetHackObservations"]) -> "NetHackObservations":
        """Several steps' after several others'."""
        return cls(*map(np.concatenate, zip(*(o.arrays() for o in observations), strict=True)))


@policies.register("nethack")
class NetHackPolicy(Policy):
    """The network of Motif (Klissarov et al. 2023, arXiv 2310.00166, appendix): 2.8 million parameters.

    The crop is rendered as an image of 72 x 72 pixels by look-up on the policy's own device, so that codes travel
    instead of pixels. The image's and the message's parts do not depend on the memory: they are computed once for each
    distinct crop and message of a batch.

    Args:
        num_actions: How many admissible actions there are.
        hidden_size: Of the memory.
        core: "gru", as the original; or "lstm".
        recurrence: Steps through which gradients go back; `world.num_steps` must be a multiple.
    """

    needs = frozenset({"glyphs"})

    def __init__(
        self,
        num_actions: int,
        hidden_size: int = 512,
        core: Literal["gru", "lstm"] = "gru",
        recurrence: int = 32,
    ) -> None:
        super().__init__()
        if core not in ("gru", "lstm"):
            raise ConfigError(f"policy.args.core of nethack must be gru or lstm, got {core!r}")
        if min(hidden_size, recurrence) < 1:
            raise ConfigError(
                "policy.args of nethack: hidden_size and recurrence must be at least 1; got "
                f"{hidden_size}, {recurrence}"
            )
        self.recurrence = recurrence
        self.hidden_size = hidden_size
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
        self.vector = _two_layers(len(VECTOR_SCALE))
        self.message = _two_layers(MESSAGE_LENGTH)
        recurrent = nn.LSTM if core == "lstm" else FastGRU
        self.core = recurrent(512 + 128 + len(VECTOR_SCALE) + 128, hidden_size)
        self.actor = nn.Linear(hidden_size, num_actions)
        self.critic = nn.Linear(hidden_size, 1)
        self.apply(_initialize)
        self._remembered: dict[bytes, Tensor] | None = None  # features by window, within `unchanged`

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Within this context each window's features are computed once, without gradients.

        Of an agent that moves at random, three windows out of five are as they were a step ago.
        """
        self._remembered = {}
        try:
            yield
        finally:
            self._remembered = None

    def act(
        self,
        observations: Sequence[NetHackObservations],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            hidden, memory = self._remember(observations, memory)
            log_probs, values = self._heads(hidden)  # (batch, num_actions), (batch,)
        return Action.choose(
            log_probs, values, deterministic=deterministic, generator=generator, memory=memory.cpu()
        )

    def evaluate(self, observations: Sequence[Segment], actions: Tensor) -> Evaluation:
        seen = NetHackObservations.concatenate(
            [NetHackObservations.stack(segment.observations) for segment in observations]
        )
        features = self._features(seen).unflatten(0, actions.shape)  # (batch, recurrence, features)
        memory = torch.stack([segment.memory for segment in observations]).to(self.device)
        starts = torch.stack([segment.starts for segment in observations])  # (batch, recurrence)
        hidden = self._unroll(features.transpose(0, 1).contiguous(), memory, starts.T)
        log_probs, values = self._heads(hidden.transpose(0, 1))
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence[NetHackObservations], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._heads(self._remember(observations, memory)[0])[1]

    @property
    def device(self) -> torch.device:
        return self.critic.weight.device  # asked for at every step: a search through the modules would tell

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "nethack.safetensors")

    def load_weights(self, folder: Path) -> None:
        read_into(self.state_dict(), folder / "nethack.safetensors")

    def _remember(
        self, observations: Sequence[NetHackObservations], memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Hidden state ``(batch, hidden_size)`` and memory ``(batch, memory_size)`` after the observations."""
        if memory is None:
            memory = torch.zeros(len(observations), self.memory_size)
        features = self._features(NetHackObservations.stack(observations))
        hidden, memory = self._recur(features[None], memory.to(self.device))
        return hidden[0], memory

    def _unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Hidden states ``(length, batch, hidden_size)`` over segments in which episodes may begin.

        The fused kernel runs from one beginning of an episode, in any of the segments, to the next: episodes are long,
        so these are few.

        Args:
            features: ``(length, batch, features)``.
            memory: ``(batch, memory_size)`` before the first step.
            starts: ``(length, batch)`` bool, on the CPU: the memory is set to 0 before this step.
        """
        length = len(features)
        begins = [0, *(t for t in range(1, length) if starts[t].any())]
        stretches = []
        for begin, end in pairwise([*begins, length]):
            memory = memory * ~starts[begin, :, None].to(memory.device)
            hidden, memory = self._recur(features[begin:end], memory)
            stretches.append(hidden)
        return torch.cat(stretches)

    def _recur(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states of ``(length, batch, features)`` and the memory ``(batch, memory_size)`` after them."""
        if isinstance(self.core, nn.LSTM):
            hidden, cell = memory[None].chunk(2, dim=-1)
            states, last = self.core(features, (hidden.contiguous(), cell.contiguous()))
            return states, torch.cat(last, dim=-1)[0]
        states, last = self.core(features, memory[None])
        return states, last[0]

    def _heads(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[..., 0]

    def _features(self, seen: NetHackObservations) -> Tensor:
        """``(batch, 795)``: what the memory reads."""
        windows = np.stack([seen.chars, seen.colours], axis=1)
        messages, message_of = _distinct(seen.messages)
        message = self.message(self._floats(messages) / 255)  # (distinct messages, 128)
        vector = self._floats(seen.vector)
        return torch.cat(
            [
                self._learn_images(windows) if torch.is_grad_enabled() else self._recall_images(windows),
                self.vector(vector),
                vector,
                message.index_select(0, message_of.to(self.device)),
            ],
            dim=-1,
        )

    def _learn_images(self, windows: np.ndarray) -> Tensor:
        """``(batch, 512)``: what the image's layers make of windows, with gradients."""
        distinct, window_of = _distinct(windows, bucket=_BUCKET)
        chunks = np.split(distinct, range(_CHUNK, len(distinct), _CHUNK))
        images = torch.cat([self.image(self._render(chunk)) for chunk in chunks])
        return images.index_select(0, window_of.to(self.device))

    def _recall_images(self, windows: np.ndarray) -> Tensor:
        """The same without gradients, each window computed once."""
        remembered = {} if self._remembered is None else self._remembered
        if len(remembered) > _MOST_REMEMBERED:
            remembered.clear()
        keys = [window.tobytes() for window in windows]
        new = {key: i for i, key in enumerate(keys) if key not in remembered}
        if new:
            images = self.image(self._render(windows[list(new.values())]))  # (new windows, 512)
            remembered.update(zip(new, images, strict=True))
        return torch.stack([remembered[key] for key in keys])

    def _render(self, windows: np.ndarray) -> Tensor:
        """Images ``(batch, 3, 72, 72)``, from 0 to 1, of characters and colours ``(batch, 2, WINDOW, WINDOW)``."""
        chars, colours = torch.from_numpy(windows).to(self.device).unbind(1)
        return self.renderer(chars, colours).float().div_(255)

    def _floats(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device).float()


def _distinct(rows: np.ndarray, *, bucket: int = 1) -> tuple[np.ndarray, Tensor]:
    """The distinct rows of a uint8 array, and ``(len(rows),)`` int64: which of them each row is.

    The last distinct row is repeated up to a multiple of ``bucket``.
    """
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    keys = flat.view(np.dtype((np.void, flat.shape[1])))[:, 0]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    first = np.pad(first, (0, -len(first) % bucket), mode="edge")
    return rows[first], torch.from_numpy(place)


def _two_layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())


def _initialize(module: nn.Module) -> None:
    """Orthogonal weights and zero biases; of a recurrent layer, each gate's."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.GRU | nn.LSTM):
        gates = {FastGRU: 3, nn.LSTM: 4}.get(type(module), 1)
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                for gate in parameter.data.chunk(gates):
                    nn.init.orthogonal_(gate)
