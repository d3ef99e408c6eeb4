"""Generate the pretraining corpus of the starter models: made-up scenes, questions about them, and plain text.

A seeded random generator samples everything from templates. No grid, episode, reward or action of an environment is
used. A scene is a random list of objects at random places, described in the sentences of BabyAI-Text and many other
layouts, and followed by a description or a question. Sentences about actions explain words and never state which
action to choose.

A document is a *context* and a list of *turns* (question, answer). Plain text is a document with one turn whose question
is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from starter_words import ENGLISH, FRENCH, HELD_OUT_NOUNS, Language, Thing

Turn = tuple[str, str]


@dataclass
class Document:
    """A text that is split into parts, so that the trainer can separate questions from answers."""

    context: str
    turns: list[Turn] = field(default_factory=list)


@dataclass
class Scene:
    """The objects in view, and the carried object."""

    things: list[Thing]
    walls: list[Thing]
    carried: Thing | None

    def unique(self) -> list[Thing]:
        """Return the objects with a unique name, so that `the red ball` has one answer."""
        names = [thing.name for thing in self.things]
        return [thing for thing in self.things if names.count(thing.name) == 1]

    def sentences(self, language: Language) -> list[str]:
        carried = [language.carry.format(language.name(self.carried, "{}"))] if self.carried else []
        return carried + [language.sentence(thing) for thing in self.walls + self.things]


# ---------------------------------------------------------------------------------------------------- scenes


def invented_word(random: Random) -> str:
    """Return an invented word such as `glent` or `susudu`, so that models also look up words by spelling."""
    syllables = []
    for _ in range(random.randint(1, 3)):
        onset = random.choice(_ONSETS) if random.random() < 0.5 else random.choice("bcdfghjklmnprstvwz")
        vowel = random.choice("aeiou") if random.random() < 0.8 else random.choice(["ai", "ea", "oo", "ou", "ia"])
        coda = random.choice(_CODAS) if random.random() < 0.4 else ""
        syllables.append(onset + vowel + coda)
    word = "".join(syllables)
    return invented_word(random) if word in _NEVER_WRITTEN else word


_NEVER_WRITTEN = frozenset(chain.from_iterable(HELD_OUT_NOUNS.values()))


_ONSETS = ("bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "gu", "h", "pl", "pr", "qu", "sh", "sl", "st")
_ONSETS += ("str", "th", "tr", "vi", "wh", "x", "y", "")
_CODAS = (
    "b",
    "ck",
    "d",
    "fe",
    "g",
    "l",
    "le",
    "lt",
    "m",
    "mp",
    "n",
    "ne",
    "nt",
    "p",
    "r",
    "re",
    "rt",
    "s",
    "st",
    "t",
    "x",
)


def draw_name(random: Random, language: Language, strange: bool) -> tuple[str, str]:
    """Return a noun and a colour that are not a held-out pair."""
    while True:
        noun, color = random.choice(language.nouns), random.choice(language.colors)
        if strange and random.random() < 0.7:
            noun = random.choice(language.other_nouns) if random.random() < 0.4 else invented_word(random)
        if strange and random.random() < 0.5:
            color = random.choice(language.other_colors) if random.random() < 0.7 else invented_word(random)
        if (noun, color) not in language.held_out:
            return noun, color


def called(random: Random, language: Language, thing: Thing, article: str, renaming: float = 0.1) -> str:
    """Return the object's name for a question, sometimes with a synonym for its noun or colour."""
    if random.random() < renaming:
        noun, color = (language.same.get(word, word) for word in thing.name)
        thing = replace(thing, noun=noun) if random.random() < 0.5 else replace(thing, color=color)
    return language.name(thing, article)


def alike_names(random: Random, language: Language, count: int) -> list[tuple[str, str]]:
    """Return names composed of a few nouns and colours, so that only the pairs are unique."""
    strange = random.random() < 0.6
    few = [draw_name(random, language, strange) for _ in range(count)]
    nouns = list(dict.fromkeys(noun for noun, _ in few))[: 2 if count < 6 else 3]
    colors = list(dict.fromkeys(color for _, color in few))[: 2 if count < 4 else 4]
    names = [(noun, color) for noun in nouns for color in colors if (noun, color) not in language.held_out]
    return random.sample(names, count) if count <= len(names) else random.choices(names, k=count)


