"""Tests of text worlds with recordings of the original, hand-written expectations, and Gymnasium's checker."""

import itertools

import gymnasium
import minigrid  # noqa: F401
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_OBJECT

import groundling  # noqa: F401  (registers)
from groundling.envs.babyai_text import LEVELS, MIXED_TASKS, Expert, describe
from groundling.envs.babyai_text.levels import ExpertError
from groundling.envs.make import make_text_env
from groundling.envs.text_env import TranslationError
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from tests.data import golden
from tests.thorough import some_of, thorough

_COLOURS = dict(
    zip(
        ("red", "green", "blue", "purple", "yellow", "grey"),
        ("rouge", "verte", "bleue", "violette", "jaune", "grise"),
        strict=True,
    )
)
_NOUNS = {"key": "clef", "ball": "balle", "box": "boîte"}


def _carried_in_french(sentence: str) -> str:
    """Return the original's French sentence with the carried object also in French."""
    if not sentence.startswith("Tu portes une "):
        return sentence
    kind, colour = sentence.removeprefix("Tu portes une ").split()
    return f"Tu portes une {_NOUNS[kind]} {_COLOURS[colour]}"


def test_descriptions_equal_recorded_ones() -> None:
    cases = golden("glam_descriptions")
    assert len(cases) == 304
    for case in cases:
        image = np.array(case["image"], dtype=np.uint8)
        carrying = case["carrying"]
        assert describe(image, carrying) == case["descriptions"]
        assert describe(image, carrying, "french", compat="glam") == case["descriptions_fr"]
        assert describe(image, carrying, "french") == [_carried_in_french(s) for s in case["descriptions_fr"]]
        assert describe(case["image"], carrying and tuple(carrying)) == case["descriptions"]  # also with plain lists


def _empty() -> np.ndarray:
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[..., 0] = 1
    return image


def test_rules_of_descriptions() -> None:
    image = _empty()
    assert describe(image) == []
    image[3, 4] = (2, 5, 0)
    image[0, 6] = (2, 5, 0)
    image[4, 6] = (5, 4, 0)  # a key stands before the wall on the right, so that the wall is not described
    image[6, 6] = (2, 5, 0)
    assert describe(image) == [
        "You see a wall 2 steps forward",
        "You see a wall 3 steps left",
        "You see a yellow key 1 step right",
    ]
    image[3, 5] = (0, 0, 0)  # an unseen cell does not end a ray
    assert describe(image)[0] == "You see a wall 2 steps forward"
    image[3, 6] = (6, 0, 0)  # a carried object is in the agent's own cell and is described once
    assert describe(image, ["ball", "red"])[0] == "You carry a red ball"
    assert len(describe(image, ["ball", "red"])) == 4


@pytest.mark.parametrize(("state", "english", "french"), [(0, "open", "ouverte"), (1, "closed", "fermée")])
def test_doors_have_a_state(state: int, english: str, french: str) -> None:
    image = _empty()
    image[1, 2] = (4, 3, state)
    assert describe(image) == [f"You see a {english} purple door 2 steps left and 4 steps forward"]
    sentence = f"Tu vois une porte violette {french} 2 pas à gauche et 4 pas devant"
    assert describe(image, language="french") == [sentence]


@given(st.lists(st.tuples(st.sampled_from(sorted(IDX_TO_OBJECT)), st.integers(0, 5)), min_size=49, max_size=49))
def test_each_visible_thing_has_one_sentence(cells: list[tuple[int, int]]) -> None:
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    for (i, j), (kind, colour) in zip(itertools.product(range(7), range(7)), cells, strict=True):
        image[i, j] = (min(kind, 9), colour, 0)
    things = int((image[..., 0] >= 3).sum() - (image[3, 6, 0] >= 3))
    sentences = describe(image)
    assert len([s for s in sentences if " wall " not in s]) == things
    assert len(describe(image, language="french")) == len(sentences)


@pytest.mark.parametrize("case", golden("glam_resets"), ids=lambda c: f"{c['env'][7:-3]}-{c['kind']}-{c['seed']}")
def test_the_original_generator_repeats_recorded_resets(case: dict) -> None:
    options = {} if case["kind"] is None else {"task": case["kind"]}
    env = gymnasium.make(case["env"], generator="original", **options)
    observation, info = env.reset(seed=case["seed"])
    level = env.unwrapped
    assert observation["mission"] == case["mission"]
    assert level.grid.encode().tolist() == case["grid"]
    assert [*map(int, level.agent_pos)] == case["agent_pos"] and level.agent_dir == case["agent_dir"]
    assert observation["image"].tolist() == case["image"]
    assert level.max_steps == case["max_steps"]
    assert info["descriptions"] == case["descriptions"]


