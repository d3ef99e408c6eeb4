"""The pages of `groundling ui`; every request rereads the folder."""

import csv
import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import plotly.offline
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundling.errors import GroundlingError
from groundling.reports.page import DAMAGED
from groundling.reports.run_folder import RunFolder, figures_of, picture_of, read_run
from groundling.reports.ui.comparison import compared_figures, differing_settings, drawn_figures
from groundling.reports.ui.folders import Folder, Kind, curves_of, find_folders, metrics_of
from groundling.reports.ui.judged import LABELS, PAGE, select
from groundling.reports.ui.markdown import to_html

_HEADERS = {
    # Files are shown as text. If any markup gets through, its scripts do not run.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that requires the token in the URL, or the cookie that is set in exchange for it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # Browsers send a cookie to every port of a host, so each instance uses its own cookie name.
        self._cookie = f"groundling-{hashlib.sha256(token.encode()).hexdigest()[:16]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("token")
        if given is not None and self._is_valid(given):
            # The token is removed from the URL, which may be copied or logged.
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            response = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            await response(scope, receive, send_guarded)
        elif self._is_valid(Request(scope).cookies.get(self._cookie, "")):
            await self._app(scope, receive, send_guarded)
        else:
            text = "This page needs a token: open the URL that `groundling ui` printed.\n"
            await PlainTextResponse(text, 403)(scope, receive, send_guarded)

    def _is_valid(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())


_HERE = Path(__file__).parent
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]  # allowed values of the Host header, which prevents DNS rebinding
_NUM_TEXTS = 50
_MAX_ROWS = 200  # maximum number of rows in a study's table


def make_app(roots: Sequence[Path], token: str) -> Starlette:
    """Create the application, which shows ``roots`` and the folders below, and rejects requests without ``token``."""
    views = _Views(roots)
    shown = [views.run, views.metrics, views.compare, views.episode, views.judge, views.study, views.picture]
    routes = [
        Route("/", views.runs),
        *(Route(f"/{view.__name__}", view) for view in shown),
        Route("/plotly.js", _plotly),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS), Middleware(Guard, token=token)]
    errors: Any = dict.fromkeys((GroundlingError, HTTPException, *DAMAGED, csv.Error), views.failed)
    return Starlette(routes=routes, middleware=guards, exception_handlers=errors)


