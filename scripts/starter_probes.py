"""Probe the starter models with questions about scenes outside their corpus; only exact answers count.

`python scripts/starter_probes.py FOLDER` prints the metrics of a saved model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from starter_corpus import Scene, draw_thing, draw_walls
from starter_words import ENGLISH, FRENCH, HELD_OUT_NOUNS, Language, Thing
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Question = tuple[str, str]
"""A prompt and its only correct answer."""

CONDITIONS = {
    "known": ("four things", 4),
    "pairs": ("four things; the question is about a colour and noun that no text combines", 4),
    "nouns": ("four things with nouns that no text contains", 4),
    "things": ("twelve things, more than in any text", 12),
}


def load(folder: Path) -> Loaded:
    """Load a model for prompts of different lengths."""
    kind = AutoModelForSeq2SeqLM if AutoConfig.from_pretrained(folder).is_encoder_decoder else AutoModelForCausalLM
    return kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder, padding_side="left")


# ---------------------------------------------------------------------------------------------------- scenes


def draw_names(random: Random, language: Language, condition: str) -> list[tuple[str, str]]:
    """Return distinct pairs (noun, colour), the first of which is the subject of the question.

    Half of the time, the first four share two nouns and two colours, so that only the pairs are unique.
    """
    count = CONDITIONS[condition][1]
    spoken = "french" if language is FRENCH else "english"
    nouns = HELD_OUT_NOUNS[spoken] if condition == "nouns" else language.nouns
    names = [(noun, color) for noun in nouns for color in language.colors]
    unseen = [name for name in names if name in language.held_out]
    noun, color = random.choice(unseen if condition == "pairs" else [n for n in names if n not in unseen])
    if random.random() < 0.5:
        other_noun = random.choice([one for one in nouns if one != noun])
        other_color = random.choice([one for one in language.colors if one != color])
        alike = [(other_noun, color), (noun, other_color), (other_noun, other_color)]
    else:
        alike = []
    rest = [name for name in names if name != (noun, color) and name not in alike]
    return [(noun, color), *alike, *random.sample(rest, count - 1 - len(alike))]


def draw_probe(random: Random, language: Language, condition: str) -> tuple[Thing, Scene]:
    """Return the queried object and a scene that contains it, in the order used in the worlds' descriptions."""
    things = [near(random, language, name) for name in draw_names(random, language, condition)]
    ordered = sorted(things, key=lambda thing: (thing.side, -thing.ahead))
    return things[0], Scene(ordered, draw_walls(random), None)


def near(random: Random, language: Language, name: tuple[str, str]) -> Thing:
    """Return an object in the 7 × 7 cells that an agent sees."""
    while True:
        thing = draw_thing(random, language, name)
        if abs(thing.side) <= 3 and thing.ahead <= 6:
            return thing


def told(language: Language, scene: Scene) -> str:
    """Return the scene as an observation in a prompt."""
    return "".join(f"{sentence}, " for sentence in scene.sentences(language))


# ------------------------------------------------------------------------------------------------- questions


def asked(kind: str, answer: Callable[[Language, Thing], str]) -> Callable[..., Question]:
    """Return a scene followed by a question about one object."""

    def ask(random: Random, language: Language, thing: Thing, scene: Scene) -> Question:
        question = language.questions[kind][0].format(x=language.name(thing, language.the))
        return f"{language.scene_heads[0]} 0: {told(language, scene)}{question}", answer(language, thing)

    return ask


def nearer(random: Random, language: Language, thing: Thing, scene: Scene) -> Question:
    """Return a question about the distances of two objects and about which one is nearer."""
    other = random.choice([one for one in scene.things if one is not thing])
    if other.distance == thing.distance:
        scene.things[scene.things.index(other)] = other = replace(other, ahead=other.ahead + 1)
    pair = [thing, other] if random.random() < 0.5 else [other, thing]
    x, y = (language.name(one, language.the) for one in pair)
    question = language.questions["nearer"][0].format(x=x, y=y)
    return f"{language.scene_heads[0]} 0: {told(language, scene)}{question}", language.compared(*pair)


def make_unlike(random: Random, language: Language, thing: Thing, scene: Scene) -> None:
    """Change the nouns of the other objects, so that the object's noun is unique."""
    nouns = [noun for noun in language.other_nouns if noun != thing.noun]
    scene.things = [
        replace(one, noun=random.choice(nouns), state="") if one is not thing and one.noun == thing.noun else one
        for one in scene.things
    ]


