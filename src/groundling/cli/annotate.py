"""`groundling annotate`: ask a judge which of two segments it prefers, for all pairs of a dataset."""

import argparse
import re
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from groundling.cli.command import (
    Commands,
    add_command,
    duration,
    positive,
)
from groundling.errors import ConfigError
from groundling.io.console import make_console, warn

if TYPE_CHECKING:
    from rich.console import Console

    from groundling.judges.asking.annotate import Annotation, AnnotationEstimate, Summary
    from groundling.judges.asking.judge import FigureJudge, Judge
    from groundling.judges.preferences.pairs import Pairs
    from groundling.judges.preferences.store import Answer

_SECONDS_BETWEEN_LINES = 10.0


def add_parser(commands: Commands) -> None:
    """Add `groundling annotate`."""
    parser = add_command(
        commands,
        "annotate",
        run,
        "ask a judge which segment of each pair it prefers",
        examples="""
        groundling annotate data/pairs --name rules --judge rules                          a table of rules
        groundling annotate data/pairs --name llama --judge openai model=llama base_url=http://localhost:8000/v1
        """,
    )
    parser.add_argument("dataset", type=Path, help="a folder of preference pairs, in either format")
    parser.add_argument(
        "--judge",
        nargs="+",
        default=["rules"],
        metavar=("ID", "key=value"),
        help="who is asked: rules, openai model=NAME base_url=URL, transformers model=NAME, score, return, random, or "
        "one of yours (default: rules)",
    )
    parser.add_argument(
        "--goal",
        metavar="GOAL",
        help="what is wanted: one of the world's goals ('Judges' in the docs), or a sentence of yours "
        "(default: the world's first)",
    )
    parser.add_argument(
        "--prompt", default="default", help="one of the world's prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--question",
        type=Path,
        metavar="FILE",
        help="your own instructions, as text; {goal} stands for the goal",
    )
    parser.add_argument(
        "--blstats", action="store_true", help="tell the judge the state of NetHack's player, too"
    )
    parser.add_argument("--both-orders", action="store_true", help="ask about each pair in both orders")
    parser.add_argument(
        "--name", help="name of the labels in the dataset (default: made from judge, goal and prompt)"
    )
    parser.add_argument(
        "--store", type=Path, metavar="FOLDER", help="the folder of the answers (default: DATASET/answers)"
    )
    parser.add_argument(
        "--chunks", type=positive, default=1, metavar="N", help="share the work among N processes"
    )
    parser.add_argument(
        "--chunk", type=int, metavar="I", help="this process's share of the work, from 0 to N-1"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the requests, tokens, time and cost that it would take; ask and write nothing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status: 0 if every request got an answer, and there is a verdict."""
    import groundling.worlds  # noqa: F401  (which tell judges what they are)
    from groundling.judges.asking.annotate import Annotation
    from groundling.judges.asking.judge import FigureJudge
    from groundling.judges.asking.questions import Question
    from groundling.judges.preferences.opening import open_pairs

    if arguments.chunk is None and arguments.chunks != 1:
        raise ConfigError(f"--chunks {arguments.chunks} needs --chunk I, from 0 to {arguments.chunks - 1}")
    pairs, judge = open_pairs(arguments.dataset), make_judge(arguments.judge)
    console = make_console()
    if isinstance(judge, FigureJudge):
        return _label(pairs, judge, arguments, console)
    fields = {"prompt": arguments.prompt, "blstats": arguments.blstats, "world": pairs.world}
    fields |= {"goal": arguments.goal} if arguments.goal else {}
    question = Question.from_file(arguments.question, **fields) if arguments.question else Question(**fields)
    name = arguments.name or _default_name(arguments.judge[0], judge, question)
    annotation = Annotation(
        pairs, judge, question, folder=arguments.store, both_orders=arguments.both_orders, notice=warn
    )
    chunk = arguments.chunk or 0
    estimate = annotation.estimate(chunk, arguments.chunks)
    for line in describe_estimate(estimate):
        console.print(line, highlight=False)
    if arguments.dry_run:
        console.print("nothing was asked or written", highlight=False)
        return 0
    return _annotate(annotation, name, chunk, arguments.chunks, estimate.requests, console)


def make_judge(words: list[str]) -> "Judge | FigureJudge":
    """A judge from its id and ``key=value`` words.

    Raises:
        ConfigError: no such judge, argument or value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from groundling.arguments import check_types
    from groundling.config.trust import check_plain
    from groundling.judges import judges

    id, *rest = words
    for word in rest:
        if not re.match(r"[a-z_][\w.]*=", word):
            # Of a word that may be an API key no more is repeated than it takes to find it.
            raise ConfigError(f"--judge {id}: expected key=value, got {word[:4]!r}…")
        check_plain(word, f"--judge {id}")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(rest), resolve=False)
    except (OmegaConfBaseException, YAMLError):
        raise ConfigError(
            f"--judge {id}: a value cannot be read as YAML: quote it, as in 'model=\"[name]\"'"
        ) from None
    judges.check_arguments(id, values)
    check_types(judges.get(id), f"--judge {id}: ", values)
    try:
        return judges.create(id, **values)
    except TypeError as error:
        raise ConfigError(f"--judge {id}: {error}") from error


