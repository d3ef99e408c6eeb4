"""The `groundling forgetting` command."""

import argparse

from groundling.cli.command import Commands, add_command, add_overrides
from groundling.io.terminal import make_console, warn


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "forgetting",
        run,
        "measure how much the language model has forgotten: perplexity on ordinary text and KL from the initial model",
        examples="""
        groundling forgetting runs/demo-smollm2       the agent and its initial clone; also shown by `report`
        """,
    )
    parser.add_argument("agent", help="a run's folder or one of its checkpoints")
    add_overrides(parser, "e.g. device=cpu")


def run(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.forgetting import FILE, measure_forgetting
    from groundling.evaluation.target import find

    target, console = find(arguments.agent, arguments.overrides, warn), make_console()
    figures = measure_forgetting(target, lambda agent: console.print(f"measuring {agent}"))
    for agent, one in figures.items():
        actions = "" if one.action_kl is None else f", {one.action_kl:.3g} nats per step over actions"
        kl = f"KL from the initial model {one.text_kl:.3g} nats per token{actions}"
        console.print(f"{agent}: perplexity {one.perplexity:.2f}, {kl}", soft_wrap=True)
    console.print(f"written to {target.run_dir / FILE}")
    return 0
