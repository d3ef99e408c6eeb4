"""NetHack's tasks described in words."""

import random

import gymnasium
import pytest

nethack = pytest.importorskip("nle.nethack")

from groundling.envs.bundled import TASKS, WORDS  # noqa: E402
from groundling.envs.nethack import ACTIONS  # noqa: E402
from groundling.envs.nethack.glyph_words import BLOCKED, DOOR, FOOD, KICKABLE, MONSTER, glyph_tables  # noqa: E402
from groundling.envs.nethack.tasks import NetHackScore  # noqa: E402
from groundling.envs.nethack.words import NetHackWords, make_words  # noqa: E402
from groundling.envs.vector import TextVectorEnv  # noqa: E402
from groundling.errors import ConfigError, RunError  # noqa: E402
from tests.envs.nethack.game import FakeNetHack, Shown  # noqa: E402

NEWT = next(number for number in range(381) if nethack.permonst(number).mname == "newt")
WALL, DOORWAY, OPEN_DOOR, CLOSED_DOOR, FLOOR, UP, DOWN = (
    nethack.GLYPH_CMAP_OFF + number for number in (1, 12, 13, 15, 19, 23, 24)
)
X, Y, HP, MOST_HP, DEPTH, HUNGER, CONDITION = 0, 1, 10, 11, 12, 21, 25
STATS = {X: 10, Y: 5, HP: 3, MOST_HP: 14, DEPTH: 1, HUNGER: 1, 18: 1, 13: 7}
FLOORS = {(y, x): FLOOR for y in range(3, 8) for x in range(8, 13)}


def object_glyph(name: str) -> int:
    return nethack.GLYPH_OBJ_OFF + next(
        number for number in range(nethack.NUM_OBJECTS) if nethack.objdescr.from_idx(number).oc_name == name
    )


def shown(*screens: Shown, **args: object) -> tuple[NetHackWords, dict[str, object]]:
    """Return an env whose game shows the screens, after the first one, and that observation's info."""
    env = make_words("score", **args)
    env.reset(seed=0)
    for name in ("inv_strs", "inv_letters", "inv_oclasses"):
        env._task.arrays[name][:] = 0
    env._task.nethack = FakeNetHack(env._task, [*screens])
    env._place, env._below = (), -1
    return env, env._observe(None)[1]


def play(env: gymnasium.Env, seed: int, num_steps: int) -> list[object]:
    rng, (text, info) = random.Random(seed), env.reset(seed=seed)
    seen: list[object] = []
    for _ in range(num_steps):
        seen.append((text, info["actions"]))
        text, reward, terminated, truncated, info = env.step(rng.choice(info["actions"]))
        seen.append(reward)
        if terminated or truncated:
            text, info = env.reset()
    return seen


@pytest.mark.parametrize(
    ("glyph", "phrase", "properties"),
    [
        (NEWT, "a newt", MONSTER | KICKABLE),
        (nethack.GLYPH_PET_OFF + NEWT, "a tame newt", MONSTER | KICKABLE),
        (nethack.GLYPH_BODY_OFF + NEWT, "a newt corpse", FOOD | KICKABLE),
        (nethack.GLYPH_STATUE_OFF + NEWT, "a statue of a newt", 0),
        (nethack.GLYPH_INVIS_OFF, "an unseen monster", MONSTER | KICKABLE),
        (nethack.GLYPH_WARNING_OFF, "a sensed monster", MONSTER | KICKABLE),
        (nethack.GLYPH_CMAP_OFF, "", BLOCKED),
        (WALL, "", BLOCKED),
        (FLOOR, "", 0),
        (DOORWAY, "a doorway", 0),
        (OPEN_DOOR, "an open door", DOOR),
        (CLOSED_DOOR, "a closed door", DOOR | KICKABLE),
        (UP, "a staircase up", 0),
        (DOWN, "a staircase down", 0),
        (nethack.NO_GLYPH, "", 0),
        (nethack.GLYPH_SWALLOW_OFF, "", 0),
    ],
)
def test_tables_name_known_glyphs(glyph: int, phrase: str, properties: int) -> None:
    phrases, seen, table = glyph_tables()
    assert (phrases[glyph], bool(seen[glyph]), table[glyph]) == (phrase, bool(phrase), properties)


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("apple", "an apple"),
        ("gold piece", "some gold"),
        ("elven dagger", "a runed dagger"),
        ("healing", "a potion"),
        ("magic mapping", "a scroll"),
        ("wishing", "a wand"),
        ("speed boots", "some boots"),
        ("helm of telepathy", "a helmet"),
        ("cloak of displacement", "a cloak"),
        ("ruby", "a gem"),
        ("luckstone", "a gray stone"),
        ("bag of holding", "a bag"),
    ],
)
def test_objects_are_named_by_what_the_hero_sees(name: str, phrase: str) -> None:
    glyph = object_glyph(name)
    if name == "ruby":
        glyph = nethack.GLYPH_OBJ_OFF + 413  # 163 is the ring
    assert glyph_tables().phrases[glyph] == phrase