def test_the_original_generator_repeats_recorded_episodes() -> None:
    cases = golden("glam_episodes")
    assert len(cases) == 20
    for case in cases:
        options = {} if case["kind"] is None else {"task": case["kind"]}
        env = gymnasium.make(case["env"], generator="original", **options)
        assert env.reset(seed=case["seed"])[0]["mission"] == case["mission"]
        for action, reward, done, descriptions, carried in case["steps"]:
            _, own_reward, terminated, truncated, info = env.step(action)
            carrying = env.unwrapped.carrying
            assert own_reward == pytest.approx(reward)
            assert (terminated or truncated) == done
            assert info["descriptions"] == descriptions
            assert (carrying and [carrying.type, carrying.color]) == carried


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
@pytest.mark.parametrize("id", LEVELS)
@pytest.mark.parametrize("language", ["english", "french"])
def test_registered_envs_pass_gymnasiums_checker(id: str, language: str) -> None:
    env = gymnasium.make(id, language=language, disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    check_env(env, skip_render_check=True)  # also with descriptions
    observation, info = env.reset(seed=3)
    assert isinstance(observation["mission"], str)
    assert info["descriptions"] and all(isinstance(s, str) for s in info["descriptions"])
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("generator", ["direct", "original"])
@pytest.mark.parametrize("id", LEVELS)
def test_equal_seeds_give_equal_episodes_in_all_instances(id: str, generator: str) -> None:
    one, other = (gymnasium.make(id, generator=generator) for _ in range(2))
    other.reset(seed=99)  # earlier episodes have no effect
    rng = np.random.default_rng(0)
    for seed in range(5):
        results = [env.reset(seed=seed) for env in (one, other)]
        for _ in range(20):
            assert results[0][0]["mission"] == results[1][0]["mission"]
            assert np.array_equal(results[0][0]["image"], results[1][0]["image"])
            assert results[0][-1] == results[1][-1]
            action = int(rng.integers(6))
            results = [env.step(action) for env in (one, other)]


def test_the_task_is_drawn_at_each_reset_or_fixed() -> None:
    env = gymnasium.make("BabyAI-MixedTrainLocal-v0")
    tasks = [env.reset(seed=s) and env.unwrapped.current_task for s in range(60)]
    assert set(tasks) == set(MIXED_TASKS)
    fixed = gymnasium.make("BabyAI-MixedTrainLocal-v0", task="putnext")
    assert all(fixed.reset(seed=s)[0]["mission"].startswith("put ") for s in range(10))
    once = [gymnasium.make("BabyAI-MixedTrainLocal-v0", draw_task="construction") for _ in range(12)]
    kept = [{env.reset(seed=s) and env.unwrapped.current_task for s in range(5)} for env in once]
    assert all(len(tasks) == 1 for tasks in kept)
    assert len(set.union(*kept)) > 1


@pytest.mark.parametrize("episodes", [100, *thorough(500)])
@pytest.mark.parametrize("id", ["BabyAI-MixedTestLocal-v0", *thorough("BabyAI-MixedTrainLocal-v0")])
def test_the_split_is_kept_and_the_expert_solves_it(id: str, episodes: int) -> None:
    env, solved = gymnasium.make(id), 0
    expert = Expert(env)
    held_out = ("yellow box", "red key", "red door", "green ball", "grey door")
    for seed in range(episodes):
        mission = env.reset(seed=seed)[0]["mission"]
        nouns = [" ".join(pair) for pair in itertools.pairwise(mission.replace(",", "").split())]
        nouns = [n for n in nouns if n.split()[0] in COLOR_TO_IDX and n.split()[1] in (*_NOUNS, "door")]
        assert nouns or mission == "open the door"
        assert all((n in held_out) == ("Test" in id) for n in nouns)
        reward, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(expert.act())
            ended = terminated or truncated
        solved += reward > 0
    assert solved >= 0.99 * episodes


@pytest.mark.parametrize("id", ["BabyAI-MixedTestLocal-v0", *thorough("BabyAI-MixedTrainLocal-v0")])
@pytest.mark.parametrize("task", some_of(MIXED_TASKS, ["goto", "open"]))
def test_the_direct_generator_draws_what_the_rejecting_one_draws(id: str, task: str) -> None:
    """The frequencies in two samples differ by no more than expected by chance (chi-squared, 5 deviations)."""
    num_resets = 250
    if id == "BabyAI-MixedTestLocal-v0" and task in ("putnext", "pick up seq go to"):
        num_resets = 60  # the original rejects a hundred levels for each of these
    counts: list[dict[object, int]] = [{}, {}]
    for k, generator in enumerate(("direct", "original")):
        env = gymnasium.make(id, task=task, generator=generator)
        for seed in range(num_resets):
            mission = env.reset(seed=seed)[0]["mission"]
            cells = env.unwrapped.grid.encode()  # (width, height, 3)
            things = [tuple(c[:2]) for c in cells.reshape(-1, 3).tolist() if c[0] >= 4]
            features = [
                ("first noun", mission.split(" next to ")[0].split(",")[0][-10:]),
                ("article", " a " in mission),
                ("form", "after" in mission),
                ("agent", *(int(x) // 3 for x in env.unwrapped.agent_pos)),
                *(("thing", thing) for thing in things),
            ]
            for feature in features:
                counts[k][feature] = counts[k].get(feature, 0) + 1
    keys = set(counts[0]) | set(counts[1])
    statistic = sum(
        (counts[0].get(f, 0) - counts[1].get(f, 0)) ** 2 / (counts[0].get(f, 0) + counts[1].get(f, 0)) for f in keys
    )
    assert len(keys) > 10
    assert statistic < len(keys) + 5 * (2 * len(keys)) ** 0.5


def test_all_minigrid_envs_are_described() -> None:
    for id in ("BabyAI-BossLevel-v0", "MiniGrid-LavaGapS7-v0", "BabyAI-GoToRedBallNoDists-v0"):
        env = make_text_env(id)
        _, info = env.reset(seed=0)
        assert info["descriptions"] == describe(env.reset(seed=0)[0]["image"])
        assert isinstance(env.step(2)[4]["descriptions"], list)
    french = make_text_env("BabyAI-GoToLocal-v0", language="french")
    assert french.reset(seed=0)[0]["mission"].startswith("aller à ")


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="'goto'"):
        gymnasium.make("BabyAI-MixedTrainLocal-v0", task="go to")
    with pytest.raises(ConfigError, match="direct, original"):
        gymnasium.make("BabyAI-MixedTrainLocal-v0", generator="fast")
    with pytest.raises(ConfigError, match="'goto'"):
        gymnasium.make("BabyAI-MixedTrainLocal-v0", tasks=["gotoo"])
    for nothing in ("goto", []):
        with pytest.raises(ConfigError, match="expected a list with at least one of goto, pickup"):
            gymnasium.make("BabyAI-MixedTrainLocal-v0", tasks=nothing)
    with pytest.raises(ConfigError, match="BabyAI-GoToLocal-v0"):
        make_text_env("BabyAI-GoToLocl-v0")
    with pytest.raises(TranslationError, match="english, french"):
        make_text_env("BabyAI-GoToLocal-v0", language="german")
    with pytest.raises(ConfigError, match="15: expected an integer from 0 to 14"):
        gymnasium.make("BabyAI-MixedTrainLocal-v0", num_dists=15)
    with pytest.raises(ValueError, match="56, 56"):
        describe(np.zeros((56, 56), dtype=np.uint8))
    with pytest.raises(ExpertError, match="the expert is BabyAI's bot"):
        Expert(gymnasium.make("MiniGrid-Empty-8x8-v0"))
    with pytest.raises(ExpertError, match="first reset"):
        Expert(gymnasium.make("BabyAI-GoToLocal-v0")).act()


@pytest.mark.parametrize("id", ["BabyAI-GoToLocalS6N3-v0", "BabyAI-MixedTrainLocal-v0", "MiniGrid-Empty-5x5-v0"])
def test_without_walls_the_other_sentences_stay(id: str) -> None:
    told, short = (TextVectorEnv.make(id, 8, seed=2, history=1, **args) for args in ({}, {"describe_walls": False}))
    told.reset()
    short.reset()
    for number in range(40):
        for whole, brief in zip(told.observations(), short.observations(), strict=True):
            things = [text for text in whole.descriptions[-1] if "a wall " not in text]
            assert list(brief.descriptions[-1]) == (things or ["You see nothing"])
        told.step([number % 3] * 8)
        short.step([number % 3] * 8)


def test_describe_walls_is_true_or_false_and_control_may_be_null() -> None:
    for id in ("BabyAI-GoToLocalS6N3-v0", "BabyAI-MixedTrainLocal-v0"):
        with pytest.raises(ConfigError, match="describe_walls must be true or false, got 'no'"):
            make_text_env(id, describe_walls="no")
    assert make_text_env("test/Corridor-v0", control=None).reset(seed=0)
