import pytest

from groundling.envs.babyai_text import TranslationError
from groundling.prompts import glam_prompt
from tests.data import golden


def test_every_recorded_prompt_to_the_letter() -> None:
    cases = golden("glam_prompts")
    assert len(cases) == 40
    for case in cases:
        parts = (case["goal"], case["subgoals"], case["deque_obs"], case["deque_actions"])
        assert glam_prompt(*parts) == case["prompt"]
        assert glam_prompt(*parts, language="french") == case["prompt_fr"]


def test_the_form_with_one_observation_and_with_none_in_sight() -> None:
    expected = (
        "Possible action of the agent: turn left, go forward \n Goal of the agent: go to the red ball"
        " \n Observation 0: You see a red ball 1 step left, \n Action 0: "
    )
    assert glam_prompt(
        "go to the red ball", ["turn left", "go forward"], [["You see a red ball 1 step left"]], []
    ) == (expected)
    assert glam_prompt("g", ["a"], [[]], []) == (
        "Possible action of the agent: a \n Goal of the agent: g \n Observation 0: \n Action 0: "
    )


def test_a_french_mission_stands_as_it_is() -> None:
    prompt = glam_prompt(
        "ouvrir la porte bleue", ["toggle"], [["Tu vois un mur à 1 pas devant"]], [], "french"
    )
    assert "But de l'agent: ouvrir la porte bleue \n" in prompt
    with pytest.raises(TranslationError, match="german"):
        glam_prompt("g", ["a"], [[]], [], "german")
