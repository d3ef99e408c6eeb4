"""Test suites on held-out episodes: GLAM's tests of generalisation, and controls that change the missions.

A suite is a change to the run's config.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groundling.envs.babyai_text import ACTIONS, CONTROLS, MIXED_TASKS, translate_actions
from groundling.envs.languages import TranslationError, check_language
from groundling.envs.make import is_grid
from groundling.errors import ConfigError
from groundling.policies.policy import policies
from groundling.prompts import BLANK, PromptReader
from groundling.registry import ComponentConfig
from groundling.worlds.text.config import TextConfig


@dataclass(frozen=True)
class Suite:
    """A test: a description, and overrides of the run's config."""

    about: str
    overrides: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    """Arguments of the env that stay as in the run, of those that the overrides remove."""
    french: Mapping[str, Any] | None = None
    """Changes by key for a French run instead of the overrides; None: the overrides."""
    language: str | None = None
    """Language; None: the run's."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Words of the prompt that the overrides replace, by language; the suite does not suit other prompts."""
    prompt: str | None = None
    """Prompt that the overrides set."""
    synonyms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Synonyms of `ACTIONS` in their order, by language; they replace the names of the run's actions."""
    of_grids: bool = False
    """It is about the things in BabyAI's and MiniGrid's envs."""
    needs_env: bool = False
    """Only an env of the world can tell whether the suite suits it."""

    def changes(self, config: TextConfig) -> list[str | Mapping[str, Any]]:
        """Return the overrides of a run in this world, for `config.compose.changed`.

        Raises:
            TranslationError: The run's actions have no translation.
            ConfigError: They have no synonyms.
        """
        if self.synonyms:
            return [{"world.actions": self._by_synonyms(config)}]
        if self.french is not None and config.language == "french":
            return [self.french]
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


def _words(about: str, english: Mapping[str, str], french: Mapping[str, str]) -> Suite:
    """Replace words of the prompt everywhere, as in the paper."""
    pairs = ", ".join(f"{word}: {other}" for word, other in english.items())
    overrides = (f"policy.args.replacements={{{pairs}}}",)
    return Suite(about, overrides, french={"policy.args.replacements": dict(french)}, of_grids=True)


def _introduction(about: str, english: str, french: str) -> Suite:
    """Replace GLAM's introduction of the goal."""
    form = {"english": "Goal of the agent", "french": "But de l'agent"}
    suite = _words(about, {form["english"]: english}, {form["french"]: french})
    return replace(suite, form=form, of_grids=False)


def _in_french(nouns: Mapping[str, str]) -> dict[str, str]:
    """Return nouns with their articles, so that a door which is "fermée à clef" stays locked."""
    articles = ("la", "une")
    return {
        f"{article} {noun}": f"{article} {other}" for noun, other in nouns.items() for article in articles
    }


def _sequence(about: str, id: str) -> Suite:
    """Use another level, with the same number of other objects; the run's other arguments are for its own env."""
    return Suite(about, (f"world.env={id}", "~world.args"), keeps=("num_dists",))


