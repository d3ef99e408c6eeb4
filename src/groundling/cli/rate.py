"""The `groundling rate` command."""

import argparse
from pathlib import Path
from typing import Literal

from groundling.cli.command import Commands, add_command, positive
from groundling.errors import ConfigError
from groundling.io.terminal import plain


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "rate",
        run,
        "write a form for human ratings of generated texts, or summarise the answers",
        examples="""
        groundling rate rating ppo=runs/ppo/predictions/test-trained.jsonl nlpo=runs/nlpo/predictions/test-trained.jsonl
        """,
    )
    add = parser.add_argument
    add("folder", type=Path, help="the folder of the form")
    text = "systems and the JSONL files with their predictions"
    add("predictions", nargs="*", metavar="SYSTEM=FILE", help=text)
    add("--task", default="general", help="imdb, commongen, dialog, summarization, totto or general")
    add("--pairwise", action="store_true", help="compare two systems (default: rate each text)")
    add("--samples", type=positive, default=50, help="number of samples (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the samples and their order")
    add("--answers", type=Path, nargs="+", metavar="CSV", help="CSV files of answers to summarise in a table")


def run(arguments: argparse.Namespace) -> int:
    from groundling.reports.rating import read_answers, write_form

    if arguments.answers:
        if arguments.predictions or arguments.pairwise:
            raise ConfigError("--answers summarises answers to an existing form: remove --pairwise and SYSTEM=FILE")
        print(f"{'question':16} {'system':24} {'answers':>7} {'mean':>7} {'agreement':>10}")
        for rating in read_answers(arguments.folder, arguments.answers):
            figures = f"{rating.num_answers:7} {rating.mean:7.3f} {rating.agreement:10.3f}"
            print(plain(f"{rating.question:16} {rating.system:24} {figures}"))
        return 0
    files: dict[str, Path] = {}
    for word in arguments.predictions:
        system, equals, path = word.partition("=")
        if not equals or not system or system in files:
            raise ConfigError(f"expected SYSTEM=FILE, each system once, as in ppo=predictions.jsonl, got {word!r}")
        files[system] = Path(path)
    kind: Literal["pairwise", "likert"] = "pairwise" if arguments.pairwise else "likert"
    form = write_form(kind, files, arguments.folder, arguments.task, arguments.samples, arguments.seed)
    print(f"form: {form.resolve()} (sheet.csv is the same form as a spreadsheet; do not show key.json to the raters)")
    return 0
