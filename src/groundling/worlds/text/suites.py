"""Tests on episodes that no training sees: each is a change to the run's configuration.

GLAM's tests of generalisation; and controls, which tell the missions otherwise than they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groundling.envs.babyai_text import ACTIONS, CONTROLS, MIXED_TASKS, translate_actions
from groundling.envs.languages import check_language
from groundling.errors import ConfigError
from groundling.registry import unknown
from groundling.worlds.text.config import TextConfig


@dataclass(frozen=True)
class Suite:
    """A test: what it asks, and the overrides that turn a run's configuration into it."""

    about: str
    overrides: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    """Of the env's arguments that the overrides take out, those that stay as they are in the run."""
    french: Mapping[str, Any] | None = None
    """Of a French run what changes in place of the overrides, by key; None: the same."""
    language: str | None = None
    """What is spoken; None: what the run speaks."""
    form: Mapping[str, str] = field(default_factory=dict)
    """By language, words of the prompt's own form that the overrides replace: a prompt without them stays as it is."""
    prompt: str | None = None
    """The prompt that the overrides set."""
    synonyms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By language, other names for `ACTIONS`, in their order; the run's own are told by these."""
    of_grids: bool = False
    """Whether it is about what stands in BabyAI's and MiniGrid's envs."""
    is_tried: bool = False
    """Whether it takes an env to tell if the suite suits it."""

    def changes(self, config: TextConfig) -> list[str | Mapping[str, Any]]:
        """The overrides of a run in this world, as `configs.compose.changed` takes them.

        Raises:
            TranslationError: the run's actions are its own, and the suite is to tell them in another language.
            ConfigError: likewise, by synonyms.
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
    """Words of the prompt replaced wherever they stand, as the paper does it."""
    pairs = ", ".join(f"{word}: {other}" for word, other in english.items())
    overrides = (f"policy.args.replacements={{{pairs}}}",)
    return Suite(about, overrides, french={"policy.args.replacements": dict(french)}, of_grids=True)


def _introduction(about: str, english: str, french: str) -> Suite:
    """Other words for GLAM's introduction of the goal."""
    form = {"english": "Goal of the agent", "french": "But de l'agent"}
    suite = _words(about, {form["english"]: english}, {form["french"]: french})
    return replace(suite, form=form, of_grids=False)


def _in_french(nouns: Mapping[str, str]) -> dict[str, str]:
    """Nouns with their articles, so that a door which is "fermée à clef" stays locked."""
    articles = ("la", "une")
    return {
        f"{article} {noun}": f"{article} {other}" for noun, other in nouns.items() for article in articles
    }


def _sequence(about: str, id: str) -> Suite:
    """Another level, with as many other objects about; what else the run's env was told is not for this one."""
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
} | {name: Suite(about, (f"world.args.control={name}",), is_tried=True) for name, about in CONTROLS.items()}
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
"""Of GLAM's tests those that ask one thing each: of both orders of a sequence, three tests are one question."""
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
"""By name. The invented words are GLAM's; the introductions, and of a French run the synonyms, are our own."""
GROUPS = {
    "all": _GENERALISATION,
    "glam": tuple(name for name in _GENERALISATION if name not in CONTROLS),
    "generalisation": _ONCE,
    "controls": tuple(CONTROLS),
    "balrog-babyai": tuple(_BALROG),
    "forms": tuple(_FORMS),
}
"""Names that stand for several suites."""


def find_suites(names: str) -> list[str]:
    """The suites of a list of names and `GROUPS` such as ``held-out,controls``, each once.

    Raises:
        ConfigError: no such suite.
    """
    suites: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        if name not in SUITES and name not in GROUPS:
            raise ConfigError(unknown("suite", name, (*SUITES, *GROUPS)))
        suites.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return list(suites)