_INVENTED_NOUNS = {"key": "dax", "ball": "xolo", "box": "afze"}
_INVENTED_NOUNS_FRENCH = _in_french({"clef": "dax", "balle": "xolo", "boîte": "afze"})
_INVENTED_ADJECTIVES = {
    "red": "faze",
    "green": "jatu",
    "blue": "croh",
    "purple": "vurst",
    "yellow": "gakul",
    "grey": "sil",
}
_INVENTED_ADJECTIVES_FRENCH = {
    " rouge": " faze",
    " verte": " jatu",  # a door that is "ouverte" stays open
    " bleue": " croh",
    " violette": " vurst",
    " jaune": " gakul",
    " grise": " sil",
}
_SYNONYMS = {
    "red": "vermilion",
    "green": "jade",
    "blue": "cyan",
    "purple": "violet",
    "yellow": "golden",
    "grey": "silver",
}
_SYNONYMS_FRENCH = {
    " rouge": " vermeille",
    " verte": " émeraude",
    " bleue": " azur",
    " violette": " mauve",
    " jaune": " dorée",
    " grise": " argentée",
}
SUITES = {
    "held-out": Suite("no change: the run's own env"),
    "unseen-objects": Suite(
        "missions about the objects that training leaves out", ("world.env=BabyAI-MixedTestLocal-v0",)
    ),
    "other-nouns": _words(
        "other nouns of the same kind",
        {"key": "chair", "ball": "table", "box": "car"},
        _in_french({"clef": "chaise", "balle": "table", "boîte": "voiture"}),
    ),
    "synonym-adjectives": _words("synonyms of the colours", _SYNONYMS, _SYNONYMS_FRENCH),
    "invented-nouns": _words("invented nouns", _INVENTED_NOUNS, _INVENTED_NOUNS_FRENCH),
    "invented-adjectives": _words("invented colours", _INVENTED_ADJECTIVES, _INVENTED_ADJECTIVES_FRENCH),
    "invented-words": _words(
        "invented nouns and colours",
        _INVENTED_NOUNS | _INVENTED_ADJECTIVES,
        _INVENTED_NOUNS_FRENCH | _INVENTED_ADJECTIVES_FRENCH,
    ),
    "introduction-1": _introduction("another introduction of the goal", "Task to do", "Tâche à accomplir"),
    "introduction-2": _introduction(
        "yet another introduction of the goal",
        "You are an agent and you have to",
        "Tu es un agent et tu dois",
    ),
    "synonym-actions": Suite(
        "synonyms of the actions; for your own: --suite held-out world.actions=[…]",
        synonyms={
            "english": ("rotate left", "rotate right", "move ahead", "take", "release", "switch"),
            "french": ("pivoter à gauche", "pivoter à droite", "avancer", "prendre", "relâcher", "actionner"),
        },
        of_grids=True,
    ),
    "pick-up-then-go-to": _sequence("one order of a known sequence", "BabyAI-PickUpThenGoToLocal-v0"),
    "go-to-after-pick-up": _sequence("the other order", "BabyAI-GoToAfterPickUpLocal-v0"),
    "pick-up-seq-go-to": _sequence("both orders", "BabyAI-PickUpSeqGoToLocal-v0"),
    "pick-up-then-pick-up": _sequence(
        "a sequence that training never composes", "BabyAI-PickUpSeqPickUpLocal-v0"
    ),
    "french": Suite("missions, sentences, actions and prompt in French", language="french"),
} | {name: Suite(about, (f"world.args.control={name}",), needs_env=True) for name, about in CONTROLS.items()}
_GENERALISATION = tuple(SUITES)
_ONCE = (
    "held-out",
    "unseen-objects",
    "other-nouns",
    "synonym-adjectives",
    "invented-words",
    "introduction-1",
    "synonym-actions",
    "pick-up-seq-go-to",
    "pick-up-then-pick-up",
    "french",
)
"""GLAM's tests of different abilities: three tests of the orders of a sequence count once."""
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
SUITES |= _BALROG | _FORMS
"""Suites by name. The invented words are GLAM's; the introductions and the French synonyms are new."""
SUITE_GROUPS = {
    "all": _GENERALISATION,
    "glam": tuple(name for name in _GENERALISATION if name not in CONTROLS),
    "generalisation": _ONCE,
    "controls": tuple(CONTROLS),
    "balrog-babyai": tuple(_BALROG),
    "forms": tuple(_FORMS),
}
"""Names for several suites."""


def suite_overrides(
    config: TextConfig, policy: ComponentConfig, suite: str, overrides: Sequence[str]
) -> list[str | Mapping[str, Any]]:
    """Return a suite's overrides followed by the caller's.

    Where each env of the run keeps a randomly drawn task, held-out episodes draw theirs by their seeds instead: equally
    often, and the same ones for all agents.

    Args:
        config: The run's section ``world``.
        policy: The run's section ``policy``.
        suite: Name of the suite.
        overrides: The caller's overrides.

    Raises:
        ConfigError: The suite would change nothing, or replace the run's world by another one.
    """
    if suite in CONTROLS and any("world.args.control" in text for text in overrides):
        raise ConfigError("it sets world.args.control itself: take yours out, or evaluate held-out")
    _check_env(SUITES[suite], config)
    _check_prompt(SUITES[suite], config, policy)
    if any(text.startswith("world.actions=") for text in overrides):
        config = replace(config, actions=None)  # the caller's need no translation
    by_seed = ["world.args.draw_task=reset"] if config.args.get("draw_task") == "construction" else []
    try:
        return [*SUITES[suite].changes(config), *overrides, *by_seed]
    except TranslationError as error:
        raise ConfigError(str(error)) from error


def _check_env(suite: Suite, config: TextConfig) -> None:
    if suite.of_grids and not is_grid(config.env, config.args, config.language):
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
            raise ConfigError(
                "it is a text, and the run reads conversations, with a system prompt of its own"
            )
