"""What a run does while it trains, for people to read."""

from pathlib import Path
from typing import Any

from groundling.io.row_files import RowFile
from groundling.worlds.collector import Collector

_POINTS = 50
"""So many updates of a training are kept something of, and the first."""
_OF_EACH = 4


class SampleLog:
    """Keeps the first samples of some rollouts in the run's ``samples/train.jsonl``, where its world has any.

    The updates are spread evenly over the training, however long it is, so that the file stays small. Which they are
    depends on steps alone: a run that is resumed keeps what it would have kept.

    Args:
        collector: Gives the rollouts.
        run_dir: The run's folder.
        update: After which the run goes on; rows of later ones are dropped.
        num_steps: Of the whole training.
    """

    def __init__(self, collector: Collector, run_dir: Path, update: int, num_steps: int) -> None:
        self._collector, self._num_steps = collector, num_steps
        self._path = run_dir / "samples" / "train.jsonl"
        self._rows = RowFile(self._path, update) if self._path.exists() else None
        self._last_step = 0 if self._rows is None else self._rows.last_step

    def log(self, row: dict[str, Any]) -> None:
        """Keep something of the update whose figures are ``row``, if it is its turn.

        Raises:
            RunError: the file cannot be written.
        """
        points = [_POINTS * step // self._num_steps for step in (self._last_step, row["step"])]
        if self._last_step and points[0] == points[1]:
            return
        for sample in self._collector.samples()[:_OF_EACH]:
            if self._rows is None:
                self._path.parent.mkdir(exist_ok=True)
                self._rows = RowFile(self._path, row["update"])
            self._rows.append({"update": row["update"], "step": row["step"], **sample})
            self._last_step = row["step"]
