from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.config.compose import changed, compose, experiments, from_file, to_yaml
from groundling.config.overrides import sweep
from groundling.errors import ConfigError
from groundling.evaluation.protocols import find_player
from groundling.evaluation.target import find
from tests.thorough import one_in

_MINE = "# @package _global_\nname: mine\nworld: {id: text, env: BabyAI-GoToObj-v0, num_envs: 5}\n"
_DATES = "rl4lms/dates_ppo"


def _own(folder: Path, text: str) -> Path:
    """Write an experiment ``mine`` to a folder of the user."""
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("experiment", one_in(5, sorted(experiments())))
def test_every_experiment_composes_and_survives_its_yaml(experiment: str, tmp_path: Path) -> None:
    config = compose(experiment)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert from_file(tmp_path / "config.yaml") == config


def test_overrides_mean_the_same_for_an_experiment_and_for_a_runs_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo-easy")))
    words = ["~world.args.task", "world.args={num_dists: 3}", "algorithm.args.epochs=3", 'name="né à"', "seed=4"]
    words += ["world.actions=[go forward,turn left,drop]", "model.lora={r: 4}", "algorithm.args.learning_rate=1e-4"]
    config = compose("demo-easy", words)
    assert config == from_file(tmp_path / "config.yaml", [*words, 'run_dir="runs/né à-seed4"'])
    assert config.world.args == {"num_dists": 3} and (config.name, config.seed) == ("né à", 4)
    assert config.world.actions == ["go forward", "turn left", "drop"] and config.model.lora == {"r": 4}
    assert config.algorithm.args["learning_rate"] == 1e-4
    assert compose("demo-easy", ["~world.args"]).world.args == {}
    assert compose("demo-easy", ["~world.args", "world.args.task=goto"]).world.args == {"task": "goto"}


def test_values_of_python_are_overrides_too() -> None:
    words = ["world.num_envs=2", "policy.args={prompt: brief}", "world.actions=[a,b,c]", 'name="a.b=[c"']
    values = {"world": {"num_envs": 2}, "policy.args": {"prompt": "brief"}, "world.actions": ("a", "b", "c")}
    assert compose("demo-easy", [values, {"name": "a.b=[c"}]) == compose("demo-easy", words)
    with pytest.raises(ConfigError, match=r"world.env=<object object .* is not a value that a config can contain"):
        compose("demo-easy", [{"world.env": object()}])


def test_references_to_other_keys_stay(tmp_path: Path) -> None:
    assert compose("demo-easy", ["name=a", "seed=3"]).run_dir == "runs/a-seed3"
    assert compose("demo-easy", ["run_dir=x/${world.env}/${seed}"]).run_dir == "x/BabyAI-MixedTrainLocal-v0/1"
    own = _own(tmp_path, "# @package _global_\ndefaults: [demo, _self_]\nname: own\nrun_dir: there/${name}/${seed}\n")
    assert compose("mine", ["seed=2"], own).run_dir == "there/own/2"


def test_own_experiments_come_from_a_folder(tmp_path: Path) -> None:
    own = _own(tmp_path, _MINE)
    config = compose("mine", config_dir=own)
    assert (config.name, config.world.num_envs, config.algorithm.id) == ("mine", 5, "ppo")
    assert config.run_dir == "runs/mine-seed1"
    untrained = find("mine", ["world.num_steps=7"], pytest.fail, config_dir=own)
    assert (untrained.agent, untrained.config.world.num_envs) == ("zero-shot", 5)
    assert untrained.config.world.num_steps == 7
    assert find_player("mine", "balrog-babyai", [], pytest.fail, own).config.name == "mine"
    with pytest.raises(ConfigError, match=r"--config-dir .*none is not a folder"):
        find("mine", [], pytest.fail, config_dir=tmp_path / "none")
    with pytest.raises(ConfigError, match="mine is not the folder"):
        find("mine", [], pytest.fail)


@pytest.mark.parametrize(
    "words", [["train", "FILE", "--dry-run"], ["watch", "random"], ["check-env", "BabyAI-GoToObj-v0"]], ids=" ".join
)
def test_a_missing_folder_of_experiments_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo", [f"run_dir={tmp_path / 'run'}"])))
    words = [word.replace("FILE", str(tmp_path / "config.yaml")) for word in words]
    with pytest.raises(SystemExit):
        main([*words, "--config-dir", str(tmp_path / "none")])
    assert f"--config-dir: {tmp_path / 'none'} is not a folder" in capsys.readouterr().err


