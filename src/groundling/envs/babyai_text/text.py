"""Textual descriptions of BabyAI and MiniGrid envs."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, SupportsFloat

import gymnasium
import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.envs.babyai.core import roomgrid_level
from numpy.typing import ArrayLike

from groundling.envs.babyai_text.grounding import (
    CONTROLS,
    InteractionTracker,
    asked_first,
    descriptions,
    scramble,
    swap,
)
from groundling.envs.babyai_text.levels import LocalLevel
from groundling.envs.babyai_text.missions import change_things, translate_mission
from groundling.envs.babyai_text.sight import use_lookup_tables
from groundling.envs.text_env import (
    FRENCH_COLOURS,
    FRENCH_NOUNS,
    FRENCH_STATES,
    Language,
    TranslationError,
    check_language,
)
from groundling.errors import ConfigError, unknown

_UNSEEN, _EMPTY, _WALL = OBJECT_TO_IDX["unseen"], OBJECT_TO_IDX["empty"], OBJECT_TO_IDX["wall"]
_PASSED = bytes((_UNSEEN, _EMPTY))  # cells that do not end a ray
_FIRST_THING = 1 + max(_UNSEEN, _EMPTY, _WALL)  # floor, door, key, ball, box, goal, lava
_FORWARD: dict[Language, str] = {"english": "forward", "french": "devant"}
_LEFT: dict[Language, str] = {"english": "left", "french": "à gauche"}
_RIGHT: dict[Language, str] = {"english": "right", "french": "à droite"}
_STATES = {index: name for name, index in STATE_TO_IDX.items()}


def describe(
    image: ArrayLike,
    carrying: Any = None,
    language: str = "english",
    compat: Literal["glam"] | None = None,
    walls: bool = True,
) -> list[str]:
    """Describe an egocentric view in sentences.

    The carried object comes first, then the unobstructed walls ahead, left and right, then everything else in view,
    column by column from the left, and from far to near within a column.

    Args:
        image: Minigrid's symbolic view, uint8 ``(width, height, 3)``: column, row, and [object, colour, state]. The
            agent is in the middle of the last row.
        carrying: The carried object: a Minigrid ``WorldObj``, a pair (type, colour), or None.
        language: ``english`` or ``french``.
        compat: ``glam`` keeps the carried object in English inside the French sentence, as the original does.
        walls: Include sentences about walls, which make up about half of the sentences in a room.

    Returns:
        The sentences, such as ``You see a red ball 2 steps left and 1 step forward``.

    Raises:
        TranslationError: The language is unknown.
        ValueError: The image is not a symbolic view.
    """
    spoken = check_language(language)
    view = np.asarray(image)
    if view.ndim != 3 or view.shape[2] != 3:
        raise ValueError(f"the image has shape {view.shape}: expected (width, height, 3), Minigrid's symbolic view")
    width, height = view.shape[:2]
    codes = view.reshape(-1).tolist()  # cell by cell, column-major: object, colour, state
    kinds = bytes(codes[::3])
    agent_cell = (width // 2) * height + height - 1
    sentences = []
    if carrying is not None:
        thing, colour = carrying if isinstance(carrying, list | tuple) else (carrying.type, carrying.color)
        english, french = (thing, colour), (FRENCH_NOUNS[thing], FRENCH_COLOURS[colour])
        noun, adjective = english if compat == "glam" else french
        sentences = [f"You carry a {colour} {thing}" if spoken == "english" else f"Tu portes une {noun} {adjective}"]
    rays = (
        (_FORWARD[spoken], kinds[agent_cell - height + 1 : agent_cell][::-1]),
        (_LEFT[spoken], kinds[height - 1 : agent_cell : height][::-1]),
        (_RIGHT[spoken], kinds[agent_cell + height :: height]),
    )
    for direction, ray in rays if walls else ():
        met = ray.lstrip(_PASSED)  # unseen cells do not end a ray
        if met and met[0] == _WALL:
            steps = _steps(len(ray) - len(met) + 1, spoken)
            wall = "You see a wall" if spoken == "english" else "Tu vois un mur à"
            sentences.append(f"{wall} {steps} {direction}")
    for cell, kind in enumerate(kinds):
        if kind >= _FIRST_THING and cell != agent_cell:
            right, ahead = cell // height - width // 2, height - 1 - cell % height
            sentences.append(_thing(kind, codes[3 * cell + 1], codes[3 * cell + 2], right, ahead, spoken))
    return sentences


@lru_cache(maxsize=65536)
def _thing(kind: int, colour: int, state: int, right: int, ahead: int, language: Language) -> str:
    """Describe an object; the original's grammatical errors, such as "a open door" and "une but", are kept."""
    noun, adjective = IDX_TO_OBJECT[kind], IDX_TO_COLOR[colour]
    condition = [_STATES[state]] if noun == "door" else []
    sideways = _RIGHT if right > 0 else _LEFT
    places = [f"{_steps(abs(right), language)} {sideways[language]}"] if right else []
    places += [f"{_steps(ahead, language)} {_FORWARD[language]}"] if ahead else []
    if language == "english":
        return f"You see a {' '.join([*condition, adjective, noun])} {' and '.join(places)}"
    words = [FRENCH_NOUNS[noun], FRENCH_COLOURS[adjective], *(FRENCH_STATES[state] for state in condition)]
    return f"Tu vois une {' '.join(words)} {' et '.join(places)}"


