"""`groundling annotate`: ask a judge which segment it prefers in each pair of a dataset."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.cli.command import Commands, add_command, duration, positive, refuse_unused
from groundling.errors import ConfigError
from groundling.io.terminal import episode_bars, make_console, warn

if TYPE_CHECKING:
    from rich.console import Console

    from groundling.judges.asking.annotate import Annotation, AnnotationEstimate, AnnotationSummary
    from groundling.judges.asking.judge import FigureJudge, Judge
    from groundling.judges.preferences.pairs import Pairs


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "annotate",
        run,
        "ask a judge which segment it prefers in each pair",
        examples="""
        groundling annotate data/pairs --name rules --judge rules                          a rule-based judge
        groundling annotate data/pairs --name llama --judge openai model=llama base_url=http://localhost:8000/v1
        """,
    )
    add, text = parser.add_argument, "a folder of preference pairs, in Motif or Parquet format"
    add("dataset", type=Path, help=text)
    text = "rules (default), openai model=ID base_url=URL, transformers model=ID, score, return, random or your own"
    add("--judge", nargs="+", default=["rules"], metavar=("ID", "key=value"), help=text)
    text = "one of the world's goals (see 'Judges' in the docs) or your own sentence (default: the first goal)"
    add("--goal", metavar="GOAL", help=text)
    add("--prompt", default="default", help="one of the world's prompts (default: %(default)s)")
    text = "a text file with your own instructions, in which {goal} is replaced with the goal"
    add("--question", type=Path, metavar="FILE", help=text)
    add("--blstats", action="store_true", help="in NetHack: also show the player's state to the judge")
    add("--both-orders", action="store_true", help="query the judge with each pair in both orders")
    add("--name", help="name of the labels in the dataset (default: derived from the judge, goal and prompt)")
    add("--store", type=Path, metavar="FOLDER", help="folder of the stored answers (default: DATASET/answers)")
    add("--chunks", type=positive, default=1, metavar="N", help="split the work into N chunks, one per process")
    add("--chunk", type=int, metavar="I", help="the chunk that this process annotates, from 0 to N-1")
    text = "print the expected requests, tokens, time and cost without sending or writing anything"
    add("--dry-run", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Return 1 if a request failed or no labels were written, and 0 otherwise."""
    import groundling.worlds  # noqa: F401  (registers the worlds' subjects)
    from groundling.judges.asking.annotate import Annotation
    from groundling.judges.asking.judge import FigureJudge
    from groundling.judges.asking.questions import Question
    from groundling.judges.preferences import open_pairs

    if arguments.chunk is None and arguments.chunks != 1:
        raise ConfigError(f"--chunks {arguments.chunks} needs --chunk I, from 0 to {arguments.chunks - 1}")
    pairs, judge = open_pairs(arguments.dataset), make_judge(arguments.judge)
    console = make_console()
    if isinstance(judge, FigureJudge):
        unused = ("chunks", "chunk", "prompt", "goal", "question", "blstats", "both_orders", "store")
        refuse_unused(arguments, f"with --judge {arguments.judge[0]}, which sends no requests", *unused)
        return _label(pairs, judge, arguments, console)
    fields = {"prompt": arguments.prompt, "blstats": arguments.blstats, "world": pairs.world}
    fields |= {"goal": arguments.goal} if arguments.goal else {}
    question = Question.from_file(arguments.question, **fields) if arguments.question else Question(**fields)
    name = arguments.name or _default_name(arguments.judge[0], judge, question)
    annotation = Annotation(pairs, judge, question, folder=arguments.store, both_orders=arguments.both_orders)
    chunk = arguments.chunk or 0
    estimate = annotation.estimate(chunk, arguments.chunks)
    console.print("\n".join(describe_estimate(estimate)))
    if arguments.dry_run:
        console.print("no requests were sent and nothing was written")
        return 0
    return _annotate(annotation, name, chunk, arguments.chunks, estimate.requests, console)


