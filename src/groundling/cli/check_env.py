"""`groundling check-env`."""

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides, positive
from groundling.errors import ConfigError, did_you_mean, foreign
from groundling.io.terminal import make_console, warn

if TYPE_CHECKING:
    from rich.console import Console

    from groundling.config.schema import Config
    from groundling.envs.checking import RandomPlay
    from groundling.envs.text_env import TextObservation
    from groundling.evaluation.preferences import Preferences
    from groundling.policies.policy import Policy

_SHOWN_ACTIONS = 5
_SHOWN_GROUPS = 3
_MOST_READ = 1_000  # Maximum number of scored actions, of all lists; the starter model takes 10 s for 600


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check-env",
        run,
        "check a text env of yours by random play, and show the prompts and preferences of a model",
        examples="""
        groundling check-env my_module:MyEnv         a class of yours
        groundling check-env BabyAI-GoToLocal-v0     an env that Gymnasium knows
        """,
    )
    add = parser.add_argument
    add("env", help="MODULE:CLASS, a MODULE:FUNCTION that makes the env, or the env's id in Gymnasium")
    text = "world.args={…}, world.actions=[…], world.history=N; for the agent model.path=…, policy.id=…, …"
    add_overrides(parser, text)
    text = "an experiment whose model and policy are used (default: the starter model scores the actions)"
    add("--experiment", help=text)
    add_config_dir(parser)
    text = "number of random episodes (default: %(default)s)"
    add("--episodes", type=positive, default=10, help=text)


def run(arguments: argparse.Namespace) -> int:
    from groundling.envs.checking import check_env
    from groundling.training.build import make_policy, world_of

    config = _config(arguments)
    world: Any = config.world
    played = check_env(world.env, world.args, world.actions, history=world.history, num_episodes=arguments.episodes)
    console = make_console()
    policy = make_policy(config.policy, config.model, config.algorithm, world_of(config))
    for doubt in (*played.doubts, *texts_alike(policy, played)):
        warn(f"{world.env}: {doubt}")
    scored = _select_scored(played)
    with policy.unchanged():  # the shown observations are scored twice
        for taken, observation in played.shown.items():
            console.rule(f"what a model reads after {taken} actions", align="left")
            for prompt in policy.prompts([observation]) or ():
                console.print(prompt)
            _print_preferred(console, policy, observation, scored)
        console.rule("random play", align="left")
        _print_table(console, _figures(played))
        _print_exploration(console, policy, played, scored, f"{config.policy.id}, untrained")
    if played.resumed_after:
        steps = "one step" if played.resumed_after == 1 else f"{played.resumed_after} steps"
        resumed = f"one that was left after {steps} continued as before: a run in this env can be resumed exactly"
        console.print(f"equal seeds gave equal episodes, and {resumed}")
    else:
        count = len(played.episodes)
        console.print(
            f"equal seeds gave equal episodes; none of {count} at random had more than one step, so continuing in the "
            "middle of one was not tested"
        )
    return 0


def _config(arguments: argparse.Namespace) -> "Config":
    from groundling.config.compose import compose
    from groundling.config.facts import has_fact
    from groundling.fields import OfEvaluation

    id = _registered(arguments.env)
    for text in arguments.overrides:
        key = text.lstrip("+~").partition("=")[0]
        if not key.startswith(("policy.", "model.")) and not (
            key.startswith("world.") and has_fact(OfEvaluation, key)
        ):
            raise ConfigError(f"check-env takes settings of world, policy and model, got {text!r}")
    if arguments.experiment is not None:
        return compose(arguments.experiment, [f"world.env={id}", *arguments.overrides], arguments.config_dir)
    if arguments.config_dir is not None:
        raise ConfigError(
            "--config-dir is where --experiment is looked for: give --experiment too, or leave --config-dir out"
        )
    base = [f"world.env={id}", "~world.args", "model.path=starter"]
    return compose("glam/mixed", [*base, *arguments.overrides])


