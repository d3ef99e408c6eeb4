"""What DRRN remembers, and the file in which a run keeps it: one that grows, however many checkpoints there are."""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.errors import RunError
from groundling.io.documents import LINE, parse_json

_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Transition:
    """What is remembered: texts, as the policy read them."""

    prompt: str
    actions: tuple[str, ...]
    action: int
    reward: float
    next_prompt: str | None = None
    """None: the episode ended."""
    next_actions: tuple[str, ...] = ()
    """Those that are admissible then; none where the episode ended."""


def followed(transition: Transition, after: Sequence[Any]) -> Transition:
    """The transition with the prompt and the actions that came after it, as they are kept.

    Earlier versions kept no actions, and took those before the step for them.

    Raises:
        ValueError: there is more than these two.
    """
    if not after or after[0] is None:
        return transition
    prompt, actions = after if len(after) > 1 else (*after, transition.actions)
    return replace(transition, next_prompt=prompt, next_actions=tuple(actions))


class ReplayFile:
    """Transitions in the order in which they came, a JSON array each; a text stands where it first occurs, and later
    ones name it by its number.

    A checkpoint holds no more of it than its length and checksum then, `state`. What a killed run wrote behind that is
    cut off by the next `append`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers: dict[Any, int] = {}  # of prompts and of sets of actions
        self._bytes = self._checksum = 0

    @property
    def state(self) -> dict[str, int]:
        """Where the file stands, as JSON."""
        return {"bytes": self._bytes, "crc32": self._checksum}

    def append(self, transitions: Sequence[Transition]) -> None:
        """Write more of them through to the disk.

        Raises:
            RunError: the file is a link, as a run of another's may hold: it may lead to any file of the user's.
            OSError: it cannot be written.
        """
        if self._path.is_symlink():
            raise RunError(
                f"{self._path} is a link, and the run's own file is expected here: put the file itself in the "
                "link's place"
            )
        rows = (
            [
                *(self._number(t.prompt), self._number(t.actions), t.action, t.reward),
                *(
                    ()
                    if t.next_prompt is None
                    else (self._number(t.next_prompt), self._number(t.next_actions))
                ),
            ]
            for t in transitions
        )
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with self._path.open("ab") as file:
            file.truncate(self._bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(content)
        self._checksum = zlib.crc32(content, self._checksum)

    def read(self, state: dict[str, int]) -> Iterator[Transition]:
        """All that had been appended when the file stood at ``state``, where it then goes on.

        Raises:
            RunError: the file is not there, or not what it was.
        """
        self._bytes = self._checksum = 0
        self._numbers.clear()
        known: list[Any] = []
        try:
            with self._path.open("rb") as file:
                while chunk := file.read(min(_CHUNK, state["bytes"] - self._bytes)):
                    self._bytes += len(chunk)
                    self._checksum = zlib.crc32(chunk, self._checksum)
                if self.state != state:
                    raise RunError(
                        f"{self._path} differs from the file that the checkpoint was saved with: bring that file "
                        "back, or set run_dir to a new folder to begin again"
                    )
                file.seek(0)
                while file.tell() < self._bytes:
                    prompt, actions, action, reward, *after = parse_json(file.readline(LINE), str(self._path))
                    prompt, actions = self._known(prompt, known), self._known(actions, known)
                    yield followed(
                        Transition(prompt, actions, action, reward),
                        [self._known(one, known) for one in after],
                    )
        except (OSError, ValueError, TypeError, IndexError) as error:
            raise RunError(f"cannot read {self._path}, which the checkpoint needs: {error}") from error

    def _number(self, text: str | tuple[str, ...] | None) -> Any:
        """What stands for it in the file: itself the first time, and None for None."""
        if text is None or text not in self._numbers:
            if text is not None:
                self._numbers[text] = len(self._numbers)
            return text
        return self._numbers[text]

    def _known(self, written: Any, known: list[Any]) -> Any:
        """The text or actions that `_number` wrote so; ``known`` are those before it."""
        if written is None:
            return None
        if isinstance(written, int):
            return known[written]
        known.append(tuple(written) if isinstance(written, list) else written)
        self._numbers[known[-1]] = len(known) - 1
        return known[-1]
