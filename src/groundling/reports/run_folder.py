"""A run as it is shown to people: what its folder holds, read once."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from groundling.config.compose import changed, from_file, recorded
from groundling.config.schema import Config
from groundling.config.trust import EVERYTHING
from groundling.errors import ConfigError, RunError
from groundling.evaluation.evaluate import read_evaluation
from groundling.evaluation.forgetting import read_forgetting
from groundling.evaluation.protocols import MEAN, PROTOCOLS
from groundling.io.documents import read_json, read_lines
from groundling.io.redaction import shareable
from groundling.io.row_files import read_rows
from groundling.policies.policy import has_model, policies
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics
from groundling.worlds import World, kind
from groundling.worlds.display import EpisodeView, Frame, ProbeHistory, ReportTable
from groundling.worlds.episode import number
from groundling.worlds.protocols import Exhibit, Probes

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
class ShownRun:
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
    forgetting: dict[str, Any] | None = None
    """Content of ``forgetting.json``, if there is one."""

    @cached_property
    def world(self) -> World:
        """World that the run trains in; its env may be unavailable."""
        return world_of(self.config)

    @cached_property
    def probed(self) -> ProbeHistory | None:
        """What its policy thought of fixed situations."""
        world = self.world
        return world.probe_history(self.run_dir) if isinstance(world, Probes) else None

    @cached_property
    def tables(self) -> list[ReportTable]:
        """What its world tells of its evaluations beside their figures."""
        world = self.world
        return world.tables(self.evaluations) if isinstance(world, Exhibit) else []

    @property
    def has_model(self) -> bool:
        """True if the policy has a language model; False also for a policy that is not registered here."""
        return self.config.policy.id in policies and has_model(self.config.policy.id)

    @property
    def task(self) -> str:
        """What it learns: curves of one task are drawn together. Where its env is not here, the env's id."""
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


def read_run(run_dir: Path, metrics: list[dict[str, Any]] | None = None) -> ShownRun:
    """Read what a run's folder holds.

    Args:
        run_dir: The folder.
        metrics: Rows that stand for those of ``metrics.jsonl``, which is then not read.

    Raises:
        ConfigError: it is not a run's folder.
        RunError: a file of it cannot be read.
    """
    config = from_file(run_dir / "config.yaml", unused=EVERYTHING)
    usual = usual_suite(kind(config.world.id))
    return ShownRun(
        run_dir=run_dir,
        config=config,
        metrics=read_metrics(run_dir) if metrics is None else metrics,
        evaluations={p.stem: read_evaluation(p) for p in suite_files(run_dir / "evaluation", usual)},
        texts={
            path.stem: _json_lines(path) for path in _texts_of_the_trained(run_dir, kind(config.world.id))
        },
        validations=[row | row["metrics"] for row in read_rows(run_dir / "validation.jsonl")],
        meanwhile=read_rows(run_dir / "samples" / "train.jsonl"),
        samples=[
            sample | {"suite": path.stem}
            for path in suite_files(run_dir / "samples", usual)
            if _is_complete(run_dir, path.stem)
            for sample in _samples(path)
        ],
        forgetting=read_forgetting(run_dir),
    )


def usual_suite(world: World | type[World]) -> str:
    """What a run's agent is evaluated on where nothing else is asked for."""
    return next(iter(world.suites))


def learning_figures(runs: Sequence[ShownRun]) -> list[str]:
    """The metrics that are drawn, those of the runs' worlds and of their rewards' parts among them."""
    of_worlds = [name for run in runs for name in kind(run.config.world.id).presentation.first_figures]
    columns = dict.fromkeys(chain.from_iterable(row for run in runs for row in run.metrics))
    parts = [name for name in columns if name.startswith("reward/")]
    return list(dict.fromkeys([*of_worlds, "return_mean", *parts, *_LEARNING_FIGURES]))


def suite_files(folder: Path, usual: str) -> list[Path]:
    """The folder's JSON files, one for each suite and name beside it, with that of the usual suite first."""
    return sorted(folder.glob("*.json"), key=lambda path: (path.stem != usual, path.stem))


