"""`groundling list`."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Mapping

from groundling.cli.command import Commands, add_command
from groundling.errors import ConfigError

_MANY = 30  # Names of a kind that the overview shows in full; more are grouped by their beginning


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "list",
        run,
        "list the available worlds, algorithms, policies, models and so on",
        examples="""
        groundling list                         the kinds, with their names
        groundling list policies                each policy with a description
        groundling list --search nethack        everything about NetHack
        groundling list envs --import my_env    with the envs that a module of yours registers
        """,
    )
    text = "worlds, envs, algorithms, policies, prompts, pools, rewards, metrics, judges, models, agents, suites, "
    parser.add_argument("kind", nargs="?", help=text + "experiments or studies")
    text = "only entries with all of these words in their kind, name or description"
    parser.add_argument("--search", nargs="+", metavar="WORD", help=text)


def run(arguments: argparse.Namespace) -> int:
    from groundling.cli.inventory import inventory

    kinds = inventory()
    if arguments.kind is not None and arguments.kind not in kinds:
        from groundling.errors import unknown

        raise ConfigError(unknown("kind", arguments.kind, kinds))
    things = {kind: kinds[kind]() for kind in ([arguments.kind] if arguments.kind else kinds)}
    if arguments.search:
        things = {kind: _matching(kind, abouts, arguments.search) for kind, abouts in things.items()}
        if not any(things.values()):
            kind = f"of {arguments.kind} " if arguments.kind else ""
            raise ConfigError(
                f"nothing {kind}has {' '.join(arguments.search)} in its name or description: leave words out, or see "
                "`groundling list`"
            )
    whole = arguments.kind is not None or arguments.search
    for kind, abouts in things.items():
        if not abouts and arguments.search:
            continue
        print(f"{kind} ({len(abouts)}):")
        if whole:
            for name, about in abouts.items():
                print(f"  {name:32} {about}".rstrip())
        else:
            print(_overview(abouts))
    if not whole:
        print("\nDescriptions: groundling list KIND. Search: groundling list --search WORD")
    return 0


def _matching(kind: str, abouts: Mapping[str, str], words: list[str]) -> dict[str, str]:
    """Return the entries with all words in their kind, name or description, ignoring case."""
    return {
        name: about
        for name, about in abouts.items()
        if all(word.lower() in f"{kind} {name} {about}".lower() for word in words)
    }


def _overview(abouts: Mapping[str, str]) -> str:
    """Format names as a paragraph."""
    names = list(abouts)
    if len(names) > _MANY:
        groups: dict[str, list[str]] = {}
        for name in names:
            beginning = re.match(r"[^/-]+[/-]", name)  # glam/drrn, BabyAI-GoTo-v0
            groups.setdefault(beginning.group() if beginning else name, []).append(name)
        names = [
            members[0] if len(members) == 1 else f"{beginning}… ({len(members)})"
            for beginning, members in groups.items()
        ]
    width = min(shutil.get_terminal_size().columns, 120)
    return textwrap.fill(", ".join(names), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