def draw_thing(random: Random, language: Language, name: tuple[str, str] | None = None) -> Thing:
    noun, color = name or draw_name(random, language, strange=random.random() < 0.3)
    state = random.choice(language.states) if noun == language.door else ""
    reach, depth = (3, 6) if random.random() < 0.9 else (12, 15)
    while True:
        side, ahead = random.randint(-reach, reach), random.randint(0, depth)
        # A third of the objects lie on an axis, where the sentence has one part.
        if random.random() < 0.3:
            side, ahead = random.choice([(0, ahead), (side, 0)])
        if side or ahead:
            return Thing(noun, color, state, side, ahead)


def draw_walls(random: Random) -> list[Thing]:
    """Return up to three walls: ahead, on the left and on the right."""
    chance = random.choice([0.0, 0.5, 0.8])
    spots = [(0, random.randint(1, 6)), (-random.randint(1, 6), 0), (random.randint(1, 6), 0)]
    return [Thing("wall", "", "", *spot) for spot in spots if random.random() < chance]


def draw_scene(random: Random, language: Language, count: int | None = None, strange: float = 0.4) -> Scene:
    """Return objects with independent names or with few nouns and colours; `strange` is the share of rare words."""
    if count is None:
        count = random.choice([1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10])
    names = [draw_name(random, language, random.random() < strange) for _ in range(count)]
    if random.random() < 0.4:
        names = alike_names(random, language, count)
    things = [draw_thing(random, language, name) for name in names]
    if random.random() < 0.5:
        things.sort(key=lambda thing: (thing.side, -thing.ahead))
    carried = draw_thing(random, language) if random.random() < 0.15 else None
    return Scene(things, draw_walls(random), carried)


def draw_absent(random: Random, language: Language, scene: Scene) -> Thing:
    """Return an object that is not in the scene, often with a noun or colour that occurs in the scene."""
    names = {thing.name for thing in scene.things}
    while True:
        thing = draw_thing(random, language)
        if thing.name not in names:
            return thing


# --------------------------------------------------------------------------------------------------- layouts


def lay_out(random: Random, language: Language, scene: Scene, number: int = 0) -> str:
    """Return a scene as text: BabyAI-Text's comma list, sentences, or a numbered or dashed list."""
    sentences = scene.sentences(language)
    head = random.choice(language.scene_heads)
    style = random.random()
    if style < 0.65:
        numbered = f"{head} {number}" if random.random() < 0.75 else head
        return f"{numbered}: " + "".join(f"{sentence}, " for sentence in sentences)
    if style < 0.8:
        return " ".join(f"{sentence}." for sentence in sentences)
    if style < 0.9:
        return f"{head}: " + "; ".join(sentences)
    return f"{head}:\n" + "\n".join(f"{index}. {sentence}" for index, sentence in enumerate(sentences, start=1))


def separator(random: Random) -> str:
    return random.choice([" \n ", " \n ", "\n", " | "])


def join(*parts: str) -> str:
    """Join the parts with exactly one space between them."""
    text = ""
    for part in parts:
        inside = bool(text) and not text[-1].isspace()
        text += (" " if inside and part and not part[0].isspace() else "") + (part if inside else part.lstrip(" "))
    return text


def word_list(random: Random, language: Language) -> str:
    """Return a heading with a list of phrases, none of which is chosen."""
    phrases = [group[0] for group in language.action_words]
    if random.random() < 0.3:
        phrases = [random.choice(group) for group in language.action_words]
    if random.random() < 0.3:
        phrases = [random.choice(language.other_nouns + language.other_colors) for _ in range(6)]
    if random.random() < 0.3:
        random.shuffle(phrases)
        phrases = phrases[: random.randint(2, 6)]
    return f"{random.choice(language.list_heads)}: {', '.join(phrases)}"


