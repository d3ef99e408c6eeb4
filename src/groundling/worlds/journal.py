"""What an agent has done in an evaluation, so that one that was stopped goes on from there."""

import base64
import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from groundling.documents import lines_of, parse_json
from groundling.errors import RunError
from groundling.files import lock_file

_SECONDS = 20.0
"""Between two lines: so much work is lost at most, and shorter evaluations write nothing."""


class UnequalMoment(RunError):
    """What is shown is not what was shown when the journal was written."""


class Journal:
    """The choices of an agent, in their order. Those of before are repeated, so that its world comes to where it was.

    A line of the file holds the choices since the one before, and the state after them of what is left to chance and of
    what the agent remembers. Another process that has the same journal open keeps this one from writing.

    Args:
        path: The file; None, or one that cannot be had: nothing is kept.

    Attributes:
        repeated: How many choices there are of before.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._before: deque[tuple[str, Any]] = deque()
        self._new: list[tuple[str, Any]] = []
        self._state: Mapping[str, Any] = {}
        self._written = time.monotonic()
        self._generators: Sequence[torch.Generator] = ()
        self._memories: MutableMapping[int, Tensor] = {}
        self._file: IO[bytes] | None = None
        if path is not None and path.exists():
            self._file = _open(path)
            if self._file is not None:
                self._read(path)
        self.repeated = len(self._before)

    def begin(
        self, generators: Sequence[torch.Generator] = (), memories: MutableMapping[int, Tensor] | None = None
    ) -> None:
        """Take in hand what an agent's choices hang on, and set it as it was after those of before.

        Args:
            generators: What it draws with.
            memories: By env, ``(memory_size,)`` float32.
        """
        self._generators, self._memories = generators, {} if memories is None else memories
        if not self._before:
            return
        for generator, state in zip(generators, self._state["generators"], strict=True):
            generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
        for env, memory in self._state["memories"].items():
            array = np.frombuffer(base64.b64decode(memory), dtype=np.float32).copy()
            self._memories[int(env)] = torch.from_numpy(array)

    def repeat(self, shown: object) -> Any | None:
        """What was chosen at this moment before; None where it is new.

        Args:
            shown: What the agent is shown, with the same ``repr`` whenever it is the same.

        Raises:
            UnequalMoment: it was shown something else then.
        """
        if not self._before:
            return None
        digest, chosen = self._before.popleft()
        if digest != _digest(shown):
            raise UnequalMoment("the world shows what it did not show before")
        return chosen

    def note(self, shown: object, chosen: Any) -> None:
        """Keep a new choice, as JSON has it."""
        if self.path is None:
            return
        self._new.append((_digest(shown), chosen))
        if time.monotonic() - self._written >= _SECONDS:
            self._write(self.path)

    def forget(self) -> None:
        """Begin anew."""
        self.close()
        self._before.clear()
        self._new.clear()
        self.repeated = 0
        if self.path is not None and self.path.exists():
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes have the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, path: Path) -> None:
        whole = 0
        try:
            for number, line in enumerate(lines_of(path), start=1):
                if not line.endswith(b"\n"):
                    break  # cut off by a kill
                content = parse_json(line, f"{path}:{number}")
                self._before.extend((digest, chosen) for digest, chosen in content["choices"])
                self._state, whole = content["state"], whole + len(line)
        except (ValueError, TypeError, KeyError):  # not as this version writes it
            self._before.clear()
            whole = 0
        assert self._file is not None
        self._file.truncate(whole)

    def _write(self, path: Path) -> None:
        """Write a line; where that cannot be, go on without."""
        self._written = time.monotonic()
        try:
            if self._file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = _open(path)
                if self._file is None:
                    self.path = None
                    return
            state = {
                "generators": [_text(generator.get_state()) for generator in self._generators],
                "memories": {str(env): _text(memory) for env, memory in self._memories.items()},
            }
            line = json.dumps({"choices": self._new, "state": state}) + "\n"
            self._file.write(line.encode())
            self._file.flush()
        except OSError:
            self.path = None
        self._new = []


def _open(path: Path) -> IO[bytes] | None:
    """The file, locked; None where another process has it, or it cannot be written to."""
    try:
        file = path.open("ab")
    except OSError:
        return None
    if lock_file(file, lambda text: None):
        return file
    file.close()
    return None


def _digest(shown: object) -> str:
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()


def _text(tensor: Tensor) -> str:
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode()
