"""Test suites, which change the run's config: GLAM's generalisation tests, and controls that change the missions."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.envs.babyai_text import ACTIONS, translate_actions
from groundling.envs.controls import CONTROLS, function_in_use
from groundling.envs.make import inspect_env
from groundling.envs.text_env import TranslationError, check_language
from groundling.errors import ConfigError
from groundling.io.documents import read_bundled
from groundling.policies.policy import policies
from groundling.prompts import BLANK, PromptReader
from groundling.registry import ComponentConfig
from groundling.worlds.episode import ReportTable
from groundling.worlds.text.config import TextConfig


@dataclass(frozen=True)
class Suite:
    """A test suite: a description, and overrides of the run's config."""

    about: str
    overrides: Sequence[str] = ()
    keeps: Sequence[str] = ()  # arguments of the run's env that are kept although the overrides remove the others
    replacements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # in the prompt, by language
    form: Mapping[str, str] = field(default_factory=dict)  # words that the prompt must contain, by language
    prompt: str | None = None  # the prompt that the overrides set
    language: str | None = None  # None for the run's language
    synonyms: Mapping[str, Sequence[str]] = field(default_factory=dict)  # synonyms of `ACTIONS`, by language
    of_grids: bool = False  # applies only to BabyAI's and MiniGrid's envs
    needs_env: bool = False  # an env must be created to check if the suite applies

    def changes(self, config: TextConfig) -> list[str | Mapping[str, Any]]:
        """Return overrides for `config.compose.changed`; raise an error if an action has no synonym or translation."""
        if self.synonyms:
            usual = ACTIONS[check_language(config.language)]
            others = dict(zip(usual, self.synonyms[config.language], strict=True))
            actions = config.actions or usual
            if strange := [action for action in actions if action not in others]:
                raise ConfigError(
                    f"it has no synonym for the action {strange[0]!r}, only for {', '.join(usual)}: skip this suite, "
                    "or evaluate held-out with your own names in world.actions=[…]"
                )
            return [{"world.actions": [others[action] for action in actions]}]
        if self.replacements:
            return [{"policy.args.replacements": dict(self.replacements[config.language])}]
        kept = [f"world.args={{{name}: {config.args[name]}}}" for name in self.keeps if name in config.args]
        if self.language in (None, config.language):
            return [*self.overrides, *kept]
        spoken: dict[str, Any] = {"world.language": self.language}
        if config.actions is not None:
            spoken["world.actions"] = translate_actions(config.actions, self.language)
        return [*self.overrides, *kept, spoken]


_TABLE = read_bundled(Path(__file__).with_suffix(".yaml"))
_GENERALISATION: list[str] = _TABLE.pop("generalisation")
_CONTROLS = {name: Suite(about, (f"world.args.control={name}",), needs_env=True) for name, about in CONTROLS.items()}
_GROUPS = {group: {name: Suite(**fields) for name, fields in suites.items()} for group, suites in _TABLE.items()}
_GROUPS = {"glam": _GROUPS.pop("glam"), "controls": _CONTROLS, **_GROUPS}
SUITES = {name: suite for suites in _GROUPS.values() for name, suite in suites.items()}
SUITE_GROUPS: dict[str, Sequence[str]] = {
    "all": [*_GROUPS["glam"], *_CONTROLS],
    "generalisation": _GENERALISATION,
    **{group: [*suites] for group, suites in _GROUPS.items()},
}


def suite_overrides(
    config: TextConfig, policy: ComponentConfig, suite: str, overrides: Sequence[str]
) -> list[str | Mapping[str, Any]]:
    """Return the overrides of a suite and of the caller; raise `ConfigError` if the suite does not apply to the
    world. If each of the run's envs has a fixed random task, held-out episodes choose tasks by their seeds instead, so
    that all tasks are equally likely and the same for all agents.
    """
    if suite in CONTROLS and any("world.args.control" in text for text in overrides):
        raise ConfigError("it sets world.args.control itself: remove your override, or evaluate held-out")
    _check_suits(SUITES[suite], config, policy)
    if any(text.startswith("world.actions=") for text in overrides):
        config = config.model_copy(update={"actions": None})  # the caller's actions need no translation
    by_seed = ["world.args.draw_task=reset"] if config.args.get("draw_task") == "construction" else []
    named = function_in_use() if suite == "swapped" else None
    function: list[Mapping[str, Any]] = [] if named is None else [{"world.args.other_goal": named}]
    try:
        changes = SUITES[suite].changes(config)
        if suite in CONTROLS:  # last, because an override such as ~world.args would remove the control
            return [*overrides, *changes, *function, *by_seed]
        return [*changes, *overrides, *by_seed]
    except TranslationError as error:
        raise ConfigError(str(error)) from error


