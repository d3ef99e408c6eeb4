"""The `groundling check-env` command."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from groundling.cli.command import (
    Commands,
    add_command,
    add_config_dir,
    add_overrides,
    env_id,
    positive,
    refuse_unused,
)
from groundling.errors import ConfigError
from groundling.fields import flat
from groundling.io.terminal import make_console, warn

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from groundling.config.schema import Config
    from groundling.envs.checking import RandomEpisodes
    from groundling.evaluation.preferences import ActionPreferences
    from groundling.policies.policy import Policy

_OPEN = "text"  # The experiment that trains in any text env
_SHOWN_ACTIONS = 5
_SHOWN_GROUPS = 3
_MOST_READ = 1_000  # Maximum number of actions scored over all lists; the starter model scores 600 in 10 s


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check-env",
        run,
        "check your own text env with random play, and show a model's prompts and preferences",
        examples="""
        groundling check-env my_module:MyEnv         your own class
        groundling check-env BabyAI-GoToLocal-v0     an env registered with Gymnasium
        groundling check-env openenv:http://127.0.0.1:8000   an env on an OpenEnv server
        """,
    )
    add = parser.add_argument
    text = "MODULE:NAME of an env class, a function that creates an env, or an env; a Gymnasium id; or openenv:URL"
    add("env", help=text)
    text = "world.args={…}, world.actions=[…], world.history=N; for the agent: model.path=…, policy.id=…, …"
    add_overrides(parser, text)
    text = "an experiment with the model and policy to use (default: text)"
    add("--experiment", help=text)
    add_config_dir(parser)
    text = "number of random episodes (default: %(default)s)"
    add("--episodes", type=positive, default=10, help=text)


def run(arguments: argparse.Namespace) -> int:
    env_id(arguments.env)  # reports a misspelt name before torch is imported
    from groundling.envs.checking import check_env
    from groundling.evaluation.preferences import preferences
    from groundling.policies.prompt_policy import PromptPolicy
    from groundling.training.build import make_policy, world_of

    if arguments.experiment is None:
        refuse_unused(arguments, "without --experiment", "config_dir")
    for text in arguments.overrides:
        if not text.lstrip("+~").startswith(("world.", "policy.", "model.")):
            raise ConfigError(f"check-env accepts only overrides of world, policy and model, got {text!r}")
    console = make_console()
    schema: list[tuple[str, str]] = []  # The description that a server provides
    config = _config(arguments, schema)
    world: Any = config.world
    if schema:
        console.rule("the server", align="left")
        _print_table(console, schema)
    _print_sources(console, config, arguments)
    played = check_env(
        world.env,
        world.args,
        world.actions,
        goal=world.reads_goal,
        history=world.history,
        num_episodes=arguments.episodes,
    )
    policy = make_policy(config.policy, config.model, config.algorithm, world_of(config))
    for doubt in (*played.doubts, *texts_alike(policy, played)):
        warn(f"{world.env}: {doubt}")
    several = {id(one): one for one in (*played.shown.values(), *played.choices) if len(one.actions) > 1}
    scored, left = [], _MOST_READ
    for observation in several.values():
        if len(observation.actions) <= left:
            scored.append(observation)
            left -= len(observation.actions)
    preferred = preferences(policy, scored) if scored and isinstance(policy, PromptPolicy) else None
    for taken, observation in played.shown.items():
        console.rule(f"the model's prompt at step {taken}", align="left")
        for prompt in policy.prompts([observation]) or ():
            console.print(prompt)
        place = next((i for i, one in enumerate(scored) if one is observation), None)
        if id(observation) in several and place is None:
            count = len(observation.actions)
            console.print(f"these {count} actions are not scored: the limit is {_MOST_READ:,} actions in total")
        elif preferred is not None and place is not None:
            _print_likeliest(console, preferred.probabilities[place], observation.actions)
    console.rule("random play", align="left")
    _print_table(console, _figures(played))
    if preferred is not None:
        lists = f"{len(scored)} of {len(several)} lists (at most {_MOST_READ:,} actions are scored)"
        entropy = f"{preferred.entropy:.3f} nats over {lists}; uniform: {preferred.uniform_entropy:.3f}"
        _print_table(console, [(f"entropy ({config.policy.id}, untrained)", entropy)])
        _warn_of_exploration(preferred, policy.exploration_advice())
    if played.unequal:
        console.print(
            f"the server cannot repeat episodes: in a second session, {played.unequal}; resumed runs restart episodes"
        )
    elif schema:
        console.print("the same seed and actions produced the same episode every time, so runs can be resumed exactly")
    elif played.resumed_after:
        steps = "one step" if played.resumed_after == 1 else f"{played.resumed_after} steps"
        resumed = f"an episode interrupted after {steps} continued identically, so runs can be resumed exactly"
        console.print(f"the same seed produced the same episode every time, and {resumed}")
    else:
        count = len(played.episodes)
        console.print(
            f"the same seed produced the same episode every time, but none of {count} random episodes had more than "
            "one step, so resuming within an episode was not tested"
        )
    return 0


def _config(arguments: argparse.Namespace, schema: list[tuple[str, str]]) -> "Config":
    """Compose the config; for a server, add its description to ``schema`` and use the proposed arguments."""
    from groundling.config.compose import compose
    from groundling.envs.make import is_server
    from groundling.training.defaults import compose_fitted

    id, experiment = env_id(arguments.env), arguments.experiment or _OPEN
    base: list[Any] = [{"world.env": id}]
    if is_server(id):
        from groundling.envs.openenv.proposal import count_sessions, propose

        world: Any = compose(experiment, [*base, *arguments.overrides], arguments.config_dir).world
        schema += (proposal := propose(id, world.args)).schema
        sessions = count_sessions(id, world.num_envs)
        schema.append(("sessions", f"{sessions}{' or more' if sessions == world.num_envs else ''} concurrent"))
        if arguments.experiment is None:
            base.append({"world.args": proposal.args})
            base += [f"{place}.num_envs={sessions}" for place in ("world", "evaluation")]
    if arguments.experiment is not None:
        return compose(experiment, [*base, *arguments.overrides], arguments.config_dir)
    return compose_fitted(_OPEN, [*base, *arguments.overrides])


def _print_sources(console: "Console", config: "Config", arguments: argparse.Namespace) -> None:
    """Print what the agent reads from the env, and the overrides that select these inputs."""
    from groundling.config.facts import word
    from groundling.envs.make import is_server
    from groundling.envs.sources import find_sources

    world: Any = config.world
    try:
        sources = find_sources(world.env, world.args, world.actions, world.reads_goal)
    except (Exception, SystemExit):  # reported when the env is played
        return
    console.rule("what the agent reads", align="left")
    _print_table(console, [(source.part, source.text) for source in sources])
    settings = {f"world.{source.key}": source.value for source in sources if source.key is not None}
    given = {one.lstrip("+~").partition("=")[0]: shlex.quote(one) for one in arguments.overrides}
    if is_server(world.env):
        given = {key: one for key, one in given.items() if not key.startswith("world.args")}  # part of the settings
        settings |= flat(world.args, "world.args.")
        settings |= {"world.num_envs": world.num_envs, "evaluation.num_envs": world.num_envs}
        settings |= {"policy.id": config.policy.id} if config.policy.id != "action_scoring" else {}
    given |= {key: word(key, value) for key, value in settings.items()}
    console.print("as overrides:", word("world.env", arguments.env), *given.values(), soft_wrap=True)


def texts_alike(policy: "Policy", played: "RandomEpisodes") -> Iterator[str]:
    """Yield warnings about strings that the policy's tokenizer encodes as the same tokens."""
    from groundling.lm.tokens import indistinguishable

    lm = getattr(policy, "lm", None)
    if lm is None:
        return
    for kind, texts in played.texts.items():
        if groups := indistinguishable(lm.tokenizer, list(texts)):
            shown = "; ".join(" and ".join(f"{text!r:.80}" for text in group[:2]) for group in groups[:_SHOWN_GROUPS])
            yield (
                f"the model cannot distinguish these {kind}, whose tokens are identical: {shown}"
                f"{'; …' if len(groups) > _SHOWN_GROUPS else ''}; use only characters in its vocabulary"
            )


