"""BabyAI's agent, which sees symbols instead of words: GLAM's symbolic baseline."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from groundling.envs.languages import FRENCH_COLOURS, FRENCH_NOUNS, FRENCH_STATES
from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.policies.policy import Action, Evaluation, Policy, Segment, policies
from groundling.policies.weights import read_into

_WORDS = (
    "the a go to pick up open put next then after before you and object in front of on your left right behind "
    "aller à au la le une un ramasser ouvrir poser côté de puis après avoir et objet devant toi ta gauche droite "
    "derrière "
) + " ".join(
    [*FRENCH_COLOURS, *FRENCH_COLOURS.values(), *FRENCH_NOUNS, *FRENCH_NOUNS.values(), *FRENCH_STATES]
)
_KNOWN = {word: i for i, word in enumerate(dict.fromkeys(_WORDS.split()))}
_OTHERS = 64
"""Rows of the embedding that words outside BabyAI's grammar share, by their hash."""


@policies.register("symbolic")
class SymbolicPolicy(Policy):
    """Convolutions over the symbolic view, modulated by the mission, with an LSTM as memory.

    The agent of BabyAI (Chevalier-Boisvert et al. 2019, arXiv 1810.08272, section 4.2: FiLM of Perez et al. 2018,
    arXiv 1709.07871, on a CNN; a GRU reads the mission) in the sizes of GLAM's baseline: 128 channels, 128 units. Group
    normalisation takes the place of the original's batch normalisation, so that an observation's value does not depend
    on its batch.

    Args:
        num_actions: How many admissible actions there are.
        channels: Of the convolutions; a multiple of 8.
        hidden_size: Of the mission's GRU and of the LSTM.
        recurrence: Steps through which gradients go back; `world.num_steps` must be a multiple.
    """

    needs = frozenset({"symbols"})

    def __init__(
        self, num_actions: int, channels: int = 128, hidden_size: int = 128, recurrence: int = 20
    ) -> None:
        super().__init__()
        if channels % 8 or min(channels, hidden_size, recurrence) < 1:
            raise ConfigError(
                "policy.args of symbolic: channels must be a multiple of 8, hidden_size and recurrence at least 1; got "
                f"{channels}, {hidden_size}, {recurrence}"
            )
        self.recurrence = recurrence
        self.memory_size = 2 * hidden_size  # the LSTM's hidden state and cell
        self.words = nn.Embedding(len(_KNOWN) + _OTHERS, hidden_size)
        self.mission = nn.GRU(hidden_size, hidden_size)
        self.view = nn.Sequential(
            nn.Conv2d(3, channels, 2, padding=1),
            nn.GroupNorm(8, channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(8, channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )  # (batch, 3, 7, 7) to (batch, channels, 2, 2)
        self.film = nn.ModuleList([_FiLM(channels, hidden_size) for _ in range(2)])
        self.lstm = nn.LSTMCell(channels, hidden_size)
        choice = nn.Linear(64, num_actions)
        # The actor begins near uniform, as is usual in PPO (Andrychowicz et al. 2021, arXiv 2006.05990).
        nn.init.normal_(choice.weight, std=0.01)
        self.actor = nn.Sequential(nn.Linear(hidden_size, 64), nn.Tanh(), choice)
        self.critic = nn.Sequential(nn.Linear(hidden_size, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            memory = self._remember(observations, memory)
            log_probs, values = self._heads(memory)  # (batch, num_actions), (batch,)
        return Action.choose(
            log_probs, values, deterministic=deterministic, generator=generator, memory=memory.cpu()
        )

    def evaluate(self, observations: Sequence[Segment], actions: Tensor) -> Evaluation:
        flat = [o for segment in observations for o in segment.observations]
        features = self._features(flat).unflatten(0, actions.shape)  # (batch, recurrence, channels)
        memory = torch.stack([segment.memory for segment in observations]).to(self.device)
        starts = torch.stack([segment.starts for segment in observations]).to(self.device)
        memories = []
        for t in range(actions.shape[1]):
            memory = self._step(features[:, t], memory * ~starts[:, t, None])
            memories.append(memory)
        log_probs, values = self._heads(torch.stack(memories, dim=1))
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._heads(self._remember(observations, memory))[1]

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "symbolic.safetensors")

    def load_weights(self, folder: Path) -> None:
        read_into(self.state_dict(), folder / "symbolic.safetensors")

    def _remember(self, observations: Sequence[TextObservation], memory: Tensor | None) -> Tensor:
        if memory is None:
            memory = torch.zeros(len(observations), self.memory_size)
        return self._step(self._features(observations), memory.to(self.device))

    def _step(self, features: Tensor, memory: Tensor) -> Tensor:
        """Memory after one step: features ``(batch, channels)``, memory ``(batch, memory_size)``."""
        hidden, cell = memory.chunk(2, dim=-1)
        return torch.cat(self.lstm(features, (hidden, cell)), dim=-1)

    def _heads(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden = memory[..., : self.memory_size // 2]
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[..., 0]

    def _features(self, observations: Sequence[TextObservation]) -> Tensor:
        """``(batch, channels)``: the view, as the mission makes it matter."""
        images = np.stack([o.raw["image"] for o in observations])  # (batch, 7, 7, 3) uint8
        view = self.view(torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float())
        mission = self._missions([o.goal for o in observations])  # (batch, hidden_size)
        for film in self.film:
            view = film(view, mission)
        return view.amax((2, 3)).relu()

    def _missions(self, goals: Sequence[str]) -> Tensor:
        distinct = list(dict.fromkeys(goals))
        lines = [self.words(torch.tensor(_word_ids(goal), device=self.device)) for goal in distinct]
        _, last = self.mission(pack_sequence(lines, enforce_sorted=False))  # (1, distinct, hidden_size)
        place = {goal: i for i, goal in enumerate(distinct)}
        return last[0, [place[goal] for goal in goals]]


class _FiLM(nn.Module):
    """Two convolutions; the mission scales and shifts what comes out of the second."""

    def __init__(self, channels: int, mission_size: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()
        )
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.scale, self.shift = nn.Linear(mission_size, channels), nn.Linear(mission_size, channels)

    def forward(self, view: Tensor, mission: Tensor) -> Tensor:
        changed = self.second(self.first(view))
        changed = changed * self.scale(mission)[..., None, None] + self.shift(mission)[..., None, None]
        return self.norm(changed).relu()


def _word_ids(goal: str) -> list[int]:
    words = re.findall(r"\w+", goal.lower()) or [""]
    return [_KNOWN.get(word, len(_KNOWN) + zlib.crc32(word.encode()) % _OTHERS) for word in words]
