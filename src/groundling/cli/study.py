"""The `groundling study` command."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides, positive
from groundling.errors import ConfigError, RunError
from groundling.io.terminal import make_console, warn
from groundling.registry import import_words

if TYPE_CHECKING:
    from groundling.studies.run import StudyJob


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "study",
        run,
        "train and evaluate several arms with several seeds, and report the results",
        examples="""
        groundling study glam-study seeds=1,2,3 --jobs 2
        groundling study my_study.yaml --output results/mine
        """,
    )
    add = parser.add_argument
    add("study", help="a name from `groundling list studies`, or your own YAML file")
    text = "seeds=1,2,3, episodes=N, suites=NAME,NAME or arms=NAME,NAME change the study; arms.NAME.key=value changes "
    add_overrides(parser, text + "one arm's runs; any other key=value changes all runs")
    add_config_dir(parser)
    add("--runs", type=Path, metavar="FOLDER", help="parent folder of the runs (default: runs/STUDY)")
    add("--output", type=Path, metavar="FOLDER", help="folder of the results (default: results/STUDY)")
    text = "number of parallel single-threaded processes (default: run in this process)"
    add("--jobs", type=positive, default=1, help=text)
    add("--no-results", action="store_true", help="write only the run folders, not the results")


def run(arguments: argparse.Namespace) -> int:
    from groundling.config.facts import shareable_words
    from groundling.studies.definition import read_study
    from groundling.studies.figures import page_of_figures
    from groundling.studies.page import check_output, write_page
    from groundling.studies.run import make_jobs, run_here, run_in_processes
    from groundling.studies.success import page_of_success
    from groundling.worlds import kind

    study, arms = read_study(arguments.study, arguments.overrides)
    runs = arguments.runs or Path("runs") / study.name
    output = arguments.output or Path("results") / study.name
    jobs = make_jobs(study, arms, runs, arguments.config_dir)
    world = kind(jobs[0].config.world.id)
    by_success = world.presentation.study == "success"
    if not by_success and len({job.suites[0] for job in jobs}) > 1:
        raise ConfigError(
            f"the results of {study.name} report a single suite: use the same first suite for all arms, not "
            f"{', '.join(sorted({job.suites[0] for job in jobs}))}"
        )
    if not arguments.no_results:
        check_output(output)
    console = make_console()

    def report(text: str) -> None:
        console.print(text, soft_wrap=True)

    options = import_words(arguments.imports)
    if arguments.config_dir is not None:
        options += ["--config-dir", str(arguments.config_dir)]
    command = ["study", arguments.study, *arguments.overrides, *options]
    if arguments.jobs == 1:
        failed = run_here(jobs, report, console, warn)
    else:

        def words(job: "StudyJob") -> list[str]:
            one = [f"arms={job.arm}", f"seeds={job.seed}"]
            return [*command, *one, "--runs", str(runs), "--no-results"]

        failed = run_in_processes(jobs, words, arguments.jobs, report)
    if not arguments.no_results:
        folders = ["--jobs", str(arguments.jobs), "--runs", str(runs), "--output", str(output)]
        page = (page_of_success if by_success else page_of_figures)(study, jobs, world)
        write_page(study, page, output, shareable_words([*command, *folders]))
        report(f"results: {output / 'README.md'}")
    if failed:
        names = ", ".join(job.name for job in failed)
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed ({names}): fix the errors and rerun the command")
    return 0
