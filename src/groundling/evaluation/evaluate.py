"""`groundling evaluate`: evaluate an agent and its baselines on the same held-out episodes."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.config.facts import shareable
from groundling.config.schema import Config
from groundling.errors import RunError, warn_caller
from groundling.evaluation.target import Target
from groundling.fields import OfEvaluation
from groundling.intervals import IntervalEstimate
from groundling.io.documents import read_object
from groundling.io.files import LOCK, locked, remove_partial_files, replace_result, write_atomically
from groundling.io.row_files import harmless_cell
from groundling.io.terminal import plain
from groundling.lm.load.adapters import merge_adapters
from groundling.worlds import CannotPlay, agents
from groundling.worlds.episode import Figure, Played
from groundling.worlds.protocols import Exhibit
from groundling.worlds.world import Player

if TYPE_CHECKING:
    from rich.table import Table


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|-?(inf|nan)")
_MARKUP = str.maketrans({"|": "&#124;", "<": "&lt;", "`": "&#96;"})
_AFTER_BRACKETS = re.compile(r"\](?=[(\[:])")  # In links and images; the brackets of intervals do not match
_BACKTICKS = re.compile("`+")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    write_atomically(path, csv_text(header, rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV with floats in six significant digits, None as empty cells, and no strings that act as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(x) for x in header])
    writer.writerows([_csv_cell(x) for x in row] for row in rows)
    return text.getvalue()


def figures_table(title: str, figures: Mapping[str, Mapping[str, Figure]], note: str = "") -> "Table":
    """Return a table of values with intervals, with a row for each metric and a column for each agent."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, show_edge=False, caption=f"means with 95% intervals{note}")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    for figure in dict.fromkeys(name for estimates in figures.values() for name in estimates):
        cells = (estimates[figure].text() if figure in estimates else "–" for estimates in figures.values())
        table.add_row(figure.replace("_", " "), *cells)
    return table


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str) or _NUMBER.fullmatch(value):  # a number read from another CSV file
        return value
    # Spreadsheets also end a row at \r, but the csv module quotes only \n.
    return harmless_cell(value).replace("\r", "\n")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose cells are escaped by `in_markdown`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(in_markdown, cells)) + " |" for cells in lines)


def in_markdown(text: str) -> str:
    """Escape an untrusted name for Markdown: join its lines; neutralise HTML, code, "|" and links; keep bare URLs."""
    return _AFTER_BRACKETS.sub("&#93;", _on_one_line(text).translate(_MARKUP))


def as_code(text: str) -> str:
    """Return an untrusted name as Markdown code. Do not use it in tables, where ``|`` ends a cell even in code."""
    line = _on_one_line(text)
    # The fence is longer than any run of backticks in the text; renderers strip the spaces.
    fence = "`" * (max(map(len, _BACKTICKS.findall(line)), default=0) + 1)
    return f"{fence} {line} {fence}" if len(fence) > 1 or not line.strip() else f"{fence}{line}{fence}"


def _on_one_line(text: str) -> str:
    return plain(" ".join(text.splitlines()))


def estimate_cell(estimate: IntervalEstimate | None, spec: str) -> str:
    return estimate.text(spec) if estimate else ""


def evaluate(
    target: Target,
    suite: str,
    num_episodes: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
    warn: Callable[[str], None] = warn_caller,
) -> dict[str, Played]:
    """Evaluate the target and its baselines on the same held-out episodes or prompts of a suite.

    After each agent, these files in the run's folder are replaced: ``evaluation/SUITE.csv`` (a row for each episode),
    ``samples/SUITE.json`` (the target's episodes, some of them step by step), ``predictions/SUITE-AGENT.jsonl`` (texts),
    and finally ``evaluation/SUITE.json`` (metrics with intervals, also by task family; skipped baselines with reasons;
    the checkpoint). Files of the same suite with different overrides are first moved to ``evaluation/replaced/``.

    Return the episodes by agent, the target's first. ``on_agent`` is called with each agent's name, and returns a
    function to call after each episode; ``warn`` is called for skipped baselines and replaced results.
    """
    in_suite = target.under(suite)
    world, paths = in_suite.world, _paths(target, suite)
    played: dict[str, Played] = {}
    algorithm = in_suite.compared_by(warn)
    left_out: dict[str, str] = {}
    texts: dict[Path, str] = {}
    lock = target.run_dir / "evaluation" / f".{suite}{target.suffix}{LOCK}"
    with locked(lock, f"is evaluating {target.run_dir} on {suite}"):
        remove_partial_files(target.run_dir)
        _archive(target, paths, warn)
        for name in target.players:
            try:
                policy = in_suite.policy(name, with_reference=algorithm is not None)
                if policy is not None and algorithm is None:  # an adapter's reference is its base model
                    merge_adapters(policy)
                player, on_episode, episodes = Player(name, policy, algorithm), on_agent(name), []
                for episode in world.play(player, num_episodes):
                    episodes.append(episode)
                    on_episode()
                played[name] = world.measure(player, sorted(episodes, key=lambda episode: episode.number))
            except CannotPlay as error:
                if name == target.agent:
                    raise
                left_out[name] = str(error)
                warn(f"skipping baseline {name}: {error}")
            else:
                if predictions := [e.prediction for e in played[name].episodes if e.prediction is not None]:
                    rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)
                    texts[_file(target, "predictions", f"{suite}-{name}", "jsonl")] = "".join(rows)
                if name == target.agent and isinstance(world, Exhibit):
                    same = {"suite": suite, "overrides": target.overrides_under(suite)}
                    lines = (json.dumps(same | s, ensure_ascii=False) for s in world.samples(player, played[name]))
                    texts[paths[-3]] = "[\n" + ",\n".join(lines) + "\n]\n"
            details = world.details(played) if isinstance(world, Exhibit) else {}
            figures: dict[str, Any] = {
                "suite": suite,
                "name": world.spec.name,
                "world": world.settings,
                "overrides": target.changes,
                "played_with": played_with(in_suite.config),
                **target.checkpoint_identity(),
                "most_episodes": num_episodes,  # a pool may have fewer
                **_compared(played, target.agent),
                "left_out": left_out,
                **details,
            }
            texts[paths[-1]], texts[paths[-2]] = json.dumps(figures, indent=1) + "\n", _episodes(played)
            replace_result(texts, paths[-1], paths)
    for note in details.get("notes", ()):
        warn(f"{suite}: {note}")
    return played


