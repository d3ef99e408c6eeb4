"""The contents of a run's folder, for reports."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from PIL import Image

from groundling.config.compose import changed, from_file, recorded
from groundling.config.facts import shareable
from groundling.config.schema import Config
from groundling.errors import ConfigError, RunError
from groundling.evaluation.evaluate import read_evaluation
from groundling.evaluation.forgetting import read_forgetting
from groundling.evaluation.protocols import MEAN, PROTOCOLS
from groundling.io.documents import read_json, read_lines
from groundling.io.row_files import read_rows
from groundling.policies.policy import has_model, policies
from groundling.training.build import world_of
from groundling.training.diagnosis import Finding, examined, findings
from groundling.training.tracking import read_metrics
from groundling.worlds import World, kind
from groundling.worlds.episode import EpisodeView, Frame, ProbeHistory, ReportTable, number
from groundling.worlds.protocols import Exhibit, Probes

Evaluation = Mapping[str, Any]  # contents of an evaluation's JSON file
Cell = tuple[str, str]  # a mean and its interval, as text
_LEARNING_FIGURES = (  # metrics of algorithms and episodes in every world
    "return_mean",
    "loss",
    *("accuracy", "rewards/margins", "rewards/chosen", "rewards/rejected", "kl"),  # of preferences
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


@dataclass
class RunFolder:
    """The contents of a run's folder."""

    run_dir: Path
    config: Config
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]  # evaluations by suite, or suite and name
    samples: list[dict[str, Any]]  # recorded episodes
    texts: dict[str, list[dict[str, Any]]]  # texts from the trained agent's last evaluations, by file in predictions/
    validations: list[dict[str, Any]]  # metrics on the validation split, one row per measurement
    train_texts: list[dict[str, Any]]  # sample texts from some training updates
    forgetting: dict[str, Any] | None  # contents of forgetting.json

    @cached_property
    def world(self) -> World:
        """The training world; its env may be unavailable."""
        return world_of(self.config)

    @cached_property
    def probed(self) -> ProbeHistory | None:
        """Probabilities of actions in fixed situations."""
        world = self.world
        return world.probe_history(self.run_dir) if isinstance(world, Probes) else None

    @cached_property
    def tables(self) -> list[ReportTable]:
        """Additional tables that the world provides for the evaluations."""
        world = self.world
        return world.tables(self.evaluations) if isinstance(world, Exhibit) else []

    @cached_property
    def findings(self) -> list[Finding]:
        """Signs that the run is not learning."""
        return findings(examined(self.run_dir), self.config)

    @property
    def has_model(self) -> bool:
        """True if the policy has a language model; False if it has none or the policy is not registered here."""
        return self.config.policy.id in policies and has_model(self.config.policy.id)

    @property
    def task(self) -> str:
        """The world's name; curves for the same task share a plot."""
        return self.world.spec.name

    @property
    def figure(self) -> tuple[str, str]:
        """The main training metric and its label."""
        present = {name for row in self.metrics for name, value in row.items() if value is not None}
        if any("probability" in row for row in self.metrics):  # a run that clones behaviour
            return "loss", "loss"
        if "return_mean" in present and "success_rate" not in present:
            return "return_mean", "return"
        if "success_rate" not in present and "accuracy" in present:  # a run that learns from preferences
            return "accuracy", "accuracy"
        return "success_rate", "success rate"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings, redacted for sharing."""
        settings: dict[str, Any] = shareable(recorded(self.run_dir / "config.yaml"))
        return settings

    @property
    def settings_text(self) -> str:
        """The settings as YAML."""
        return OmegaConf.to_yaml(OmegaConf.create(self.settings))

    def episodes(self) -> dict[str, list[EpisodeView]]:
        """Return the episodes that were chosen for reports, by suite (or suite and name), the usual suite first."""
        shown: dict[str, list[EpisodeView]] = {}
        for sample in self.samples:
            if sample.get("chosen", True):
                shown.setdefault(str(sample["suite"]), []).append(self.view(sample))
        return shown

    def view(self, sample: Mapping[str, Any]) -> EpisodeView:
        """Return a view of one of the `samples`, replayed if its env is available."""
        file = self.run_dir / "samples" / f"{sample['suite']}.json"
        try:
            world = world_of(changed(self.config, sample["overrides"], purpose="showing"))
            if not isinstance(world, Exhibit):
                raise RunError(f"{file} contains an episode, but {world.spec.name} has none: delete the file")
            return world.view(self.run_dir, sample)
        except ConfigError as error:
            raise ConfigError(
                f"{file} contains episodes that cannot be replayed here ({error}): fix this, or delete the file"
            ) from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise RunError(
                f"{file} contains an episode that this version cannot read ({error!r}): run `groundling "
                "evaluate` again"
            ) from error

    def by_suite(self) -> tuple[str, list[str], list[tuple[str, str, list[Cell]]]]:
        """Return the first metric (or a protocol's mean): its name, agents, and rows of suite, overrides and cells."""
        suites = [one for one in self.evaluations.values() if not _is_protocol(one)]
        figure = next((name for one in suites for name in _figure_names(one)), "")
        agents = list(dict.fromkeys(agent for one in self.evaluations.values() for agent in one["agents"]))
        rows = []
        for suite, one in self.evaluations.items():
            name = MEAN if _is_protocol(one) else figure
            by_agent = (one["agents"].get(agent, {"figures": {}})["figures"].get(name) for agent in agents)
            rows.append((suite, " ".join(one.get("overrides", [])), [_cell(value) for value in by_agent]))
        return figure.replace("_", " "), agents, rows


def read_run(run_dir: Path, metrics: list[dict[str, Any]] | None = None) -> RunFolder:
    """Read a run's folder; ``metrics`` are rows to use instead of ``metrics.jsonl``."""
    config = from_file(run_dir / "config.yaml", purpose="showing")
    world = kind(config.world.id)
    evaluations = read_evaluations(run_dir, world)
    return RunFolder(
        run_dir=run_dir,
        config=config,
        metrics=read_metrics(run_dir) if metrics is None else metrics,
        evaluations=evaluations,
        samples=[
            sample | {"suite": path.stem}
            for path in _suite_files(run_dir / "samples", world)
            if path.stem in evaluations  # the evaluation is written last, so it is complete
            for sample in _samples(path)
        ],
        texts={
            path.stem: _parse(path, lambda path: [row for _, row in read_lines(path)])
            for suite in world.suites
            for path in sorted((run_dir / "predictions").glob(f"{suite}-trained*.jsonl"))
            if suite + path.stem.removeprefix(f"{suite}-trained") in evaluations
        },
        validations=[row | row["metrics"] for row in read_rows(run_dir / "validation.jsonl")],
        train_texts=read_rows(run_dir / "samples" / "train.jsonl"),
        forgetting=read_forgetting(run_dir),
    )


def read_evaluations(run_dir: Path, world: type[World]) -> dict[str, dict[str, Any]]:
    """Read a run's evaluations by suite (or suite and name), the usual suite first."""
    return {path.stem: read_evaluation(path) for path in _suite_files(run_dir / "evaluation", world)}


def usual_suite(world: World | type[World]) -> str:
    """Return the suite that is evaluated by default."""
    return next(iter(world.suites))


def learning_figures(runs: Sequence[RunFolder]) -> list[str]:
    """Return the metrics to draw: the return, the rewards used for training, the worlds' metrics, other rewards, …"""
    of_worlds = [name for run in runs for name in kind(run.config.world.id).presentation.first_figures]
    columns = dict.fromkeys(name for run in runs for row in run.metrics for name in row)
    parts = [name for name in columns if name.startswith("reward/")]
    trained = [
        f"reward/{name}" for run in runs for name, part in run.config.reward.items() if part and part.coefficient
    ]
    rewards = [name for name in trained if name in columns]
    return list(dict.fromkeys(["return_mean", *rewards, *of_worlds, *parts, *_LEARNING_FIGURES]))


def figures_of(evaluation: Evaluation) -> list[tuple[str, list[Cell]]]:
    """Return one row for each metric of an evaluation: its name and each agent's cell."""
    agents = evaluation["agents"].values()
    return [
        (name.replace("_", " "), [_cell(agent["figures"].get(name)) for agent in agents])
        for name in _figure_names(evaluation)
    ]


def picture_of(frame: Frame, pixels: int) -> str | None:
    """Return a frame's picture as a PNG data URL of at most ``pixels`` per side; None if it has no picture."""
    drawn = frame.draw()
    if drawn is None:
        return None
    image = Image.fromarray(drawn)
    image.thumbnail((pixels, pixels))
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _suite_files(folder: Path, world: type[World]) -> list[Path]:
    usual = usual_suite(world)
    return sorted(folder.glob("*.json"), key=lambda path: (path.stem != usual, path.stem))


def _is_protocol(evaluation: Evaluation) -> bool:
    return str(evaluation.get("suite")) in PROTOCOLS


def _figure_names(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(name for agent in evaluation["agents"].values() for name in agent["figures"]))


def _cell(figure: Mapping[str, Any] | None) -> Cell:
    if figure is None or figure["value"] is None:
        return "–", ""
    if figure["low"] is None or figure["low"] == figure["high"]:
        return number(figure["value"]), ""
    value, low, high = (number(figure[key], figure["high"] - figure["low"]) for key in ("value", "low", "high"))
    return value, f"{low} – {high}"


def _samples(path: Path) -> list[dict[str, Any]]:
    samples = _parse(path, read_json)
    if not isinstance(samples, list) or not all(
        isinstance(one, dict) and isinstance(one.get("overrides"), list) for one in samples
    ):
        raise RunError(f"{path} contains no episodes that this version can read: run `groundling evaluate` again")
    return samples


def _parse(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): run `groundling evaluate` again") from error
