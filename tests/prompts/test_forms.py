"""Several forms of one prompt: each says all, an episode keeps its own, and every form can be tested."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groundling.cli import main
from groundling.configs.compose import compose
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy
from groundling.prompts import PromptReader, brief_prompt, glam_prompt, narrative_prompt, tagged_prompt

_SEEN = TextObservation(
    goal="go to a red ball",
    descriptions=(("You see a wall", "You see a key"), ("You see a red ball",)),
    past_actions=("turn left",),
    actions=("turn left", "go forward"),
    raw={},
)
_FORMS = ["glam", "brief", "tagged", "narrative"]


@pytest.mark.parametrize("language", ["english", "french"])
@pytest.mark.parametrize("form", ["glam", "tagged", "narrative"])
def test_a_form_says_all_in_its_order(form: str, language: str) -> None:
    text = PromptReader(form, language)(_SEEN)
    for words in (_SEEN.goal, *_SEEN.actions, *_SEEN.descriptions[0], *_SEEN.descriptions[1]):
        assert words in text
    wall, ball = text.index("You see a wall"), text.index("You see a red ball")
    assert wall < text.index("turn left", wall) < ball  # what was done in between


def test_the_forms_to_the_letter() -> None:
    told = (_SEEN.goal, _SEEN.actions, _SEEN.descriptions, _SEEN.past_actions)
    assert tagged_prompt(*told) == (
        "<goal>go to a red ball</goal>\n<actions>turn left, go forward</actions>\n"
        "<view>You see a wall; You see a key</view>\n<action>turn left</action>\n"
        "<view>You see a red ball</view>\n<action>"
    )
    assert narrative_prompt(*told) == (
        "You see a wall. You see a key. You choose to turn left. You see a red ball. "
        "You can turn left, go forward. Your task is to go to a red ball. You choose to"
    )


def test_an_episode_is_told_in_one_form_and_episodes_in_all() -> None:
    reader = PromptReader(_FORMS)
    texts = [PromptReader(form)(_SEEN) for form in _FORMS]
    for seeds in ([training_seed(1, 0, n) for n in range(400)], [held_out_seed(n) for n in range(400)]):
        told = [texts.index(reader(replace(_SEEN, episode=seed))) for seed in seeds]
        # Shares of a quarter, each with a deviation of 0.022 of 400.
        assert all(0.15 < told.count(form) / 400 < 0.35 for form in range(4))
    later = replace(_SEEN, goal="open a door", episode=seeds[0])
    assert reader(later) == PromptReader(_FORMS[told[0]])(later)


def test_envs_tell_the_episode_that_they_are_in() -> None:
    envs = TextVectorEnv.make("BabyAI-GoToRedBallNoDists-v0", 2, history=1, seed=3)
    first = envs.reset()
    assert [o.episode for o in first] == [training_seed(3, 0, 0), training_seed(3, 1, 0)]
    seen = {o.episode for o in first}
    for _ in range(70):  # an episode has 64 steps at most
        seen |= {o.episode for o in envs.step([0, 0]).observations}
    assert seen >= {training_seed(3, env, episode) for env in range(2) for episode in range(2)}
    envs.close()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["glam", "glam"], "each once, got"),
        ([], "must name 1 or more"),
        ([["glam"]], "must name 1 or more"),
        (["glam", "breif"], "did you mean 'brief'"),
    ],
)
def test_lists_that_cannot_be(ids: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptReader(ids)


def test_texts_and_conversations_are_not_mixed() -> None:
    lm = LanguageModel.from_pretrained("starter-causal")
    policy = ActionScoringPolicy(lm, prompt=["glam", "conversation"], value_hidden_sizes=(8,))
    with pytest.raises(ConfigError, match="some of the prompts are texts, and others conversations"):
        policy.act([replace(_SEEN, episode=2 * n) for n in range(2)])


def test_a_config_names_one_or_several() -> None:
    assert compose("demo", ["policy.args.prompt=[glam,brief]"]).policy.args["prompt"] == ["glam", "brief"]
    with pytest.raises(ConfigError, match=r"policy\.args\.prompt must be text, got 3"):
        compose("demo", ["policy.args.prompt=3"])
    with pytest.raises(ConfigError, match=r"policy\.args\.prompt must be .*'glam': 1"):
        compose("demo", ["policy.args.prompt={glam: 1}"])


def test_every_form_is_a_suite(tmp_path: Path) -> None:
    """An agent that was made for one form is asked in each."""
    words = [
        "train",
        "demo-easy",
        "model.path=starter-causal",
        "policy.args.prompt=brief",
        "training.steps=40",
    ]
    words += ["world.num_envs=2", "world.num_steps=20", f"run_dir={tmp_path}", "device=cpu"]
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path), "--suite", "forms", "--episodes", "1"]) == 0
    begins = {form: PromptReader(form)(_SEEN)[:4] for form in _FORMS} | {"narrative": "You "}
    for form in _FORMS:
        assert (tmp_path / f"evaluation/form-{form}.json").exists()
        (sample, *_) = json.loads((tmp_path / f"samples/form-{form}.json").read_text())
        assert sample["steps"][0]["prompt"].startswith(begins[form])


def test_brief_and_glam_are_as_they_were() -> None:
    told = (_SEEN.goal, _SEEN.descriptions, _SEEN.past_actions)
    assert PromptReader("brief")(_SEEN) == brief_prompt(*told)
    assert PromptReader("glam")(_SEEN) == glam_prompt(_SEEN.goal, _SEEN.actions, *told[1:])
