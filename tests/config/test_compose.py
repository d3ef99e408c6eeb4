from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundling.cli.main import main
from groundling.config.compose import changed, compose, experiments, from_file, to_yaml
from groundling.config.grammar import sweep
from groundling.errors import ConfigError
from groundling.evaluation.protocols import find_player
from groundling.evaluation.target import find
from tests.thorough import one_in


@pytest.mark.parametrize("experiment", one_in(5, sorted(experiments())))
def test_every_experiment_composes_and_survives_its_yaml(experiment: str, tmp_path: Path) -> None:
    config = compose(experiment)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert from_file(tmp_path / "config.yaml") == config


def test_increasing_numbers_is_one_task_for_all_algorithms() -> None:
    names = [name for name in experiments() if name.startswith("rl4lms/increasing_numbers_")]
    configs = [compose(name) for name in names]
    assert [f"rl4lms/increasing_numbers_{c.algorithm.id}" for c in configs] == names and len(names) == 7
    for config in configs:
        assert config.name == f"increasing-numbers-{config.algorithm.id.replace('_', '-')}"
        assert (config.model, config.reward) == (configs[0].model, configs[0].reward)
        assert config.world.args == configs[0].world.args == {"n_samples": 50, "prompt": "1 2 3"}
        assert (config.training.steps, config.world.num_tokens) == (16_000, 20)


def test_overrides_have_the_last_word() -> None:
    config = compose(
        "demo-easy", ["seed=7", "algorithm.args.learning_rate=1e-4", "world.actions=[go forward,turn left,drop]"]
    )
    assert config.seed == 7
    assert config.algorithm.args["learning_rate"] == 1e-4
    assert config.world.actions == ["go forward", "turn left", "drop"]
    config = compose("demo-easy", ["world.args={num_dists: 2}", "algorithm.args.target_kl=0.02", "model.lora={r: 4}"])
    assert config.world.args["num_dists"] == 2 and config.algorithm.args["target_kl"] == 0.02
    assert config.model.lora == {"r": 4}


def test_overrides_mean_the_same_for_an_experiment_and_for_a_runs_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo-easy")))
    overrides = [
        "~world.args.task",
        "world.args={num_dists: 3}",
        "algorithm.args.epochs=3",
        'name="né \u00e0"',
        "seed=4",
    ]
    config = compose("demo-easy", overrides)
    assert config == from_file(tmp_path / "config.yaml", [*overrides, 'run_dir="runs/né à-seed4"'])
    assert config.world.args == {"num_dists": 3} and config.name == "né à"
    assert compose("demo-easy", ["~world.args"]).world.args == {}
    assert compose("demo-easy", ["~world.args", "world.args.task=goto"]).world.args == {"task": "goto"}