def texts_alike(policy: "Policy", played: "RandomPlay") -> Iterator[str]:
    """Yield warnings of texts that the policy's language model reads as the same tokens."""
    from groundling.lm.tokens import indistinguishable

    lm = getattr(policy, "lm", None)
    if lm is None:
        return
    for kind, texts in played.texts.items():
        groups = indistinguishable(lm.tokenizer, list(texts))
        shown = "; ".join(" and ".join(f"{text!r:.80}" for text in group[:2]) for group in groups[:_SHOWN_GROUPS])
        more = f"; and {len(groups) - _SHOWN_GROUPS} more" if len(groups) > _SHOWN_GROUPS else ""
        if groups:
            yield (
                f"the model cannot distinguish these {kind}, whose tokens are equal: {shown}{more}; write them in "
                "characters that its tokenizer has"
            )


def _select_scored(played: "RandomPlay") -> list["TextObservation"]:
    """Select the observations whose actions are scored: the shown ones, then others up to `_MOST_READ` actions."""
    scored: list[TextObservation] = []
    left = _MOST_READ
    for observation in (*played.shown.values(), *played.choices):
        count = len(observation.actions)
        if 1 < count <= left and not any(observation is one for one in scored):
            scored.append(observation)
            left -= count
    return scored


def _preferences(policy: "Policy", observations: list["TextObservation"]) -> "Preferences | None":
    """Return action probabilities, or None without observations or if the policy does not read."""
    from groundling.evaluation.preferences import preferences
    from groundling.policies.prompt_policy import PromptPolicy

    return preferences(policy, observations) if observations and isinstance(policy, PromptPolicy) else None


def _print_preferred(
    console: "Console", policy: "Policy", observation: "TextObservation", scored: list["TextObservation"]
) -> None:
    """Print the likeliest actions of an observation."""
    is_scored, actions = any(observation is one for one in scored), observation.actions
    preferences = _preferences(policy, [observation] if is_scored else [])
    if preferences is not None:
        likeliest = preferences.probabilities[0].sort(descending=True)
        count = min(_SHOWN_ACTIONS, len(actions))
        console.rule(f"what it prefers, untrained: {count} of {len(actions)} actions", align="left")
        pairs = zip(likeliest.values.tolist()[:count], likeliest.indices.tolist()[:count], strict=True)
        _print_table(console, [(f"{probability:.3f}", actions[index]) for probability, index in pairs])
    elif len(actions) > 1 and not is_scored:
        console.print(f"these {len(actions)} actions are not scored: at most {_MOST_READ:,} are, of all lists")


def _print_exploration(
    console: "Console", policy: "Policy", played: "RandomPlay", scored: list["TextObservation"], name: str
) -> None:
    """Print how much the untrained policy would explore, and warn if it would hardly take some actions."""
    choices = [one for one in played.choices if any(one is other for other in scored)]
    preferences = _preferences(policy, choices)
    if preferences is None:
        return
    lists = f"{len(choices)} list{'s' * (len(choices) > 1)}"
    if len(choices) < len(played.choices):
        lists += f" of {len(played.choices)} (at most {_MOST_READ:,} actions are scored)"
    entropy = f"{preferences.entropy:.3f} nats over {lists}; uniform: {preferences.uniform_entropy:.3f}"
    _print_table(console, [(f"entropy ({name})", entropy)])
    short, advice = preferences.short, policy.exploration_advice()
    mend = "" if advice is None else f": {advice}"
    if short.are_nearly_all:
        warn(
            f"the untrained policy gives {short.probability:.4f} of the probability to {short.share:.2f} of the "
            f"actions, the short ones (at most half the longest one's words; {short.lists} lists), and will hardly "
            f"explore the others{mend}"
        )
    elif preferences.rare:
        rarest = [f"{action!r} ({mean:.2g})" for action, mean in list(preferences.rare.items())[:_SHOWN_ACTIONS]]
        warn(
            f"the untrained policy will hardly ever try {', '.join(rarest)}; in brackets the mean probability, at "
            f"most a fiftieth of an even share{mend}"
        )


def _print_table(console: "Console", rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)


def _figures(played: "RandomPlay") -> list[tuple[str, str]]:
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
    """Return the id of an env; a class or function of a module is registered first."""
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
