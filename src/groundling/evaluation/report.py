"""`groundling report`: one self-contained HTML page about one run or several."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from groundling.configs.compose import changed, from_file, recorded
from groundling.configs.schema import Config
from groundling.configs.trust import EVERYTHING
from groundling.envs.babyai_text import CONTROLS
from groundling.errors import RunError
from groundling.evaluation import plots
from groundling.evaluation.evaluate import read_evaluation
from groundling.files import write_atomically
from groundling.rows import read_rows
from groundling.sharing import shareable
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics
from groundling.worlds import World
from groundling.worlds.episode import number
from groundling.worlds.showing import Moment, ShownEpisode
from groundling.worlds.text.probes import read_probes, right_actions

_MAX_TEXTS = 8
_MOST_MESSAGES = 20
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


@dataclass
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
    meanwhile: list[dict[str, Any]]
    """Of a run that writes: some texts of some updates, in their order."""

    @cached_property
    def world(self) -> World[Any, Any]:
        """Where it learns."""
        return world_of(self.config)

    @property
    def task(self) -> str:
        """What it learns: curves of one task are drawn together."""
        return self.world.spec.name

    @property
    def figure(self) -> tuple[str, str]:
        """The metric that tells how well it learns, and what it is called."""
        if any("probability" in row for row in self.metrics):
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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.evaluation", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(rate=_rate, figures=_figures, messages=_messages, picture=_picture)
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
        meanwhile=[(run, _spread(run.meanwhile)) for run in runs if run.meanwhile],
        probe_plots=[
            (run, plots.probe_multiples(run.probes, right_actions(run.world.config)))
            for run in runs
            if run.probes
        ],
        episodes=[(run, episode) for run in runs for episode in _episodes(run)],
        controls=[(run, controls) for run in runs if (controls := _controls(run))],
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
        evaluations={p.stem: read_evaluation(p) for p in _suites(run_dir / "evaluation")},
        probes=read_probes(run_dir),
        texts={
            path.stem: _json_lines(path)
            for path in sorted((run_dir / "predictions").glob("*-trained*.jsonl"))
        },
        validations=[row | row["metrics"] for row in read_rows(run_dir / "validation.jsonl")],
        meanwhile=read_rows(run_dir / "samples" / "train.jsonl"),
        samples=[s for p in _suites(run_dir / "samples") for s in _json(p)],
    )


def _spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first text of some updates, from the first to the last that there are texts of."""
    firsts = list({row["update"]: row for row in reversed(rows)}.values())[::-1]
    places = np.linspace(0, len(firsts) - 1, min(_MAX_TEXTS, len(firsts))).round().astype(int)
    return [firsts[place] for place in places]


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
        task_runs = [run for run in runs if run.task == task]
        groups: dict[str, list[Any]] = {}
        for run in task_runs:
            groups.setdefault(run.config.name, []).append(run.metrics)
        key, label = task_runs[0].figure
        alone = len(groups) == 1 and key == "success_rate"
        levels = [_levels(task_runs[0], figure) if alone else {} for figure in ("success", "first_precision")]
        first = _first_plot(task_runs, groups, levels[1])
        steps, width = task_runs[0].world.unit, 7.2 if first is None else 4.8
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


def _levels(run: Shown, figure: str) -> dict[str, float]:
    """A figure of the held-out evaluation's baselines, of those that have it."""
    agents = run.evaluations.get("held-out", {}).get("agents", {})
    values = {name: agent["figures"].get(figure) for name, agent in agents.items() if name != "trained"}
    return {name: value["value"] for name, value in values.items() if value is not None}


def _controls(run: Shown) -> list[tuple[str, dict[str, Any]]]:
    """The evaluations of missions as they are and told otherwise, if any of these are told otherwise.

    Those in the run's world alone: figures of another task or language cannot stand beside them.
    """
    evaluations = {
        suite: run.evaluations[suite] for suite in ("held-out", *CONTROLS) if suite in run.evaluations
    }
    if not evaluations.keys() & set(CONTROLS):
        return []
    here = _without_control(json.loads(json.dumps(run.world.settings)))
    return [(suite, one) for suite, one in evaluations.items() if _without_control(one["world"]) == here]


def _without_control(env: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an env shows and asks for, without how its missions are told."""
    args = {name: value for name, value in env["args"].items() if name != "control"}
    return env["env"], args, env["language"], env["actions"]


def _rate(agent: Mapping[str, Any] | None, figure: str) -> str:
    """A share in three digits; a dash where an agent has none."""
    value = (agent or {"figures": {}})["figures"].get(figure)
    return "–" if value is None else f"{value['value']:.3f}"


def _figures(evaluation: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """One row for each figure of an evaluation; of each agent its mean and the interval."""
    agents = evaluation["agents"].values()
    names = dict.fromkeys(name for agent in agents for name in agent["figures"])
    return [
        (name.replace("_", " "), [_mean_and_interval(a["figures"].get(name)) for a in agents])
        for name in names
    ]


def _mean_and_interval(figure: Mapping[str, Any] | None) -> tuple[str, str]:
    if figure is None or figure["value"] is None:
        return "–", ""
    if figure["low"] is None or figure["low"] == figure["high"]:
        return number(figure["value"]), ""
    return number(figure["value"]), f"{number(figure['low'])} – {number(figure['high'])}"


def _messages(evaluation: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The messages that any of the agents met most often, what they are worth, and how often each agent met them."""
    ordered = sorted(evaluation["messages"], key=lambda row: -max(row["per_episode"].values()))
    return [
        (
            row["message"],
            "–" if row["normalised_reward"] is None else f"{row['normalised_reward']:+.2f}",
            [f"{count:.2f}" for count in row["per_episode"].values()],
        )
        for row in ordered[:_MOST_MESSAGES]
    ]


def _picture(moment: Moment, pixels: int) -> str | None:
    """What a moment looks like, as a data URL; None in a world without pictures."""
    drawn = moment.draw()
    return None if drawn is None else _data_url(drawn, pixels)


def _episodes(run: Shown) -> list[ShownEpisode]:
    """The run's recorded episodes."""
    return [
        world_of(changed(run.config, sample["overrides"], unused=EVERYTHING)).shown(run.run_dir, sample)
        for sample in run.samples
    ]


def _data_url(picture: np.ndarray, most_pixels: int) -> str:
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
