"""Changes made by the generalisation suites."""

import json
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.config.compose import changed, compose, from_file, to_yaml
from groundling.config.schema import Config
from groundling.envs.babyai_text import ACTIONS
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.evaluation.target import Target, find
from groundling.prompts import PromptReader
from groundling.training.checkpoint import save, write_json
from groundling.worlds.text.episodes import actions_of
from groundling.worlds.text.suites import SUITES, control_table
from groundling.worlds.text.world import TextWorld
from tests.envs import doors, test_controls  # noqa: F401  (register envs)

_THREE = ["turn left", "turn right", "go forward"]


@pytest.mark.parametrize("suite", ["pick-up-then-go-to", "pick-up-then-pick-up"])
def test_a_sequence_has_equally_many_distractors(suite: str) -> None:
    for args, left in (({"task": "pickup", "num_dists": 0}, {"num_dists": 0}), ({"draw_task": "reset"}, {})):
        config = compose("demo-easy", ["~world.args", f"world.args={args}".replace("'", "")])
        world = changed(config, SUITES[suite].changes(config.world)).world
        assert world.env.startswith("BabyAI-PickUp") and world.args == left


def _target(*overrides: str, given: tuple[str, ...] = ()) -> Target:
    return Target("trained", Path("nowhere"), compose("demo-easy", [*overrides, *given]), overrides=given)


@pytest.mark.parametrize("actions", [None, _THREE[::-1]])
def test_the_french_suite_is_french_in_its_actions_too(actions: list[str] | None) -> None:
    french = dict(zip(ACTIONS["english"], ACTIONS["french"], strict=True))
    config = _target(f"world.actions={json.dumps(actions)}").under("french").config
    assert config.world.language == "french"
    assert list(actions_of(config.world).names or ()) == [french[action] for action in actions or ACTIONS["english"]]


def test_synonyms_are_those_of_the_runs_own_actions() -> None:
    config = _target(f"world.actions={json.dumps(_THREE[::-1])}").under("synonym-actions").config
    assert config.world.actions == ["move ahead", "rotate right", "rotate left"]


def test_custom_actions_need_the_callers_french_names() -> None:
    override = "world.actions=[turn left, turn right, sleep]"
    with pytest.raises(ConfigError, match=r"suite 'french' does not apply.*'sleep' to french.*world\.actions="):
        _target(override).under("french")
    config = _target(override, given=("world.actions=[gauche, droite, dormir]",)).under("french").config
    assert (config.world.language, config.world.actions) == ("french", ["gauche", "droite", "dormir"])


_FRENCH_THINGS = ("porte verte ouverte 1 pas devant", "porte grise fermée à clef 2 pas à gauche", "boîte bleue là")


def _french_prompt(config: Config) -> str:
    observation = TextObservation(
        goal="poser la clef rouge à côté d'une balle verte",
        descriptions=(tuple(f"Tu vois une {thing}" for thing in _FRENCH_THINGS),),
        past_actions=(),
        actions=actions_of(config.world).names or (),
        raw={},
    )
    return PromptReader("glam", "french", config.policy.args.get("replacements"))(observation)


@pytest.mark.parametrize(
    ("suite", "phrases"),
    [
        ("other-nouns", ["la chaise rouge", "d'une table verte", "une voiture bleue", "fermée à clef"]),
        ("synonym-adjectives", ["la clef vermeille", "balle émeraude", "porte émeraude ouverte", "porte argentée"]),
        ("invented-nouns", ["la dax rouge", "d'une xolo verte", "une afze bleue", "grise fermée à clef"]),
        ("invented-adjectives", ["la clef faze", "balle jatu", "porte jatu ouverte", "porte sil", "boîte croh"]),
        ("invented-words", ["la dax faze", "d'une xolo jatu", "une afze croh", "porte sil fermée à clef"]),
        ("introduction-1", [" \n Tâche à accomplir: poser"]),
        ("introduction-2", [" \n Tu es un agent et tu dois: poser"]),
        ("synonym-actions", ["pivoter à gauche, pivoter à droite, avancer, prendre, relâcher, actionner"]),
    ],
)
def test_a_french_run_meets_other_french_words(suite: str, phrases: list[str]) -> None:
    config = _target("world.language=french").under(suite).config
    prompt = _french_prompt(config)
    assert all(words in prompt for words in phrases), prompt
    assert config.world.language == "french" and "Actions possibles pour l'agent" in prompt


