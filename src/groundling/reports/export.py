"""Export the returns of several runs by task and method, in the layout of Motif's results file but as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundling.config.compose import from_file
from groundling.config.facts import shareable
from groundling.io.files import write_atomically
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics


def write_returns(run_dirs: Sequence[Path], output: Path) -> None:
    """Write ``{task: {method: [{"seed": …, "timesteps": […], "returns": […]}, …]}}``; the method is the run's name.

    Each return is the mean over the training episodes that ended during an update. Updates without any are omitted.
    """
    tasks: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run_dir in run_dirs:
        config = from_file(run_dir / "config.yaml", purpose="showing")
        rows = [row for row in read_metrics(run_dir) if row.get("return_mean") is not None]
        of_seed = {
            "seed": config.seed,
            "timesteps": [row["step"] for row in rows],
            "returns": [row["return_mean"] for row in rows],
        }
        methods = tasks.setdefault(shareable(world_of(config).spec.name), {})
        methods.setdefault(shareable(config.name), []).append(of_seed)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, json.dumps(tasks, indent=1) + "\n")
