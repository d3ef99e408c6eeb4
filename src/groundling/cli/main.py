"""The command line. Errors that users can fix are printed on one line of standard error, with a non-zero status."""

import argparse
import contextlib
import faulthandler
import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import groundling
from groundling.cli.command import INTERRUPTED, env_id, one_line, spelling
from groundling.cli.list import BUNDLED
from groundling.errors import ConfigError, ForeignError, GroundlingError, is_out_of_memory, unknown
from groundling.io.files import refuse_missing
from groundling.io.terminal import keep_writing, log_plainly, plain, problem
from groundling.registry import IMPORT, from_file, imported_modules
from groundling.runtime.parallel import end_with_launcher

COMMANDS = (
    *("train", "evaluate", "forgetting", "watch", "ui", "serve", "collect", "annotate", "distill", "study"),
    *("report", "diagnose", "publish", "rate", "convert", "verify", "check-env", "serve-env", "list", "doctor"),
)
"""Commands in the order of the help. Their modules define ``add_parser`` and ``run``, which returns an exit status."""
_PRINTING = ("diagnose", "verify", "check_env", "list", "doctor")  # Modules of commands that only print
_LESS_MEMORY = (
    "To use less memory, lower algorithm.args.micro_batch_size, "
    "world.num_envs or world.num_texts, world.num_steps or world.num_tokens, evaluation.num_envs or "
    "evaluation.batch_size, set model.gradient_checkpointing=true, or use a smaller model"
)
_ENV = "world.env="
_OVERRIDE = re.compile(r"^\+{0,2}((\w+)(?:\.\w+)?)[\w.]*=([\w-]*$)?", re.MULTILINE)  # key, section and a plain value
_OPTIONS = dict.fromkeys(("lr", "learning_rate"), "algorithm.args.learning_rate") | {"output_dir": "run_dir"}
_SHOWN = 200  # Maximum number of characters quoted from another library's message


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``groundling`` with these arguments; return its exit status."""
    # Idle OpenMP threads sleep instead of spinning, which makes torch several times faster on shared cores. The
    # variable is read when torch is first imported, which happens later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    log_plainly()
    argv = sys.argv[1:] if argv is None else argv
    parser = make_parser(argv[0] if argv else None)
    arguments, more = parser.parse_known_args(argv)
    if more and (not hasattr(arguments, "overrides") or any(word.startswith("-") for word in more)):
        advice = _as_override(more) if "config_dir" in arguments else ""
        parser.error(f"unrecognized arguments: {' '.join(more)}{advice}")
    if more:  # overrides that follow an option
        arguments.overrides = [*arguments.overrides, *more]
    if arguments.imports:
        sys.path.insert(0, str(Path.cwd()))
    intact = "files that were already written are intact"
    try:
        for module in arguments.imports:
            _import(module)
        _check_names(arguments)
        for place, word in enumerate(getattr(arguments, "overrides", ())):
            if word.startswith(_ENV) and ":" in word:  # MODULE:NAME, or a server
                arguments.overrides[place] = _ENV + _own_env(word.removeprefix(_ENV), arguments.imports)
        status: int = arguments.run(arguments)
        return status or _status_of_output(arguments)
    except GroundlingError as error:
        _print_error(one_line(error))
        if isinstance(error, ForeignError) and error.__cause__ is not None:
            print(plain("".join(traceback.format_exception(error.__cause__))), end="", file=sys.stderr)
    except OSError as error:
        _print_error(f"{one_line(error)}; {intact}: fix the cause and run the command again")
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _print_error(f"out of memory ({one_line(error)[:_SHOWN]}): {intact}. {_LESS_MEMORY}")
    except KeyboardInterrupt:
        print(
            "stopped; run the same command again to continue training from the last checkpoint, annotation from the "
            "last answer, or evaluation after the last completed agent",
            file=sys.stderr,
        )
        return INTERRUPTED
    return 1


def entry_point() -> None:
    """Run the console script."""
    end_with_launcher()
    keep_writing()
    faulthandler.enable()  # shows where native code crashes
    try:
        sys.exit(main())
    except Exception as error:
        _print_error(
            f"groundling failed unexpectedly ({type(error).__name__}: {one_line(error)[:_SHOWN]}); files that were "
            "already written are intact. Please report this with the command and the lines below:"
        )
        print(plain("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        sys.exit(1)


def _print_error(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)


def _status_of_output(arguments: argparse.Namespace) -> int:
    """Report output that could not be written; return 1 if the command only prints."""
    if (reason := problem()) is None:
        return 0
    command = arguments.run.__module__.rpartition(".")[2]
    only_prints = command in _PRINTING or getattr(arguments, "dry_run", False)
    kind = "error" if only_prints else "warning"
    print(f"{kind}: cannot write to standard output ({reason}): the output is lost", file=sys.stderr)
    return int(only_prints)


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for ``command``, or for all commands if it is not one of them."""
    parser = argparse.ArgumentParser(
        prog="groundling", description="Reinforcement learning with language models.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions to include in a bug report")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        help="print a completion script, to be saved where the shell looks for completions",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in [command] if command in COMMANDS else COMMANDS:
        importlib.import_module(f"groundling.cli.{name.replace('-', '_')}").add_parser(commands)
    return parser


