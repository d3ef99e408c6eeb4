"""`groundling check-env`."""

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.cli.command import (
    Commands,
    add_command,
    add_config_dir,
    positive,
)
from groundling.errors import ConfigError, foreign
from groundling.io.console import make_console, warn
from groundling.registry import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from groundling.config.schema import Config
    from groundling.envs.checking import Played
    from groundling.envs.observation import TextObservation
    from groundling.evaluation.preferences import Preferences
    from groundling.policies.policy import Policy

_SETTINGS = ("world.args", "world.actions", "world.history", "policy.", "model.", "~policy.", "~world.")
_SHOWN_ACTIONS = 5
_SHOWN_GROUPS = 3
_MOST_READ = 1_000
"""Actions whose preferences are read, of all lists: 600 in one list take the starter model 10 s of one core."""


def add_parser(commands: Commands) -> None:
    """Add `groundling check-env`."""
    parser = add_command(
        commands,
        "check-env",
        run,
        "play in a text env of yours, and show what a model would read and prefer",
        examples="""
        groundling check-env my_module:MyEnv         a class of yours
        groundling check-env BabyAI-GoToLocal-v0     an env that Gymnasium knows
        """,
    )
    parser.add_argument(
        "env", help="MODULE:CLASS, a MODULE:FUNCTION that makes the env, or the env's id in Gymnasium"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="world.args={…}, world.actions=[…], world.history=N, and of the agent model.path=…, policy.id=…, "
        "policy.args={…}",
    )
    parser.add_argument(
        "--experiment",
        help="an experiment whose model and policy are asked (default: the starter model scores the actions)",
    )
    add_config_dir(parser)
    parser.add_argument(
        "--episodes",
        type=positive,
        default=10,
        help="how many episodes are played at random (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.envs.checking import check_env

    config = _config(arguments)
    world: Any = config.world
    played = check_env(
        world.env, world.args, world.actions, history=world.history, num_episodes=arguments.episodes
    )
    console = make_console()
    policy = _untrained(config)
    for doubt in (*played.doubts, *texts_alike(policy, played)):
        warn(f"{world.env}: {doubt}")
    read = _read(played)
    with policy.unchanged():  # what is shown is among the choices, too
        for taken, observation in played.shown.items():
            console.rule(f"what a model reads after {taken} actions", align="left")
            for prompt in policy.prompts([observation]) or ():
                console.print(prompt, highlight=False)
            _print_preferred(console, policy, observation, read)
        _print_play(console, policy, played, read, f"{config.policy.id}, untrained")
    return 0


def _print_play(
    console: "Console", policy: "Policy", played: "Played", read: list["TextObservation"], name: str
) -> None:
    console.rule("random play", align="left")
    _print_table(console, _figures(played))
    _print_exploration(console, policy, played, read, name)
    if played.resumed_after:
        steps = "one step" if played.resumed_after == 1 else f"{played.resumed_after} steps"
        text = (
            f"equal seeds gave equal episodes, and one that was left after {steps} continued as before: a run in "
            "this env can be resumed exactly"
        )
    else:
        text = (
            f"equal seeds gave equal episodes; none of {len(played.episodes)} at random had more than one step, so "
            "continuing in the middle of one was not tested"
        )
    console.print(text, highlight=False)


def _config(arguments: argparse.Namespace) -> "Config":
    from groundling.config.compose import compose

    id = _registered(arguments.env)
    for text in arguments.overrides:
        if not text.startswith(_SETTINGS):
            raise ConfigError(f"check-env takes settings of world, policy and model, got {text!r}")
    if arguments.experiment is not None:
        return compose(arguments.experiment, [f"world.env={id}", *arguments.overrides], arguments.config_dir)
    if arguments.config_dir is not None:
        raise ConfigError(
            "--config-dir says where --experiment is looked for: give --experiment too, or leave --config-dir out"
        )
    base = [f"world.env={id}", "~world.args", "model.path=starter"]
    return compose("glam/mixed", [*base, *arguments.overrides])


def _untrained(config: "Config") -> "Policy":
    from groundling.training.build import make_policy, world_of

    return make_policy(config.policy, config.model, config.algorithm, world_of(config))


def _preferences(policy: "Policy", observations: list["TextObservation"]) -> "Preferences | None":
    """None: there is nothing to choose, or the policy does not choose by what it reads."""
    from groundling.evaluation.preferences import preferences
    from groundling.policies.reading import ReadingPolicy

    return preferences(policy, observations) if observations and isinstance(policy, ReadingPolicy) else None


def texts_alike(policy: "Policy", played: "Played") -> Iterator[str]:
    """Warnings of texts that the policy's language model reads as the same tokens."""
    from groundling.lm.tokens import indistinguishable

    lm = getattr(policy, "lm", None)
    if lm is None:
        return
    for kind, texts in played.texts.items():
        groups = indistinguishable(lm.tokenizer, list(texts))
        shown = "; ".join(
            " and ".join(f"{text!r:.80}" for text in group[:2]) for group in groups[:_SHOWN_GROUPS]
        )
        more = f"; and {len(groups) - _SHOWN_GROUPS} more" if len(groups) > _SHOWN_GROUPS else ""
        if groups:
            yield (
                f"the model cannot tell these {kind} apart, whose tokens are equal: {shown}{more}; write them in "
                "characters that its tokenizer has"
            )


def _read(played: "Played") -> list["TextObservation"]:
    """Whose preferences are read: what is shown, then other choices, as far as `_MOST_READ` goes."""
    read: list[TextObservation] = []
    left = _MOST_READ
    for observation in (*played.shown.values(), *played.choices):
        count = len(observation.actions)
        if 1 < count <= left and not any(observation is one for one in read):
            read.append(observation)
            left -= count
    return read


def _print_preferred(
    console: "Console", policy: "Policy", observation: "TextObservation", read: list["TextObservation"]
) -> None:
    is_read = any(observation is one for one in read)
    asked = _preferences(policy, [observation] if is_read else [])
    if asked is None:
        if len(observation.actions) > 1 and not is_read:
            console.print(
                f"what it prefers of these {len(observation.actions)} actions is not read: at most {_MOST_READ:,} "
                "are, of all lists together",
                highlight=False,
            )
        return
    likeliest = asked.probabilities[0].sort(descending=True)
    count = min(_SHOWN_ACTIONS, len(observation.actions))
    console.rule(f"what it prefers, untrained: {count} of {len(observation.actions)} actions", align="left")
    rows = zip(likeliest.values.tolist()[:count], likeliest.indices.tolist()[:count], strict=True)
    _print_table(console, [(f"{probability:.3f}", observation.actions[index]) for probability, index in rows])


def _print_exploration(
    console: "Console", policy: "Policy", played: "Played", read: list["TextObservation"], name: str
) -> None:
    """How much the untrained policy would explore; a warning where it would not take its longer actions."""
    choices = [one for one in played.choices if any(one is other for other in read)]
    asked = _preferences(policy, choices)
    if asked is None:
        return
    lists = f"{len(choices)} list{'s' * (len(choices) > 1)}"
    if len(choices) < len(played.choices):
        lists += f" of {len(played.choices)} ({_MOST_READ:,} actions are read at most)"
    entropy = f"{asked.entropy:.3f} nats over {lists}; uniform: {asked.uniform_entropy:.3f}"
    _print_table(console, [(f"entropy ({name})", entropy)])
    short, advice = asked.short, policy.exploration_advice()
    mend = "" if advice is None else f": {advice}"
    if short.are_nearly_all:
        warn(
            f"the untrained policy gives {short.probability:.4f} of the probability to {short.share:.2f} of the "
            f"actions, the short ones (at most half the longest one's words; {short.lists} lists), and will hardly "
            f"explore the others{mend}"
        )
    elif asked.rare:
        rarest = [f"{action!r} ({mean:.2g})" for action, mean in list(asked.rare.items())[:_SHOWN_ACTIONS]]
        warn(
            f"the untrained policy will hardly ever try {', '.join(rarest)}; in brackets its mean probability, of "
            f"which an even share would be fifty times as much or more{mend}"
        )


def _print_table(console: "Console", rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)


def _figures(played: "Played") -> list[tuple[str, str]]:
    lengths = [len(e.actions) for e in played.episodes]
    returns = [e.episode_return for e in played.episodes]
    count = len(played.episodes)
    keys = sorted({e.success_key or "" for e in played.episodes})
    by = [f"info[{key!r}]" if key else "the sign of the last reward" for key in keys]
    return [
        ("episodes", f"{count}, of {min(lengths)} to {max(lengths)} steps"),
        ("return", f"{min(returns):.4g} to {max(returns):.4g}"),
        ("successes", f"{sum(e.success for e in played.episodes)} of {count}, by {' and '.join(by)}"),
        ("admissible actions", f"{played.fewest_actions} to {played.most_actions} at a step"),
        ("distinct actions", f"{len(played.texts['actions'])} seen"),
        ("speed", f"{played.steps / played.seconds:,.0f} steps/s, resets included"),
    ]


def _registered(name: str) -> str:
    """The id of an env, registered for the occasion if it is a class or function of a module."""
    import gymnasium

    module_name, colon, attribute = name.partition(":")
    if not colon and name in gymnasium.registry:
        return name
    if not colon:
        hint = did_you_mean(name, gymnasium.registry, 0.7)
        raise ConfigError(
            f"unknown env {name!r}: {hint}give a class of yours as MODULE:CLASS, as in doors:Doors, or add --import "
            "MODULE, which registers it"
        )
    sys.path.insert(0, str(Path.cwd()))  # as for --import
    with foreign(f"the module {module_name}, as it was imported,"):
        try:
            module: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"there is no module {error.name}: run the command in its folder") from error
    if attribute in gymnasium.registry:
        return attribute
    factory = getattr(module, attribute, None)
    if not callable(factory):
        hint = did_you_mean(attribute, [*vars(module), *gymnasium.registry], 0.7)
        raise ConfigError(
            f"{module_name} neither has {attribute} nor registers an env of that id{hint and ': '}{hint}".rstrip()
        )
    id = f"check-env/{attribute.replace('_', '-')}-v0"
    gymnasium.register(id, entry_point=factory)
    return id
