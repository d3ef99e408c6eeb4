"""Replay memory of texts, and the growing file that a run keeps it in."""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.errors import RunError
from groundling.io.documents import LINE, parse_json

_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Transition:
    """A step in the texts that the policy read."""

    prompt: str
    actions: tuple[str, ...]
    action: int
    reward: float
    next_prompt: str | None = None
    """None: the episode ended."""
    next_actions: tuple[str, ...] = ()
    """Actions that are admissible next; () where the episode ended."""


class ReplayMemory:
    """The last ``size`` transitions, and the file of all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: list[Transition] = []
        self._oldest = 0  # place of the next transition once the memory is full
        self._file: ReplayFile | None = None
        self._writes = False
        self._unsaved: list[Transition] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place: int) -> Transition:
        return self._kept[place]

    def keep_file(self, path: Path, writes: bool = True) -> None:
        """Save to ``path``; of several processes only the main one ``writes``."""
        self._file, self._writes = ReplayFile(path), writes

    def add(self, transition: Transition) -> None:
        """Add a transition, replacing the oldest if the memory is full."""
        self._keep(transition)
        if self._writes:
            self._unsaved.append(transition)

    def save(self) -> dict[str, int]:
        """Write new transitions to the file.

        Returns:
            State of the file, which `load` takes.

        Raises:
            OSError: the file cannot be written.
        """
        if self._file is None:
            raise RunError("the replay memory has no file to be saved in: call use_folder(folder) first")
        self._file.append(self._unsaved)
        self._unsaved.clear()
        return self._file.state

    def load(self, state: dict[str, int]) -> None:
        """Restore what `save` wrote.

        Raises:
            RunError: the file is missing, or not what it was.
        """
        if self._file is None:
            raise RunError("the replay memory has no file to be read from: call use_folder(folder) first")
        self._kept, self._oldest = [], 0
        for transition in self._file.read(state):
            self._keep(transition)

    def _keep(self, transition: Transition) -> None:
        if len(self._kept) < self.size:
            self._kept.append(transition)
        else:
            self._kept[self._oldest] = transition
            self._oldest = (self._oldest + 1) % self.size


class ReplayFile:
    """Transitions in the order in which they came, a JSON array each; later lines refer to earlier texts by number.

    A checkpoint holds only its length and checksum, `state`. What a killed run wrote after that is cut off by the next
    `append`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers: dict[str | tuple[str, ...], int] = {}  # of prompts and sets of actions
        self._bytes = self._checksum = 0

    @property
    def state(self) -> dict[str, int]:
        """Length and checksum of the file so far, as JSON."""
        return {"bytes": self._bytes, "crc32": self._checksum}

    def append(self, transitions: Sequence[Transition]) -> None:
        """Write transitions through to the disk.

        Raises:
            RunError: the file is a link; another's run could have it lead to any file of the user's.
            OSError: it cannot be written.
        """
        if self._path.is_symlink():
            raise RunError(
                f"{self._path} is a link, and the run's own file is expected here: put the file itself in the "
                "link's place"
            )
        content = "".join(json.dumps(self._row(t)) + "\n" for t in transitions).encode()
        with self._path.open("ab") as file:
            file.truncate(self._bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(content)
        self._checksum = zlib.crc32(content, self._checksum)

    def read(self, state: dict[str, int]) -> Iterator[Transition]:
        """Read all transitions that the file had in ``state``, and continue from there.

        Raises:
            RunError: the file is missing, or not what it was.
        """
        self._bytes = self._checksum = 0
        self._numbers.clear()
        texts: list[str | tuple[str, ...]] = []
        try:
            with self._path.open("rb") as file:
                while chunk := file.read(min(_CHUNK, state["bytes"] - self._bytes)):
                    self._bytes += len(chunk)
                    self._checksum = zlib.crc32(chunk, self._checksum)
                if self.state != state:
                    raise RunError(
                        f"{self._path} differs from the file that the checkpoint was saved with: restore that file, or "
                        "set run_dir to a new folder to begin again"
                    )
                file.seek(0)
                while file.tell() < self._bytes:
                    prompt, actions, action, reward, *after = parse_json(file.readline(LINE), str(self._path))
                    prompt, actions = self._text(prompt, texts), self._text(actions, texts)
                    yield Transition(prompt, actions, action, reward, *(self._text(one, texts) for one in after))
        except (OSError, ValueError, TypeError, IndexError) as error:
            raise RunError(f"cannot read {self._path}, which the checkpoint needs: {error}") from error

    def _row(self, transition: Transition) -> list[Any]:
        t = transition
        row = [self._number(t.prompt), self._number(t.actions), t.action, t.reward]
        if t.next_prompt is not None:
            row += [self._number(t.next_prompt), self._number(t.next_actions)]
        return row

    def _number(self, text: str | tuple[str, ...]) -> Any:
        """The text itself the first time, later its number."""
        if text in self._numbers:
            return self._numbers[text]
        self._numbers[text] = len(self._numbers)
        return text

    def _text(self, written: Any, texts: list[str | tuple[str, ...]]) -> Any:
        """The text or actions of which `_number` gave ``written``; ``texts`` are those before it."""
        if isinstance(written, int):
            return texts[written]
        texts.append(tuple(written) if isinstance(written, list) else written)
        self._numbers[texts[-1]] = len(texts) - 1
        return texts[-1]
