"""The words and sentence patterns of the starter models' corpus, in English and French."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """An object in a scene: `side` steps to the right (left if negative) and `ahead` steps forward."""

    noun: str
    color: str
    state: str
    side: int
    ahead: int

    @property
    def name(self) -> tuple[str, str]:
        return self.noun, self.color

    @property
    def distance(self) -> int:
        return abs(self.side) + self.ahead


@dataclass(frozen=True)
class Language:
    """Words and templates of one language; `{x}` and `{y}` are objects with their articles."""

    nouns: tuple[str, ...]
    colors: tuple[str, ...]
    other_nouns: tuple[str, ...]
    held_out: frozenset[tuple[str, str]]  # held-out pairs of noun and colour
    same: dict[str, str]  # synonyms of nouns and colours for questions
    other_colors: tuple[str, ...]
    states: tuple[str, ...]
    door: str
    named: str  # name of noun and colour
    doored: str  # the same for a door, with its state
    the: str
    a: str
    see: str
    see_wall: str
    carry: str
    left: str
    right: str
    forward: str
    step: tuple[str, str]
    both: str
    coarse: tuple[str, str, str]  # left, right, ahead in one word
    unseen: str
    yes: str
    no: str
    nothing: str
    goals: tuple[str, ...]
    pairs: tuple[str, ...]  # goals with two objects, {x} and {y}
    goal_heads: tuple[str, ...]
    scene_heads: tuple[str, ...]
    list_heads: tuple[str, ...]
    way_labels: tuple[str, ...]
    place_labels: tuple[str, ...]
    one_of: tuple[str, ...]
    questions: dict[str, tuple[str, ...]]
    asked: tuple[tuple[str, tuple[str, str], tuple[str, str]], ...]  # goal, then two questions about it
    statements: tuple[str, ...]  # {x}, {way}, {place}
    action_words: tuple[tuple[str, ...], ...]  # synonyms, one tuple for each action
    plain: tuple[str, ...]  # complete sentences about words, actions and objects
    subjects: tuple[str, ...]
    verbs: tuple[str, ...]
    places: tuple[str, ...]
    months: tuple[str, ...]
    days: tuple[str, ...]
    count_heads: tuple[str, ...]  # ascending, descending

    def name(self, thing: Thing, article: str, with_state: bool = False) -> str:
        pattern = self.doored if with_state and thing.state else self.named
        return article.format(pattern.format(noun=thing.noun, color=thing.color, state=thing.state))

    def steps(self, count: int) -> str:
        return f"{count} {self.step[0] if count == 1 else self.step[1]}"

    def place(self, thing: Thing) -> str:
        """Return an object's exact place: `2 steps left and 1 step forward`."""
        sideways = f"{self.steps(abs(thing.side))} {self.left if thing.side < 0 else self.right}"
        ahead = f"{self.steps(thing.ahead)} {self.forward}"
        if thing.side == 0:
            return ahead
        return self.both.format(sideways, ahead) if thing.ahead else sideways

    def way(self, thing: Thing) -> str:
        """Return an object's rough place: `left and ahead`."""
        left, right, ahead = self.coarse
        if thing.side == 0:
            return ahead
        sideways = left if thing.side < 0 else right
        return self.both.format(sideways, ahead) if thing.ahead else sideways

    def compared(self, one: Thing, other: Thing) -> str:
        """Return the distances of two objects, then the nearer one: `4 steps, 2 steps: the red key`."""
        nearer = min(one, other, key=lambda thing: thing.distance)
        return f"{self.steps(one.distance)}, {self.steps(other.distance)}: {self.name(nearer, self.the)}"

    def sentence(self, thing: Thing) -> str:
        if not thing.color:
            return self.see_wall.format(self.place(thing))
        return self.see.format(self.name(thing, "{}", with_state=True), self.place(thing))