def _plotly(request: Request) -> Response:
    headers = {"cache-control": "max-age=86400"}
    return Response(plotly.offline.get_plotlyjs(), media_type="text/javascript", headers=headers)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class _Views:
    """The views, one method each; Starlette runs them in threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = list(roots)
        self._templates = Jinja2Templates(directory=_HERE / "templates")
        self._templates.env.filters.update(time=lambda at: time.strftime("%Y-%m-%d %H:%M", time.localtime(at)))
        self._templates.env.globals.update(figures=figures_of)
        self._templates.env.finalize = _utf8

    def runs(self, request: Request) -> Response:
        newest = sorted(find_folders(self._roots).values(), key=lambda folder: -folder.changed)
        return self._page(
            request,
            "runs.html",
            rows=[self._summary(folder) for folder in newest if folder.kind == "run"],
            roots=[str(root) for root in self._roots],
            pairs=[folder for folder in newest if folder.kind == "pairs"],
            study=[folder for folder in newest if folder.kind == "study"],
        )

    def run(self, request: Request) -> Response:
        folder = self._folder(request, "run")
        run = _read(folder)
        first = _number(request, "first")
        return self._page(
            request,
            "run.html",
            folder=folder,
            run=run,
            figures_drawn=drawn_figures([run]),
            by_suite=run.by_suite() if run.evaluations else None,
            episodes={suite: [_outline(one) for one in samples] for suite, samples in _by_suite(run).items()},
            texts={name: rows[first : first + _NUM_TEXTS] for name, rows in run.texts.items()},
            first=first,
            size=_NUM_TEXTS,
            most_texts=max(map(len, run.texts.values()), default=0),
        )

    def metrics(self, request: Request) -> Response:
        """Return the requested curves, unless the page has drawn all rows already."""
        folder = self._folder(request, "run")
        rows = metrics_of(folder.path)
        is_new = len(rows) != _number(request, "rows")
        curves = curves_of(rows, request.query_params.getlist("figure")) if is_new else None
        return JSONResponse({"rows": len(rows), "curves": curves, "live": folder.is_live})

    def compare(self, request: Request) -> Response:
        found = find_folders(self._roots)
        folders = [_find(found, id, "run") for id in request.query_params.getlist("run")]
        if not folders:
            raise HTTPException(404, "Select some runs on the first page.")
        runs = [_read(folder) for folder in folders]
        suites = sorted({suite for run in runs for suite in run.evaluations})
        return self._page(
            request,
            "compare.html",
            folders=folders,
            runs=runs,
            figures_drawn=drawn_figures(runs),
            suites=suites,
            settings=differing_settings(runs),
            tables={suite: compared_figures(runs, suite) for suite in suites},
        )

    def episode(self, request: Request) -> Response:
        folder = self._folder(request, "run")
        suite, number = request.query_params.get("suite", ""), _number(request, "number")
        run = _read(folder)
        samples = _by_suite(run).get(suite, [])
        if number >= len(samples):
            raise HTTPException(404, f"{folder.id} has no episode {number} in {suite!r}.")
        episode = run.view(samples[number])
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
        about: dict[str, Any] = {"suite": suite, "number": number, "count": len(samples), "episode": episode}
        return self._page(request, "episode.html", folder=folder, moments=moments, **about)

    def judge(self, request: Request) -> Response:
        folder, query = self._folder(request, "pairs"), request.query_params
        if query.get("label") and query["label"] not in LABELS:
            raise HTTPException(404, f"There is no label {query['label']!r}.")
        first = _number(request, "first")
        return self._page(
            request,
            "judge.html",
            folder=folder,
            selection=query,
            judged=select(folder.path, query, first),
            first=first,
            size=PAGE,
            labels=list(LABELS),
        )

    def study(self, request: Request) -> Response:
        folder = self._folder(request, "study")
        with (folder.path / "summary.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for _, row in zip(range(_MAX_ROWS + 1), csv.reader(file), strict=False)]
        text = (folder.path / "README.md").read_text(encoding="utf-8", errors="replace")
        urls = {name: "/picture?" + urlencode({"id": folder.id, "name": name}) for name in _pictures(folder)}
        return self._page(
            request,
            "study.html",
            folder=folder,
            rows=rows,
            text=to_html(text, urls),
            pictures={name: url for name, url in urls.items() if name.endswith(".svg") and name not in text},
            most=_MAX_ROWS,
        )

    def picture(self, request: Request) -> Response:
        folder, name = self._folder(request, "study"), request.query_params.get("name", "")
        if name not in _pictures(folder):
            raise HTTPException(404, f"{folder.id} has no picture {name!r}.")
        # If an SVG is opened directly, the browser treats it as a page, which may contain scripts.
        headers = {"content-security-policy": "sandbox; style-src 'unsafe-inline'"}
        return FileResponse(folder.path / name, headers=headers)

    def failed(self, request: Request, error: Exception) -> Response:
        status, reason = 422, f"a file in this folder is damaged: {_cause(error)}"
        if isinstance(error, HTTPException):
            status, reason = error.status_code, error.detail
        elif isinstance(error, GroundlingError):
            reason = str(error)
        return self._page(request, "failed.html", status_code=status, reason=reason)

    def _summary(self, folder: Folder) -> dict[str, Any]:
        """Return a run's row in the list of runs, with the problem if the run cannot be read."""
        row: dict[str, Any] = {"folder": folder, "problem": None}
        try:
            folder.check_links()
            run = _read(folder)
            figure, label = run.figure
            last = run.metrics[-1] if run.metrics else {}
            return row | {
                "name": run.config.name,
                "seed": run.config.seed,
                "model": run.config.model.path if run.has_model else "–",
                "world": run.task,
                "policy": run.config.policy.id,
                "algorithm": run.config.algorithm.id,
                "step": last.get("step", 0),
                "steps": run.config.training.steps if run.config.training.epochs is None else None,
                "figure": label,
                "value": last.get(figure),
            }
        except GroundlingError as error:
            return row | {"problem": str(error)}
        except (*DAMAGED, csv.Error) as error:
            return row | {"problem": f"the run is damaged: {_cause(error)}"}

    def _folder(self, request: Request, kind: Kind) -> Folder:
        return _find(find_folders(self._roots), request.query_params.get("id", ""), kind)

    def _page(self, request: Request, name: str, status_code: int = 200, **context: Any) -> Response:
        return self._templates.TemplateResponse(request, name, context, status_code=status_code)


def _read(folder: Folder) -> RunFolder:
    return read_run(folder.path, metrics_of(folder.path))


def _find(found: Mapping[str, Folder], id: str, kind: Kind) -> Folder:
    """Return a folder below the roots; no URL can reach outside them."""
    folder = found.get(id)
    if folder is None or folder.kind != kind:
        raise HTTPException(404, f"There is no {kind} {id!r} here.")
    folder.check_links()
    return folder


def _by_suite(run: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """Return the recorded episodes by suite, without replaying them."""
    by_suite: dict[str, list[dict[str, Any]]] = {}
    for one in run.samples:
        by_suite.setdefault(str(one["suite"]), []).append(one)
    return by_suite


def _outline(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return an episode's row in the list of episodes."""
    actions = sample.get("actions")
    return {
        "number": sample.get("number", "–"),
        "about": str(sample.get("mission") or sample.get("task") or "episode"),
        "success": sample.get("success"),
        "value": sample.get("figures", sample).get("return"),
        "steps": len(actions) if isinstance(actions, list) else None,
        "kept": "recorded" if sample.get("chosen", True) else "replayable",
    }


def _pictures(folder: Folder) -> list[str]:
    """Return the names of a folder's pictures, except symlinks, which may point outside the folder."""
    files = (path for path in folder.path.iterdir() if path.is_file() and not path.is_symlink())
    return sorted(path.name for path in files if path.suffix in (".svg", ".png"))


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > 9:
        raise HTTPException(404, f"{name}={text!r:.40} is not a number.")
    return int(text)


def _utf8(value: Any) -> Any:
    """Replace lone surrogates, which file names and JSON strings may contain."""
    return type(value)(value.encode("utf-8", "replace").decode()) if isinstance(value, str) else value
