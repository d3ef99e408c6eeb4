"""The Hydra files of GLAM and Lamorel, rebuilt from their entries, are read, and they train."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from groundling.cli.main import main
from groundling.convert.glam_config import read
from groundling.envs.text_generation import Sample, pools
from groundling.errors import ConfigError, GroundlingError
from groundling.policies.policy import policies
from groundling.worlds.writing.parts import make_prompt_encoder
from tests.building import policy_of
from tests.thorough import some_of, thorough

_ACTIONS = ["turn_left", "turn_right", "go_forward", "pick_up", "drop", "toggle"]


def _lamorel(llm: dict[str, Any], size: Any = 1, use_gpu: bool = True, **more: Any) -> dict[str, Any]:
    accelerate = more.pop(
        "accelerate", {"machine_rank": 0, "main_process_ip": "127.0.0.1", "num_machines": 1}
    )
    processes = more.pop("n_llm_processes", 1)
    flags = {"synchronize_gpus_after_scoring": False, "empty_cuda_cache_after_scoring": False}
    model = {"model_type": "seq2seq", "model_path": "t5-small", "pretrained": True, "minibatch_size": 192}
    parallelism = {"use_gpu": use_gpu, "model_parallelism_size": size, **flags}
    return {
        "log_level": "info",
        "allow_subgraph_use_whith_gradient": False,
        "distributed_setup_args": {"n_rl_processes": 1, "n_llm_processes": processes},
        "accelerate_args": {"config_file": "accelerate/default_config.yaml", **accelerate},
        "llm_args": {**model, "pre_encode_inputs": True, "parallelism": parallelism, **llm},
        **more,
    }


_GLAM = {
    "path": "???",
    "max_episode_steps": 3,
    "frames_per_proc": 40,
    "reward_shaping_beta": 0,
    "discount": 0.99,
    "lr": "1e-6",
    "beta1": 0.9,
    "beta2": 0.999,
    "gae_lambda": 0.99,
    "entropy_coef": 0.01,
    "value_loss_coef": 0.5,
    "max_grad_norm": 0.5,
    "adam_eps": "1e-5",
    "clip_eps": 0.2,
    "epochs": 4,
    "batch_size": 64,
    "nbr_obs": 3,
    "language": "english",
    "saving_path_logs": "???",
    "saving_path_model": "???",
}
_GIVEN_OPEN = dict.fromkeys(
    ("seed", "number_envs", "num_steps", "action_space", "name_experiment", "name_model", "name_environment"),
    "???",
)
_OPEN_LLM = dict.fromkeys(("model_type", "model_path", "minibatch_size"), "???")
_OPEN_MACHINES = {"machine_rank": 0} | dict.fromkeys(
    ("num_machines", "num_processes", "main_process_ip"), "???"
)
_TEST_ONLY = {
    "modified_action_space": False,
    "get_example_trajectories": False,
    "im_learning": False,
    "bot": False,
}
_PPO = {
    "path": "???",
    "seed": 1,
    "ppo_epochs": 4,
    "lam": 0.99,
    "gamma": 0.99,
    "lr": "1e-6",
    "entropy_coef": 0.01,
    "value_loss_coef": 0.5,
    "clip_eps": 0.2,
    "max_grad_norm": 0.5,
    "minibatch_size": 8,
    "gradient_batch_size": 1,
    "gradient_minibatch_size": None,
    "max_ep_len": 100,
    "epochs": 100,
    "steps_per_epoch": 256,
    "save_freq": 1,
    "output_dir": "???",
    "loading_path": None,
}
_LORA = {"use_lora": True, "lora_r": 16, "lora_alpha": 32}
_CONFIG_FILE = {"config_file": "../configs/accelerate/default_config.yaml"}
_EXAMPLE = {**_CONFIG_FILE, "machine_rank": 0, "main_process_ip": "127.0.0.1", "num_machines": 1}
"""What Lamorel's examples say of machines."""
_STRINGS = ["turn left", "turn right", "go forward", "pick_up", "drop", "toggle"]
_BABYAI = {"number_envs": 2, "task": "BabyAI-GoToRedBall-v0", "action_space": _ACTIONS}