@pytest.mark.parametrize(
    ("override", "message"),
    one_in(
        2,
        [
            ("world.num_env=3", "world.num_envs"),
            ("sed=3", "'seed'"),
            ("world.num_envs=many", "world.num_envs.*many"),
            ("world.num_envs=0", "world.num_envs must be at least 1"),
            ("training.steps=-5", "training.steps must be at least 1"),
            ("algorithm.id=pppo", "'ppo'"),
            ("algorithm.args.learning_rat=1", "learning_rate"),
            ("algorithm.args.learning_rate=fast", "learning_rate.*float.*fast"),
            ("algorithm.args.learning_rate_schedule=cubic", "'constant', 'linear', 'cosine'.*cubic"),
            ("policy.id=nobody", "action_scoring"),
            ("policy.args.temprature=1", "temperature"),
            ("policy.args.value_hidden_sizes=wide", "value_hidden_sizes.*wide"),
            ("model.init=magic", "model.init"),
            ("seed", "key=value"),
            ("seed=1.5", "seed.*1.5"),
            ("seed=4294967296", "less than"),
            ("model.max_prompt_tokens=0", "at least 1"),
            ("evaluation.baselines=[nobody]", "zero-shot"),
            ("world.actions=[]", "world.actions"),
            ("world.actions=[drop,drop]", "twice"),
            ("world.actions=[[drop]]", r"^world\.actions\[0\] must be text, got \['drop'\]$"),
            ("world=[1]", r"^world must be a mapping of its keys, {name: value}, got \[1\]$"),
            ("world=${evaluation}", r"^world must be a mapping of its keys, {name: value}, got '\${evaluation}'$"),
            ("evaluation=${seed}", "^evaluation must be a mapping of its keys, {name: value}, got 1$"),
            ("world.actions=${seed}", r"^world\.actions must be a list, \[value, value\], got 1$"),
            ("model=3", "^model must be a mapping of its keys, {name: value}, got 3$"),
            ("model={banana: 3}", "unknown config key 'model.banana'"),
            ("reward=3", "^reward must be a mapping, {name: value}, got 3$"),
            ("reward={env: {banana: 1}}", "unknown config key 'reward.env.banana'"),
            (
                "reward={env: 0.5}",
                r"^reward\.env must be a mapping .* got 0\.5; to weigh it set reward\.env\.coefficient=0\.5$",
            ),
            ("reward.env.coefficient=abc", r"^reward\.env\.coefficient must be a number, got 'abc'$"),
            ("training={steps: abc}", r"^training\.steps must be a whole number, got 'abc'$"),
            ("policy.args=[1]", r"^policy\.args must be a mapping, {name: value}, got \[1\]$"),
            ("evaluation.baselines=3", r"^evaluation\.baselines must be a list, \[value, value\], got 3$"),
            ("model.load_in_4bit=3", r"^model\.load_in_4bit must be true or false, got 3$"),
            ("world.probes=1.5", r"^world\.probes must be a whole number or text, got 1\.5$"),
            ("run_dir=${world}", r"^run_dir: the value .* of another type"),
            ("name=[a]", r"^name must be text, got \['a'\]$"),
            ("seed=null", "^seed must be a whole number, got null$"),
            ("seed.x=1", r"^there is no seed\.x"),
            ("seed=1,2", "^seed takes one value, got several: seed=1,2$"),
            ("seed@x=3", "without @"),
            ("world.env=???", r"^world\.env is not set"),
            ("world.args.language=french", "world.args.language .* set world.language"),
            ("world.args.render_mode=ansi", "world.args.render_mode .* watch"),
            ("world.args.id=3", "world.args.id .* set world.env"),
            ("~world.args.colour", "cannot take world.args.colour out"),
            ("~seed", "cannot take seed out"),
            ("name=né", "quote"),
            ("policy.args.lm=big", "model.path"),
            ("+policy.args.reference=big", r"policy\.args\.reference cannot be set: .* model\.path"),
        ],
    ),
)
def test_a_wrong_key_or_value_is_told_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose("demo-easy", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_no_env_is_waited_for_without_end(seconds: str) -> None:
    with pytest.raises(ConfigError, match=r"world\.timeout must be greater than 0 and finite"):
        compose("demo-easy", ["world.num_workers=1", f"world.timeout={seconds}"])


def test_workers_play_half_of_the_games_at_a_time() -> None:
    words = ["~reward.reward_model", "world.num_envs=33"]
    with pytest.raises(ConfigError, match=r"world\.num_envs=33 is odd, .* set world\.num_envs=34$"):
        compose("motif/score", [*words, "world.num_workers=2"])
    assert compose("motif/score", [*words, "world.num_workers=0", "world.ahead=false"]).world.num_envs == 33


@pytest.mark.parametrize("limit", ["0", "-5", "ten", "1.5", "true", "null"])
def test_a_game_has_at_least_one_step(limit: str) -> None:
    with pytest.raises(ConfigError, match="max_episode_steps must be a whole number of at least 1"):
        compose("motif/score", ["~reward.reward_model", f"world.args.max_episode_steps={limit}"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.learned_reward={}"], r"needs reward.learned_reward.args.model_name$"),
        (["reward.weighted_sum={}"], r"'weighted_sum' needs reward.weighted_sum.args.parts$"),
        (["world.num_texts=8", "world.texts_per_prompt=3"], r"no whole number of groups of world"),
        (["world.pool=jsonl", "~world.args"], r"'jsonl' needs world.args.path$"),
        (["world.pool=dummy_pool", "~world.args"], r"'dummy_pool' needs world.args.prompt$"),
        (["evaluation.metrics=[{id:learned_reward,args:{label_ix:1}}]"], r"needs evaluation.metrics\[0\].args.m"),
        (["evaluation.metrics=[{id:causal_perplexity,args:{lm:3}}]"], r"metrics\[0\].args.lm must be .* got 3"),
    ],
)
def test_what_a_component_needs_is_told_before_anything_is_made(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("rl4lms/increasing_numbers_ppo", overrides)


def test_an_unknown_experiment_lists_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'demo'"):
        compose("dem")


def test_a_runs_folder_is_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo")))
    with pytest.raises(ConfigError, match=f"run's folder: name its settings, {tmp_path}/config.yaml"):
        compose(str(tmp_path))


def test_own_experiments_come_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nworld: {id: text, env: BabyAI-GoToObj-v0, num_envs: 5}\n"
    )
    config = compose("mine", config_dir=tmp_path)
    assert (config.name, config.world.num_envs, config.algorithm.id) == ("mine", 5, "ppo")
    assert config.run_dir == "runs/mine-seed1"
    untrained = find("mine", ["world.num_steps=7"], pytest.fail, config_dir=tmp_path)
    assert (untrained.agent, untrained.config.world.num_envs, untrained.config.world.num_steps) == ("zero-shot", 5, 7)
    player = find_player("mine", "balrog-babyai", [], pytest.fail, tmp_path)
    assert player.config.name == "mine"
    with pytest.raises(ConfigError, match=r"--config-dir .*none is no folder"):
        find("mine", [], pytest.fail, config_dir=tmp_path / "none")
    with pytest.raises(ConfigError, match="mine is neither"):
        find("mine", [], pytest.fail)


def test_an_experiment_of_ones_own_is_evaluated_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nworld: {id: text, env: test/Corridor-v0, actions: [left, right, stay]}\n"
        "policy: {id: test-table}\n"
    )
    words = ["mine", "--config-dir", str(tmp_path), f"run_dir={tmp_path / 'run'}", "device=cpu"]
    evaluate = ["evaluate", *words, "--episodes", "4"]
    assert main([*evaluate, "--suite", "held-out,controls"]) == 0, capsys.readouterr().err
    assert main(["collect", *words, "--episodes", "3", "--output", str(tmp_path / "data")]) == 0
    assert main(["watch", *words, "--episodes", "1", "--fast"]) == 0
    assert "zero-shot" in capsys.readouterr().out
    assert list((tmp_path / "data").rglob("*.parquet"))