def test_sweeps_spread_into_runs() -> None:
    assert sweep(["seed=1,2", "world.num_envs=8"]) == [["seed=1", "world.num_envs=8"], ["seed=2", "world.num_envs=8"]]
    assert len(sweep(["seed=range(0,5)", "world.history=1,3"])) == 10
    with pytest.raises(ConfigError, match="key=value"):
        sweep(["=["])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "run's folder"),
        ("a: [1, 2", "cannot read"),
        ("- name: demo", r"config\.yaml contains a list"),
        (
            "colour: 1\nname: x\nworld: {id: text, env: a}\npolicy: {id: a}\nalgorithm: {id: b}",
            r"config\.yaml: unknown config key 'colour'",
        ),
        ("world: {id: txt, env: BabyAI-GoToObj-v0}", r"config\.yaml: unknown world 'txt': did you mean 'text'"),
        ("world: {env: BabyAI-GoToObj-v0}", r"config\.yaml does not specify a kind of world: set world\.id"),
        ("name: x\nworld: {id: text}\n", r"^world\.env is not set: give world\.env a value$"),
    ],
)
def test_a_file_that_is_no_config_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        from_file(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "defaults: [demo, _self_]\nworld: {num_envs: 4}\n",
            "its keys are under 'experiment': start the file with the line # @package _global_",
        ),
        ("# @package _global_\ndefaults: [demo, _self_]\nwurld: {num_envs: 4}\n", "'wurld': did you mean 'world'"),
        ("# @package _global_\ndefaults: [none, _self_]\n", "none"),
    ],
)
def test_an_experiment_that_cannot_be_composed_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("mine", config_dir=_own(tmp_path, text))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"), [("dem", "'demo'"), ("x" * 300, "unknown experiment"), ("no\0name", "unknown experiment")]
)
def test_an_unknown_experiment_lists_the_nearest(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(name)


def test_a_runs_folder_is_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo")))
    with pytest.raises(ConfigError, match=f"run's folder: pass {tmp_path}/config.yaml instead"):
        compose(str(tmp_path))


@pytest.mark.parametrize(
    ("experiment", "overrides", "parts"),
    one_in(2, [
        ("demo", [], {}),
        ("demo", ["reward.env.args.scale=2"], {"env": (1, {"scale": 2})}),
        ("glam/mixed", ["~reward.env.args.scale", "reward.env.coefficient=3"], {"env": (3, {})}),
        ("glam/mixed", ["~reward.env.args"], {"env": (1, {})}),
        ("demo", ["reward.count={coefficient: 2}", "~reward.env"], {"count": (2, {}), "env": None}),
        ("demo", ["reward.mine={id: count, args: {exponent: 1}}"], {"mine": (1, {"exponent": 1})}),
        (_DATES, ["~reward.sentences_with_dates", "reward.rouge={}"], {"rouge": (1, {})}),
        (_DATES, ["~reward", "reward.count.args.exponent=1", "~reward.count"], {}),
        (_DATES, ["reward.sentences_with_dates=null", "reward.ter={}"], {"sentences_with_dates": None, "ter": (1, {})}),
        ("rl4lms/summarization_ppo", [], {"meteor": None, "rouge": (1, {"rouge_type": "rouge1"})}),
    ]),
)  # fmt: skip
def test_parts_of_a_reward_are_added_changed_and_taken_out(
    experiment: str, overrides: list[str], parts: dict[str, Any], tmp_path: Path
) -> None:
    config = compose(experiment, overrides)
    assert {name: p and (p.coefficient, p.args) for name, p in config.reward.items()} == parts
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert from_file(tmp_path / "config.yaml").reward == config.reward


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        ("motif/score", ["~reward.reward_model"]),
        ("motif/score", ["reward.reward_model=null", "~reward.env"]),
        ("demo-easy", ["~world.args.num_dists", "~policy.args", "policy.args.prompt=brief"]),
        (_DATES, ["~reward", "reward.count.args.exponent=1", "~reward.count"]),
    ],
)
def test_changes_can_be_made_again(experiment: str, overrides: list[str]) -> None:
    """Overrides of an evaluation take precedence over those of its suite."""
    config = compose(experiment, overrides)
    assert changed(config, overrides) == config
    with pytest.raises(ConfigError, match="cannot remove"):
        compose(experiment, [*overrides, "~reward.none"])


@pytest.mark.parametrize("override", ["reward={}", "~reward", "~reward.env", "reward={env: null}"])
def test_where_nothing_is_rewarded_all_parts_may_be_taken_out(override: str) -> None:
    assert not any(compose("glam/bc", ["world.dataset=data/bot", override]).reward.values())