FILES: dict[str, dict[str, Any]] = {
    "glam-local": {
        "lamorel_args": _lamorel(
            {"minibatch_size": 4},
            use_gpu=False,
            allow_subgraph_use_whith_gradient=True,
            accelerate={"machine_rank": 0, "num_machines": 2},
        ),
        "rl_script_args": {
            **_GLAM,
            **_TEST_ONLY,
            "seed": 1,
            "number_envs": 2,
            "num_steps": 1000,
            "batch_size": 16,
            "action_space": _ACTIONS,
            "name_experiment": "llm_mtrl",
            "name_model": "T5small",
            "name_environment": "BabyAI-MixedTestLocal-v0",
            "number_episodes": 10,
            "load_embedding": True,
            "use_action_heads": False,
            "template_test": 1,
            "zero_shot": True,
            "new_action_space": None,
            "spm_path": "YOUR_PATH_TO_PROJECT/experiments/agents/drrn/spm_models/unigram_8k.model",
            "random_agent": True,
            "im_path": "",
        },
    },
    "glam-multi-node": {
        "lamorel_args": _lamorel(
            _OPEN_LLM,
            size="???",
            n_llm_processes=4,
            accelerate={**_OPEN_MACHINES, "main_process_port": 12345},
            allow_subgraph_use_whith_gradient=True,
            updater_args=None,
        ),
        "rl_script_args": {
            **_GLAM,
            **_GIVEN_OPEN,
            "load_embedding": False,
            "use_action_heads": False,
            "template_test": 1,
            "spm_path": "",
        },
    },
    "glam-multi-node-test": {
        "lamorel_args": _lamorel(
            _OPEN_LLM, size="???", n_llm_processes=4, accelerate=_OPEN_MACHINES, updater_args=None
        ),
        "rl_script_args": {
            **_GLAM,
            **_GIVEN_OPEN,
            **_TEST_ONLY,
            "num_steps": 100,
            "number_episodes": "???",
            "zero_shot": "???",
            "new_action_space": [],
            "spm_path": "???",
            "random_agent": False,
            "im_path": "???",
        },
    },
    "lamorel-ppo": {
        "lamorel_args": _lamorel({"load_in_4bit": False}, gloo_timeout=1800, accelerate=_EXAMPLE),
        "rl_script_args": {**_PPO, **_BABYAI},
    },
    "lamorel-ppo-lora": {
        "lamorel_args": _lamorel({"load_in_4bit": False}, gloo_timeout=1800, accelerate=_EXAMPLE),
        "rl_script_args": {**_PPO, **_LORA, **_BABYAI, "steps_per_epoch": 10},
    },
    "lamorel-rlhf": {
        "lamorel_args": _lamorel({"load_in_4bit": False}, gloo_timeout=1800, accelerate=_EXAMPLE),
        "rl_script_args": {
            **_PPO,
            **_LORA,
            "max_ep_len": 5,
            "kl_coef": 0.0,
            "skip_ratio_spikes": False,
            "strings": _STRINGS,
        },
    },
    "lamorel-saycan": {
        "lamorel_args": _lamorel(
            {}, gloo_timeout=1800, accelerate={**_CONFIG_FILE, "machine_rank": 0, "num_machines": 2}
        ),
        "rl_script_args": {
            "path": "???",
            "use_env_description": True,
            "n_tasks": 5,
            "termination_str": "done()",
            "plot_saycan": False,
            "use_actions_in_env": False,
        },
    },
    "lamorel-bare": {
        "lamorel_args": _lamorel(
            {"load_in_4bit": False, "seed": 5},
            use_gpu=False,
            gloo_timeout=1800,
            accelerate={"machine_rank": 0, "num_machines": 1},
        ),
        "rl_script_args": {"path": "???"},
    },
    "lamorel-bare-gpu": {
        "lamorel_args": _lamorel(
            {"load_in_4bit": False, "seed": 5},
            gloo_timeout=1800,
            accelerate={"machine_rank": 0, "num_machines": 1},
        ),
        "rl_script_args": {"path": "???"},
    },
    "lamorel-bare-slurm": {
        "lamorel_args": _lamorel(
            {},
            size=2,
            gloo_timeout=1800,
            n_llm_processes=6,
            accelerate={"machine_rank": "???", "main_process_ip": "???", "num_machines": 3},
        ),
        "rl_script_args": {"path": "???"},
    },
}
_CLUSTER = [
    "lamorel_args.llm_args.model_type=seq2seq",
    "lamorel_args.llm_args.model_path=starter",
    "lamorel_args.llm_args.minibatch_size=12",
    "lamorel_args.llm_args.parallelism.model_parallelism_size=2",
    "lamorel_args.accelerate_args.num_machines=2",
    "rl_script_args.path=train_language_agent.py",
    "rl_script_args.seed=5",
    "rl_script_args.number_envs=2",
    f"rl_script_args.action_space=[{','.join(_ACTIONS)}]",
    "rl_script_args.name_experiment=llm_gtl",
    "rl_script_args.name_model=starter",
    "rl_script_args.name_environment=BabyAI-GoToLocal-v0",
]
"""What the original's campaign scripts would give to its cluster files."""
_NEEDED = {
    "glam-local": [],
    "glam-multi-node": [*_CLUSTER, "rl_script_args.num_steps=80"],
    "glam-multi-node-test": [*_CLUSTER, "rl_script_args.number_episodes=7"],
}


