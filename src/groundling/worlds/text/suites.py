"""Test suites, as changes to the run's config: GLAM's tests of generalisation, and controls of the missions."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.envs.babyai_text import ACTIONS, CONTROLS, MIXED_TASKS, translate_actions
from groundling.envs.languages import TranslationError, check_language
from groundling.envs.make import inspect_env
from groundling.errors import ConfigError
from groundling.io.documents import read_bundled
from groundling.policies.policy import policies
from groundling.prompts import BLANK, PromptReader
from groundling.registry import ComponentConfig
from groundling.worlds.text.config import TextConfig


@dataclass(frozen=True)
class Suite:
    """A test: a description, and overrides of the run's config."""

    about: str
    overrides: Sequence[str] = ()
    keeps: Sequence[str] = ()  # arguments of the env that stay as in the run although the overrides remove others
    replacements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of words of the prompt, by language
    form: Mapping[str, str] = field(default_factory=dict)  # by language, words that the prompt must have
    prompt: str | None = None  # the prompt that the overrides set
    language: str | None = None  # None: the run's
    synonyms: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of `ACTIONS`, by language
    of_grids: bool = False  # about the things in BabyAI's and MiniGrid's envs
    needs_env: bool = False  # only an env of the world shows if the suite suits it

    def changes(self, config: TextConfig) -> list[str | Mapping[str, Any]]:
        """Return overrides of a run for `config.compose.changed`; raise without translations of its actions."""
        if self.synonyms:
            return [{"world.actions": self._by_synonyms(config)}]
        if self.replacements:
            return [{"policy.args.replacements": dict(self.replacements[config.language])}]
        kept = [f"world.args={{{name}: {config.args[name]}}}" for name in self.keeps if name in config.args]
        if self.language in (None, config.language):
            return [*self.overrides, *kept]
        spoken: dict[str, Any] = {"world.language": self.language}
        if config.actions is not None:
            spoken["world.actions"] = translate_actions(config.actions, self.language)
        return [*self.overrides, *kept, spoken]

    def _by_synonyms(self, config: TextConfig) -> list[str]:
        usual = ACTIONS[check_language(config.language)]
        others = dict(zip(usual, self.synonyms[config.language], strict=True))
        for action in config.actions or usual:
            if action not in others:
                raise ConfigError(
                    f"it has no synonym of the action {action!r}, only of {', '.join(usual)}: leave the suite out, and "
                    "evaluate held-out with world.actions=[…], the names that you choose"
                )
        return [others[action] for action in config.actions or usual]


_TABLE = read_bundled(Path(__file__).with_suffix(".yaml"))
_GLAM = {name: Suite(**fields) for name, fields in _TABLE["glam"].items()}
_CONTROLS = {name: Suite(about, (f"world.args.control={name}",), needs_env=True) for name, about in CONTROLS.items()}
_BALROG = {
    f"balrog-{task.replace(' ', '-')}": Suite(
        f"BALROG's task {task}: only the things that the mission names, in the original's levels",
        (
            "world.env=BabyAI-MixedTrainLocal-v0",
            "~world.args",
            f"world.args={{task: {task}, num_dists: 0, generator: original}}",
        ),
    )
    for task in MIXED_TASKS
}
_FORMS = {
    f"form-{prompt}": Suite(
        f"the prompt {prompt}, whichever prompt the agent was trained on",
        (f"policy.args.prompt={prompt}",),
        prompt=prompt,
    )
    for prompt in ("glam", "brief", "tagged", "narrative")
}
SUITES = {**_GLAM, **_CONTROLS, **_BALROG, **_FORMS}
SUITE_GROUPS: dict[str, Sequence[str]] = {
    "all": [*_GLAM, *_CONTROLS],
    "glam": [*_GLAM],
    "generalisation": _TABLE["generalisation"],
    "controls": [*_CONTROLS],
    "balrog-babyai": [*_BALROG],
    "forms": [*_FORMS],
}


def suite_overrides(
    config: TextConfig, policy: ComponentConfig, suite: str, overrides: Sequence[str]
) -> list[str | Mapping[str, Any]]:
    """Return a suite's overrides, then the caller's; raise `ConfigError` if it changes nothing or replaces the world.
    Where each env of the run keeps a randomly drawn task, held-out episodes draw theirs by their seeds instead:
    equally often, and the same ones for all agents.
    """
    if suite in CONTROLS and any("world.args.control" in text for text in overrides):
        raise ConfigError("it sets world.args.control itself: take yours out, or evaluate held-out")
    _check_env(SUITES[suite], config)
    _check_prompt(SUITES[suite], config, policy)
    if any(text.startswith("world.actions=") for text in overrides):
        config = config.model_copy(update={"actions": None})  # the caller's need no translation
    by_seed = ["world.args.draw_task=reset"] if config.args.get("draw_task") == "construction" else []
    try:
        return [*SUITES[suite].changes(config), *overrides, *by_seed]
    except TranslationError as error:
        raise ConfigError(str(error)) from error


def _check_env(suite: Suite, config: TextConfig) -> None:
    if suite.of_grids and not inspect_env(config.env, config.args, config.language).is_grid:
        raise ConfigError(
            f"it replaces words of BabyAI's and MiniGrid's envs, and the run's env is {config.env}: to test other "
            "words, evaluate held-out with policy.args.replacements={word: other}, or world.actions=[…]"
        )
    levels = (text.partition("=")[2] for text in suite.overrides if text.startswith("world.env="))
    level = next(levels, None)
    if level is not None and not config.env.startswith("BabyAI-"):
        raise ConfigError(f"it is BabyAI's level {level}, and the run's env is {config.env}")


def _check_prompt(suite: Suite, config: TextConfig, policy: ComponentConfig) -> None:
    if suite.form and policy.id != "symbolic":
        prompt = policy.args.get("prompt", "glam")
        texts, form = PromptReader(prompt, config.language).forms(BLANK), suite.form[config.language]
        if not all(form in text for text in texts):
            every = "" if isinstance(prompt, str) else ", all of them,"
            raise ConfigError(f"it replaces {form!r}, which the prompt {prompt!r}{every} does not say")
    if suite.prompt is not None:
        if "prompt" not in inspect.signature(policies.get(policy.id)).parameters:
            raise ConfigError(f"it changes the prompt, and policy {policy.id!r} reads none")
        if policy.args.get("system") is not None:
            raise ConfigError("it is a text, and the run reads conversations, with a system prompt of its own")
