"""`groundling forgetting`."""

import argparse

from groundling.cli.command import Commands, add_command
from groundling.io.console import make_console, warn


def add_parser(commands: Commands) -> None:
    """Add `groundling forgetting`."""
    parser = add_command(
        commands,
        "forgetting",
        run,
        "measure what training cost the language model elsewhere: perplexity on ordinary text, KL to the start",
        examples="""
        groundling forgetting runs/demo-smollm2       the agent and the clone that it began from; `report` shows it
        """,
    )
    parser.add_argument("agent", help="a run's folder or one of its checkpoints")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. device=cpu")


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.evaluation.forgetting import FILE, measure_forgetting
    from groundling.evaluation.target import find

    target, console = find(arguments.agent, arguments.overrides, warn), make_console()
    figures = measure_forgetting(target, lambda agent: console.print(f"measuring {agent}", highlight=False))
    for agent, one in figures.items():
        actions = "" if one.action_kl is None else f", of actions {one.action_kl:.3g}"
        kl = f"KL from the start {one.text_kl:.3g} nats a token{actions}"
        console.print(f"{agent}: perplexity {one.perplexity:.2f}, {kl}", highlight=False, soft_wrap=True)
    console.print(f"written to {target.run_dir / FILE}", highlight=False)
    return 0
