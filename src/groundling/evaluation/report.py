"""`groundling report`: one self-contained HTML page about one run or several."""

import base64
import io
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
from groundling.documents import read_json, read_lines
from groundling.errors import GroundlingError, RunError
from groundling.evaluation import plots
from groundling.evaluation.evaluate import read_evaluation
from groundling.files import write_atomically
from groundling.policies.policy import has_model
from groundling.rows import read_rows
from groundling.sharing import shareable
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics
from groundling.worlds import World, kind
from groundling.worlds.episode import number
from groundling.worlds.showing import Moment, Probed, ReportTable, ShownEpisode

_MAX_TEXTS = 8
_LEARNING_FIGURES = (
    "return_mean",
    "loss",
    "probability",
    "kl_mean",
    "kl_coefficient",
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
"""What algorithms tell, in every world, and how episodes fare in each."""


@dataclass
class Shown:
    """A run as the page shows it."""

    run_dir: Path
    config: Config
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    """By suite, what `groundling evaluate` wrote."""
    samples: list[dict[str, Any]]
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

    @cached_property
    def probed(self) -> Probed | None:
        """What its policy thought of fixed situations."""
        return self.world.probed(self.run_dir)

    @cached_property
    def tables(self) -> list[ReportTable]:
        """What its world tells of its evaluations beside their figures."""
        return self.world.tables(self.evaluations)

    @property
    def has_model(self) -> bool:
        """Whether its policy stands on a language model."""
        return has_model(self.config.policy.id)

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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.evaluation", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(figures=_figures, by_suite=_by_suite, picture=_picture)
    environment.filters["shareable"] = shareable
    try:
        page = environment.get_template("report.html.j2").render(**_context(runs))
    except GroundlingError:
        raise
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        jinja2.TemplateError,
    ) as error:
        raise RunError(
            f"{', '.join(map(str, run_dirs))}: what metrics.jsonl, evaluation/ or samples/ hold cannot be shown "
            f"({error!r:.200}): check them with `groundling verify`, or run `groundling evaluate` again"
        ) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, page)
    return output


def _context(runs: Sequence[Shown]) -> dict[str, Any]:
    """What the page's template is given."""
    groups: dict[str, list[Any]] = {}
    for run in runs:
        groups.setdefault(run.config.name, []).append(run.metrics)
    first = runs[0]
    return {
        "title": " · ".join(groups),
        "runs": runs,
        "figure": first.figure[0],
        "main_plots": _main_plots(runs),
        "beside": next((run.world.beside.about for run in runs if run.world.beside is not None), None),
        "learning_plots": plots.small_multiples(groups, _learning_figures(runs)),
        "validation_plots": [
            (run, plots.small_multiples({run.config.name: [run.validations]}, list(run.validations[0])[3:]))
            for run in runs
            if run.validations
        ],
        "texts": [(run, name, rows[:_MAX_TEXTS]) for run in runs for name, rows in run.texts.items()],
        "meanwhile": [(run, _spread(run.meanwhile)) for run in runs if run.meanwhile],
        "probe_plots": [
            (run, plots.probe_multiples(run.probed.rows, run.probed.right))
            for run in runs
            if run.probed is not None
        ],
        "episodes": [(run, _episodes(run)) for run in runs if run.samples],
        "comparisons": [(run, table) for run in runs for table in run.tables if table.suite is None],
        "configs": [(shareable(str(run.run_dir)), _config_of(run)) for run in runs],
    }


def _read(run_dir: Path) -> Shown:
    config = from_file(run_dir / "config.yaml", unused=EVERYTHING)
    usual = _usual_suite(kind(config.world.id))
    return Shown(
        run_dir=run_dir,
        config=config,
        metrics=read_metrics(run_dir),
        evaluations={p.stem: read_evaluation(p) for p in _suites(run_dir / "evaluation", usual)},
        texts={
            path.stem: _json_lines(path)
            for path in sorted((run_dir / "predictions").glob("*-trained*.jsonl"))
        },
        validations=[row | row["metrics"] for row in read_rows(run_dir / "validation.jsonl")],
        meanwhile=read_rows(run_dir / "samples" / "train.jsonl"),
        samples=[s for p in _suites(run_dir / "samples", usual) for s in _samples(p)],
    )


def _usual_suite(world: World[Any, Any] | type[World[Any, Any]]) -> str:
    """What a run's agent is evaluated on where nothing else is asked for."""
    return next(iter(world.suites))


def _learning_figures(runs: Sequence[Shown]) -> list[str]:
    """The metrics that are drawn, those of the runs' worlds among them."""
    of_worlds = [name for run in runs for name in run.world.learning_figures]
    return list(dict.fromkeys([*of_worlds, *_LEARNING_FIGURES]))


def _spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first text of some updates, from the first to the last that there are texts of."""
    firsts = list({row["update"]: row for row in reversed(rows)}.values())[::-1]
    places = np.linspace(0, len(firsts) - 1, min(_MAX_TEXTS, len(firsts))).round().astype(int)
    return [firsts[place] for place in places]


def _suites(folder: Path, usual: str) -> list[Path]:
    """The folder's JSON files, one for each suite, with the usual one first."""
    return sorted(folder.glob("*.json"), key=lambda path: (path.stem != usual, path.stem))