def describe_estimate(estimate: "AnnotationEstimate") -> list[str]:
    """Lines that tell what is ahead."""
    lines = [
        f"pairs       {estimate.rows:,}, of which {estimate.identical:,} show the same twice (ties, not asked)",
        f"distinct    {estimate.distinct:,} unordered pairs",
        f"to ask      {estimate.requests:,} requests here; {estimate.known:,} are kept of this judge's identity",
    ]
    if estimate.requests and (estimate.prompt_tokens or estimate.completion_tokens):
        read, written = estimate.prompt_tokens, estimate.completion_tokens
        lines.append(f"tokens      about {read:,} read and {written:,} written")
    if estimate.requests:
        seconds = estimate.seconds
        lines.append(
            f"time        {'known after the first answers' if seconds is None else 'about ' + duration(seconds)}"
        )
    if estimate.cost is not None:
        lines.append(f"cost        about {estimate.cost:,.2f}")
    return lines


def describe_summary(summary: "Summary") -> list[str]:
    """Lines that tell what came of it."""
    rows = sum(summary.labels.values())
    counts = " · ".join(f"{name} {count:,}" for name, count in summary.labels.items())
    lines = [f"labels      {counts} (of {rows:,})"]
    if summary.answered:
        rate = summary.invalid / summary.answered
        lines.append(f"answers     {summary.answered:,}, of which {summary.asked:,} now; invalid {rate:.1%}")
    if summary.first_rate is not None:
        lines.append(
            f"position    the one shown first wins {summary.first_rate:.1%} of the verdicts that are no tie"
        )
    if summary.inconsistent is not None:
        lines.append(f"both orders {summary.inconsistent:.1%} of the pairs get another verdict when swapped")
    if summary.prompt_tokens or summary.completion_tokens:
        lines.append(
            f"tokens      {summary.prompt_tokens:,} read, {summary.completion_tokens:,} written in all"
        )
    if summary.cost is not None:
        lines.append(f"cost        {summary.cost:,.2f} in all")
    return lines


def _annotate(
    annotation: "Annotation", name: str, chunk: int, chunks: int, requests: int, console: "Console"
) -> int:
    with AnnotationProgress(console, requests) as progress:
        summary = annotation.run(name, chunk=chunk, chunks=chunks, on_answer=progress.advance)
    for line in describe_summary(summary):
        console.print(line, highlight=False)
    if summary.written:
        console.print(f"written as {name!r} into {annotation.pairs.folder}", highlight=False)
    else:
        console.print("no labels were written: there is no verdict yet", highlight=False)
    if summary.failed:
        warn(
            f"{summary.failed:,} requests got no answer (the first: {summary.first_failure}): the same command asks "
            "them again"
        )
    elif summary.invalid:
        example = f", such as {summary.invalid_reply!r}" if summary.invalid_reply else ""
        warn(
            f"{summary.invalid:,} answers have no valid verdict{example}; the same command asks for them again"
        )
    return 1 if summary.failed or not summary.written else 0


def _label(pairs: "Pairs", judge: "FigureJudge", arguments: argparse.Namespace, console: "Console") -> int:
    """Labels from figures: nothing is asked, so there is nothing to share."""
    options = {
        "--chunks": arguments.chunks != 1,
        "--chunk": arguments.chunk is not None,
        "--prompt": arguments.prompt != "default",
        "--goal": arguments.goal,
        "--question": arguments.question,
        "--blstats": arguments.blstats,
        "--both-orders": arguments.both_orders,
        "--store": arguments.store,
    }
    for option, given in options.items():
        if given:
            raise ConfigError(f"--judge {arguments.judge[0]} asks no question: leave {option} out")
    name = arguments.name or arguments.judge[0]
    labels = judge.prefer(pairs)
    counts = ", ".join(
        f"{kind} {int((labels == code).sum()):,}" for code, kind in enumerate(("first", "second", "tie"))
    )
    console.print(f"labels      {counts} (of {len(labels):,})", highlight=False)
    if arguments.dry_run:
        console.print("nothing was written")
        return 0
    account = {"judge": arguments.judge}
    if name in pairs.annotators() and pairs.read_account(name) != account:
        raise ConfigError(
            f"{pairs.folder} already has labels {name!r} by another judge or program: choose another --name"
        )
    pairs.write_account(name, account)
    pairs.write_preferences(name, labels)
    console.print(f"written as {name!r} into {pairs.folder}", highlight=False)
    return 0


def _default_name(id: str, judge: "Judge", question: Any) -> str:
    """Like the published files' names: judge and model, what it reads, goal, prompt."""
    model = str(judge.identity().get("model") or "").rstrip("/").rpartition("/")[2]
    reads = question.subject.reads + ("_blstats" if question.blstats else "")
    prompt = "own" if question.instructions is not None else question.prompt
    goal = question.goal if question.goal in question.subject.goals else "own"
    parts = [id, *([model] if model else []), reads, goal, prompt]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "_".join(parts)).strip("-_")


class AnnotationProgress:
    """Shows answers, invalid and failed ones, and the time left: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self, console: "Console", total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console, self._total = console, total
        self._done = self._invalid = self._failed = 0
        self._last_line = time.monotonic()
        self._began = self._last_line
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("answers", total=total)

    def advance(self, answer: "Answer | None") -> None:
        """Count an answer; None is a request that failed."""
        self._done += 1
        self._failed += answer is None
        self._invalid += answer is not None and answer.label == "invalid"
        troubles = [(self._invalid, "invalid"), (self._failed, "failed")]
        troubles_text = "".join(f" · {count:,} {what}" for count, what in troubles if count)
        self._bar.update(self._task, completed=self._done, description=f"answers{troubles_text}")
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._began) / self._done * (self._total - self._done)
            self._console.print(
                f"{self._done:,}/{self._total:,} answers{troubles_text} · {duration(left)} left"
            )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._bar.stop()