def _steps(count: int, language: Language) -> str:
    return f"{count} pas" if language == "french" else f"{count} step" if count == 1 else f"{count} steps"


ACTIONS: dict[Language, tuple[str, ...]] = {
    "english": ("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
    "french": ("tourner à gauche", "tourner à droite", "aller tout droit", "ramasser", "lâcher", "basculer"),
}  # GLAM's action names by language; the i-th name is Minigrid's action i
NOTHING: dict[Language, str] = {"english": "You see nothing", "french": "Tu ne vois rien"}

Observation = dict[str, Any]


def translate_actions(actions: Sequence[str], language: str) -> list[str]:
    """Translate actions from `ACTIONS`; raise `TranslationError` for an unknown language or action."""
    translations = ACTIONS[check_language(language)]
    known = {name: translations[i] for names in ACTIONS.values() for i, name in enumerate(names)}
    for action in actions:
        if action not in known:
            raise TranslationError(
                f"cannot translate the action {action!r} to {language}: expected {', '.join(ACTIONS['english'])}; to "
                f"use other actions, set world.actions=[…] to all of them in {language}"
            )
    return [known[action] for action in actions]


# Minigrid prints every level that it rejects; this module-level `print` shadows the built-in function.
roomgrid_level.print = lambda *_: None  # type: ignore[attr-defined]

_MOST_RESETS = 100  # Maximum number of episodes sampled to find one to which the control applies


class BabyAIText(gymnasium.Wrapper[Observation, int, Observation, int]):
    """Adds ``descriptions``, a list of sentences, to the info, and ``task`` in levels with several task families.

    If the mission follows BabyAI's grammar, each step's info also has ``first_interaction``, which is documented in
    `groundling.envs.text_episode` and defined in `grounding`.

    Args:
        env: A MiniGrid env with its standard observation (image, direction, mission).
        language: Language of the sentences and of ``obs["mission"]``: ``english`` or ``french``.
        compat: See `describe`.
        control: One of `CONTROLS`, which changes ``obs["mission"]``, but not the env's own mission and reward.
            ``swapped`` skips episodes with no other thing to name; first interactions refer to the new thing.
        describe_walls: Include sentences about walls; if False, a view with only walls is described as `NOTHING`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Observation, int],
        language: str = "english",
        compat: Literal["glam"] | None = None,
        control: str | None = None,
        describe_walls: bool = True,
    ) -> None:
        super().__init__(env)
        use_lookup_tables(env.unwrapped)
        self.language = check_language(language)
        self.compat: Literal["glam"] | None = compat
        for name, value, known in (("compat", compat, ("glam",)), ("control", control, CONTROLS)):
            if value is not None and value not in known:
                raise ConfigError(unknown(name, str(value), known))
        if not isinstance(describe_walls, bool):
            raise ConfigError(f"describe_walls must be true or false, got {describe_walls!r}")
        self.describe_walls = describe_walls
        if control is not None and not isinstance(env.unwrapped, roomgrid_level.RoomGridLevel):
            raise ConfigError(f"{env} has no BabyAI missions that control={control} could change: remove control")
        self.control = control
        self._rng = np.random.default_rng()
        self._mission: str | None = None  # changed by the control
        self._tracker: InteractionTracker | None = None  # None if the first interaction is undefined

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; raise `ConfigError` if the control does not apply to this env's missions."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        observation, info = self.env.reset(seed=seed, options=options)
        env: Any = self.env.unwrapped
        asked, mission = asked_first(env, getattr(env, "instrs", None)), env.mission
        if self.control == "swapped":
            for _ in range(_MOST_RESETS):
                if (swapped := swap(env, asked, mission, self._rng)) is not None:
                    break
                observation, info = self.env.reset(options=options)
                asked, mission = asked_first(env, getattr(env, "instrs", None)), env.mission
            else:
                raise ConfigError(
                    f"{_MOST_RESETS} episodes in a row had no other thing that the mission {mission!r} could name: add "
                    "things to the room (num_dists=3), choose a different task, or remove control=swapped"
                )
            mission, asked = swapped
        self._mission = self._tracker = None
        if asked or self.control is not None:
            if self.language != "english":
                mission = translate_mission(mission, self.language)
            changes = {"dropped": lambda phrase: "", "scrambled": lambda phrase: scramble(phrase, self._rng)}
            change = changes.get(self.control or "", lambda phrase: phrase)
            mission, phrases = change_things(mission, change, self.language)
            described = descriptions(env.instrs)
            if self.control is not None and len(phrases) != len(described):
                raise ConfigError(
                    f"the mission {env.mission!r} does not follow BabyAI's grammar, so control={self.control} cannot "
                    "change it: remove control"
                )
            self._mission = None if self.control is None else mission
            if asked:
                first = {id(part.description) for part in asked}
                words = [phrase for phrase, d in zip(phrases, described, strict=False) if id(d) in first and phrase]
                self._tracker = InteractionTracker(env, asked, words if len(phrases) == len(described) else [])
        return self._in_words(observation, info)

    def step(self, action: int) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._in_words(observation, info)
        if self._tracker is not None:
            if action in self._tracker.actions:
                self._tracker.update(action)
            info["first_interaction"] = self._tracker.interaction
        return observation, reward, terminated, truncated, info

    def _in_words(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        unwrapped: Any = self.env.unwrapped
        info["descriptions"] = describe(
            observation["image"], unwrapped.carrying, self.language, self.compat, self.describe_walls
        )
        if not self.describe_walls and not info["descriptions"]:
            info["descriptions"] = [NOTHING[self.language]]
        if hasattr(unwrapped, "current_task"):
            info["task"] = unwrapped.current_task
        if self._mission is not None:
            observation = {**observation, "mission": self._mission}
        elif self.language != "english":
            observation = {**observation, "mission": translate_mission(observation["mission"], self.language)}
        return observation, info


def make_level(
    language: str = "english",
    compat: str | None = None,
    control: str | None = None,
    describe_walls: bool = True,
    **kwargs: object,
) -> BabyAIText:
    """Create one of `LEVELS`, wrapped in `BabyAIText`; other keyword arguments are passed to `LocalLevel`."""
    return BabyAIText(LocalLevel(**kwargs), language, compat, control, describe_walls)  # type: ignore[arg-type]