def _file(target: Target, folder: str, name: str, ending: str) -> Path:
    return target.run_dir / folder / f"{name}{target.suffix}.{ending}"


def _paths(target: Target, suite: str) -> list[Path]:
    """Return all files of an evaluation, for any agent. The last one, with metrics, marks the others as complete."""
    names = ("trained", "clone", "zero-shot", *agents())
    predictions = [_file(target, "predictions", f"{suite}-{agent}", "jsonl") for agent in names]
    figures = [_file(target, "evaluation", suite, ending) for ending in ("csv", "json")]
    return [*predictions, _file(target, "samples", suite, "json"), *figures]


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read ``evaluation/SUITE.json``; raise `RunError` if it is corrupt or was written by an incompatible version."""
    try:
        content = read_object(path)
        if not all(isinstance(word, str) for word in content.get("overrides", [])):
            raise ValueError("overrides are not strings")
        for agent in content["agents"].values():
            for figure in agent["figures"].values():
                for value in (figure["value"], figure["low"], figure["high"]):
                    if value is not None and type(value) not in (int, float):
                        raise ValueError(f"{value!r:.80} is not a number")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} cannot be read by this version ({error!r}): run `groundling evaluate` again"
        ) from error
    return content


def played_with(config: Config) -> dict[str, Any]:
    """Return the settings outside the world section that affect how an agent plays and what is measured, as JSON."""
    about = shareable({"policy": config.policy.model_dump(), "evaluation": config.evaluation.declared(OfEvaluation)})
    settings: dict[str, Any] = json.loads(json.dumps(about))
    return settings


def _compared(played: Mapping[str, Played], agent: str) -> dict[str, Any]:
    """Return all agents' metrics, also by task family, and their differences from ``agent``, as JSON."""
    differences = {name: played[agent].difference(one) for name, one in played.items() if name != agent}
    return {
        "agents": {name: summary_of(len(one.episodes), one.figures()) for name, one in played.items()},
        "tasks": {
            name: {task: summary_of(len(f.episodes), f.figures()) for task, f in one.families().items()}
            for name, one in played.items()
        },
        "differences": {name: {one[0]: _as_json(one[1])} for name, one in differences.items() if one is not None},
    }


def _archive(target: Target, paths: Sequence[Path], warn: Callable[[str], None]) -> None:
    """Move results obtained with different overrides to ``evaluation/replaced/``."""
    mark = paths[-1]
    if not mark.is_file():
        return
    try:
        earlier = read_evaluation(mark).get("overrides", [])
    except RunError:  # written by a different version
        earlier = None
    if earlier == target.changes:
        return
    replaced, name = mark.parent / "replaced", mark.stem
    replaced.mkdir(exist_ok=True)
    number = next(n for n in itertools.count(1) if not (replaced / f"{name}-{n}.json").exists())
    for path in filter(Path.exists, paths):  # the mark comes last
        kind = "" if path.parent == mark.parent else f"-{path.parent.name}"
        path.replace(replaced / f"{path.stem}-{number}{kind}{path.suffix}")
    about = "with a different version" if earlier is None else "with other overrides"
    warn(f"earlier results of {name}, obtained {about}, were moved to {replaced / f'{name}-{number}.json'}")


def summary_of(episodes: int, figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {"episodes": episodes, "figures": {name: _as_json(figure) for name, figure in figures.items()}}


def _as_json(figure: Figure) -> dict[str, Any]:
    """Replace values that JSON cannot represent, such as NaN, with null."""
    values = asdict(figure)
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def _episodes(played: Mapping[str, Played]) -> str:
    """Return CSV with one row for each episode."""
    episodes = [(name, e) for name, one in played.items() for e in one.episodes]
    about = list(dict.fromkeys(key for _, e in episodes for key in e.about))
    figures = list(dict.fromkeys(key for _, e in episodes for key in e.figures))
    rows = (
        [name, e.number, *(e.about.get(key, "") for key in about), *(e.figures.get(key) for key in figures)]
        for name, e in episodes
    )
    return csv_text(["agent", "episode", *about, *figures], rows)
