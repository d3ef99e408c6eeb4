"""Replay memory of texts, and the growing file that a run keeps it in."""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.errors import RunError
from groundling.io.documents import LINE, parse_json

_CHUNK = 2**20
_Text = str | tuple[str, ...]  # A prompt, or a set of actions


@dataclass(frozen=True, slots=True)
class Transition:
    """A step in the texts that the policy read."""

    prompt: str
    actions: tuple[str, ...]
    action: int
    reward: float
    next_prompt: str | None = None  # None: the episode ended
    next_actions: tuple[str, ...] = ()  # Actions that are admissible next; () where the episode ended


class ReplayMemory:
    """The last ``size`` transitions, and a file of all of them: a JSON array each, with earlier texts by number.
    A checkpoint holds only the file's length and checksum; the next `save` cuts off what a killed run wrote later.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: list[Transition] = []
        self._oldest = 0  # place of the next transition once the memory is full
        self._path: Path | None = None
        self._writes = False
        self._unsaved: list[Transition] = []
        self._numbers: dict[_Text, int] = {}  # of the texts in the file
        self._bytes = self._checksum = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place: int) -> Transition:
        return self._kept[place]

    def keep_file(self, path: Path, writes: bool = True) -> None:
        """Save to ``path``; of several processes only the main one ``writes``."""
        self._path, self._writes = path, writes

    def add(self, transition: Transition) -> None:
        if self._writes:
            self._unsaved.append(transition)
        if len(self._kept) < self.size:
            self._kept.append(transition)
        else:
            self._kept[self._oldest] = transition
            self._oldest = (self._oldest + 1) % self.size

    def save(self) -> dict[str, int]:
        """Write new transitions through to the disk; return the file's length and checksum, for `load`.
        Raises `RunError` if the file is a link: another's run could have it lead to any file of the user's.
        """
        path = self._file()
        if path.is_symlink():
            raise RunError(
                f"{path} is a link, and the run's own file is expected here: put the file itself in the link's place"
            )
        content = "".join(json.dumps(self._row(transition)) + "\n" for transition in self._unsaved).encode()
        with path.open("ab") as file:
            file.truncate(self._bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._unsaved.clear()
        self._bytes += len(content)
        self._checksum = zlib.crc32(content, self._checksum)
        return self._state()

    def load(self, state: dict[str, int]) -> None:
        """Read the file as of the `save` that returned ``state``; `RunError` if it is missing or has changed."""
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

    def _state(self) -> dict[str, int]:
        return {"bytes": self._bytes, "crc32": self._checksum}

    def _read(self, path: Path, state: dict[str, int]) -> Iterator[Transition]:
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
            if self._state() != state:
                raise RunError(
                    f"{path} differs from the file that the checkpoint was saved with: restore that file, or set "
                    "run_dir to a new folder to begin again"
                )
            file.seek(0)
            while file.tell() < self._bytes:
                prompt, actions, action, reward, *after = parse_json(file.readline(LINE), str(path))
                yield Transition(text(prompt), text(actions), action, reward, *map(text, after))

    def _row(self, transition: Transition) -> list[Any]:
        t = transition
        row = [self._number(t.prompt), self._number(t.actions), t.action, t.reward]
        if t.next_prompt is not None:
            row += [self._number(t.next_prompt), self._number(t.next_actions)]
        return row

    def _number(self, text: _Text) -> Any:
        """Return the text itself the first time, later its number."""
        if text in self._numbers:
            return self._numbers[text]
        self._numbers[text] = len(self._numbers)
        return text
