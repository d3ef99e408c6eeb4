"""What an agent has done in an evaluation, so that one that was stopped goes on from there."""

import base64
import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from groundling.errors import RunError
from groundling.io.documents import lines_of, parse_json
from groundling.io.files import lock_file

_SECONDS = 20.0
"""Between two lines: the work of so much time can be lost, and a command that takes less writes nothing."""
_CHARACTERS = 2**22
"""Of the actions of a line, at most: more are written before their time."""


class UnequalObservation(RunError):
    """An observation differs from that of the time when the journal was written."""


class Journal:
    """The actions of an agent, in their order, in a file: those of before are repeated without asking the agent again.

    A line holds the actions since the line before, and what the agent's random generators and memories are after them.
    Where another process has the file open, or it cannot be had, nothing is kept.

    Args:
        path: The file; None: nothing is kept.
        began: When the command began that evaluates, by `time.monotonic`; None: now.

    Attributes:
        repeated: How many actions of before there were.
    """

    def __init__(self, path: Path | None = None, began: float | None = None) -> None:
        self.path = path
        self._before: deque[tuple[str, Any]] = deque()
        self._state = ""
        self._new: list[str] = []  # as JSON
        self._size = 0  # of these
        self._began = self._written = time.monotonic() if began is None else began
        self._generators: Sequence[torch.Generator] = ()
        self._memories: MutableMapping[int, Tensor] = {}
        self._file: IO[bytes] | None = None  # locked
        with self._or_without():
            if path is not None and path.exists() and (file := self._open(path)) is not None:
                self._read(path, file)
        self.repeated = len(self._before)

    def begin(
        self, generators: Sequence[torch.Generator] = (), memories: MutableMapping[int, Tensor] | None = None
    ) -> None:
        """Set an agent's random generators and memories as they were after the actions of before, and keep them.

        Args:
            generators: What it draws with.
            memories: By env, ``(memory_size,)``.
        """
        self._generators, self._memories = generators, {} if memories is None else memories
        if not self._before:
            return
        try:
            state = load(base64.b64decode(self._state))
            states = [state.pop(f"generator.{number}") for number in range(len(generators))]
            kept = {int(name.removeprefix("memory.")): memory for name, memory in state.items()}
            if any(one.shape != old.get_state().shape for one, old in zip(states, generators, strict=True)):
                raise ValueError("the states of other generators")
            for generator, one in zip(generators, states, strict=True):
                generator.set_state(one)
            self._memories.update(kept)
        except (KeyError, ValueError, RuntimeError, SafetensorError):  # of an agent that draws otherwise
            self.forget()

    def repeat(self, observation: object) -> Any | None:
        """What was done at this observation before; None where it is new.

        Args:
            observation: Its ``repr`` is the same whenever it is the same.

        Raises:
            UnequalObservation: it was another one then.
        """
        if not self._before:
            return None
        digest, action = self._before.popleft()
        if digest != _digest(observation):
            raise UnequalObservation("an observation differs from what it was before")
        return action

    def record(self, observation: object, action: Any) -> None:
        """Keep a new action, or several envs' actions, as JSON has them."""
        if self.path is None:
            return
        self._new.append(json.dumps([_digest(observation), action]))
        self._size += len(self._new[-1])
        if time.monotonic() - self._written >= _SECONDS or self._size > _CHARACTERS:
            self._write(self.path)

    def end(self) -> None:
        """The agent is done: keep all of it, if the command has run for long enough."""
        if self.path is not None and self._new and time.monotonic() - self._began >= _SECONDS:
            self._write(self.path)

    def forget(self) -> None:
        """Begin anew."""
        if self._file is not None and self.path is not None:
            self.path.unlink(missing_ok=True)
        self.close()
        self._before.clear()
        self._new.clear()
        self.repeated = 0

    def close(self) -> None:
        """Let other processes have the file."""
        if self._file is not None:
            with suppress(OSError):  # of a full disk
                self._file.close()
            self._file = None

    def _read(self, path: Path, file: IO[bytes]) -> None:
        """Take up the lines up to the first that is not whole, or not as this version writes it."""
        whole = 0
        with suppress(ValueError, TypeError, KeyError):
            for number, line in enumerate(lines_of(path), start=1):
                if not line.endswith(b"\n"):
                    break  # cut off by a kill
                content = parse_json(line, f"{path}:{number}")
                actions = [(str(digest), action) for digest, action in content["actions"]]
                self._state = str(content["state"])
                self._before.extend(actions)
                whole += len(line)
        file.truncate(whole)

    def _write(self, path: Path) -> None:
        self._written = time.monotonic()
        with self._or_without():
            file = self._file
            if file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._open(path)
                if file is None:
                    return
                file.truncate(0)
            state = {f"generator.{i}": one.get_state() for i, one in enumerate(self._generators)}
            state |= {f"memory.{env}": memory.contiguous() for env, memory in self._memories.items()}
            text = base64.b64encode(save(state)).decode()
            file.write(f'{{"actions": [{", ".join(self._new)}], "state": "{text}"}}\n'.encode())
            file.flush()
        self._new, self._size = [], 0

    def _open(self, path: Path) -> IO[bytes] | None:
        """The file, locked; where another process has it, nothing is kept any more."""
        self._file = path.open("ab")
        if lock_file(self._file, lambda text: None):
            return self._file
        self.close()
        self.path = None
        return None

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        """Keep nothing any more where the file cannot be had."""
        try:
            yield
        except OSError:
            self.close()
            self.path = None


def _digest(observation: object) -> str:
    return hashlib.blake2b(repr(observation).encode(), digest_size=8).hexdigest()
