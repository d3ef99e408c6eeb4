"""`groundling study`."""

import argparse
from pathlib import Path

from groundling.commands.command import Commands, add_command, make_console, positive, warn
from groundling.errors import ConfigError, RunError


def add_parser(commands: Commands) -> None:
    """Add `groundling study`."""
    parser = add_command(
        commands, "study", run, "train and evaluate several arms with several seeds, and tell what came of it"
    )
    parser.add_argument("study", help="see `groundling list studies`, or a YAML file of your own")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="seeds=1,2,3, episodes=N, suites=NAME,NAME or arms=NAME,NAME of the study; arms.NAME.key=value of an "
        "arm's runs; others of all runs",
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="the runs' folders (default: runs/STUDY)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="the results (default: results/STUDY)")
    parser.add_argument(
        "--jobs",
        type=positive,
        default=1,
        help="processes of one thread each (default: all in this process)",
    )
    parser.add_argument("--no-results", action="store_true", help="write only the runs' own folders")


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.configs.studies import read_study
    from groundling.evaluation.study import Job, make_jobs, run_here, run_jobs_beside
    from groundling.evaluation.study_by_figures import write_study_by_figures
    from groundling.evaluation.study_by_success import write_study_by_success
    from groundling.sharing import shareable_words
    from groundling.worlds import kind

    study, arms = read_study(arguments.study, arguments.overrides)
    runs = arguments.runs or Path("runs") / study.name
    output = arguments.output or Path("results") / study.name
    jobs = make_jobs(study, arms, runs)
    by_success = kind(jobs[0].config.world.id).study_measures == "success"
    if study.reference is not None and not by_success:
        raise ConfigError(
            f"reference={study.reference} does nothing: the results of {study.name} tell no successes; leave it out"
        )
    console = make_console()

    def tell(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    options = [word for module in arguments.imports for word in ("--import", module)]
    command = ["study", arguments.study, *arguments.overrides, *options]
    full_command = [*command, "--jobs", str(arguments.jobs), "--runs", str(runs), "--output", str(output)]
    if arguments.jobs == 1:
        failed = run_here(jobs, tell, console, warn)
    else:

        def words(job: Job) -> list[str]:
            one = [f"arms={job.arm}", f"seeds={job.seed}"]
            return [*command, *one, "--runs", str(runs), "--no-results"]

        failed = run_jobs_beside(jobs, words, arguments.jobs, tell)
    if not arguments.no_results:
        world = kind(jobs[0].config.world.id)
        write = write_study_by_success if by_success else write_study_by_figures
        write(study, jobs, world, output, shareable_words(full_command))
        tell(f"results: {output / 'README.md'}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} failed ({', '.join(job.name for job in failed)}): mend what they say and "
            "give the same command"
        )
    return 0