def draw_goal(random: Random, language: Language, thing: Thing, renaming: float = 0.1) -> str:
    """Return a goal about `thing`, which is {x} in goals with two objects."""
    article = random.choice([language.the, language.the, language.a])
    if random.random() < 0.65:
        return random.choice(language.goals).format(x=called(random, language, thing, article, renaming))
    other = draw_thing(random, language)
    pattern = random.choice(language.pairs)
    return pattern.format(x=language.name(thing, article), y=language.name(other, language.the))


def framed(random: Random, language: Language, goal: str, scenes: list[Scene]) -> str:
    """Return headings, a goal and observations, in the order of a prompt or in a different order."""
    between = separator(random)
    lines = [f"{random.choice(language.goal_heads)}: {goal}"]
    if random.random() < 0.35:
        lines.insert(0, word_list(random, language))
    views = [lay_out(random, language, scene, number) for number, scene in enumerate(scenes)]
    lines = views + lines if random.random() < 0.25 else lines + views
    return join(*(part for line in lines for part in (line, between)))


# ------------------------------------------------------------------------------------------ reading documents


def ask(random: Random, language: Language, kind: str, **fields: str) -> str:
    return random.choice(language.questions[kind]).format(**fields)


def question_about(random: Random, language: Language, scene: Scene) -> Turn:
    """Return a question about the scene, usually about an object's place."""
    known = scene.unique()
    if not known or random.random() < 0.1:
        absent = language.name(draw_absent(random, language, scene), language.the)
        return ask(random, language, random.choice(["way", "place"]), x=absent), language.unseen
    thing = random.choice(known)
    maker = random.choices(list(QUESTIONS), weights=list(QUESTIONS.values()))[0]
    return maker(random, language, scene, thing)