def _print_likeliest(console: "Console", probabilities: "Tensor", actions: Sequence[str]) -> None:
    likeliest = probabilities.topk(min(_SHOWN_ACTIONS, len(actions)))
    pairs = zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
    rows = [(f"{probability:.3f}", actions[index]) for probability, index in pairs]
    console.rule(f"the model's preferences before training: {len(rows)} of {len(actions)} actions", align="left")
    _print_table(console, rows)


def _warn_of_exploration(preferred: "ActionPreferences", advice: str | None) -> None:
    """Warn if the untrained policy would hardly ever take some actions."""
    short, mend = preferred.short, "" if advice is None else f": {advice}"
    if short.are_nearly_all:
        warn(
            f"the untrained policy assigns probability {short.probability:.4f} to short actions (at most half as many "
            f"words as the longest), which make up {short.share:.2f} of all actions in {short.lists} lists of "
            f"admissible actions; it will hardly explore the others{mend}"
        )
    elif preferred.rare:
        rarest = [f"{action!r} ({mean:.2g})" for action, mean in list(preferred.rare.items())[:_SHOWN_ACTIONS]]
        warn(
            f"the untrained policy will hardly ever try {', '.join(rarest)} (in brackets: mean probabilities, at most "
            f"1/50 of a uniform policy's){mend}"
        )


def _print_table(console: "Console", rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)


def _figures(played: "RandomEpisodes") -> list[tuple[str, str]]:
    lengths = [len(e.actions) for e in played.episodes]
    returns = [e.episode_return for e in played.episodes]
    count = len(played.episodes)
    keys = sorted({e.success_key or "" for e in played.episodes})
    by = [f"info[{key!r}]" if key else "the sign of the last reward" for key in keys]
    return [
        ("episodes", f"{count}, of {min(lengths)} to {max(lengths)} steps"),
        ("return", f"{min(returns):.4g} to {max(returns):.4g}"),
        ("successes", f"{sum(e.success for e in played.episodes)} of {count}, by {' and '.join(by)}"),
        *_choices(played),
        ("speed", f"{played.steps / played.seconds:,.0f} steps/s, including resets"),
    ]


def _choices(played: "RandomEpisodes") -> list[tuple[str, str]]:
    if not played.most_actions:
        return [("actions", "any text; random play used words from the observations")]
    return [
        ("admissible actions", f"{played.fewest_actions} to {played.most_actions} per step"),
        ("distinct actions", f"{len(played.texts['actions'])} seen"),
    ]