@pytest.mark.parametrize(
    "words",
    [
        ["train", "demo", "--dry-run"],
        ["train", "FILE", "--dry-run"],
        ["evaluate", "random"],
        ["evaluate", "http://127.0.0.1:1/v1", "--protocol", "balrog-babyai", "policy.args.model=m"],
        ["watch", "random"],
        ["check-env", "BabyAI-GoToObj-v0"],
    ],
    ids=" ".join,
)
def test_a_folder_of_experiments_is_there(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo", [f"run_dir={tmp_path / 'run'}"])))
    words = [word.replace("FILE", str(tmp_path / "config.yaml")) for word in words]
    with pytest.raises(SystemExit):
        main([*words, "--config-dir", str(tmp_path / "none")])
    assert f"--config-dir: {tmp_path / 'none'} is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "FILE", "--dry-run"],
        ["evaluate", "random"],
        ["evaluate", "http://127.0.0.1:1/v1", "--protocol", "balrog-babyai", "policy.args.model=m"],
        ["collect", "random,expert", "--pairs", "1", "--output", "OUTPUT"],
        ["watch", "random"],
    ],
    ids=" ".join,
)
def test_a_folder_of_experiments_is_for_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(compose("demo", [f"run_dir={tmp_path / 'run'}"])))
    paths = {"FILE": str(tmp_path / "config.yaml"), "OUTPUT": str(tmp_path / "output")}
    assert main([*(paths.get(word, word) for word in words), "--config-dir", str(tmp_path)]) == 1
    assert f"--config-dir {tmp_path} does nothing" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "output").exists()


