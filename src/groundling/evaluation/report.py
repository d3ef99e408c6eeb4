"""`groundling report`: one self-contained HTML page about one run or several."""

import base64
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from groundling.configs.compose import changed, from_file, recorded
from groundling.configs.schema import Config
from groundling.configs.trust import EVERYTHING, shareable
from groundling.envs.babyai_text import CONTROLS
from groundling.envs.nethack import TASKS
from groundling.errors import RunError
from groundling.evaluation import plots
from groundling.evaluation.nethack import showing
from groundling.evaluation.samples import frames
from groundling.files import write_atomically
from groundling.training.probes import read_probes, right_actions
from groundling.training.tracking import read_metrics, read_rows

_MOST_ACTIONS = 8  # of a step of a sample episode
_MAX_FRAMES = 30
_MAX_TEXTS = 8
_LEARNING_FIGURES = (
    "return_mean",
    "first_named",
    "first_other",
    "first_none",
    "loss",
    "probability",
    "kl_mean",
    "kl_coefficient",
    "score",
    "dlvl",
    "gold",
    "xlvl",
    "messages",
    "intrinsic_return",
    "episode_length",
    "entropy",
    "value_loss",
    "explained_variance",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "steps_per_second",
)


@dataclass(frozen=True)
class Shown:
    """A run as the page shows it."""

    run_dir: Path
    config: Config
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    """By suite, what `groundling evaluate` wrote."""
    samples: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    """By update, the actions' probabilities in fixed situations."""
    texts: dict[str, list[dict[str, Any]]]
    """Of a run that writes: by file in ``predictions/``, the texts of the last measurement of each split and agent."""
    validations: list[dict[str, Any]]
    """By update, the figures of the validation split, as rows of metrics."""

    @property
    def plays_nethack(self) -> bool:
        """Whether its env is one of NetHack's tasks."""
        return self.config.env.id in TASKS

    @property
    def task(self) -> str:
        """What it learns: curves of one task are drawn together."""
        return self.config.pool.id or self.config.env.id

    @property
    def figure(self) -> tuple[str, str]:
        """The metric that tells how well it learns, and what it is called."""
        if self.config.data.path is not None or any("probability" in row for row in self.metrics):
            return "loss", "loss"  # it learns from what others did
        returns = any(row.get("return_mean") is not None for row in self.metrics)
        if returns and not any(row.get("success_rate") is not None for row in self.metrics):
            return "return_mean", "return"  # its world knows no success
        return "success_rate", "success rate"


def write_report(run_dirs: Sequence[Path], output: Path) -> Path:
    """Write the page about these runs; runs of one name are drawn as one curve with its interval.

    Raises:
        ConfigError: one of them is not a run's folder.
        RunError: none of them has finished an update.
    """
    runs = [_read(run_dir) for run_dir in run_dirs]
    if not any(run.metrics for run in runs):
        raise RunError(
            f"{', '.join(map(str, run_dirs))}: no update is finished yet, so there is nothing to report"
        )
    groups: dict[str, list[Any]] = {}
    for run in runs:
        groups.setdefault(run.config.name, []).append(run.metrics)
    first = runs[0]
    games = [(run, _game(run, sample)) for run in runs if run.plays_nethack for sample in run.samples]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.evaluation", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["rate"] = _rate
    environment.filters["shareable"] = shareable
    page = environment.get_template("report.html.j2").render(
        title=" · ".join(groups),
        runs=runs,
        figure=first.figure[0],
        main_plots=_main_plots(runs),
        learning_plots=plots.small_multiples(groups, _LEARNING_FIGURES),
        validation_plots=[
            (run, plots.small_multiples({run.config.name: [run.validations]}, list(run.validations[0])[3:]))
            for run in runs
            if run.validations
        ],
        texts=[(run, name, rows[:_MAX_TEXTS]) for run in runs for name, rows in run.texts.items()],
        probe_plots=[
            (run, plots.probe_multiples(run.probes, right_actions(run.config))) for run in runs if run.probes
        ],
        episodes=[episode for run in runs if not run.plays_nethack for episode in _episodes(run)],
        controls=[(run, told) for run in runs if (told := _controls(run))],
        games=games,
        nethack=showing,
        configs=[(shareable(str(run.run_dir)), _config_of(run)) for run in runs],
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, page)
    return output


def _read(run_dir: Path) -> Shown:
    return Shown(
        run_dir=run_dir,
        config=from_file(run_dir / "config.yaml", unused=EVERYTHING),
        metrics=read_metrics(run_dir),
        evaluations={p.stem: _json(p) for p in _suites(run_dir / "evaluation")},
        probes=read_probes(run_dir),
        texts={
            path.stem: _json_lines(path)
            for path in sorted((run_dir / "predictions").glob("*-trained*.jsonl"))
        },
        validations=[row | row["metrics"] for row in read_rows(run_dir / "validation.jsonl")],
        samples=[s for p in _suites(run_dir / "samples") for s in _json(p)],
    )


def _suites(folder: Path) -> list[Path]:
    """The folder's JSON files, one for each suite, with the run's own world first."""
    return sorted(folder.glob("*.json"), key=lambda path: (path.stem != "held-out", path.stem))


def _config_of(run: Shown) -> str:
    """The run's settings as YAML, without what a page that is sent around should not tell."""
    return OmegaConf.to_yaml(OmegaConf.create(shareable(recorded(run.run_dir / "config.yaml"))))


