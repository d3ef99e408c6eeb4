"""Validation of a clone on the part of its dataset that it does not learn from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.bc import BehaviouralCloning
from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due
from groundling.policies.policy import Policy
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.text.dataset import count_transitions
from groundling.worlds.text.demonstrations import Demonstrations
from groundling.worlds.text.envs import actions_of


class DatasetLog:
    """Measures a dataset's validation split while a policy learns its train split.

    It measures at the same updates, into the same file and for the same listeners as `ValidationLog`. It does nothing
    if evaluation.every is null, if the dataset has no such split, and for algorithms that cannot measure it.
    """

    def __init__(
        self,
        config: TextConfig,
        evaluation: TextEvaluation,
        seed: int,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener] = (),
    ) -> None:
        self._every: int | None = None
        self._last_step, self._listeners = last_step, listeners
        if not isinstance(algorithm, BehaviouralCloning):
            return
        assert config.dataset is not None
        folder = Path(config.dataset)
        count = min(count_transitions(folder, "validation"), evaluation.episodes)
        self._every = evaluation.every if count else None
        if self._every is None:
            return
        self._policy, self._algorithm = policy, algorithm
        actions = actions_of(config).names
        rows = Demonstrations(folder, 1, slice(0, 1), actions, config.history, seed, split="validation")
        self._rollout = rows.rollout(count)  # of the whole split, or of as many drawn from it
        self._rows = RowFile(run_dir / "validation.jsonl", update or BEFORE_ALL)
        if not update:
            self._measure(0, 0)

    def log(self, row: Mapping[str, Any]) -> None:
        """Measure after the update with the figures ``row`` if it is due, or the last."""
        if self._every is not None and due(self._every, self._last_step, row):
            self._measure(row["update"], row["step"])

    def _measure(self, update: int, step: int) -> None:
        metrics = self._algorithm.measure(self._policy, self._rollout)
        self._rows.append({"update": update, "step": step, "metrics": metrics})
        figures = {f"validation/{name}": value for name, value in metrics.items()}
        for listener in self._listeners:
            listener.log_validation(figures, update, step)