def test_words_with_accents_are_evaluated_and_shown_again(tmp_path: Path) -> None:
    few = ["world.language=french", "world.history=1", "evaluation.num_envs=2", "evaluation.baselines=[]"]
    few += ["device=cpu"]
    arguments = ["evaluate", "demo-easy", *few, f"run_dir={tmp_path}", "--suite", "introduction-1", "--episodes", "2"]
    assert main(arguments) == 0
    sample = json.loads((tmp_path / "samples" / "introduction-1.json").read_text())[0]
    assert "Tâche à accomplir: " in sample["steps"][0]["prompt"]
    again = changed(compose("demo-easy"), sample["overrides"])
    assert again.policy.args["replacements"] == {"But de l'agent": "Tâche à accomplir"}


def test_a_control_and_a_suite_of_controls_do_not_mix() -> None:
    target = _target("world.args={task: pickup, num_dists: 3}", given=("world.args.control=dropped",))
    assert target.under("held-out").config.world.args["control"] == "dropped"
    with pytest.raises(ConfigError, match=r"'swapped' .* sets world\.args\.control itself"):
        target.under("swapped")


def test_a_world_without_a_suitable_suite_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["random", "world.env=test/Silent-v0", f"run_dir={tmp_path / 'run'}"]
    assert main(["evaluate", *words, "--suite", "controls", "--episodes", "1"]) != 0
    printed = capsys.readouterr()
    assert "--suite controls contains no suite that applies to this run" in printed.err
    assert "written to" not in printed.out


@pytest.mark.parametrize(
    ("overrides", "suite", "message"),
    [
        (["policy.args.prompt=brief"], "introduction-1", "which the prompt 'brief' does not contain"),
        (["world.env=test/Doors-v0"], "unseen-objects", "the run's env is test/Doors-v0"),
        (["world.env=test/Doors-v0"], "pick-up-seq-go-to", "the run's env is test/Doors-v0"),
        (["world.env=test/Doors-v0", "~world.args"], "other-nouns", "but the run's env is test/Doors-v0"),
        (["world.env=test/Doors-v0", "~world.args"], "synonym-actions", "but the run's env is test/Doors-v0"),
        (["world.actions=[turn left, turn right, sleep]"], "synonym-actions", "no synonym for the action 'sleep'"),
    ],
)
def test_a_suite_without_effect_on_the_run_is_refused(overrides: list[str], suite: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"suite '{suite}' does not apply to this run: .*{message}"):
        _target(*overrides).under(suite)


def test_settings_fixed_by_the_checkpoint_cannot_be_changed(tmp_path: Path) -> None:
    config = compose("demo-easy", [f"run_dir={tmp_path}"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    for text in ("model.path=starter-causal", "algorithm.id=a2c", "policy.id=drrn"):
        with pytest.raises(ConfigError, match=f"{text} is fixed by training"):
            find(str(tmp_path), [text], print)


def test_probes_of_training_are_off_in_evaluations(tmp_path: Path) -> None:
    """GLAM's own files log fixed English situations during training (template_test: 1)."""
    (tmp_path / "config.yaml").write_text(to_yaml(compose("glam/drrn", ["world.probes=1"])))
    save(tmp_path / "checkpoints", 1, lambda folder: write_json(folder / "run.json", {}), keep=1)
    run = find(str(tmp_path), [], print)
    assert run.config.world.probes is None
    for suite in TextWorld.find_suites("glam"):
        assert run.under(suite).config.world.probes is None
    untrained = find("glam/drrn", ["world.probes=both", "world.language=french"], print)
    assert untrained.under("french").config.world.language == "french"
    assert from_file(tmp_path / "config.yaml", purpose="showing").world.probes == 1  # reports show the setting


def test_reports_compare_success_alone_if_no_first_interaction_is_known() -> None:
    world = {"env": "test/Doors-v0", "args": {}, "language": "english", "actions": None}

    def played(success: float, **args: str) -> dict[str, Any]:
        return {"world": {**world, "args": args}, "agents": {"trained": {"figures": {"success": {"value": success}}}}}

    table = control_table(world, {"held-out": played(0.9), "swapped": played(0.1, control="swapped")})
    assert table is not None and table.rows == [["original", "0.900"], ["swapped", "0.100"]]