def _main_plots(runs: Sequence[Shown]) -> list[tuple[str, str, str | None]]:
    """By task, the learning curves of its runs, and of what they first deal with; those of one name are one curve."""
    drawn = []
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        groups: dict[str, list[Any]] = {}
        for run in own:
            groups.setdefault(run.config.name, []).append(run.metrics)
        key, label = own[0].figure
        alone = len(groups) == 1 and key == "success_rate"
        levels = [_levels(own[0], figure) if alone else {} for figure in ("success_rate", "first_precision")]
        first = _first_plot(own, groups, levels[1])
        steps, width = "tokens" if own[0].config.pool.id else "env steps", 7.2 if first is None else 4.8
        drawn.append((task, plots.learning_curve(groups, key, label, levels[0], steps, width), first))
    return drawn


def _first_plot(
    runs: Sequence[Shown], groups: Mapping[str, Sequence[Any]], levels: Mapping[str, float]
) -> str | None:
    """How often the thing that is first dealt with is the named one, over steps; None where no run tells."""
    rows = [row for run in runs for row in run.metrics]
    if all(row.get("first_precision") is None for row in rows):
        return None
    chances = [row["first_chance"] for row in rows if row.get("first_chance") is not None]
    chance = {"chance": float(np.mean(chances))} if chances else {}
    return plots.learning_curve(
        groups, "first_precision", "first thing is the named one", {**chance, **levels}, width=4.8
    )


def _game(run: Shown, sample: dict[str, Any]) -> dict[str, Any]:
    """A recorded episode of NetHack with pictures as data URLs."""
    game = showing.sample(run.config, run.run_dir, sample)
    pictures = [(_data_url(picture, 640), told) for picture, told in game["pictures"]]
    return {**game, "pictures": pictures}


def _levels(run: Shown, figure: str) -> dict[str, float]:
    """A figure of the held-out evaluation's baselines, of those that have it."""
    if run.plays_nethack:
        return {}
    agents = run.evaluations.get("held-out", {}).get("agents", {})
    values = {name: figures.get(figure) for name, figures in agents.items() if name != "trained"}
    return {name: value for name, value in values.items() if value is not None}


def _controls(run: Shown) -> list[tuple[str, dict[str, Any]]]:
    """The evaluations of missions as they are and told otherwise, if any of these are told otherwise.

    Those in the run's world alone: figures of another task or language cannot stand beside them.
    """
    world = _world(json.loads(json.dumps(asdict(run.config.env))))
    found = [
        (suite, evaluation)
        for suite in ("held-out", *CONTROLS)
        if "world" in (evaluation := run.evaluations.get(suite, {})) and _world(evaluation["world"]) == world
    ]
    return found if any(suite in CONTROLS for suite, _ in found) else []


def _world(env: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an env shows and asks for, without how its missions are told."""
    args = {name: value for name, value in env["args"].items() if name != "control"}
    return env["id"], args, env["language"], env["actions"]


def _rate(value: Any) -> str:
    """A share in three digits; a dash for none, and of an evaluation that has none."""
    return f"{value:.3f}" if isinstance(value, float | int) else "–"


def _marked(mission: str, named: Sequence[str]) -> list[tuple[str, bool]]:
    """A mission in parts, each with whether it names the thing that is to be dealt with first."""
    if not named:
        return [(mission, False)]
    parts = re.split(f"({'|'.join(map(re.escape, named))})", mission)
    return [(part, part in named) for part in parts if part]


def _episodes(run: Shown) -> list[dict[str, Any]]:
    """The run's recorded episodes with the picture before each action."""
    episodes = []
    for sample in run.samples:
        pictures = frames(changed(run.config, sample["overrides"], unused=EVERYTHING), sample)
        steps = [
            {**_likeliest(step), "picture": None if picture is None else _data_url(picture)}
            for step, picture in zip(sample["steps"][:_MAX_FRAMES], pictures, strict=False)
        ]
        first = sample.get("first")
        marked = _marked(sample["mission"], first["named"] if first else [])
        left_out = len(sample["steps"]) - len(steps)
        episodes.append({**sample, "steps": steps, "first": first, "marked": marked, "left_out": left_out})
    return episodes


def _likeliest(step: dict[str, Any], most: int = _MOST_ACTIONS) -> dict[str, Any]:
    """A step with so many of its actions: the chosen one, and the likeliest of the others."""
    probabilities = step["probabilities"] or {}
    if len(probabilities) <= most:
        return step
    ranked = sorted(probabilities, key=lambda action: (action != step["action"], -probabilities[action]))
    shown = sorted(ranked[:most], key=lambda action: -probabilities[action])
    return {
        **step,
        "probabilities": {action: probabilities[action] for action in shown},
        "more_actions": len(probabilities) - most,
    }


def _data_url(picture: np.ndarray, most_pixels: int = 256) -> str:
    """A PNG of at most so many pixels a side, as a data URL."""
    image = Image.fromarray(picture)
    image.thumbnail((most_pixels, most_pixels))
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _json(path: Path) -> Any:
    return _parsed(path, json.loads)


def _json_lines(path: Path) -> Any:
    return _parsed(path, lambda text: [json.loads(line) for line in text.split("\n") if line])


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): run `groundling evaluate` again") from error