class _Version(argparse.Action):
    """Print the versions of Groundling and its main dependencies, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        versions = {"groundling": groundling.__version__, "python": platform.python_version()}
        for package in ("torch", "transformers", "gymnasium"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        print(" · ".join(f"{name} {version}" for name, version in versions.items()))
        parser.exit()


class _Completion(argparse.Action):
    """Print a shell's completion script, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, *_: Any) -> None:
        import shtab

        print(shtab.complete(parser, shell))
        parser.exit()


def _check_names(arguments: argparse.Namespace) -> None:
    """Report a misspelt experiment, run or key before importing torch and Transformers, which takes seconds."""
    if "torch" in sys.modules or "config_dir" not in arguments or "study" in arguments:
        return  # the user's modules may have registered components, or the command reads no config
    known = json.loads(BUNDLED.read_text(encoding="utf-8"))
    name, keys = str(getattr(arguments, "experiment", None) or getattr(arguments, "agent", "demo")), known["keys"]
    if name not in known["experiments"] and arguments.config_dir is None:
        if "agent" in arguments:
            refuse_missing(name)
        is_file = name.endswith((".yaml", ".yml")) or os.path.isfile(f"{name}/config.yaml")  # noqa: PTH113 (long names)
        if "experiment" in arguments and not is_file:
            raise ConfigError(unknown("experiment", name, known["experiments"]))
    for key, section, id in _OVERRIDE.findall("\n".join(arguments.overrides)):
        siblings = [one for one in keys if one.startswith(f"{section}.")]
        if section not in keys and not siblings:
            raise ConfigError(unknown("config key", section, {one.partition(".")[0] for one in keys}))
        if section not in ("world", "evaluation") and siblings and key != section and key not in siblings:
            raise ConfigError(unknown("config key", key, siblings))
        ids = known.get({"policy.id": "policies", "algorithm.id": "algorithms"}.get(key))
        if id and ids and id not in ids:
            raise ConfigError(unknown(section, id, ids, IMPORT))


def _as_override(words: list[str]) -> str:
    """Return advice for an unknown option that matches a config key, such as ``--steps 100``; "" for others."""
    option, *rest = words[next(place for place, word in enumerate(words) if word.startswith("-")) :]
    name, _, value = option.lstrip("-").partition("=")
    name, value = name.replace("-", "_"), value or "".join(rest[:1])
    keys, ends = json.loads(BUNDLED.read_text("utf-8"))["keys"], (f".{name}", f".{name}.id", f".{name}.path")
    keys = [_OPTIONS[name]] if name in _OPTIONS else [key for key in keys if f".{key}".endswith(ends)]
    return f": settings are overrides, as in {' or '.join(f'{key}={value}' for key in keys)}" if keys else ""


def _own_env(name: str, imports: list[str]) -> str:
    """Return the id of an env that the command line names; for MODULE:NAME, import and record it as --import does."""
    id, (module, _, attribute) = env_id(name), name.partition(":")
    if id != name:
        imports.append(module if id == attribute else name)
        imported_modules.append(imports[-1])
    return id


def _import(module: str) -> None:
    name, _, function = module.partition(":")
    if name.endswith(".py") and not function:
        raise ConfigError(f"--import {module} is a file: pass a module's name, as in --import {spelling(name)}")
    try:
        imported = from_file(Path(name)) if name.endswith(".py") and function else importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        mend = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            mend = ": modules are searched for in the current folder and among the installed packages"
        raise ConfigError(f"--import {module}: {type(error).__name__}: {error}{mend}") from error
    made = getattr(imported, function, None)
    if function and _makes_env(made):
        from groundling.envs.objects import register_env

        register_env(made)
    elif function:
        from groundling.rewards.registry import register_function

        if not callable(made):
            known = [one for one, value in vars(imported).items() if inspect.isfunction(value)]
            raise ConfigError(f"--import {module}: {unknown('function', function, known)}")
        register_function(made)
    imported_modules.append(module)


def _makes_env(made: Any) -> bool:
    """Return True for an env, an env class, or a function without required arguments, which cannot be a reward."""
    import gymnasium

    if inspect.isfunction(made):
        return all(
            parameter.default is not parameter.empty for parameter in inspect.signature(made).parameters.values()
        )
    return isinstance(made, gymnasium.Env) or (isinstance(made, type) and issubclass(made, gymnasium.Env))
