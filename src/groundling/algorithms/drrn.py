"""Deep reinforcement relevance network: Q-learning on texts from a replay memory."""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.nn import functional as F

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import RunError
from groundling.fields import Ge, Gt, Le
from groundling.io.documents import LINE, parse_json
from groundling.policies.drrn import DRRNPolicy
from groundling.policies.policy import Policy

_CHUNK = 2**20
_Text = str | tuple[str, ...]  # A prompt, or a set of actions


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A transition, stored as the texts that the policy read."""

    prompt: str
    actions: tuple[str, ...]
    action: int
    reward: float
    next_prompt: str | None = None  # None if the episode ended
    next_actions: tuple[str, ...] = ()  # Actions that are admissible next; () if the episode ended


class ReplayMemory:
    """The last ``size`` transitions in memory, and all transitions in a file, where numbers replace repeated texts.
    A checkpoint stores only the file's length and checksum; `save` removes lines that a killed run added later.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: list[ReplayedStep] = []
        self._oldest = 0  # position of the next transition once the memory is full
        self._path: Path | None = None
        self._writes = False
        self._unsaved: list[ReplayedStep] = []
        self._numbers: dict[_Text, int] = {}  # number of each text in the file
        self._bytes = self._checksum = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place: int) -> ReplayedStep:
        return self._kept[place]

    def keep_file(self, path: Path, writes: bool = True) -> None:
        """Set the path of the file; with several processes, only the main one ``writes``."""
        self._path, self._writes = path, writes

    def add(self, transition: ReplayedStep) -> None:
        if self._writes:
            self._unsaved.append(transition)
        if len(self._kept) < self.size:
            self._kept.append(transition)
        else:
            self._kept[self._oldest] = transition
            self._oldest = (self._oldest + 1) % self.size

    def save(self) -> dict[str, int]:
        """Flush new transitions to disk; return the file's length and checksum, for `load`."""
        path = self._file()
        if path.is_symlink():  # in a run from someone else, it could point to any of the user's files
            raise RunError(f"{path} is a symbolic link: replace it with the file itself")
        content = "".join(json.dumps(self._row(transition)) + "\n" for transition in self._unsaved).encode()
        with path.open("ab") as file:
            file.truncate(self._bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._unsaved.clear()
        self._bytes += len(content)
        self._checksum = zlib.crc32(content, self._checksum)
        return {"bytes": self._bytes, "crc32": self._checksum}

    def load(self, state: dict[str, int]) -> None:
        """Read the file as it was when `save` returned ``state``; raise `RunError` if it is missing or differs."""
        path, writes = self._file(), self._writes
        self._kept, self._oldest, self._writes = [], 0, False
        try:
            for transition in self._read(path, state):
                self.add(transition)
        except (OSError, ValueError, TypeError, IndexError) as error:
            raise RunError(f"cannot read {path}, which the checkpoint needs: {error}") from error
        self._writes = writes

    def _file(self) -> Path:
        if self._path is None:
            raise RunError("the replay memory has no file: call use_folder(folder) first")
        return self._path

    def _read(self, path: Path, state: dict[str, int]) -> Iterator[ReplayedStep]:
        self._bytes = self._checksum = 0
        self._numbers.clear()
        texts: list[_Text] = []

        def text(written: Any) -> Any:
            """Invert `_number`."""
            if isinstance(written, int):
                return texts[written]
            texts.append(tuple(written) if isinstance(written, list) else written)
            self._numbers[texts[-1]] = len(texts) - 1
            return texts[-1]

        with path.open("rb") as file:
            while chunk := file.read(min(_CHUNK, state["bytes"] - self._bytes)):
                self._bytes += len(chunk)
                self._checksum = zlib.crc32(chunk, self._checksum)
            if (self._bytes, self._checksum) != (state["bytes"], state["crc32"]):
                raise RunError(
                    f"{path} does not match the checkpoint: restore the original file, or set run_dir to a new folder"
                )
            file.seek(0)
            while file.tell() < self._bytes:
                prompt, actions, action, reward, *after = parse_json(file.readline(LINE), str(path))
                yield ReplayedStep(text(prompt), text(actions), action, reward, *map(text, after))

    def _row(self, t: ReplayedStep) -> list[Any]:
        row = [self._number(t.prompt), self._number(t.actions), t.action, t.reward]
        return row if t.next_prompt is None else [*row, self._number(t.next_prompt), self._number(t.next_actions)]

    def _number(self, text: _Text) -> Any:
        """Return the text itself the first time, and its number afterwards."""
        if text in self._numbers:
            return self._numbers[text]
        self._numbers[text] = len(self._numbers)
        return text


@algorithms.register("drrn")
@dataclass
class DRRN(Algorithm):
    """Q-learning on replayed transitions (He et al. 2016, arXiv 1511.04636), with GLAM's settings.
    L = Huber(Q(s, a) - (r + γ max_a' Q(s', a'))), where a' ranges over the actions admissible in s'
    """

    learning_rate: Annotated[float, Gt(0)] = 1e-4
    gamma: Annotated[float, Ge(0), Le(1)] = 0.9  # Discount factor
    batch_size: Annotated[int, Ge(1)] = 64  # Transitions per gradient step
    replay_size: Annotated[int, Ge(1)] = 5_000_000
    """Size of the replay memory; the oldest transitions are dropped. ``replay.jsonl`` keeps all, at about 1 kB each."""
    steps_per_gradient: Annotated[int, Ge(1)] = 128
    """Env steps per gradient step; 128 in GLAM. Lower values speed up learning per step, but slow it down per hour."""
    max_grad_norm: Annotated[float, Gt(0)] = 5.0

    reports_entropy = False
    needs_values = False

    def __post_init__(self) -> None:
        self.replay = ReplayMemory(self.replay_size)
        self._steps = 0  # env steps since the last gradient step

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not issubclass(policy, DRRNPolicy):
            return "it learns Q-values, which the policy does not compute"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Add the rollout to the replay memory, and take a gradient step for every ``steps_per_gradient`` steps."""
        assert isinstance(policy, DRRNPolicy)
        num_envs = rollout.actions.shape[1]
        observations = [*rollout.observations, *rollout.last_observations]
        prompts = policy.prompts(observations)
        columns = (tensor.flatten().tolist() for tensor in (rollout.actions, rollout.rewards, rollout.dones))
        for i, (action, reward, done) in enumerate(zip(*columns, strict=True)):
            after = () if done else (prompts[i + num_envs], observations[i + num_envs].actions)
            self.replay.add(ReplayedStep(prompts[i], observations[i].actions, action, reward, *after))
        self._steps += len(rollout)
        figures: list[dict[str, float]] = []
        for _ in range(self._steps // self.steps_per_gradient):
            chosen = torch.randint(len(self.replay), (self.batch_size,), generator=generator)
            figures.append(self._step(policy, [self.replay[i] for i in chosen.tolist()]))
        self._steps %= self.steps_per_gradient
        names = figures[0] if figures else ()
        means = {name: sum(f[name] for f in figures) / len(figures) for name in names}
        return {**means, "replay": len(self.replay)}

    def use_folder(self, folder: Path) -> None:
        self.replay.keep_file(folder / "replay.jsonl", writes=self.processes.is_main)

    def state_dict(self) -> dict[str, Any]:
        """Save ``replay.jsonl``, and return its length and checksum."""
        return {"file": self.replay.save(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self.replay.load(state["file"])

    def _step(self, policy: DRRNPolicy, batch: Sequence[ReplayedStep]) -> dict[str, float]:
        targets = torch.tensor([t.reward for t in batch], device=policy.device)  # (batch_size,)
        continuing = [i for i, t in enumerate(batch) if t.next_prompt is not None]
        if continuing:
            prompts = [batch[i].next_prompt or "" for i in continuing]
            with torch.no_grad():
                next_q = policy.q_values(prompts, [batch[i].next_actions for i in continuing])
            targets[continuing] += self.gamma * next_q.amax(-1)
        q = policy.q_values([t.prompt for t in batch], [t.actions for t in batch])  # (batch_size, actions)
        chosen = q.gather(1, torch.tensor([[t.action] for t in batch], device=q.device))[:, 0]
        loss = F.smooth_l1_loss(chosen, targets)
        if not loss.isfinite():
            raise RunError(f"DRRN's loss became {loss.item()}: check the rewards, or lower the learning rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return {"loss": loss.item(), "q_mean": chosen.mean().item(), "grad_norm": norm.item()}
