"""The pages of `groundling ui`: each view reads what its folder holds now, and shows it."""

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.offline
from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from groundling.errors import GroundlingError, RunError
from groundling.reports.run_folder import (
    ShownRun,
    by_suite,
    episodes_of,
    figures_of,
    learning_figures,
    picture_of,
    read_run,
    settings_of,
)
from groundling.reports.ui.curves import Curves
from groundling.reports.ui.folders import Folder, Kind, find_folders
from groundling.reports.ui.guard import Guard
from groundling.reports.ui.judged import LABELS, PAGE, Selection, select

_HERE = Path(__file__).parent
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
"""Under which names this machine may be asked: no other page can give itself one of these."""
_NUM_TEXTS = 50
_PICTURES = (".svg", ".png")
_MOST_ROWS = 200
"""Of a study's table."""


def make_app(roots: Sequence[Path], token: str) -> Starlette:
    """The application.

    Args:
        roots: Folders of which, and below which, everything is shown, and nothing else.
        token: Who does not know it is turned away.
    """
    views = _Views(roots)
    shown = [views.run, views.metrics, views.compare, views.episode, views.judge, views.study, views.picture]
    routes = [
        Route("/", views.runs),
        *(Route(f"/{view.__name__}", _described(view)) for view in shown),
        Route("/plotly.js", _plotly),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS), Middleware(Guard, token=token)]
    errors: Any = {GroundlingError: views.failed, HTTPException: views.failed}
    return Starlette(routes=routes, middleware=guards, exception_handlers=errors)


def _plotly(request: Request) -> Response:
    headers = {"cache-control": "max-age=86400"}
    return Response(plotly.offline.get_plotlyjs(), media_type="text/javascript", headers=headers)


_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    csv.Error,
    TemplateError,
)
"""Exceptions that reading or showing a damaged file raises."""


