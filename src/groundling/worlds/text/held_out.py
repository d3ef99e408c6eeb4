"""How well a clone knows the part of its dataset that it does not learn from."""

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


class HeldOutLog:
    """Measures a dataset's validation split while a policy learns its train split.

    Measures when `ValidationLog` does, appends to the same file, and tells the ``others`` likewise. It is idle where
    evaluation.every is null, where the dataset has no such split, and for algorithms that cannot measure it.
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
        others: Sequence[ValidationListener] = (),
    ) -> None:
        self._every: int | None = None
        self._last_step, self._others = last_step, others
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
        """Measure after the update whose figures are ``row``, if it is its turn, or the last."""
        if self._every is not None and due(self._every, self._last_step, row):
            self._measure(row["update"], row["step"])

    def _measure(self, update: int, step: int) -> None:
        metrics = self._algorithm.measure(self._policy, self._rollout)
        self._rows.append({"update": update, "step": step, "metrics": metrics})
        for other in self._others:
            other.log_validation(
                {f"validation/{name}": value for name, value in metrics.items()}, update, step
            )