def _check_suits(suite: Suite, config: TextConfig, policy: ComponentConfig) -> None:
    """Raise `ConfigError` if a suite would change nothing, or is for a different env."""
    if suite.of_grids and not inspect_env(config.env, config.args, config.language).is_grid:
        raise ConfigError(
            f"it replaces words of BabyAI's and MiniGrid's envs, but the run's env is {config.env}: to replace other "
            "words, evaluate held-out with policy.args.replacements={word: other}, or world.actions=[…]"
        )
    levels = [text.partition("=")[2] for text in suite.overrides if text.startswith("world.env=")]
    if levels and not config.env.startswith("BabyAI-"):
        raise ConfigError(f"it is the BabyAI level {levels[0]}, but the run's env is {config.env}")
    if suite.form and policy.id != "symbolic":
        prompt = policy.args.get("prompt", "glam")
        texts, form = PromptReader(prompt, config.language).forms(BLANK), suite.form[config.language]
        if not all(form in text for text in texts):
            every = "" if isinstance(prompt, str) else " (in every form)"
            raise ConfigError(f"it replaces {form!r}, which the prompt {prompt!r}{every} does not contain")
    if suite.prompt is not None:
        if "prompt" not in inspect.signature(policies.get(policy.id)).parameters:
            raise ConfigError(f"it changes the prompt, but policy {policy.id!r} has none")
        if policy.args.get("system") is not None:
            raise ConfigError("its prompt has no system prompt, but the run sets policy.args.system")


_USUAL = "held-out"


def control_table(settings: Mapping[str, Any], evaluations: Mapping[str, Mapping[str, Any]]) -> ReportTable | None:
    """Return a table comparing original and changed missions of this task and language; None if all are original."""
    if not evaluations.keys() & set(CONTROLS):
        return None
    here = _without_control(json.loads(json.dumps(settings)))
    by_suite = {
        suite: evaluations[suite]
        for suite in (_USUAL, *CONTROLS)
        if suite in evaluations and _without_control(evaluations[suite]["world"]) == here
    }
    if not by_suite:
        return None
    played = {suite: one["agents"] for suite, one in by_suite.items()}
    agents = [*next(iter(played.values()))]
    title = "Does the agent read its mission? Original and changed missions"
    names = {suite: "original" if suite == _USUAL else suite for suite in played}
    if not any("first_precision" in agent["figures"] for one in played.values() for agent in one.values()):
        rows = [
            [names[suite], *(_share(one.get(name), "success") for name in agents)] for suite, one in played.items()
        ]
        note = "The table shows success rates. If the agent reads its mission, changing the mission lowers them."
        return ReportTable(title, [[("mission", 1), *((name, 1) for name in agents)]], rows, note)
    header = [
        [("", 1), *((name, 2) for name in agents), ("", 1)],
        [("mission", 1), *((word, 1) for _ in agents for word in ("success", "precision")), ("chance", 1)],
    ]
    rows = [
        [
            names[suite],
            *(_share(one.get(name), figure) for name in agents for figure in ("success", "first_precision")),
            _share(next(iter(one.values())), "first_chance"),
        ]
        for suite, one in played.items()
    ]
    return ReportTable(
        title,
        header,
        rows,
        "Precision is the share of episodes with any interaction in which the first object that the agent interacts "
        "with is the mission's. Swapped: the mission names a different object in the room, which then counts as the "
        "mission's; an agent that reads it goes there and fails. In the other suites, the mission does not name the "
        "object, or its letters or words are changed; the env's target counts as the mission's, and an agent that "
        "reads the mission can only guess. The expert does not read it, but sees the full state and the env's target.",
    )


def _without_control(env: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the settings that determine an env's observations and goals, except the control of its missions."""
    args = {name: value for name, value in env["args"].items() if name not in ("control", "other_goal")}
    return env["env"], args, env["language"], env["actions"]


def _share(agent: Mapping[str, Any] | None, figure: str) -> str:
    value = (agent or {"figures": {}})["figures"].get(figure)
    return "–" if value is None else f"{value['value']:.3f}"