def _write(folder: Path, name: str, **more: Any) -> Path:
    path = folder / f"{name}.yaml"
    OmegaConf.save(
        OmegaConf.create({"defaults": ["_self_"], "hydra": {"run": {"dir": "."}}, **FILES[name], **more}),
        path,
    )
    return path


_SCRIPTS = {
    "lamorel-ppo": "PPO_finetuning",
    "lamorel-ppo-lora": "PPO_LoRA_finetuning",
    "lamorel-rlhf": "RLHF-like_PPO_LoRA_finetuning",
}
"""By file, the folder of Lamorel's example."""
_USUAL = ["lamorel-ppo-lora"]


def _needed(name: str, folder: Path) -> list[str]:
    """What must be given: of Lamorel's examples, what their pages give to its launcher."""
    if name in _SCRIPTS:
        path = f"PROJECT_PATH/examples/{_SCRIPTS[name]}/main.py"
        return [f"rl_script_args.path={path}", f"rl_script_args.output_dir={folder}"]
    return [*_NEEDED[name], f"rl_script_args.saving_path_logs={folder}"]


@pytest.mark.parametrize("name", some_of([*_NEEDED, *_SCRIPTS], _USUAL))
def test_every_shape_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path, name)
    small = [
        "model.path=starter",
        "device=cpu",
        "model.device_map=null",
        "training.steps=8",
        *(["world.num_texts=1"] if name == "lamorel-rlhf" else ["world.num_steps=2"]),
        f"run_dir={tmp_path}/run",
    ]
    arguments = ["train", "--glam-config", str(path), *_needed(name, tmp_path), *small]
    assert main(arguments) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2  # texts end when they like
    warnings = capsys.readouterr().err.splitlines()
    assert warnings and all(line.startswith("warning: ") for line in warnings)
    assert len(set(warnings)) == len(warnings)


def test_without_gpus_there_is_nothing_to_spread_a_model_over(tmp_path: Path) -> None:
    two = [*_needed("glam-local", tmp_path), "lamorel_args.llm_args.parallelism.model_parallelism_size=2"]
    config, notes = read(_write(tmp_path, "glam-local"), two)
    assert (config.device, config.model.device_map) == ("cpu", None)
    assert any("model_parallelism_size: no effect, since use_gpu is off" in note for note in notes)


def test_glams_entries_mean_what_they_meant(tmp_path: Path) -> None:
    config, notes = read(_write(tmp_path, "glam-local"), _needed("glam-local", tmp_path))
    name = (
        f"llm_mtrl-T5small-nbr_env_2-pretrained_True-nbr_actions_6_{'_'.join(_ACTIONS)}-shape_reward_beta_0"
    )
    assert (config.name, config.run_dir) == (name, f"{tmp_path}/{name}-seed1")
    assert (config.device, config.model.path, config.model.init) == ("cpu", "t5-small", "pretrained")
    assert config.world.env == "BabyAI-MixedTestLocal-v0" and config.world.actions == [
        a.replace("_", " ") for a in _ACTIONS
    ]
    assert (config.world.num_envs, config.world.history, config.world.num_steps) == (2, 3, 40)
    assert (config.training.steps, config.evaluation.episodes) == (1000, 10)
    assert config.algorithm.args == {
        "learning_rate": 1e-6,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-5,
        "gamma": 0.99,
        "gae_lambda": 0.99,
        "clip_range": 0.2,
        "value_clip_range": 0.2,
        "value_coefficient": 1.0,  # 0.5 of the whole squared error, which is 1.0 of its half
        "entropy_coefficient": 0.01,
        "kl_coefficient": 0,  # no reward shaping
        "max_grad_norm": 0.5,
        "epochs": 4,
        "minibatch_size": 16,
        "micro_batch_size": 1,
    }
    assert config.world.probes == 1  # template_test
    all_notes = "\n".join(notes)
    for entry in (
        "max_episode_steps",
        "spm_path",
        "zero_shot",
        "random_agent",
        "model_type",
        "n_rl_processes",
    ):
        assert entry in all_notes