def _way(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    return ask(random, language, "way", x=called(random, language, thing, language.the)), language.way(thing)


def _place(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    return ask(random, language, "place", x=called(random, language, thing, language.the)), language.place(thing)


def _is_side(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    index = random.randrange(3)
    holds = (thing.side < 0, thing.side > 0, thing.side == 0)[index]
    question = ask(random, language, "is_way", x=language.name(thing, language.the), way=language.coarse[index])
    return question, language.yes if holds else language.no


def _sideways(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    return ask(random, language, "sideways", x=language.name(thing, language.the)), str(abs(thing.side))


def _ahead(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    return ask(random, language, "ahead", x=language.name(thing, language.the)), str(thing.ahead)


def _far(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    return ask(random, language, "far", x=language.name(thing, language.the)), language.steps(thing.distance)


def _is_there(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    seen = random.random() < 0.5
    asked = thing if seen else draw_absent(random, language, scene)
    question = ask(random, language, "is_there", x=language.name(asked, language.a))
    return question, language.yes if seen else language.no


def _what_is_at(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    here = [other for other in scene.things + scene.walls if language.place(other) == language.place(thing)]
    if len(here) > 1:
        return _place(random, language, scene, thing)
    return ask(random, language, "what_at", place=language.place(thing)), language.name(thing, language.a)


def _nearest(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    nearest = min(scene.things, key=lambda other: other.distance)
    if sum(other.distance == nearest.distance for other in scene.things) > 1:
        return _way(random, language, scene, thing)
    return ask(random, language, "nearest"), language.name(nearest, language.the)


def _nearer(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    others = [other for other in scene.unique() if other.distance != thing.distance]
    if not others:
        return _place(random, language, scene, thing)
    pair = [thing, random.choice(others)]
    x, y = (language.name(one, language.the) for one in pair)
    return ask(random, language, "nearer", x=x, y=y), language.compared(*pair)


def _count(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    count = sum(other.noun == thing.noun for other in scene.things)
    return ask(random, language, "count", noun=thing.noun), str(count)


def _color(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    if sum(other.noun == thing.noun for other in scene.things) > 1:
        return _way(random, language, scene, thing)
    return ask(random, language, "color", noun=thing.noun), thing.color


def _state(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    if not thing.state:
        return _way(random, language, scene, thing)
    return ask(random, language, "state", x=language.name(thing, language.the)), thing.state


def _carried(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    answer = language.name(scene.carried, language.a) if scene.carried else language.nothing
    return ask(random, language, "carried"), answer


def _in_front(random: Random, language: Language, scene: Scene, thing: Thing) -> Turn:
    """Ask whether the object is one step ahead."""
    question = ask(random, language, "in_front", x=language.name(thing, language.the))
    return question, language.yes if (thing.side, thing.ahead) == (0, 1) else language.no


Maker = Callable[[Random, Language, Scene, Thing], Turn]
# `labelled` and `sought` also ask for places, `measured` for sums and comparisons.
QUESTIONS: dict[Maker, float] = {
    _way: 2.5,
    _place: 3,
    _far: 1,
    _nearer: 1,
    _color: 0.5,
    _is_side: 0.7,
    _sideways: 0.7,
    _ahead: 0.7,
    _is_there: 0.7,
    _what_is_at: 0.8,
    _nearest: 0.4,
    _count: 0.3,
    _state: 0.5,
    _carried: 0.3,
    _in_front: 0.6,
}


def questions_on_scene(random: Random, language: Language) -> Document:
    """Return a scene with one question before or after it."""
    scene = draw_scene(random, language)
    question, answer = question_about(random, language, scene)
    text = lay_out(random, language, scene)
    if random.random() < 0.3:
        return Document("", [(join(question, separator(random), text), answer)])
    return Document(text, [(question, answer)])


def many_questions(random: Random, language: Language) -> Document:
    """Return a scene with several questions, which provide more signal per scene."""
    scene = draw_scene(random, language, random.choice([2, 3, 4, 5, 6]))
    turns = [question_about(random, language, scene) for _ in range(random.randint(2, 5))]
    return Document(lay_out(random, language, scene), turns)


def recited(random: Random, language: Language) -> Document:
    """Return a scene, then the place of each object in any order; this is the densest look-up task."""
    scene = draw_scene(random, language, random.choice([1, 2, 3, 4, 5, 6]))
    things = scene.unique()
    if not things:
        return questions_on_scene(random, language)
    random.shuffle(things)
    exactly = random.random() < 0.5
    turns = []
    for thing in things:
        name = language.name(thing, language.the)
        turns.append((f"{name}:", language.place(thing)) if exactly else (f"{name}?", language.way(thing)))
    return Document(lay_out(random, language, scene), turns)


def asked(random: Random, language: Language) -> Document:
    """Return a scene and one short question about an object's place."""
    document = recited(random, language)
    return Document(document.context, document.turns[:1])


def retold(random: Random, language: Language) -> Document:
    """Return a scene, then its paraphrase in any order."""
    scene = draw_scene(random, language, random.choice([1, 2, 3, 4, 5]))
    things = scene.unique()
    if not things:
        return questions_on_scene(random, language)
    random.shuffle(things)
    pattern = random.choice(language.statements)
    told = [
        pattern.format(x=language.name(one, language.the), way=language.way(one), place=language.place(one))
        for one in things
    ]
    question = random.choice(language.questions["retell"])
    return Document(lay_out(random, language, scene), [(question, " ".join(told))])


def labelled(random: Random, language: Language, renaming: float = 0.1) -> Document:
    """Return a goal, one or more views, and a label followed by the place of the goal's object.

    The label is usually an invented or general word, so that models look up the goal's object after any heading. The
    answer is a place, never an action.
    """
    number = random.choice([1, 1, 1, 1, 1, 1, 2, 3])
    scenes = [draw_scene(random, language, random.choice([1, 1, 2, 3, 4, 6])) for _ in range(number)]
    if number == 1 and random.random() < 0.7:
        scenes = [draw_scene(random, language, random.choice([2, 3, 4, 4, 5, 6, 8, 10, 10]))]
    known = scenes[-1].unique()
    seen = bool(known) and random.random() < 0.88
    thing = random.choice(known) if seen else draw_absent(random, language, scenes[-1])
    text = framed(random, language, draw_goal(random, language, thing, renaming), scenes)
    roughly = random.random() < 0.7
    label = random.choice(language.way_labels if roughly else language.place_labels)
    if roughly and random.random() < 0.3:
        label = invented_word(random).capitalize()
    where = language.way if roughly else language.place
    answer = where(thing) if seen else language.unseen
    # Keep the space after the colon, which is a separate token, because policies' prompts end with a space.
    question = f"{label} {number - 1}: " if random.random() < 0.7 else f"{label}: "
    others = random.sample(known, min(len(known), random.choice([0, 1, 2, 3])))
    more = [(f"{language.name(other, language.the)}:", language.place(other)) for other in others]
    return Document(join(text, question), [("", answer), *more])


def renamed(random: Random, language: Language) -> Document:
    """Like `labelled`, but with a goal that usually contains a synonym for its object."""
    return labelled(random, language, renaming=0.8)


def sought(random: Random, language: Language) -> Document:
    """Return a goal, a short view and the object's place, which is the simplest form of `labelled`.

    From these documents, models learn within a few hundred batches to find one object among several.
    """
    count = random.choice([2, 2, 3, 3, 4])
    scene = draw_scene(random, language, count)
    scene.things.sort(key=lambda thing: random.random())
    known = scene.unique()
    if not known:
        return sought(random, language)
    thing = random.choice(known)
    goal = draw_goal(random, language, thing)
    if random.random() < 0.5:
        goal = language.name(thing, language.the)
    between, view = separator(random), lay_out(random, language, scene)
    lines = [f"{random.choice(language.goal_heads)}: {goal}", view]
    if random.random() < 0.15:
        lines.reverse()
    if random.random() < 0.4:
        lines.insert(0, word_list(random, language))
    exactly = random.random() < 0.65
    label = random.choice(language.place_labels if exactly else language.way_labels)
    if not exactly and random.random() < 0.5:
        label = invented_word(random).capitalize()
    question = f"{label} 0: " if random.random() < 0.6 else f"{label}: "
    others = random.sample(known, random.choice([0, 0, min(2, len(known))]))
    answers = [("", language.place(thing) if exactly else language.way(thing))]
    answers += [(f"{language.name(other, language.the)}:", language.place(other)) for other in others]
    text = join(*(part for line in lines for part in (line, between)))
    return Document(join(text, question), answers)


def measured(random: Random, language: Language) -> Document:
    """Return a scene, and the distances of objects or the nearer of two objects."""
    scene = draw_scene(random, language, random.choice([2, 2, 3, 3, 4, 4, 5, 6, 8, 10]), strange=0.5)
    known = scene.unique()
    random.shuffle(known)
    pair = [thing for thing in known if thing.distance != known[0].distance][:1] + known[:1]
    text = lay_out(random, language, scene)
    if len(pair) == 2 and random.random() < 0.6:
        random.shuffle(pair)
        x, y = (language.name(thing, language.the) for thing in pair)
        question = ask(random, language, "nearer", x=x, y=y)
        turns = [("", language.compared(*pair)), *(_far(random, language, scene, thing) for thing in known[2:4])]
    elif known:
        question, answer = _far(random, language, scene, known[0])
        turns = [("", answer), *(_far(random, language, scene, thing) for thing in known[1:3])]
    else:
        return measured(random, language)
    return Document(join(text, question), turns)


def colored(random: Random, language: Language) -> Document:
    """Return a scene with distinct nouns, and the colours of some objects."""
    scene = draw_scene(random, language, random.choice([1, 2, 3, 3, 4, 4, 5, 6, 8, 10]), strange=0.5)
    nouns: dict[str, Thing] = {}
    for thing in scene.things:
        strange = thing.noun in nouns
        nouns.setdefault(random.choice(language.other_nouns) if strange else thing.noun, thing)
    scene.things = [
        replace(thing, noun=noun, color=invented_word(random) if random.random() < 0.3 else thing.color)
        for noun, thing in nouns.items()
        if (noun, thing.color) not in language.held_out
    ]
    if not scene.things:
        return colored(random, language)
    text = lay_out(random, language, scene)
    chosen = random.sample(scene.things, min(len(scene.things), random.choice([1, 2, 3])))
    (question, answer), *more = [_color(random, language, scene, thing) for thing in chosen]
    return Document(join(text, question), [("", answer), *more])


def named(random: Random, language: Language) -> Document:
    """Return a scene with mostly rare words, and its names, so that models learn to copy words."""
    scene = draw_scene(random, language, random.choice([1, 2, 2, 3, 3, 4, 5]), strange=0.8)
    names = ", ".join(language.name(thing, language.the) for thing in scene.things)
    question = ask(random, language, "names")
    return Document(join(lay_out(random, language, scene), question), [("", names)])


def goal_words(random: Random, language: Language) -> Document:
    """Return a question about a goal, such as which object or which kind of action it requires."""
    thing, other = (Thing(*draw_name(random, language, strange=False), "", 0, 1) for _ in range(2))
    x, y = language.name(thing, language.the), language.name(other, language.the)
    pattern, first, second = random.choice(language.asked)
    fields = {"x": x, "y": y}
    goal = pattern.format(**fields)
    turns = [(question.format(**fields), answer.format(**fields)) for question, answer in (first, second)]
    return Document(f"{random.choice(language.goal_heads)}: {goal}.", turns)


# -------------------------------------------------------------------------------------------- plain documents


def chosen_word(random: Random, language: Language) -> Document:
    """Return a uniformly sampled word of a list, so that no word is preferred."""
    phrases = [random.choice(group) for group in language.action_words]
    if random.random() < 0.5:
        phrases = random.sample(language.other_nouns + language.other_colors + language.colors, 6)
    random.shuffle(phrases)
    phrases = phrases[: random.randint(2, 6)]
    head = join(f"{random.choice(language.list_heads)}: {', '.join(phrases)}", separator(random))
    return Document(head, [(f"{random.choice(language.one_of)}: ", random.choice(phrases))])


def synonyms(random: Random, language: Language) -> Document:
    group = random.choice(language.action_words)
    word, *others = random.sample(group, len(group))
    return Document("", [(random.choice(language.questions["same"]).format(x=word), others[0])])


def spelling(random: Random, language: Language) -> Document:
    words = language.nouns + language.colors + language.other_nouns + language.other_colors
    word = random.choice(words) if random.random() < 0.7 else invented_word(random)
    return Document("", [(random.choice(language.questions["spell"]).format(x=word), "-".join(word))])


def counting(random: Random, language: Language) -> Document:
    start, length, step = random.randint(0, 200), random.randint(3, 10), random.choice([1, 1, 1, 2, 5, 10])
    numbers = [start + step * index for index in range(length) if start + step * index <= 200]
    up = random.random() < 0.6
    head = language.count_heads[0 if up else 1]
    return Document("", [(head, ", ".join(map(str, numbers if up else numbers[::-1])) + ".")])


def plain_text(random: Random, language: Language) -> Document:
    """Return a few complete sentences about words, actions, people and days."""
    sentences = []
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.5:
            sentences.append(random.choice(language.plain))
            continue
        sentence = f"{random.choice(language.subjects)} {random.choice(language.verbs)}"
        things = [draw_name(random, language, strange=random.random() < 0.3) for _ in range(2)]
        x, y = (language.name(Thing(*name, "", 0, 1), language.a) for name in things)
        when = f"{random.choice(language.days)} {random.randint(1, 28)} {random.choice(language.months)}"
        year = random.randint(1900, 2050)
        sentences.append(sentence.format(x=x, y=y, place=random.choice(language.places), date=f"{when} {year}") + ".")
    return Document("", [("", " ".join(sentences))])


DocumentMaker = Callable[[Random, Language], Document]
DOCUMENTS: dict[DocumentMaker, float] = {
    labelled: 32,
    sought: 16,
    questions_on_scene: 10,
    many_questions: 12,
    measured: 24,
    colored: 18,
    named: 8,
    recited: 6,
    asked: 4,
    retold: 3,
    goal_words: 3,
    chosen_word: 3,
    synonyms: 1.5,
    spelling: 1,
    counting: 2,
    plain_text: 4,
}


def documents(
    seed: int, count: int, kinds: Mapping[DocumentMaker, float] = DOCUMENTS, french: float = 0.2
) -> Iterator[Document]:
    """Yield `count` documents, some of them in French; equal seeds yield equal documents."""
    random = Random(seed)
    makers, weights = list(kinds), list(kinds.values())
    for _ in range(count):
        language = FRENCH if random.random() < french else ENGLISH
        yield random.choices(makers, weights)[0](random, language)