def test_things_are_described_nearest_first() -> None:
    glyphs = FLOORS | {(5, 10): 327, (5, 13): CLOSED_DOOR, (4, 9): NEWT, (9, 11): DOWN, (1, 30): UP}
    _, info = shown(Shown("Hello!", STATS, glyphs=glyphs), most_seen=3)
    assert info["descriptions"] == [
        "Hello!",
        "You have 3 of 14 hit points, 7 gold and level 1 at depth 1",
        "You see a newt 1 step northwest",
        "You see a closed door 3 steps east",
        "You see a staircase down 4 steps south",
    ]


def test_walls_and_diagonal_doors_are_not_admissible() -> None:
    glyphs = {(5, 9): WALL, (4, 10): FLOOR, (4, 11): OPEN_DOOR, (5, 11): CLOSED_DOOR, (6, 10): NEWT}
    _, info = shown(Shown("", STATS, glyphs=glyphs))
    moves = ["go north", "go far north", "go east", "go south"]
    assert info["actions"] == [*moves, "search", "wait", "kick"]
    _, info = shown(Shown("", STATS | {CONDITION: nethack.BL_MASK_BLIND}, glyphs=glyphs))
    assert "go southwest" in info["actions"]  # may be unexplored
    assert "You have 3 of 14 hit points, 7 gold and level 1 at depth 1, and are blind" in info["descriptions"]


def test_questions_are_answered_with_their_keys() -> None:
    glyphs = FLOORS | {(5, 11): CLOSED_DOOR}
    screens = [
        Shown("", STATS, glyphs=glyphs),
        Shown("In what direction? ", STATS, question=True, glyphs=glyphs),
        Shown("WHAMM!", STATS, glyphs=glyphs),
        Shown("Really attack the gnome?", STATS, question=True, glyphs=glyphs),
        Shown("There is a newt corpse here; eat it? [ynq] (n) ", STATS, question=True, glyphs=glyphs),
    ]
    env, info = shown(*screens)
    answers = []
    for action in ("kick", "kick east", "go far west", "no"):
        _, _, _, _, info = env.step(action)
        answers.append(info["actions"])
    assert [answers[0], *answers[2:]] == [["kick east", "cancel"], ["yes", "no"], ["yes", "no"]]
    assert info["descriptions"][0] == "There is a newt corpse here; eat it?"
    assert env._task.nethack.keys == [ord("\x04"), ord("l"), ord("H"), ord("n")]
    with pytest.raises(RunError, match="'kick' is not an admissible action: expected one of yes, no"):
        env.step("kick")


def test_food_is_offered_by_name() -> None:
    env = make_words("score")
    _, info = env.reset(seed=0)
    assert "eat" in info["actions"]
    _, _, _, _, info = env.step("eat")
    assert info["descriptions"][0] == "What do you want to eat?"
    assert info["actions"] == ["eat 5 uncursed food rations", "cancel"]
    _, _, _, _, info = env.step("cancel")
    assert "search" in info["actions"]


def test_stairs_are_offered_where_the_hero_stands() -> None:
    env = make_words("score")
    _, info = env.reset(seed=0)
    assert "You stand on a staircase up" in info["descriptions"]
    assert not {"go up", "go down"} & {*info["actions"]}  # the stairs up of the first level end the game