def test_glams_minibatch_is_of_all_processes_together(tmp_path: Path) -> None:
    given = [*_needed("glam-multi-node", tmp_path), "rl_script_args.num_steps=1"]
    config, notes = read(_write(tmp_path, "glam-multi-node"), given)
    args = config.algorithm.args
    assert (args["minibatch_size"], args["micro_batch_size"]) == (64, 2)
    assert config.seed == 5
    assert config.model.device_map == "auto"  # model_parallelism_size: 2
    assert any(
        "torchrun --nproc-per-node 4" in note and "share of the machine's GPUs" in note for note in notes
    )
    whole = [text for text in given if "parallelism_size" not in text]
    _, notes = read(
        _write(tmp_path, "glam-multi-node"),
        [*whole, "lamorel_args.llm_args.parallelism.model_parallelism_size=1"],
    )
    assert any("for as many processes, torchrun --nproc-per-node 4" in note for note in notes)


def test_lamorels_minibatch_is_of_each_process(tmp_path: Path) -> None:
    given = [*_needed("lamorel-ppo", tmp_path), "lamorel_args.distributed_setup_args.n_llm_processes=3"]
    config, notes = read(_write(tmp_path, "lamorel-ppo"), given)
    assert config.algorithm.args["minibatch_size"] == 3 * 8
    assert config.algorithm.args["value_coefficient"] == 1.0  # value_loss_coef=0.5 of the whole squared error
    assert any("torchrun --nproc-per-node 3" in note for note in notes)


def test_lamorels_epochs_are_updates(tmp_path: Path) -> None:
    config, notes = read(_write(tmp_path, "lamorel-ppo-lora"), _needed("lamorel-ppo-lora", tmp_path))
    assert config.run_dir == str(tmp_path) and config.name == "lamorel-ppo-lora"
    assert config.model.lora == {"r": 16, "lora_alpha": 32}
    assert (config.world.num_steps, config.training.steps) == (5, 100 * 10)
    # max_ep_len=100 must not lengthen episodes, nor change 1 - 0.9 · steps / max_steps: the level has its own limit
    assert config.world.env == "BabyAI-GoToRedBall-v0" and config.world.args == {}
    assert any("rl_script_args.max_ep_len" in note and "max_steps" in note for note in notes)
    assert any("gloo_timeout" in note and "wait for hours" in note for note in notes)
    args = config.algorithm.args
    assert (args["epochs"], args["minibatch_size"], args["micro_batch_size"]) == (4, 8, 1)
    assert args["normalize_advantages"] is True and args["adam_epsilon"] == 1e-8
    assert any("normalised over all envs" in note for note in notes)


@pytest.mark.parametrize(
    ("pretrained", "load_embedding", "init"),
    [("false", "true", "embeddings"), ("false", "false", "random"), ("true", "false", "pretrained")],
)
def test_where_weights_come_from(pretrained: str, load_embedding: str, init: str, tmp_path: Path) -> None:
    given = [
        f"lamorel_args.llm_args.pretrained={pretrained}",
        f"rl_script_args.load_embedding={load_embedding}",
    ]
    config, _ = read(_write(tmp_path, "glam-local"), [*_needed("glam-local", tmp_path), *given])
    assert config.model.init == init