def test_sweeps_spread_into_runs() -> None:
    assert sweep(["seed=1,2", "world.num_envs=8"]) == [["seed=1", "world.num_envs=8"], ["seed=2", "world.num_envs=8"]]
    assert len(sweep(["seed=range(0,5)", "world.history=1,3"])) == 10
    with pytest.raises(ConfigError, match="key=value"):
        sweep(["=["])


def test_a_file_that_is_no_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run's folder"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("a: [1, 2")
    with pytest.raises(ConfigError, match="cannot read"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("- name: demo")
    with pytest.raises(ConfigError, match=r"config\.yaml holds a list"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("colour: red\nworld: {id: text}\n")
    with pytest.raises(ConfigError, match="colour"):
        from_file(tmp_path / "config.yaml")


@pytest.mark.parametrize("argument, kind", [("scale", "float"), ("min_tokens", "int")])
def test_a_metric_that_is_a_reward_is_given_arguments_of_its_types(argument: str, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"reward\.increasing_numbers\.args\.{argument} must be of type {kind}, got 'abc'"
    ):
        compose("rl4lms/increasing_numbers_ppo", [f"reward.increasing_numbers.args.{argument}=abc"])


_DATES = "rl4lms/dates_ppo"


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
def test_what_was_changed_may_be_changed_again(experiment: str, overrides: list[str]) -> None:
    """As of an evaluation's words, which have the last word over its suite's."""
    config = compose(experiment, overrides)
    assert changed(config, overrides) == config
    with pytest.raises(ConfigError, match="cannot take"):
        compose(experiment, [*overrides, "~reward.none"])


@pytest.mark.parametrize("override", ["reward={}", "~reward", "~reward.env", "reward={env: null}"])
def test_where_nothing_is_rewarded_all_parts_may_be_taken_out(override: str) -> None:
    """As in an experiment of the user's that has some, and whose agent is to be cloned."""
    assert not any(compose("glam/bc", ["world.dataset=data/bot", override]).reward.values())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.env=3", "reward.env must be a part"),
        ("reward.env.coeff=2", r"unknown config key 'reward.env.coeff': did you mean 'reward.env.coefficient'"),
        ("reward.env.args.scales=2", "'scale'"),
        ("~reward.rouge", "the parts are env alone"),
        ("reward.reward_model.args.threshold_quantile=3", "reward.reward_model.args: threshold_quantile must be"),
        ("env.reward_scale=2", r"the key env.reward_scale is now reward.env.args.scale$"),
        ("env={reward_scale: 2}", r"is now reward.env.args.scale$"),
        ("nethack.reward={reward_clip: 1}", r"the key nethack.reward.reward_clip is now reward.env.args.clip$"),
        ("nethack.reward.reward_clip=1", r"is now reward.env.args.clip$"),
        ("nethack.online.judge=rules", r"is now reward.reward_model.args.online.judge$"),
        ("reward.id=rouge", "the key reward.id is now the name of a part"),
    ],
)
def test_what_is_no_part_of_a_reward_is_told(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("demo", [override])


def test_old_keys_of_a_file_are_refused_with_their_new_names(tmp_path: Path) -> None:
    values = asdict(compose("demo"))
    values["env"] = {"reward_scale": 1.0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {"model": {}}))
    with pytest.raises(ConfigError, match=r"config.yaml: the key env.reward_scale is now reward.env.args.scale$"):
        from_file(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "defaults: [demo, _self_]\nworld: {num_envs: 4}\n",
            "In 'experiment/mine': its keys would lie under 'experiment': begin the file with the line "
            "# @package _global_",
        ),
        ("# @package _global_\ndefaults: [demo, _self_]\nwurld: {num_envs: 4}\n", "wurld"),
    ],
)
def test_an_experiment_that_cannot_be_laid_over_says_why(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose("mine", config_dir=tmp_path)
    assert message in str(caught.value) and "raised while composing" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "no\0name"])
def test_no_file_can_have_such_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown experiment"):
        compose(name)