def _config_of(run: Shown) -> str:
    """The run's settings as YAML, without what a page that is sent around should not tell."""
    return OmegaConf.to_yaml(OmegaConf.create(shareable(recorded(run.run_dir / "config.yaml"))))


def _main_plots(runs: Sequence[Shown]) -> list[tuple[str, str, str | None]]:
    """By task, the learning curves of its runs, and what its world has beside them; those of one name are one curve."""
    drawn = []
    for task in dict.fromkeys(run.task for run in runs):
        task_runs = [run for run in runs if run.task == task]
        groups: dict[str, list[Any]] = {}
        for run in task_runs:
            groups.setdefault(run.config.name, []).append(run.metrics)
        key, label = task_runs[0].figure
        alone = len(groups) == 1 and key == "success_rate"
        levels = _levels(task_runs[0], "success") if alone else {}
        second = _plot_beside(task_runs, groups, alone)
        steps, width = task_runs[0].world.unit, 7.2 if second is None else 4.8
        plot = plots.learning_curve(groups, key, label, levels, steps, width, key == "success_rate")
        drawn.append((task, plot, second))
    return drawn


def _plot_beside(runs: Sequence[Shown], groups: Mapping[str, Sequence[Any]], alone: bool) -> str | None:
    """What the runs' world has beside the success rate, over steps; None where no run tells."""
    share, rows = runs[0].world.beside, [row for run in runs for row in run.metrics]
    if share is None or all(row.get(share.column) is None for row in rows):
        return None
    chances = [row[share.chance] for row in rows if row.get(share.chance) is not None]
    levels = {"chance": float(np.mean(chances))} if chances else {}
    levels |= _levels(runs[0], share.column) if alone else {}
    return plots.learning_curve(groups, share.column, share.label, levels, width=4.8, is_share=True)


def _levels(run: Shown, figure: str) -> dict[str, float]:
    """A figure of the held-out evaluation's baselines, of those that have it."""
    agents = run.evaluations.get(_usual_suite(run.world), {}).get("agents", {})
    values = {name: agent["figures"].get(figure) for name, agent in agents.items() if name != "trained"}
    return {name: value["value"] for name, value in values.items() if value is not None}


def _figures(evaluation: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """One row for each figure of an evaluation; of each agent its mean and the interval."""
    agents = evaluation["agents"].values()
    return [
        (name.replace("_", " "), [_mean_and_interval(a["figures"].get(name)) for a in agents])
        for name in _figure_names(evaluation)
    ]


def _by_suite(run: Shown) -> tuple[str, list[str], list[tuple[str, str, list[tuple[str, str]]]]]:
    """The first figure of a run's evaluations: its name, the agents, and by suite each agent's mean and interval.

    Beside a suite stand the overrides that it was played with.
    """
    figure = next((name for one in run.evaluations.values() for name in _figure_names(one)), "")
    agents = list(dict.fromkeys(agent for one in run.evaluations.values() for agent in one["agents"]))
    rows = [
        (
            suite,
            " ".join(one.get("overrides", [])),
            [
                _mean_and_interval(one["agents"].get(agent, {"figures": {}})["figures"].get(figure))
                for agent in agents
            ],
        )
        for suite, one in run.evaluations.items()
    ]
    return figure.replace("_", " "), agents, rows


def _figure_names(evaluation: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for agent in evaluation["agents"].values() for name in agent["figures"]))


def _mean_and_interval(figure: Mapping[str, Any] | None) -> tuple[str, str]:
    if figure is None or figure["value"] is None:
        return "–", ""
    if figure["low"] is None or figure["low"] == figure["high"]:
        return number(figure["value"]), ""
    return number(figure["value"]), f"{number(figure['low'])} – {number(figure['high'])}"


def _picture(moment: Moment, pixels: int) -> str | None:
    """What a moment looks like, as a data URL; None in a world without pictures."""
    drawn = moment.draw()
    return None if drawn is None else _data_url(drawn, pixels)


def _episodes(run: Shown) -> dict[str, list[ShownEpisode]]:
    """The run's recorded episodes by suite, the usual one first, if it was played."""
    shown: dict[str, list[ShownEpisode]] = {}
    for sample in run.samples:
        world = world_of(changed(run.config, sample["overrides"], unused=EVERYTHING))
        try:
            shown.setdefault(str(sample["suite"]), []).append(world.shown(run.run_dir, sample))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise RunError(
                f"an episode in {run.run_dir / 'samples'} is not as this version writes it ({error!r}): run "
                "`groundling evaluate` again"
            ) from error
    return shown


def _data_url(picture: np.ndarray, most_pixels: int) -> str:
    """A PNG of at most so many pixels a side, as a data URL."""
    image = Image.fromarray(picture)
    image.thumbnail((most_pixels, most_pixels))
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _samples(path: Path) -> list[dict[str, Any]]:
    samples = _parsed(path, read_json)
    if not isinstance(samples, list) or not all(
        isinstance(one, dict) and isinstance(one.get("overrides"), list) for one in samples
    ):
        raise RunError(
            f"{path} holds no episodes as this version writes them: run `groundling evaluate` again"
        )
    return samples


def _json_lines(path: Path) -> Any:
    return _parsed(path, lambda path: [row for _, row in read_lines(path)])


def _parsed(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): run `groundling evaluate` again") from error