def color(random: Random, language: Language, thing: Thing, scene: Scene) -> Question:
    """Return a question about the colour of the only object with its noun."""
    make_unlike(random, language, thing, scene)
    question = language.questions["color"][0].format(noun=thing.noun)
    return f"{language.scene_heads[0]} 0: {told(language, scene)}{question}", thing.color


def full_name(random: Random, language: Language, thing: Thing, scene: Scene) -> str:
    return language.name(thing, language.the)


def synonym(random: Random, language: Language, thing: Thing, scene: Scene) -> str:
    """Return the object's name with synonyms of its colour and, if there is one, its noun."""
    noun, color = (language.same.get(word, word) for word in thing.name)
    return language.name(replace(thing, noun=noun, color=color), language.the)


def noun_alone(random: Random, language: Language, thing: Thing, scene: Scene) -> str:
    make_unlike(random, language, thing, scene)
    return language.the.format(thing.noun)


def prompted(
    goals: Callable[[Language], tuple[str, ...]],
    called: Callable[[Random, Language, Thing, Scene], str] = full_name,
    short: bool = False,
) -> Callable[..., Question]:
    """Return a policy's prompt with goal and observation, followed by a label and the object's place.

    In goals with two objects, {x} comes first, and `called` is its name.
    """

    def ask(random: Random, language: Language, thing: Thing, scene: Scene) -> Question:
        other = random.choice([one for one in scene.things if one is not thing])
        x, y = called(random, language, thing, scene), language.name(other, language.the)
        goal = random.choice(goals(language)).format(x=x, y=y)
        actions = ", ".join(group[0] for group in language.action_words)
        label = language.place_labels[0]
        if short:
            head, view = ("But", "Vue") if language is FRENCH else ("Goal", "View")
            return f"{head}: {goal} \n {view}: {told(language, scene)}\n {label}: ", language.place(thing)
        listed = language.list_heads[3 if language is FRENCH else 4]
        goal = f"{listed}: {actions} \n {language.goal_heads[0]}: {goal}"
        return f"{goal} \n Observation 0: {told(language, scene)}\n {label} 0: ", language.place(thing)

    return ask


QUESTIONS: dict[str, Callable[..., Question]] = {
    "where": asked("place", lambda language, thing: language.place(thing)),
    "which way": asked("way", lambda language, thing: language.way(thing)),
    "how far": asked("far", lambda language, thing: language.steps(thing.distance)),
    "nearer": nearer,
    "colour": color,
    "prompt": prompted(lambda language: language.goals),
    "short prompt": prompted(lambda language: language.goals, short=True),
    "synonyms": prompted(lambda language: language.goals, synonym),
    "noun alone": prompted(lambda language: language.goals, noun_alone),
    "two steps": prompted(lambda language: language.pairs),
}


def probes(language: Language, condition: str, kind: str, number: int, seed: int = 7) -> list[Question]:
    """Return `number` questions of a kind under a condition; equal seeds yield equal questions."""
    random = Random(f"{condition} {kind} {seed}")
    return [QUESTIONS[kind](random, language, *draw_probe(random, language, condition)) for _ in range(number)]


# -------------------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def answers(loaded: Loaded, prompts: list[str]) -> list[str]:
    """Generate answers greedily; a semicolon or a new line ends an answer."""
    model, tokenizer = loaded
    given = []
    for start in range(0, len(prompts), 100):
        batch = tokenizer(prompts[start : start + 100], return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = model.generate(**batch, max_new_tokens=24, do_sample=False)
        if not model.config.is_encoder_decoder:
            out = out[:, batch["input_ids"].shape[1] :]
        given += tokenizer.batch_decode(out, skip_special_tokens=True)
    return [text.replace("\n", ";").split(";")[0].strip() for text in given]


def exact(loaded: Loaded, language: Language, condition: str, kind: str, number: int = 300) -> float:
    """Return the share of exactly correct answers."""
    questions = probes(language, condition, kind, number)
    given = answers(loaded, [prompt for prompt, _ in questions])
    return sum(one == wanted for one, (_, wanted) in zip(given, questions, strict=True)) / number


def measure(folder: Path, number: int = 300) -> dict[str, object]:
    """Return all metrics of a saved model."""
    loaded = load(folder)
    figures: dict[str, object] = {
        "parameters": sum(parameter.numel() for parameter in loaded[0].parameters()),
        "megabytes": round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 2),
    }
    for spoken, language in (("english", ENGLISH), ("french", FRENCH)):
        for condition in CONDITIONS:
            figures[f"{spoken}, {condition}"] = {
                kind: round(exact(loaded, language, condition, kind, number), 3) for kind in QUESTIONS
            }
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=2))
