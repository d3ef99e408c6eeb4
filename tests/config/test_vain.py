"""What is given in vain in single keys, each refused in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.errors import ConfigError
from groundling.worlds.text.world import TextWorld
from tests.thorough import one_in


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    one_in(
        2,
        [
            (
                "demo",
                ["model.revision=main"],
                "model.revision=main does nothing: model.path=starter-causal is a folder",
            ),
            ("demo", ["name="], "name must be a line"),
            (
                "rl4lms/common_gen_supervised",
                ["training.steps=500"],
                "training.steps=500 does nothing: training.epochs=4 says",
            ),
            (
                "demo",
                ["reward.env.coefficient=0"],
                "there is no reward to learn from: the coefficients of reward.env are all 0",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["model.max_prompt_tokens=9"],
                "model.max_prompt_tokens=9 does nothing: prompts are cut at world.max_prompt_length",
            ),
            ("demo", ["world.actions=[a,b]"], "world.actions names 2 actions .* Name the first 3"),
            ("demo", ["world.probes=3"], "world.probes must be 1, 2, both or null, got 3"),
            ("demo", ["world.probes=1", "world.language=french"], "world.probes=null"),
            ("rl4lms/increasing_numbers_ppo", ["evaluation.generation.num_beam=2"], "'num_beam'.*'num_beams'"),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={num_beams: 0}"],
                r"evaluation.generation.num_beams must be a whole number of at least 1, got 0",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={num_beams: 1.5}"],
                r"evaluation.generation.num_beams must be a whole number of at least 1, got 1.5",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={do_sample: true, temperature: 0}"],
                "evaluation.generation.temperature must be greater than 0, got 0",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={do_sample: true, top_k: many}"],
                "evaluation.generation.top_k must be of type int, got 'many'",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={max_new_tokens: many}"],
                "evaluation.generation.max_new_tokens must be of type int",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={max_length: 30}"],
                "evaluation.generation.max_length=30 does nothing beside max_new_tokens, .*: set max_new_tokens",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={max_new_tokens: null}"],
                "evaluation.generation.max_new_tokens=null leaves the texts without an end",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={do_sample: true, num_return_sequences: 2}"],
                "evaluation.generation.num_return_sequences=2 writes 2 texts to each prompt",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={temperature: -1}"],
                "evaluation.generation cannot be used: `temperature`: `do_sample` is not set",
            ),
            (
                "rl4lms/increasing_numbers_ppo",
                ["evaluation.generation={do_sample: false, temperature: 7, top_k: 3}"],
                "evaluation.generation cannot be used: `temperature`: `do_sample` is not set",
            ),
            ("demo-easy", ["reward.env.args.scale=0"], "reward.env.args: scale=0 leaves nothing of what the env pays"),
            ("rl4lms/increasing_numbers_ppo", ["reward.env=null"], "cannot take reward.env out: the parts are incr"),
            ("rl4lms/increasing_numbers_ppo", ["~reward.env"], "cannot take reward.env out: the parts are incr"),
            ("rl4lms/increasing_numbers_ppo", ["reward.rouge=null"], "cannot take reward.rouge out: the parts are"),
            ("rl4lms/increasing_numbers_ppo", ["~reward", "~reward.rouge"], "reward.rouge out: there is no part"),
            ("demo-easy", ["reward.count=null"], "cannot take reward.count out: the parts are env"),
            ("demo-easy", ["training.wandb="], "training.wandb must be a project's name, got an empty one"),
            ("demo-easy", ["training.trackio="], "training.trackio must be a project's name, got an empty one"),
            ("demo-easy", ["evaluation.baselines=[expert,expert]"], "evaluation.baselines names expert twice"),
            (
                "demo-easy",
                ["model.device_map=auto", "device=cpu"],
                "model.device_map=auto does nothing: device=cpu has one device",
            ),
            ("glam/symbolic", ["world.history=2"], "world.history=2 does nothing: its policy reads no words"),
            ("glam/symbolic", ["world.probes=1"], "world.probes=1 does nothing: its policy reads no words"),
            ("glam/symbolic", ["world.actions=[a,b,c,d,e,f]"], "world.actions=.* does nothing: its policy reads no"),
            ("glam/drrn", ["world.entropy_floor=0"], "world.entropy_floor=0.0 does nothing: its algorithm does not"),
            (
                "motif/score",
                ["~reward.reward_model", "world.entropy_floor=0"],
                "world.entropy_floor=0.0 does nothing: NetHackScore-v1 has no failures, only a score",
            ),
            ("glam/bc", ["world.entropy_floor=0"], "world.entropy_floor=0.0 does nothing: its algorithm does not"),
            (
                "demo-easy",
                ["algorithm.id=reinforce_pp", "~algorithm.args", "world.bootstrap_truncated=true"],
                "world.bootstrap_truncated=true does nothing: its algorithm learns no value function",
            ),
        ],
    ),
)
def test_what_does_nothing_is_told(experiment: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(experiment, overrides)


def test_a_policy_of_symbols_has_as_many_actions_as_are_named() -> None:
    assert len(compose("glam/symbolic", ["world.actions=[a,b,c]"]).world.actions) == 3
    online = {"args": {"rules": [["a", 1]]}, "judge": "rules"}
    part = f"reward.reward_model={{args: {{online: {json.dumps(online).replace(chr(34), '')}}}}}"
    assert compose("glam/symbolic", [part, "world.actions=[a,b,c,d,e,f]"])  # a judge reads what they are called


_ONLINE = "reward.reward_model.args.online"


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    one_in(
        2,
        [
            ("rl4lms/increasing_numbers_ppo", [f"{_ONLINE}.model=motif"], "reads NetHack's messages alone"),
            ("demo-easy", [f"{_ONLINE}.model=classifier"], "online.model=characters"),
            ("demo-easy", [f"{_ONLINE}.model=banana"], "'banana'"),
            ("demo-easy", [f"{_ONLINE}.banana=1"], "argument of online 'banana'"),
            ("demo-easy", [f"{_ONLINE}.learning.banana=1"], "argument of online.learning 'banana'"),
            ("demo-easy", [f"{_ONLINE}.args.banana=1"], "judge 'rules' 'banana'"),
            ("demo-easy", [f"{_ONLINE}.args.rules=1"], "rules 1: expected pairs"),
            ("demo-easy", [f"{_ONLINE}.judge=openai"], "judge 'openai' 'rules'"),
            ("demo-easy", ["reward.reward_model.args.path=x", f"{_ONLINE}.model=table"], "does nothing beside path=x"),
            ("demo-easy", ["~reward.reward_model", "reward.diversity={}"], "several figures, name one with key="),
            ("demo-easy", ["~reward.reward_model", "reward.diversity.args.key=b"], "key of Diversity"),
        ],
    ),
)
def test_a_part_of_the_reward_is_refused_before_anything_is_made(
    experiment: str, overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    online = ["reward.reward_model.args.online={judge: rules, args: {rules: [[a, 1]]}}", "device=cpu"]
    run = tmp_path / "runs" / "one"
    for more in (["--dry-run"], []):
        assert main(["train", experiment, *online, *overrides, f"run_dir={run}", *more]) == 1
        captured = capsys.readouterr()
        assert re.search(message, captured.err) and captured.err.count("\n") == 1 and not captured.out
        assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_refused_late_leaves_no_folder_and_no_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "one"
    words = ["train", "demo-easy", f"run_dir={run}", "device=cpu", "world.num_envs=2", "world.num_steps=4"]
    words += ["training.steps=8", "algorithm.args.minibatch_size=8"]

    def refuse(*args: Any) -> None:
        (run / "samples.jsonl").write_text("")
        raise ConfigError("nothing can be measured")

    with monkeypatch.context() as patch:
        patch.setattr(TextWorld, "logs", refuse)
        assert main(words) == 1
        captured = capsys.readouterr()
        assert captured.err == "error: nothing can be measured\n" and "training in" not in captured.out
        assert list(tmp_path.iterdir()) == []
        (run / "notes").mkdir(parents=True)
        assert main(words) == 1
        names = {path.name for path in run.iterdir()}  # what was there already is nobody's to take out
        assert "notes" in names and "config.yaml" not in names
    capsys.readouterr()
    assert main(words) == 0
    output = capsys.readouterr()
    assert f"training in {run}" in (output.out + output.err).replace("\n", "")
    before = (run / "config.yaml").read_text()
    monkeypatch.setattr(TextWorld, "logs", refuse)
    assert main([*words, "training.steps=16"]) == 1
    assert (run / "config.yaml").read_text() == before and (run / "checkpoints").is_dir()


def test_a_hub_models_revision_is_used() -> None:
    assert compose("demo", ["model.path=somebody/model", "model.revision=v2"]).model.revision == "v2"


def test_a_refused_run_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "demo-easy", f"run_dir={run}", "policy.id=token", "~policy.args"]) == 1
    assert not run.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_policy_that_cannot_act_is_refused_for_that_and_not_for_idle_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["policy.id=nethack", "~policy.args", "~algorithm.args", "device=cpu"]
    assert main(["train", "demo-easy", *words, "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert "it looks at glyphs, and BabyAI-MixedTrainLocal-v0 shows symbols, words" in error
    assert error.count("\n") == 1 and "world.history" not in error


def test_suggestions_can_be_followed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="unknown argument of policy 'action_scoring' 'recurrence'") as error:
        compose("demo-easy", ["policy.args.recurrence=3"])
    assert "there is calibration, compat, language, normalize" in str(error.value) and "did you mean" not in str(
        error.value
    )
    with pytest.raises(ConfigError, match=r"policy\.args\.reference cannot be set"):
        compose("demo-easy", ["policy.args.reference=true"])
    assert main(["train", "demo-easy", "policy.id=token", "~policy.args", "device=cpu", "--dry-run"]) == 1
    told_late = capsys.readouterr().err
    assert (
        "set policy.id to one of action_generating, action_head, action_scoring, action_writing, drrn, " in told_late
    )
    assert "symbolic" in told_late and "random" not in told_late


def test_a_film_is_a_gif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "random", "--gif", str(tmp_path / "film.png")]) == 1
    assert "ends in .gif" in capsys.readouterr().err
