"""`groundling list`."""

import argparse

from groundling.commands.command import Commands, add_command
from groundling.errors import ConfigError


def add_parser(commands: Commands) -> None:
    """Add `groundling list`."""
    parser = add_command(commands, "list", run, "what there is")
    parser.add_argument(
        "kind",
        nargs="?",
        help="worlds, envs, algorithms, policies, prompts, pools, rewards, metrics, judges, models, agents, suites, "
        "experiments or studies",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.inventory import inventory

    kinds = inventory()
    if arguments.kind is not None and arguments.kind not in kinds:
        from groundling.registry import unknown

        raise ConfigError(unknown("kind", arguments.kind, kinds))
    for kind in [arguments.kind] if arguments.kind else kinds:
        print(f"{kind}:")
        for name, what in kinds[kind]().items():
            print(f"  {name:32} {what}".rstrip())
    return 0