def make_judge(words: list[str]) -> "Judge | FigureJudge":
    """Create a judge from its id and ``key=value`` arguments."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from groundling.config.facts import check_plain
    from groundling.judges import judges
    from groundling.registry import check_arguments

    id, *rest = words
    for word in rest:
        if not re.match(r"[a-z_][\w.]*=", word):
            # It may be an API key, so only its first characters are shown.
            raise ConfigError(f"--judge {id}: expected key=value, got {word[:4]!r}…")
        check_plain(word, f"--judge {id}")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(rest), resolve=False)
    except (OmegaConfBaseException, YAMLError):
        raise ConfigError(
            f"--judge {id}: a value cannot be read as YAML: quote it, as in 'model=\"[name]\"'"
        ) from None
    check_arguments(judges.get(id), values, f"judge {id!r}", f"--judge {id}: ")
    try:
        return judges.create(id, **values)
    except TypeError as error:
        raise ConfigError(f"--judge {id}: {error}") from error


def describe_estimate(estimate: "AnnotationEstimate") -> list[str]:
    """Return lines that describe the work and cost of an annotation."""
    lines = [
        f"pairs       {estimate.rows:,}, of which {estimate.identical:,} have identical segments (ties, not sent)",
        f"distinct    {estimate.distinct:,} unordered pairs",
        f"requests    {estimate.requests:,} to send; {estimate.known:,} answers by this judge are already stored",
    ]
    if estimate.requests and (estimate.prompt_tokens or estimate.completion_tokens):
        read, written = estimate.prompt_tokens, estimate.completion_tokens
        lines.append(f"tokens      about {read:,} input and {written:,} output")
    if estimate.requests:
        seconds = estimate.seconds
        time_needed = "unknown until the first answers arrive" if seconds is None else f"about {duration(seconds)}"
        lines.append(f"time        {time_needed}")
    if estimate.cost is not None:
        lines.append(f"cost        about {estimate.cost:,.2f}")
    return lines


def describe_summary(summary: "AnnotationSummary") -> list[str]:
    """Return lines that describe the results of an annotation."""
    rows = sum(summary.labels.values())
    counts = " · ".join(f"{name} {count:,}" for name, count in summary.labels.items())
    lines = [f"labels      {counts} (of {rows:,})"]
    if summary.answered:
        rate = summary.invalid / summary.answered
        lines.append(f"answers     {summary.answered:,}, of which {summary.asked:,} are new; {rate:.1%} are invalid")
    if summary.first_rate is not None:
        rate = summary.first_rate
        lines.append(f"position    the segment shown first is preferred in {rate:.1%} of the verdicts, excluding ties")
    if summary.inconsistent is not None:
        rate = summary.inconsistent
        lines.append(f"both orders {rate:.1%} of the pairs get a different verdict when their order is swapped")
    if summary.prompt_tokens or summary.completion_tokens:
        read, written = summary.prompt_tokens, summary.completion_tokens
        lines.append(f"tokens      {read:,} input, {written:,} output in total")
    if summary.cost is not None:
        lines.append(f"cost        {summary.cost:,.2f} in total")
    return lines


def _annotate(annotation: "Annotation", name: str, chunk: int, chunks: int, requests: int, console: "Console") -> int:
    with episode_bars(console, requests, "answers") as on_judge:
        on_answer = on_judge("judge")
        summary = annotation.run(name, chunk=chunk, chunks=chunks, on_answer=lambda answer: on_answer())
    console.print("\n".join(describe_summary(summary)))
    if summary.written:
        console.print(f"labels {name!r} written to {annotation.pairs.folder}")
    else:
        console.print("no labels were written, because there are no verdicts yet")
    again = "run the same command again to retry"
    if summary.failed:
        warn(f"{summary.failed:,} requests failed (first failure: {summary.first_failure}): {again}")
    elif summary.invalid:
        example = f", such as {summary.invalid_reply!r}" if summary.invalid_reply else ""
        warn(f"{summary.invalid:,} answers have no valid verdict{example}; {again}")
    return 1 if summary.failed or not summary.written else 0


def _label(pairs: "Pairs", judge: "FigureJudge", arguments: argparse.Namespace, console: "Console") -> int:
    """Write labels computed from recorded values, without sending requests."""
    name = arguments.name or arguments.judge[0]
    labels = judge.prefer(pairs)
    counts = ", ".join(
        f"{kind} {int((labels == code).sum()):,}" for code, kind in enumerate(("first", "second", "tie"))
    )
    console.print(f"labels      {counts} (of {len(labels):,})")
    if arguments.dry_run:
        console.print("nothing was written")
        return 0
    provenance = {"judge": arguments.judge}
    if name in pairs.annotators() and pairs.read_provenance(name) != provenance:
        raise ConfigError(
            f"{pairs.folder} already has labels {name!r} from a different judge or program: choose a different --name"
        )
    pairs.write_provenance(name, provenance)
    pairs.write_preferences(name, labels)
    console.print(f"labels {name!r} written to {pairs.folder}")
    return 0


def _default_name(id: str, judge: "Judge", question: Any) -> str:
    """Return a name in the style of Motif's published files: judge, model, observation, goal and prompt."""
    model = str(judge.identity().get("model") or "").rstrip("/").rpartition("/")[2]
    reads = question.subject.reads + ("_blstats" if question.blstats else "")
    prompt = "own" if question.instructions is not None else question.prompt
    goal = question.goal if question.goal in question.subject.goals else "own"
    parts = [id, *([model] if model else []), reads, goal, prompt]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "_".join(parts)).strip("-_")