ENGLISH = Language(
    nouns=("key", "ball", "box", "door"),
    colors=("red", "green", "blue", "purple", "yellow", "grey"),
    other_nouns=(
        *("cup", "book", "hat", "coin", "apple", "stone", "cat", "dog", "bag", "ring", "goal", "floor"),
        *("lava", "pen", "bed", "clock", "plate", "shoe", "bottle", "spoon", "knife", "drum", "flag"),
        *("rope", "mirror", "basket", "candle", "hammer", "brush", "ladder", "kite", "tent", "boat"),
        *("bell", "wheel", "glove", "scarf", "bird", "fish", "horse", "sheep", "flower", "leaf", "cake"),
        *("bread", "egg", "lemon", "pear", "melon", "carrot", "onion", "pan", "jar", "bucket", "broom"),
        *("towel", "soap", "comb", "needle", "button", "letter", "map", "coat", "shirt", "sock", "belt"),
        *("crown", "sword", "shield", "arrow", "cube", "cone", "disk", "brick", "board", "nail", "wire"),
        *("chain", "hook", "lock", "phone", "radio", "camera", "robot", "train", "truck", "bike", "sled"),
        *("statue", "vase", "rug", "sofa", "desk", "shelf", "stool", "bench", "fence", "gate"),
    ),
    held_out=frozenset({("box", "yellow"), ("key", "red"), ("door", "red"), ("ball", "green"), ("door", "grey")}),
    same={
        "ball": "sphere",
        "box": "crate",
        "stone": "rock",
        "cup": "mug",
        "hat": "cap",
        "sofa": "couch",
        "rug": "carpet",
        "bike": "bicycle",
        "coat": "jacket",
        "bag": "sack",
        "jar": "pot",
        "rope": "cord",
        "red": "scarlet",
        "grey": "silvery",
        "purple": "mauve",
        "green": "emerald",
        "blue": "azure",
        "yellow": "golden",
        "big": "large",
        "small": "little",
        "old": "ancient",
        "shiny": "bright",
    },
    other_colors=(
        *("white", "black", "orange", "brown", "pink", "crimson", "dark", "small", "big", "round", "old", "new"),
        *("wooden", "shiny", "heavy", "light", "soft", "long", "thin", "wet", "teal", "lime", "amber", "ivory"),
    ),
    states=("open", "closed", "locked"),
    door="door",
    named="{color} {noun}",
    doored="{state} {color} {noun}",
    the="the {}",
    a="a {}",
    see="You see a {} {}",
    see_wall="You see a wall {}",
    carry="You carry a {}",
    left="left",
    right="right",
    forward="forward",
    step=("step", "steps"),
    both="{} and {}",
    coarse=("left", "right", "ahead"),
    unseen="not in view",
    yes="yes",
    no="no",
    nothing="nothing",
    goals=(
        "go to {x}",
        "go to {x}",
        "pick up {x}",
        "open {x}",
        "find {x}",
        "reach {x}",
        "take {x}",
        "look at {x}",
        *("pick up {x}", "grab {x}", "fetch {x}", "walk to {x}", "lift {x}", "get {x}"),
    ),
    pairs=(
        "put {x} next to {y}",
        "pick up {x}, then go to {y}",
        "pick up {x}, then pick up {y}",
        "go to {y} after you pick up {x}",
        "pick up {y} after you pick up {x}",
    ),
    goal_heads=("Goal of the agent", "Goal of the agent", "Goal", "Task", "Mission", "Instruction", "Wanted"),
    scene_heads=("Observation", "Observation", "Observation", "View", "Scene", "Room", "Picture"),
    list_heads=(
        *("Possible words", "Words", "List", "Possible answers", "Possible action of the agent"),
        *("Possible actions", "Actions", "Vocabulary"),
    ),
    way_labels=("Side", "Way", "Direction", "Where", "Answer", "Reply", "Word"),
    place_labels=("Place", "Position", "Spot", "Exact place"),
    one_of=("One of them", "Any of them", "One word of the list", "Example", "For instance"),
    questions={
        "way": ("Which way is {x}?", "Which way is {x}?", "On which side is {x}?", "Where is {x}, roughly?"),
        "place": ("Where is {x}?", "Where exactly is {x}?", "Tell the place of {x}."),
        "is_way": ("Is {x} {way}?", "Is it true that {x} is {way}?"),
        "sideways": ("How many steps to the side is {x}?", "{x}: how many steps to the side?"),
        "ahead": ("How many steps forward is {x}?", "{x}: how many steps forward?"),
        "far": ("How far is {x}?", "How many steps in all to {x}?"),
        "is_there": ("Is there {x}?", "Do you see {x}?"),
        "what_at": ("What is {place}?", "What do you see {place}?"),
        "nearest": ("What is nearest?", "Which thing is the nearest?"),
        "nearer": ("What is nearer, {x} or {y}?", "Which is less far, {x} or {y}?"),
        "count": ("How many things are called {noun}?", "Count the things of the kind {noun}."),
        "color": ("What color is the {noun}?", "Tell the color of the {noun}."),
        "state": ("Is {x} open, closed or locked?", "What is the state of {x}?"),
        "carried": ("What do you carry?", "What is in your hands?"),
        "in_front": ("Is {x} right in front of you?", "Does {x} touch you in front?"),
        "names": ("Name the things in order.", "Which things are there?"),
        "retell": ("In other words:", "Tell it again:", "That is to say:"),
        "same": ("What means the same as {x}?", "A synonym of {x}:", "Action: {x}. In other words:"),
        "spell": ("Spell {x}.", "How is {x} spelled?"),
    },
    asked=(
        ("go to {x}", ("Which thing is meant?", "{x}"), ("What is asked for?", "to be next to {x}")),
        ("pick up {x}", ("Which thing is meant?", "{x}"), ("What is asked for?", "to hold {x}")),
        ("open {x}", ("Which thing is meant?", "{x}"), ("What is asked for?", "that {x} is open")),
        ("put {x} next to {y}", ("Which thing is moved?", "{x}"), ("Which thing stays?", "{y}")),
        ("pick up {x}, then go to {y}", ("What comes first?", "pick up {x}"), ("And then?", "go to {y}")),
        ("go to {y} after you pick up {x}", ("What comes first?", "pick up {x}"), ("And then?", "go to {y}")),
    ),
    statements=(
        "The way to {x} is {way}.",
        "As for {x}: {way}.",
        "You find {x} {place}.",
        "Look {place}: there is {x}.",
        "{x}: {place};",
    ),
    action_words=(
        ("turn left", "rotate left", "turn to the left", "spin left"),
        ("turn right", "rotate right", "turn to the right", "spin right"),
        ("go forward", "move ahead", "walk forward", "step ahead"),
        ("pick up", "take", "grab", "lift"),
        ("drop", "release", "put down", "let go"),
        ("toggle", "switch", "open or close", "use"),
    ),
    plain=(
        "To turn left is to rotate toward the left side while staying in the same place.",
        "To turn right is to rotate toward the right side while staying in the same place.",
        "To go forward is to walk one step in the direction you look.",
        "To pick up a thing is to take it in your hands.",
        "To drop a thing is to put it down in front of you.",
        "To toggle a door is to open it when it is closed and to close it when it is open.",
        "To toggle a box is to open it; a box may hide a thing.",
        "When you turn left, what was on your left is ahead, and what was ahead is on your right.",
        "When you turn right, what was on your right is ahead, and what was ahead is on your left.",
        "When you go forward, what is ahead comes nearer by one step.",
        "When you turn left and then right, you look the same way as before.",
        "When you turn left four times, you look the same way as before.",
        "A key opens a locked door of its own color.",
        "A green key opens a green door, and a blue key opens a blue door.",
        "Nobody walks through a wall or through a closed door.",
        "You carry one thing at a time.",
        "Left and right are opposite sides.",
        "Forward means straight ahead.",
        "A thing that is one step forward is right in front of you.",
        "A ball is round, a box has corners, and a key is small.",
        "Red, green, blue, purple, yellow and grey are colors.",
        "A key, a ball and a box are things that one can carry; a door is not.",
    ),
    subjects=("Anna", "Tom", "My friend", "The teacher", "A child", "The old man", "She", "He", "Somebody"),
    verbs=(
        "has {x} and {y}",
        "bought {x} on {date}",
        "saw {x} near {place}",
        "likes {x} more than {y}",
        "was born on {date}",
        "lives in {place}",
        "lost {x} in {place}",
        "wrote about {x} on {date}",
        "gave {x} to a friend",
        "keeps {x} behind {y}",
    ),
    places=("the house", "the garden", "the city", "the school", "the park", "the kitchen", "the village"),
    months=(
        *("January", "February", "March", "April", "May", "June", "July"),
        *("August", "September", "October", "November", "December"),
    ),
    days=("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    count_heads=("Count up:", "Count down:"),
)

FRENCH = Language(
    nouns=("clef", "balle", "boîte", "porte"),
    colors=("rouge", "verte", "bleue", "violette", "jaune", "grise"),  # codespell:ignore rouge
    # All nouns are feminine, as in the world, so that colours agree.
    other_nouns=(
        *("tasse", "pomme", "pierre", "bague", "fleur", "montre", "lettre", "bougie", "cloche", "corde"),
        *("poire", "assiette", "fourchette", "brosse", "carte", "échelle", "épée", "flèche", "plume"),
        *("robe", "roue", "statue", "valise", "bouteille", "boule", "brique", "chaussette", "chemise"),
        *("couronne", "feuille"),
    ),
    held_out=frozenset(
        {("boîte", "jaune"), ("clef", "rouge"), ("porte", "rouge"), ("balle", "verte"), ("porte", "grise")}
    ),
    same={
        "balle": "sphère",
        "boîte": "caisse",
        "pierre": "roche",
        "valise": "malle",
        "rouge": "écarlate",
        "verte": "émeraude",
        "bleue": "azur",
        "violette": "mauve",
        "jaune": "dorée",
        "grise": "argentée",
    },
    other_colors=(
        *("blanche", "noire", "orange", "brune", "rose", "petite", "grande", "ronde", "vieille", "neuve"),
        *("lourde", "douce", "longue", "fine"),
    ),
    states=("ouverte", "fermée", "fermée à clef"),
    door="porte",
    named="{noun} {color}",
    doored="{noun} {color} {state}",
    the="la {}",
    a="une {}",
    see="Tu vois une {} {}",
    see_wall="Tu vois un mur à {}",
    carry="Tu portes une {}",
    left="à gauche",
    right="à droite",
    forward="devant",
    step=("pas", "pas"),
    both="{} et {}",
    coarse=("à gauche", "à droite", "devant"),
    unseen="hors de vue",
    yes="oui",
    no="non",
    nothing="rien",
    goals=(
        *("aller à {x}", "aller à {x}", "ramasser {x}", "ouvrir {x}", "trouver {x}", "prendre {x}"),
        *("va à {x}", "ramasse {x}", "ouvre {x}", "go to {x}", "ramasser {x}", "attraper {x}", "chercher {x}"),
    ),
    pairs=(
        "mettre {x} à côté de {y}",
        "mets {x} à côté de {y}",
        "ramasser {x}, puis aller à {y}",
        "ramasse {x}, puis va à {y}",
        "aller à {y} après avoir ramassé {x}",
        "va à {y} après avoir ramassé {x}",
    ),
    goal_heads=("But de l'agent", "But de l'agent", "But", "Tâche", "Mission", "Consigne"),
    scene_heads=("Observation", "Observation", "Observation", "Vue", "Scène", "Image"),
    list_heads=("Mots possibles", "Mots", "Liste", "Actions possibles pour l'agent", "Actions possibles"),
    way_labels=("Côté", "Sens", "Direction", "Où", "Réponse", "Mot"),  # codespell:ignore mot
    place_labels=("Place", "Position", "Endroit"),
    one_of=("Un de ces mots", "L'un d'eux", "Par exemple", "Exemple"),  # codespell:ignore exemple,Exemple
    questions={
        "way": ("De quel côté est {x} ?", "De quel côté est {x} ?", "Dans quelle direction est {x} ?"),
        "place": ("Où est {x} ?", "Où exactement est {x} ?", "Dis la place de {x}."),
        "is_way": ("Est-ce que {x} est {way} ?",),
        "sideways": ("À combien de pas de côté est {x} ?",),
        "ahead": ("À combien de pas devant est {x} ?",),
        "far": ("À combien de pas est {x} ?", "Combien de pas en tout jusqu'à {x} ?"),
        "is_there": ("Y a-t-il {x} ?", "Vois-tu {x} ?"),
        "what_at": ("Qu'y a-t-il {place} ?", "Que vois-tu {place} ?"),
        "nearest": ("Quelle chose est la plus proche ?",),
        "nearer": ("Quelle chose est plus proche, {x} ou {y} ?",),
        "count": ("Combien de choses s'appellent {noun} ?",),
        "color": ("De quelle couleur est la {noun} ?",),
        "state": ("Est-ce que {x} est ouverte, fermée ou fermée à clef ?", "Quel est l'état de {x} ?"),
        "carried": ("Que portes-tu ?", "Qu'y a-t-il dans tes mains ?"),
        "in_front": ("Est-ce que {x} est juste devant toi ?",),  # codespell:ignore toi
        "names": ("Nomme les choses dans l'ordre.", "Quelles choses y a-t-il ?"),
        "retell": ("En d'autres mots :", "Redis-le :"),
        "same": ("Que veut dire aussi {x} ?", "Un synonyme de {x} :", "Action : {x}. En d'autres mots :"),
        "spell": ("Épelle {x}.",),
    },
    asked=(
        ("aller à {x}", ("De quelle chose parle-t-on ?", "{x}"), ("Que demande-t-on ?", "être à côté de {x}")),
        ("ramasser {x}", ("De quelle chose parle-t-on ?", "{x}"), ("Que demande-t-on ?", "tenir {x}")),
        ("mettre {x} à côté de {y}", ("Que déplace-t-on ?", "{x}"), ("Que laisse-t-on en place ?", "{y}")),
        ("ramasser {x}, puis aller à {y}", ("D'abord ?", "ramasser {x}"), ("Et puis ?", "aller à {y}")),
        ("aller à {y} après avoir ramassé {x}", ("D'abord ?", "ramasser {x}"), ("Et puis ?", "aller à {y}")),
    ),
    statements=("On voit {x} {way}.", "Quant à {x} : {way}.", "Tu trouves {x} {place}.", "{x} : {place} ;"),
    action_words=(
        ("tourner à gauche", "pivoter à gauche", "tourne à gauche", "turn left"),
        ("tourner à droite", "pivoter à droite", "tourne à droite", "turn right"),
        ("aller tout droit", "avancer", "marcher devant", "go forward"),
        ("ramasser", "attraper", "prendre", "pick up"),
        ("lâcher", "poser", "déposer", "drop"),
        ("basculer", "actionner", "ouvrir ou fermer", "toggle"),
    ),
    plain=(
        "Tourner à gauche, c'est pivoter vers le côté gauche en restant à sa place.",
        "Tourner à droite, c'est pivoter vers le côté droit en restant à sa place.",
        "Avancer, c'est faire un pas devant soi.",
        "Ramasser une chose, c'est la prendre dans ses mains.",
        "Lâcher une chose, c'est la poser devant soi.",
        "Quand on tourne à gauche, ce qui était à gauche est devant.",
        "Quand on tourne à droite, ce qui était à droite est devant.",
        "Une clef ouvre la porte de sa couleur quand elle est fermée à clef.",
        "On ne traverse ni un mur ni une porte fermée.",
        "Une boîte peut cacher une chose.",
        "Rouge, verte, bleue, violette, jaune et grise sont des couleurs.",  # codespell:ignore rouge
    ),
    subjects=("Anne", "Paul", "Mon amie", "Le maître", "Un enfant", "Elle", "Il", "Quelqu'un"),
    verbs=(
        "a {x} et {y}",
        "achète {x} le {date}",
        "voit {x} dans {place}",
        "aime mieux {x} que {y}",
        "est né le {date}",
        "vit dans {place}",
        "perd {x} dans {place}",
        "donne {x} à un ami",
    ),
    places=("la maison", "le jardin", "la ville", "l'école", "le parc", "la cuisine", "le village"),
    months=(
        *("janvier", "février", "mars", "avril", "mai", "juin", "juillet"),
        *("août", "septembre", "octobre", "novembre", "décembre"),
    ),
    days=("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"),
    count_heads=("Compte en montant :", "Compte en descendant :"),
)

HELD_OUT_NOUNS = {
    "english": ("chair", "table", "car", "lamp", "tree", "guitar", "helmet", "violin", "dax", "xolo", "afze"),
    "french": ("chaise", "table", "voiture", "lampe", "guitare", "tente", "dax", "xolo", "afze"),
}
"""Nouns that are not in the corpus."""
