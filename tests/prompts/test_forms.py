"""Several forms of a prompt: each contains everything, an episode keeps its form, and every form can be tested."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.prompts import Conversation, PromptReader
from groundling.training.build import world_of
from groundling.worlds.protocols import Suites
from groundling.worlds.text.world import TextWorld

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
def test_a_form_contains_everything_in_order(form: str, language: str) -> None:
    text = PromptReader(form, language)(_SEEN)
    for words in (_SEEN.goal, *_SEEN.actions, *_SEEN.descriptions[0], *_SEEN.descriptions[1]):
        assert words in text
    wall, ball = text.index("You see a wall"), text.index("You see a red ball")
    assert wall < text.index("turn left", wall) < ball  # the action taken in between


def test_the_forms_are_exact() -> None:
    assert PromptReader("tagged")(_SEEN) == (
        "<goal>go to a red ball</goal>\n<actions>turn left, go forward</actions>\n"
        "<view>You see a wall; You see a key</view>\n<action>turn left</action>\n"
        "<view>You see a red ball</view>\n<action>"
    )
    assert PromptReader("narrative")(_SEEN) == (
        "You see a wall. You see a key. You choose to turn left. You see a red ball. "
        "You can turn left, go forward. Your task is to go to a red ball. You choose to"
    )


def test_an_episode_uses_one_form_and_episodes_use_all() -> None:
    reader = PromptReader(_FORMS)
    texts = [PromptReader(form)(_SEEN) for form in _FORMS]
    for seeds in ([training_seed(1, 0, n) for n in range(400)], [held_out_seed(n) for n in range(400)]):
        forms = [texts.index(reader(replace(_SEEN, episode=seed))) for seed in seeds]
        # Each share is a quarter, with a standard deviation of 0.022 for 400.
        assert all(0.15 < forms.count(form) / 400 < 0.35 for form in range(4))
        # If an env selects its task by the seed's remainder, each task occurs in every form.
        for task in range(4):
            of_task = [form for form, seed in zip(forms, seeds, strict=True) if seed % 4 == task]
            assert all(0.05 < of_task.count(form) / len(of_task) < 0.5 for form in range(4))
    later = replace(_SEEN, goal="open a door", episode=seeds[0])
    assert reader(later) == PromptReader(_FORMS[forms[0]])(later)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["glam", "glam"], "without duplicates, got"),
        ([], "must list 1 or more"),
        ([["glam"]], "must list 1 or more"),
        (["glam", "breif"], "did you mean 'brief'"),
    ],
)
def test_invalid_lists_of_prompts_get_a_message(ids: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptReader(ids)


def test_texts_and_conversations_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match=r"'conversation'\] mixes texts with conversations \(conversation\)"):
        PromptReader(["glam", "conversation"])
    assert isinstance(PromptReader(["balrog", "conversation"]).read(_SEEN), Conversation)


def test_every_form_is_a_suite(tmp_path: Path) -> None:
    """An agent that was trained with one form is tested with each form."""
    words = [
        "train",
        "demo-easy",
        "model.path=starter-causal",
        "policy.args.prompt=brief",
        "training.steps=8",
        "world.args.max_steps=8",
        "evaluation.baselines=[]",
    ]
    words += ["world.num_envs=2", "world.num_steps=4", f"run_dir={tmp_path}", "device=cpu"]
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path), "--suite", "forms", "--episodes", "1"]) == 0
    begins = {form: PromptReader(form)(_SEEN)[:4] for form in _FORMS} | {"narrative": "You "}
    for form in _FORMS:
        assert (tmp_path / f"evaluation/form-{form}.json").exists()
        (sample, *_) = json.loads((tmp_path / f"samples/form-{form}.json").read_text())
        assert sample["steps"][0]["prompt"].startswith(begins[form])


def _suites(run: str, *overrides: str) -> dict[str, str]:
    """Return the reason why a form is incompatible with a run, by form; empty if it is compatible."""
    world = world_of(compose(run, [*overrides, "world.entropy_floor=0"]))
    assert isinstance(world, Suites)
    refused = {}
    for suite in TextWorld.find_suites("forms,introduction-1"):
        try:
            world.suite_overrides(suite, [])
        except ConfigError as error:
            refused[suite] = str(error)
    return refused


def test_suites_of_prompts_suit_policies_that_read_them() -> None:
    assert not _suites("demo-easy")
    assert not _suites("demo", "policy.args.prompt=[glam,tagged]").keys() - {"introduction-1"}
    several = _suites("demo-easy", "policy.args.prompt=[glam,tagged]")["introduction-1"]
    assert "which the prompt ['glam', 'tagged'] (in every form) does not contain" in several
    symbolic = _suites("glam/symbolic")
    assert symbolic["form-glam"] == "it changes the prompt, but policy 'symbolic' has none"
    talks = ["world.history=null", "policy.args.prompt=conversation"]
    assert _suites("demo", *talks).keys() == {"introduction-1"}
    assert "the run sets policy.args.system" in _suites("demo", *talks, "policy.args.system=Go.")["form-brief"]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            "glam",
            "Possible action of the agent: a, b \n Observation 0: One., \n Action 0: a \n Observation 1: Two., \n ",
        ),
        ("brief", "View: One., \n Action: a \n View: Two., \n Action: "),
        ("present", "Action: a \n View: Two., \n Action: "),
        ("tagged", "<actions>a, b</actions>\n<view>One.</view>\n<action>a</action>\n<view>Two.</view>\n<action>"),
        ("narrative", "One.. You choose to a. Two.. You can a, b. You choose to"),
        ("conversation", "action.\n\nActions: a, b\n\nOne.\na\nTwo.\n"),
        ("balrog", "nothing else.\n\nThese are the actions:\na\nb\n"),
    ],
)
def test_an_episode_without_a_goal_has_no_empty_heading(form: str, text: str) -> None:
    seen = TextObservation("", (("One.",), ("Two.",)), ("a",), ("a", "b"), {})
    prompt = PromptReader(form)(seen)
    assert text in prompt and prompt == prompt.lstrip() and "oal" not in prompt and "task" not in prompt