@pytest.mark.parametrize("seed", [0, 3])
def test_equal_seeds_give_equal_texts(seed: int) -> None:
    first, other = make_words("score"), make_words("score")
    other.reset(seed=99)
    assert play(first, seed, 300) == play(other, seed, 300)


def test_episodes_are_those_of_the_symbolic_task() -> None:
    words, symbols = make_words("score"), NetHackScore()
    (_, info), _, rng = words.reset(seed=5), symbols.reset(seed=5), random.Random(0)
    for _ in range(200):
        action = rng.choice(info["actions"])
        key = words._admissible[action]
        _, reward, *ended, info = words.step(action)
        _, symbolic_reward, *symbolic_ended, _ = symbols.step(key)
        assert (reward, ended, words._task.message) == (symbolic_reward, symbolic_ended, symbols.message)
        if any(ended):
            break


def test_runs_resume_in_the_middle_of_a_game() -> None:
    envs = TextVectorEnv.make("NetHackWords-Score-v1", 2, seed=1)
    envs.reset()
    rng = random.Random(0)
    for _ in range(60):
        envs.step([rng.randrange(len(one.actions)) for one in envs.observations()])
    again = TextVectorEnv.make("NetHackWords-Score-v1", 2, seed=1)
    again.load_state_dict(envs.state_dict())
    assert again.observations() == envs.observations()
    assert again.may_differ and not again.remote


def test_a_game_that_differs_starts_again() -> None:
    envs = TextVectorEnv.make("NetHackWords-Score-v1", 1, seed=1)
    envs.reset()
    state = envs.state_dict()
    state[0]["seen"] = "another shop"
    with pytest.warns(UserWarning, match="produces different episodes for the same seed"):
        envs.load_state_dict(state)


def test_shopkeepers_have_no_names() -> None:
    screens = [
        Shown('"Hello, agent! Welcome to Akalapi\'s general store!"', STATS, glyphs=FLOORS),
        Shown("Akalapi says that your bill comes to 3 zorkmids.", STATS, glyphs=FLOORS),
    ]
    env, info = shown(*screens)
    assert info["descriptions"][0] == '"Hello, agent! Welcome to the shopkeeper\'s general store!"'
    _, _, _, _, info = env.step("search")
    assert info["descriptions"][0] == "the shopkeeper says that your bill comes to 3 zorkmids."


def test_the_step_limit_ends_an_episode_with_metrics() -> None:
    env = gymnasium.make("NetHackWords-StaircaseLvl3-v1", max_episode_steps=2, disable_env_checker=True)
    _, info = env.reset(seed=0)
    assert info["goal"] == "find the stairs down and descend to level 3"
    assert "metrics" not in env.step("search")[-1]
    _, _, terminated, truncated, info = env.step("search")
    assert (terminated, truncated, info["success"], info["metrics"]["depth"]) == (False, True, False, 1.0)


def test_every_task_is_registered() -> None:
    assert len(WORDS) == len(TASKS) == 9
    assert {*WORDS} < {*gymnasium.registry}
    assert make_words(**WORDS["NetHackWords-OracleSober-v1"]).reset(seed=0)[1]["goal"].startswith("find the Oracle")
    assert make_words("staircase").reset(seed=0)[1]["goal"].endswith("level 2")


def test_the_explorer_plays() -> None:
    env = make_words("score")
    _, info = env.reset(seed=3)
    for _ in range(150):
        _, _, terminated, truncated, info = env.step(info["actions"][env.explore()])
        assert not (terminated or truncated)
    assert env._task.figures()["dlvl"] > 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"most_seen": -1}, "most_seen must be a whole number"),
        ({"most_seen": 2.5}, "most_seen must be a whole number"),
        ({"savedir": "/tmp/x"}, "savedir is not an argument"),
    ],
)
def test_invalid_arguments_are_refused(args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_words("score", **args)


def test_actions_are_the_tasks_keys() -> None:
    env = make_words("score")
    env.reset(seed=0)
    assert {*env._admissible.values()} <= {*range(len(ACTIONS))}