def _texts_of_the_trained(run_dir: Path, world: type[World]) -> list[Path]:
    """The trained agent's texts in complete evaluations; a name that begins alike may stand beside another agent's."""
    found = [
        path
        for suite in world.suites
        for path in (run_dir / "predictions").glob(f"{suite}-trained*.jsonl")
        if _is_complete(run_dir, suite + path.stem.removeprefix(f"{suite}-trained"))
    ]
    return sorted(found)


def _is_complete(run_dir: Path, name: str) -> bool:
    """Check that the files of an evaluation belong together, by its figures, which are written last."""
    return (run_dir / "evaluation" / f"{name}.json").is_file()


def settings_of(run: ShownRun) -> str:
    """The run's settings as YAML, without what a page that is sent around should not tell."""
    return OmegaConf.to_yaml(OmegaConf.create(shareable(recorded(run.run_dir / "config.yaml"))))


def figures_of(evaluation: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """One row for each figure of an evaluation; of each agent its mean and the interval."""
    agents = evaluation["agents"].values()
    return [
        (name.replace("_", " "), [_mean_and_interval(a["figures"].get(name)) for a in agents])
        for name in _figure_names(evaluation)
    ]


def by_suite(run: ShownRun) -> tuple[str, list[str], list[tuple[str, str, list[tuple[str, str]]]]]:
    """The first figure of a run's evaluations: its name, the agents, and by suite each agent's mean and interval.

    Beside a suite stand the overrides that it was played with. Of a protocol, the mean over its suites.
    """
    suites = [one for one in run.evaluations.values() if not _is_protocol(one)]
    figure = next((name for one in suites for name in _figure_names(one)), "")
    agents = list(dict.fromkeys(agent for one in run.evaluations.values() for agent in one["agents"]))
    rows = []
    for suite, one in run.evaluations.items():
        name = MEAN if _is_protocol(one) else figure
        by_agent = (one["agents"].get(agent, {"figures": {}})["figures"].get(name) for agent in agents)
        rows.append(
            (suite, " ".join(one.get("overrides", [])), [_mean_and_interval(cell) for cell in by_agent])
        )
    return figure.replace("_", " "), agents, rows


def _is_protocol(evaluation: Mapping[str, Any]) -> bool:
    return str(evaluation.get("suite")) in PROTOCOLS


def _figure_names(evaluation: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for agent in evaluation["agents"].values() for name in agent["figures"]))


def _mean_and_interval(figure: Mapping[str, Any] | None) -> tuple[str, str]:
    if figure is None or figure["value"] is None:
        return "–", ""
    if figure["low"] is None or figure["low"] == figure["high"]:
        return number(figure["value"]), ""
    return number(figure["value"]), f"{number(figure['low'])} – {number(figure['high'])}"


def picture_of(frame: Frame, pixels: int) -> str | None:
    """What a moment looks like, as a data URL; None in a world without pictures."""
    drawn = frame.draw()
    return None if drawn is None else _data_url(drawn, pixels)


def episodes_of(run: ShownRun) -> dict[str, list[EpisodeView]]:
    """The run's recorded episodes by suite and name, the usual one first, if it was played.

    Raises:
        ConfigError: an evaluation's settings cannot be read.
        RunError: an episode cannot be read.
    """
    shown: dict[str, list[EpisodeView]] = {}
    for sample in run.samples:
        suite = str(sample["suite"])
        try:
            world = world_of(changed(run.config, sample["overrides"], unused=EVERYTHING))
            if not isinstance(world, Exhibit):
                raise RunError(
                    f"{run.run_dir / 'samples'} holds an episode, and {world.spec.name} has none to show: delete it"
                )
            shown.setdefault(suite, []).append(world.view(run.run_dir, sample))
        except ConfigError as error:
            file = run.run_dir / "samples" / f"{suite}.json"
            raise ConfigError(
                f"{file} holds episodes that cannot be played here ({error}): mend that, or delete the file"
            ) from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise RunError(
                f"an episode in {run.run_dir / 'samples'} cannot be read by this version ({error!r}): run "
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
            f"{path} holds no episodes that this version can read: run `groundling evaluate` again"
        )
    return samples


def _json_lines(path: Path) -> Any:
    return _parsed(path, lambda path: [row for _, row in read_lines(path)])


def _parsed(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): run `groundling evaluate` again") from error