def test_action_heads_are_a_policy_of_their_own(tmp_path: Path) -> None:
    given = [*_needed("glam-local", tmp_path), "rl_script_args.use_action_heads=true"]
    if "action_head" in policies:
        assert read(_write(tmp_path, "glam-local"), given)[0].policy.id == "action_head"
    else:
        with pytest.raises(ConfigError, match="action_head"):
            read(_write(tmp_path, "glam-local"), given)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_entry_is_known(name: str, tmp_path: Path) -> None:
    path = _write(tmp_path, name)
    env = ["world.env=BabyAI-GoToObj-v0", "run_dir=x"]
    env = env[1:] if name == "lamorel-rlhf" else env
    _, notes = read(path, _needed(name, tmp_path) if name in {*_NEEDED, *_SCRIPTS} else (), env)
    assert not [note for note in notes if "unknown" in note or "no such section" in note]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lamorel-saycan", r"SayCan plans .*LanguageModel.score.*docs/migration/lamorel.md"),
        ("lamorel-bare", "name_environment"),
    ],
)
def test_a_file_without_an_env_says_what_is_missing(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(_write(tmp_path, name))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl_script_args.sede=1", "'rl_script_args.seed'"),
        ("rl_script_args.seed=1,2", "seed=1,2,3"),
        ("rl_script_args.number_envs=many", "world.num_envs.*many"),
        ("rl_script_args.batch_size=many", "batch_size must be a whole number"),
        ("rl_script_args.name_environment=???", "name_environment=…"),
        ("rl_script_args.loading_path=old", "pickled"),
        ("rl_script_args.seed=[", "key=value"),
        ("rl_script_args.action_space=drop", "must be a list"),
        ("rl_script_args.value_loss_coef=half", "value_loss_coef must be a number, got 'half'"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(_write(tmp_path, "glam-local"), [*_needed("glam-local", tmp_path), override])
    assert "\n" not in str(caught.value)


def test_shaping_is_the_penalty_for_leaving_the_first_policy(tmp_path: Path) -> None:
    config, notes = read(
        _write(tmp_path, "glam-local"),
        [*_needed("glam-local", tmp_path), "rl_script_args.reward_shaping_beta=0.5"],
    )
    assert config.algorithm.args["kl_coefficient"] == 0.5
    assert any("reward_shaping_beta=0.5" in note and "π₀" in note for note in notes)


def test_open_entries_are_all_named_and_ours_may_stand_for_them(tmp_path: Path) -> None:
    path = _write(tmp_path, "glam-multi-node")
    with pytest.raises(ConfigError, match=r"model_path=….*number_envs=….*name_environment=…") as caught:
        read(path)
    assert "main_process_ip" not in str(caught.value)  # which means nothing here
    given = [text for text in _needed("glam-multi-node", tmp_path) if "model_path" not in text]
    config, _ = read(path, given, ["model.path=starter-causal"])
    assert config.model.path == "starter-causal"


def test_unknown_entries_of_a_file_are_named(tmp_path: Path) -> None:
    path = _write(
        tmp_path, "glam-local", wandb_args={"mode": "offline"}, defaults=["_self_", {"model": "t5"}]
    )
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {"rl_script_args": {"lrr": 1}}), path)
    _, notes = read(path, _needed("glam-local", tmp_path))
    all_notes = "\n".join(notes)
    assert (
        "'rl_script_args.lrr'" in all_notes and "wandb_args" in all_notes and "{'model': 't5'}" in all_notes
    )


def test_files_that_are_none_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1, 2")
    (tmp_path / "other.yaml").write_text("name: x")
    for name, message in (
        ("none.yaml", "there is no"),
        ("broken.yaml", "cannot read"),
        ("other.yaml", "neither"),
    ):
        assert main(["train", "--glam-config", str(tmp_path / name)]) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert main(["train"]) == 1
    assert "--glam-config" in capsys.readouterr().err