def _described(view: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """The view, which says of a damaged folder what is wrong."""

    def describing(request: Request) -> Response:
        try:
            return view(request)
        except (GroundlingError, HTTPException):
            raise
        except _DAMAGED as error:
            raise RunError(f"a file of this folder is damaged: {_cause(error)}") from error

    return describing


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class _Views:
    """One method for each view. Starlette runs them in threads, for they read files and draw pictures."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = list(roots)
        self._curves: dict[Path, Curves] = {}
        self._templates = Jinja2Templates(directory=_HERE / "templates")
        self._templates.env.filters.update(ago=_ago)
        self._templates.env.globals.update(figures=figures_of)
        self._templates.env.finalize = _utf8

    # Pages

    def runs(self, request: Request) -> Response:
        """Everything there is."""
        there = find_folders(self._roots).values()
        newest = sorted(there, key=lambda folder: -folder.changed)
        rows = [self._summary(folder) for folder in newest if folder.kind == "run"]
        return self._page(
            request,
            "runs.html",
            rows=rows,
            roots=[str(root) for root in self._roots],
            pairs=[folder for folder in newest if folder.kind == "pairs"],
            study=[folder for folder in newest if folder.kind == "study"],
        )

    def run(self, request: Request) -> Response:
        """One run: its curves, evaluations, episodes, texts and settings."""
        folder = self._folder(request, "run")
        shown = self._read(folder)
        texts = {name: rows[:_NUM_TEXTS] for name, rows in shown.texts.items()}
        return self._page(
            request,
            "run.html",
            folder=folder,
            run=shown,
            figures_drawn=_drawn([shown]),
            by_suite=by_suite(shown) if shown.evaluations else None,
            episodes=_listed(shown),
            texts=texts,
            settings=settings_of(shown),
        )

    def metrics(self, request: Request) -> Response:
        """The curves of the figures that are asked for, unless there are only as many rows as the page has drawn."""
        folder = self._folder(request, "run")
        curves = self._curves_of(folder)
        is_new = curves.num_rows != _number(request, "rows")
        drawn = curves.drawn(request.query_params.getlist("figure")) if is_new else None
        return JSONResponse({"rows": curves.num_rows, "curves": drawn, "live": folder.is_live})

    def compare(self, request: Request) -> Response:
        """Curves and figures of several runs."""
        there = find_folders(self._roots)
        folders = [_one_of(there, id, "run") for id in request.query_params.getlist("run")]
        if not folders:
            raise HTTPException(404, "Choose some runs on the first page.")
        shown = [self._read(folder) for folder in folders]
        suites = sorted({suite for run in shown for suite in run.evaluations})
        return self._page(
            request,
            "compare.html",
            folders=folders,
            runs=shown,
            figures_drawn=_drawn(shown),
            suites=suites,
            tables={suite: _beside(folders, shown, suite) for suite in suites},
        )

    def episode(self, request: Request) -> Response:
        """An episode, moment by moment."""
        folder = self._folder(request, "run")
        shown = self._read(folder)
        suite, number = request.query_params.get("suite", ""), _number(request, "number")
        episodes = episodes_of(shown).get(suite, [])
        if number >= len(episodes):
            raise HTTPException(404, f"{folder.id} has no episode {number} of {suite!r}.")
        episode = episodes[number]
        moments = [
            {
                "lines": list(moment.lines),
                "action": moment.action,
                "probabilities": list((moment.probabilities or {}).items()),
                "prompt": moment.prompt,
                "picture": picture_of(moment, max(episode.pixels, 512)),
                "mark": moment.mark,
            }
            for moment in episode.frames
        ]
        return self._page(
            request,
            "episode.html",
            folder=folder,
            suite=suite,
            number=number,
            count=len(episodes),
            episode=episode,
            moments=moments,
        )

    def judge(self, request: Request) -> Response:
        """Pairs of segments, and what judges said."""
        folder, asked = self._folder(request, "pairs"), request.query_params
        label = asked.get("label") or None
        if label is not None and label not in LABELS:
            raise HTTPException(404, f"There is no label {label!r}.")
        selection = Selection(
            asked.get("judge") or None, label, asked.get("against") or None, asked.get("words", "")
        )
        first = _number(request, "first")
        return self._page(
            request,
            "judge.html",
            folder=folder,
            selection=selection,
            judged=select(folder.path, selection, first),
            first=first,
            size=PAGE,
            labels=list(LABELS),
        )

    def study(self, request: Request) -> Response:
        """A study's table and pictures."""
        folder = self._folder(request, "study")
        with (folder.path / "summary.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for _, row in zip(range(_MOST_ROWS + 1), csv.reader(file), strict=False)]
        text = (folder.path / "README.md").read_text(encoding="utf-8", errors="replace")
        drawn = [name for name in _pictures(folder) if name.endswith(".svg")]
        return self._page(
            request, "study.html", folder=folder, rows=rows, text=text, pictures=drawn, most=_MOST_ROWS
        )

    def picture(self, request: Request) -> Response:
        """A picture of a study's."""
        folder, name = self._folder(request, "study"), request.query_params.get("name", "")
        if name not in _pictures(folder):
            raise HTTPException(404, f"{folder.id} has no picture {name!r}.")
        # Opened by itself, an SVG of somebody else's would be a page that may have scripts.
        return FileResponse(
            folder.path / name, headers={"content-security-policy": "sandbox; style-src 'unsafe-inline'"}
        )

    def failed(self, request: Request, error: Exception) -> Response:
        """What cannot be shown, and why."""
        status, reason = (
            (error.status_code, error.detail) if isinstance(error, HTTPException) else (422, str(error))
        )
        return self._page(request, "failed.html", status_code=status, reason=reason)

    # What they share

    def _curves_of(self, folder: Folder) -> Curves:
        curves = self._curves.setdefault(folder.path, Curves(folder.path))
        curves.update()
        return curves

    def _read(self, folder: Folder) -> ShownRun:
        return read_run(folder.path, self._curves_of(folder).outline())

    def _summary(self, folder: Folder) -> dict[str, Any]:
        """A run in the list of all; a damaged one is listed with what is wrong."""
        row: dict[str, Any] = {"folder": folder, "problem": None}
        try:
            folder.check_links()
            shown = self._read(folder)
            figure, label = shown.figure
            last = shown.metrics[-1] if shown.metrics else {}
            return row | {
                "name": shown.config.name,
                "world": shown.task,
                "policy": shown.config.policy.id,
                "algorithm": shown.config.algorithm.id,
                "step": last.get("step", 0),
                "steps": shown.config.training.steps if shown.config.training.epochs is None else None,
                "figure": label,
                "value": last.get(figure),
            }
        except GroundlingError as error:
            return row | {"problem": str(error)}
        except _DAMAGED as error:
            return row | {"problem": f"it is damaged: {_cause(error)}"}

    def _folder(self, request: Request, kind: Kind) -> Folder:
        return _one_of(find_folders(self._roots), request.query_params.get("id", ""), kind)

    def _page(self, request: Request, name: str, status_code: int = 200, **context: Any) -> Response:
        return self._templates.TemplateResponse(request, name, context, status_code=status_code)


def _one_of(there: Mapping[str, Folder], id: str, kind: Kind) -> Folder:
    """Only what was found is opened: no address leads out of the folders."""
    folder = there.get(id)
    if folder is None or folder.kind != kind:
        raise HTTPException(404, f"There is no {kind} {id!r} here.")
    folder.check_links()
    return folder


def _pictures(folder: Folder) -> list[str]:
    """The names of its pictures; a link may lead out of it."""
    files = (path for path in folder.path.iterdir() if path.is_file() and not path.is_symlink())
    return sorted(path.name for path in files if path.suffix in _PICTURES)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > 9:
        raise HTTPException(404, f"{name}={text!r:.40} is no number.")
    return int(text)


def _drawn(runs: Sequence[ShownRun]) -> list[str]:
    """The figures that can be drawn of the runs, those that tell most first, and last those that never change."""
    values: dict[str, set[float]] = {}
    for run in runs:
        for row in run.metrics:
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("step", "update"):
                    values.setdefault(name, set()).add(value)
    first = dict.fromkeys([runs[0].figure[0], *learning_figures(runs)])
    others = sorted(values.keys() - first, key=lambda name: (len(values[name]) == 1, name))
    return [*(name for name in first if name in values), *others]


def _listed(run: ShownRun) -> dict[str, list[dict[str, Any]]]:
    """The run's recorded episodes by suite, without playing them again."""
    listed: dict[str, list[dict[str, Any]]] = {}
    for sample in run.samples:
        about = sample.get("mission") or sample.get("task") or "episode"
        listed.setdefault(str(sample.get("suite")), []).append(
            {"about": str(about), "success": sample.get("success"), "return": sample.get("return")}
        )
    return listed


def _beside(
    folders: Sequence[Folder], runs: Sequence[ShownRun], suite: str
) -> list[tuple[str, list[tuple[str, str]]]]:
    """A suite's figures: one line for each, with each run's trained agent beside the others'."""
    by_run = []
    for run in runs:
        evaluation = run.evaluations.get(suite, {"agents": {}})
        agents = {name: one for name, one in evaluation["agents"].items() if name == "trained"}
        by_run.append({name: cells[0] for name, cells in figures_of({**evaluation, "agents": agents})})
    names = list(dict.fromkeys(name for figures in by_run for name in figures))
    return [(name, [figures.get(name, ("–", "")) for figures in by_run]) for name in names]


def _utf8(value: Any) -> Any:
    """Copy of a template's value that UTF-8 can hold: names of files and texts of JSON may have lone surrogates."""
    return type(value)(value.encode("utf-8", "replace").decode()) if isinstance(value, str) else value


def _ago(seconds: float) -> str:
    passed = max(time.time() - seconds, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago"
    return "now"
