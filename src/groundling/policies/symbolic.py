"""GLAM's symbolic baseline: BabyAI's agent, which sees symbols instead of words."""

import re
import zlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from groundling.envs.text_env import FRENCH_COLOURS, FRENCH_NOUNS, FRENCH_STATES, TextObservation
from groundling.fields import Ge
from groundling.policies import arguments
from groundling.policies.policy import policies
from groundling.policies.recurrent import RecurrentPolicy

_WORDS = (
    "the a go to pick up open put next then after before you and object in front of on your left right behind "
    "aller à au la le une un ramasser ouvrir poser côté de puis après avoir et objet devant toi ta gauche droite "
    "derrière "
) + " ".join([*FRENCH_COLOURS, *FRENCH_COLOURS.values(), *FRENCH_NOUNS, *FRENCH_NOUNS.values(), *FRENCH_STATES])
_KNOWN = {word: i for i, word in enumerate(dict.fromkeys(_WORDS.split()))}
_OTHERS = 64  # Number of embeddings shared by words outside BabyAI's grammar, chosen by hash


@policies.register("symbolic")
class SymbolicPolicy(RecurrentPolicy):
    """Convolutions over the symbolic view, modulated by the mission, with an LSTM as memory.

    This is BabyAI's agent (Chevalier-Boisvert et al. 2019, arXiv 1810.08272, section 4.2): a CNN with FiLM (Perez et
    al. 2018, arXiv 1709.07871) and a GRU that reads the mission, with 128 channels and hidden units as in GLAM. Group
    normalisation replaces batch normalisation, so that an observation's value does not depend on its batch.

    Args:
        num_actions: Number of admissible actions.
        channels: Number of channels in the convolutions; a multiple of 8.
        hidden_size: Hidden size of the mission's GRU and of the LSTM.
        recurrence: Number of steps to backpropagate through; `world.num_steps` must be a multiple of it.
    """

    needs = frozenset({"symbols"})
    weights_file = "symbolic.safetensors"

    def __init__(
        self,
        num_actions: arguments.NumActions,
        channels: Annotated[int, Ge(8)] = 128,
        hidden_size: Annotated[int, Ge(1)] = 128,
        recurrence: Annotated[int, Ge(1)] = 20,
    ) -> None:
        super().__init__()
        self.recurrence, self.hidden_size = recurrence, hidden_size
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
        # The initial policy is nearly uniform, as is usual with PPO (Andrychowicz et al. 2021, arXiv 2006.05990).
        nn.init.normal_(choice.weight, std=0.01)
        self.actor = nn.Sequential(nn.Linear(hidden_size, 64), nn.Tanh(), choice)
        self.critic = nn.Sequential(nn.Linear(hidden_size, 64), nn.Tanh(), nn.Linear(64, 1))

    def features(self, observations: Sequence[Sequence[TextObservation]]) -> Tensor:
        flat = [o for part in observations for o in part]
        images = np.stack([o.raw["image"] for o in flat])  # (total, 7, 7, 3) uint8
        view = self.view(torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float())
        mission = self._missions([o.goal for o in flat])  # (total, hidden_size)
        for film in self.film:
            view = film(view, mission)
        return view.amax((2, 3)).relu()  # (total, channels)

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        memory = torch.cat(self.lstm(features, memory.chunk(2, dim=-1)), dim=-1)
        return memory[:, : self.hidden_size], memory

    def unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        starts, memories = starts.to(memory.device), []
        for t in range(features.shape[1]):
            _, memory = self.step(features[:, t], memory * ~starts[:, t, None])
            memories.append(memory)
        return torch.stack(memories, dim=1)[..., : self.hidden_size]

    def _missions(self, goals: Sequence[str]) -> Tensor:
        """Encode the goals, ``(len(goals), hidden_size)``, reading each distinct goal once."""
        distinct = list(dict.fromkeys(goals))
        texts = [re.findall(r"\w+", goal.lower()) or [""] for goal in distinct]
        ids = [[_KNOWN.get(w, len(_KNOWN) + zlib.crc32(w.encode()) % _OTHERS) for w in words] for words in texts]
        lines = [self.words(torch.tensor(one, device=self.device)) for one in ids]
        _, last = self.mission(pack_sequence(lines, enforce_sorted=False))  # (1, distinct, hidden_size)
        place = {goal: i for i, goal in enumerate(distinct)}
        return last[0, [place[goal] for goal in goals]]


class _FiLM(nn.Module):
    """Two convolutions; the mission scales and shifts the output of the second."""

    def __init__(self, channels: int, mission_size: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU())
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.scale, self.shift = nn.Linear(mission_size, channels), nn.Linear(mission_size, channels)

    def forward(self, view: Tensor, mission: Tensor) -> Tensor:
        changed = self.second(self.first(view))
        changed = changed * self.scale(mission)[..., None, None] + self.shift(mission)[..., None, None]
        return self.norm(changed).relu()