def test_a_sweep_and_a_cluster_take_such_a_file_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path, "glam-local")
    given = ["train", "--glam-config", str(path), *_needed("glam-local", tmp_path), "seed=1,2", "--dry-run"]
    assert main([*given, "--slurm", "array=seeds"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count(f"--glam-config {path} rl_script_args.saving_path_logs={tmp_path} seed=") == 2
    assert captured.err.count("template_test") == 1


def _drrn_job(folder: Path) -> list[str]:
    """What the original's DRRN.slurm gives to the cluster file."""
    return [
        "rl_script_args.seed=2",
        "rl_script_args.number_envs=8",
        "rl_script_args.num_steps=1500000",
        f"rl_script_args.action_space=[{','.join(_ACTIONS)}]",
        f"rl_script_args.saving_path_logs={folder}",
        "rl_script_args.name_experiment=drrn_mtrl",
        "rl_script_args.name_model=DRRN",
        "rl_script_args.name_environment=BabyAI-MixedTrainLocal-v0",
        "rl_script_args.spm_path=unigram_8k.model",
        "lamorel_args.distributed_setup_args.n_llm_processes=0",
    ]


def test_without_a_language_model_the_agent_is_drrn(tmp_path: Path) -> None:
    path = _write(tmp_path, "glam-multi-node")
    config, notes = read(path, _drrn_job(tmp_path))
    assert (config.policy.id, config.policy.args) == ("drrn", {})
    assert (config.algorithm.id, config.algorithm.args) == ("drrn", {"steps_per_gradient": 4 * 8})
    assert (config.world.num_steps, config.training.steps) == (4, 1_500_000)
    all_notes = "\n".join(notes)
    assert (
        "rl_script_args.lr," in all_notes
        and "policy.args.tokenizer" in all_notes
        and "do not train" not in all_notes
    )
    small = ["device=cpu", "training.steps=64", f"run_dir={tmp_path}/run", "algorithm.args.batch_size=4"]
    assert main(["train", "--glam-config", str(path), *_drrn_job(tmp_path), *small]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2  # texts end when they like
    for more, message in (
        (["rl_script_args.reward_shaping_beta=0.5"], "reward_shaping_beta"),
        (["rl_script_args.ppo_epochs=4"], "Lamorel"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(path, [*_drrn_job(tmp_path), *more])


def test_a_french_run_is_french_throughout(tmp_path: Path) -> None:
    path = _write(tmp_path, "glam-local")
    french = [*_needed("glam-local", tmp_path), "rl_script_args.language=french"]
    config, notes = read(path, french)
    assert config.world.language == "french" and config.world.actions == [
        *("tourner à gauche", "tourner à droite", "aller tout droit", "ramasser", "lâcher", "basculer")
    ]
    assert config.world.probes is None and any("template_test: left out" in note for note in notes)
    small = ["model.path=starter", "device=cpu", "training.steps=4", "world.num_steps=2"]
    assert main(["train", "--glam-config", str(path), *french, *small, f"run_dir={tmp_path}/run"]) == 0
    changed_config, _ = read(path, [*french, "rl_script_args.action_space=[gauche,droite,avancer]"])
    assert changed_config.world.actions == ["gauche", "droite", "avancer"]  # a French file's own
    with pytest.raises(GroundlingError, match="cannot name the action 'sleep' in french"):
        read(path, [*french, "rl_script_args.action_space=[turn_left,turn_right,sleep]"])
    given = ["world.actions=[gauche,droite,dormir]"]
    changed_config, _ = read(
        path, [*french, "rl_script_args.action_space=[turn_left,turn_right,sleep]"], given
    )
    assert changed_config.world.actions == ["gauche", "droite", "dormir"]


@pytest.mark.parametrize(
    ("name", "given", "instead"),
    [
        (
            "glam-local",
            ["bot=true"],
            "groundling evaluate expert world.env=BabyAI-MixedTestLocal-v0 --episodes 10;",
        ),
        ("glam-local", ["random_agent=true"], "groundling evaluate random"),
        (
            "glam-local",
            ["zero_shot=true"],
            "groundling evaluate [^ ]*/llm_mtrl-T5small-[^ ]*-seed1 --suite all --epi",
        ),
        ("glam-local", ["im_learning=true"], "glam/bc"),
        ("glam-local", ["get_example_trajectories=true"], "groundling collect"),
        (
            "glam-local",
            ["modified_action_space=true", "new_action_space=[rotate_left,take]"],
            r"evaluate [^ ]* 'world\.actions=\[rotate left, take\]' --episodes 10;",
        ),
        (
            "glam-multi-node-test",
            ["path=experiments/post-training_tests.py"],
            "groundling evaluate [^ ]* --suite all",
        ),
        ("glam-local", ["path=post-training_tests.py"], "groundling evaluate random"),
    ],
)
def test_a_test_of_the_originals_is_not_trained(
    name: str, given: list[str], instead: str, tmp_path: Path
) -> None:
    originals = [*_needed(name, tmp_path), *(f"rl_script_args.{text}" for text in given)]
    with pytest.raises(ConfigError, match=f"this command trains: run .*{instead}") as caught:
        read(_write(tmp_path, name), originals)
    assert "\n" not in str(caught.value)
    if "path" not in given[0]:  # its training script reads none of these switches
        read(_write(tmp_path, name), [*originals, "rl_script_args.path=experiments/train_language_agent.py"])


_CAMPAIGN = [
    *("rl_script_args.path=experiments/train_language_agent.py", "rl_script_args.seed=3"),
    *("rl_script_args.number_envs=32", "rl_script_args.num_steps=1500000"),
    'rl_script_args.action_space=["turn_left","turn_right","go_forward","pick_up","drop","toggle"]',
    *("rl_script_args.name_experiment='llm_mtrl'", "rl_script_args.name_model='Flan_T5large'"),
    *("rl_script_args.name_environment='BabyAI-MixedTrainLocal-v0'", "rl_script_args.template_test=1"),
    "rl_script_args.saving_path_model=models",
]
"""What the commands of GLAM's campaigns have in common; places and models are ours."""
_FLAN = [
    *("lamorel_args.llm_args.model_type=seq2seq", "lamorel_args.llm_args.model_path=starter"),
    *("lamorel_args.llm_args.parallelism.model_parallelism_size=2", "lamorel_args.llm_args.minibatch_size=3"),
    "lamorel_args.accelerate_args.num_machines=1",
]
_HEADS = ["rl_script_args.use_action_heads=true", "lamorel_args.llm_args.pretrained=false"]


@pytest.mark.parametrize(
    ("overrides", "policy", "init"),
    [
        (_FLAN, "action_scoring", "pretrained"),
        *thorough(
            ([*_FLAN, *_HEADS, "rl_script_args.load_embedding=true"], "action_head", "embeddings"),
            ([*_FLAN, *_HEADS], "action_head", "random"),
        ),
        *thorough(
            (
                [
                    "lamorel_args.distributed_setup_args.n_llm_processes=0",
                    "rl_script_args.spm_path=spm_models/unigram_8k.model",
                ],
                "drrn",
                "pretrained",
            )
        ),
    ],
    ids=["GFlan", "NPAE", "NPA", "DRRN"],
)
def test_the_campaigns_commands_run_as_they_are(
    overrides: list[str], policy: str, init: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path, "glam-multi-node")
    words = [*_CAMPAIGN, f"rl_script_args.saving_path_logs={tmp_path / 'logs'}", *overrides]
    config, _ = read(file, words)
    assert (config.policy.id, config.model.init) == (policy, init)
    assert config.training.steps == 1_500_000 and config.seed == 3 and config.world.num_envs == 32
    # On a machine without several devices a model that is spread over them says so.
    ours = ["device=cpu", "world.num_envs=2", "world.num_steps=2"]
    if policy != "drrn":
        ours += ["model.device_map=null", "algorithm.args.minibatch_size=2", "algorithm.args.epochs=1"]
    assert main(["train", "--glam-config", str(file), *words, *ours, "--dry-run"]) == 0
    assert f"id: {policy}" in capsys.readouterr().out


@pytest.mark.parametrize("name", _SCRIPTS)
def test_lamorels_examples_are_runs_of_ppo(name: str, tmp_path: Path) -> None:
    config, _ = read(_write(tmp_path, name), _needed(name, tmp_path))  # `test_every_shape_trains` trains them
    kind = ("writing", "token") if name == "lamorel-rlhf" else ("text", "action_scoring")
    assert (config.world.id, config.policy.id, config.algorithm.id) == (*kind, "ppo")
    assert (config.run_dir, config.seed, config.model.path) == (str(tmp_path), 1, "t5-small")


def test_lamorels_prompts_have_no_end_token(tmp_path: Path) -> None:
    """Lamorel stopped adding special tokens in November 2023; GLAM's runs were made before."""
    for name in _SCRIPTS:
        config, notes = read(_write(tmp_path, name), _needed(name, tmp_path))
        assert not config.model.add_special_tokens
        assert any("as in Lamorel since November 2023" in note for note in notes)
    older, _ = read(
        _write(tmp_path, name),
        _needed(name, tmp_path),
        ["model.add_special_tokens=true", "model.path=starter"],
    )
    assert older.model.add_special_tokens
    lengths = {}
    for config in (older, replace(older, model=replace(older.model, add_special_tokens=False))):
        policy = policy_of(config)
        encode = make_prompt_encoder(config.world, policy)
        lengths[config.model.add_special_tokens] = len(encode([Sample("0", "Say left", ())])[0].ids)
    assert lengths[True] == lengths[False] + 1
    config, notes = read(_write(tmp_path, "glam-local"), _needed("glam-local", tmp_path))
    assert config.model.add_special_tokens and any("model.add_special_tokens=false" in n for n in notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lamorel-bare", []),
        ("lamorel-bare-gpu", []),
        (
            "lamorel-bare-slurm",
            [
                "lamorel_args.accelerate_args.machine_rank=0",
                "lamorel_args.accelerate_args.main_process_ip=node1",
            ],
        ),
    ],
)
def test_lamorels_files_for_a_script_of_ones_own_say_what_to_add(
    name: str, words: list[str], tmp_path: Path
) -> None:
    file = _write(tmp_path, name)
    words = ["rl_script_args.path=absolute/path/to/project/examples/example_script.py", *words]
    with pytest.raises(ConfigError, match=r"give rl_script_args\.name_environment=[^ ,]+") as caught:
        read(file, words)
    added = str(caught.value).partition("give ")[2].partition(",")[0]
    config, _ = read(file, [*words, added])
    assert config.world.env == "BabyAI-MixedTrainLocal-v0" and config.model.path == "t5-small"


def test_lamorels_ppo_on_tokens_is_a_writers(tmp_path: Path) -> None:
    file, words = _write(tmp_path, "lamorel-rlhf"), _needed("lamorel-rlhf", tmp_path)
    config, notes = read(file, words)
    world = config.world
    assert (world.num_texts, world.num_tokens, config.training.steps) == (52, 5, 100 * 256)
    samples = pools.create(world.pool, **world.args).prepare("train")
    assert (samples[3].prompt, samples[3].references) == ("Say pick_up\nYour turn:", ("pick_up",))
    assert len(samples) == len(_STRINGS)
    args = config.algorithm.args
    assert (args["epochs"], args["minibatch_size"], args["value_coefficient"]) == (4, 8, 1.0)
    assert config.model.lora == {"r": 16, "lora_alpha": 32}
    all_notes = "\n".join(notes)
    assert "computed differently from Lamorel's example" in all_notes and "on tokens, which" not in all_notes
    rl = "rl_script_args"
    more = [f"{rl}.kl_coef=0.1", f"{rl}.skip_ratio_spikes=true", f"{rl}.task=BabyAI-GoTo-v0"]
    config, notes = read(file, [*words, *more])
    assert config.algorithm.args["kl_coefficient"] == 0.1
    all_notes = "\n".join(notes)
    for name in ("kl_coef=0.1", "skip_ratio_spikes: no effect", "task: no effect"):
        assert f"{rl}.{name}" in all_notes
    for given, message in (("strings=turn", "list of texts"), ("max_ep_len=0", "no token to write")):
        with pytest.raises(ConfigError, match=message):
            read(file, [*words, f"{rl}.{given}"])
    _, notes = read(_write(tmp_path, "lamorel-ppo"), [*words, f"{rl}.kl_coef=0.1"])
    assert any(f"{rl}.kl_coef" in note and f"{rl}.strings asks for" in note for note in notes)


def test_the_campaigns_tests_lead_to_evaluate(tmp_path: Path) -> None:
    more = ["rl_script_args.path=experiments/post-training_tests.py", "rl_script_args.number_episodes=1000"]
    words = [*_CAMPAIGN, *_FLAN, *more, "rl_script_args.zero_shot=False"]
    words.append(f"rl_script_args.saving_path_logs={tmp_path}")
    training = [*_CAMPAIGN, *_FLAN, f"rl_script_args.saving_path_logs={tmp_path}"]
    trained, _ = read(_write(tmp_path, "glam-multi-node"), training)
    command = f"groundling evaluate {trained.run_dir} --suite all --episodes 1000"
    with pytest.raises(ConfigError, match=re.escape(command)):
        read(_write(tmp_path, "glam-multi-node"), words)


def test_each_script_of_a_campaign_has_a_run_of_its_own(tmp_path: Path) -> None:
    """GLAM's GFlan-T5 and NPAE share experiment, model name and logs path, as its scripts have them."""
    file, logs = _write(tmp_path, "glam-multi-node"), f"rl_script_args.saving_path_logs={tmp_path / 'logs'}"
    scripts = [
        [],
        [*_HEADS, "rl_script_args.load_embedding=true"],
        _HEADS,
        [_HEADS[1]],
        ["rl_script_args.nbr_obs=1"],
        ["rl_script_args.reward_shaping_beta=0.1"],
        ["rl_script_args.number_envs=16"],
        ["rl_script_args.action_space=[turn_left,turn_right,go_forward]"],
        ["lamorel_args.distributed_setup_args.n_llm_processes=0"],
    ]
    configs = [read(file, [*_CAMPAIGN, *_FLAN, logs, *more])[0] for more in scripts]
    assert len({config.run_dir for config in configs}) == len(scripts)
    again, _ = read(file, [*_CAMPAIGN, *_FLAN, logs, "rl_script_args.num_steps=2000000"])
    assert again.run_dir == configs[0].run_dir  # the same command, with more steps, resumes
