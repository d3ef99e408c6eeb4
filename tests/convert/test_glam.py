"""Hydra files of GLAM and Lamorel are converted to experiments that train in the same way."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from groundling.envs.text_generation import Sample, pools
from groundling.errors import ConfigError, GroundlingError
from groundling.worlds.writing.config import make_prompt_encoder
from tests.building import policy_of
from tests.convert import convert_and_train, read
from tests.convert.originals import ACTIONS, EXAMPLES, GLAM, NEEDED, needed
from tests.convert.originals import write_glam as write
from tests.thorough import some_of

RL = "rl_script_args"
LLM = "lamorel_args.llm_args"
PROCESSES = "lamorel_args.distributed_setup_args.n_llm_processes"
_RUN_NAME = f"llm_mtrl-T5small-nbr_env_2-pretrained_True-nbr_actions_6_{'_'.join(ACTIONS)}-shape_reward_beta_0"


def _glam(folder: Path, *words: str) -> tuple[Any, str]:
    """Return the config and notes of GLAM's single-machine file, with entries of ``rl_script_args`` overridden."""
    words = tuple(word if word.startswith("lamorel_args") else f"{RL}.{word}" for word in words)
    config, notes = read(write(folder, "glam-local"), [*needed("glam-local", folder), *words])
    return config, "\n".join(notes)


@pytest.mark.parametrize("name", some_of([*NEEDED, *EXAMPLES], ["lamorel-ppo-lora"]))
def test_every_kind_of_file_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "model.path=starter",
        "device=cpu",
        "model.device_map=null",
        "training.steps=8",
        "world.num_texts=1" if name == "lamorel-rlhf" else "world.num_steps=2",
        f"run_dir={tmp_path}/run",
    ]
    assert convert_and_train(write(tmp_path, name), needed(name, tmp_path), small) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    warnings = capsys.readouterr().err.splitlines()
    assert warnings and all(line.startswith("warning: ") for line in warnings)
    assert len(set(warnings)) == len(warnings)


def test_entries_of_glam_have_their_meaning(tmp_path: Path) -> None:
    config, notes = _glam(tmp_path)
    assert (config.name, config.run_dir) == (_RUN_NAME, f"{tmp_path}/{_RUN_NAME}-seed1")
    assert (config.device, config.model.path, config.model.init) == ("cpu", "t5-small", "pretrained")
    assert config.world.env == "BabyAI-MixedTestLocal-v0"
    assert config.world.actions == [action.replace("_", " ") for action in ACTIONS]
    assert (config.world.num_envs, config.world.history, config.world.num_steps) == (2, 3, 40)
    assert (config.training.steps, config.evaluation.episodes, config.world.probes) == (1000, 10, 1)
    assert config.algorithm.args == {
        "learning_rate": 1e-6,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-5,
        "gamma": 0.99,
        "gae_lambda": 0.99,
        "clip_range": 0.2,
        "value_clip_range": 0.2,
        "value_coefficient": 1.0,  # 0.5 of the whole squared error is 1.0 of half of it
        "entropy_coefficient": 0.01,
        "kl_coefficient": 0,  # no reward shaping
        "max_grad_norm": 0.5,
        "epochs": 4,
        "minibatch_size": 16,
        "micro_batch_size": 1,
    }
    for name in ("max_episode_steps", "spm_path", "zero_shot", "random_agent", "model_type", "n_rl_processes"):
        assert name in notes


def test_model_parallelism_needs_gpus(tmp_path: Path) -> None:
    config, notes = _glam(tmp_path, f"{LLM}.parallelism.model_parallelism_size=2")
    assert (config.device, config.model.device_map) == ("cpu", None)
    assert "model_parallelism_size: no effect, since use_gpu is off" in notes


@pytest.mark.parametrize(("size", "device_map"), [(2, "auto"), (1, None)])
def test_glams_minibatch_is_of_all_processes_together(size: int, device_map: Any, tmp_path: Path) -> None:
    words = [*needed("glam-multi-node", tmp_path), f"{LLM}.parallelism.model_parallelism_size={size}"]
    config, notes = read(write(tmp_path, "glam-multi-node"), words)
    args = config.algorithm.args
    assert (args["minibatch_size"], args["micro_batch_size"], config.seed) == (64, 2, 5)
    assert config.model.device_map == device_map
    (note,) = [note for note in notes if "torchrun --nproc-per-node 4" in note]
    assert ("share of the machine's GPUs" in note) is (device_map is not None)


def test_lamorels_minibatch_is_of_each_process(tmp_path: Path) -> None:
    words = [*needed("lamorel-ppo", tmp_path), f"{PROCESSES}=3"]
    config, notes = read(write(tmp_path, "lamorel-ppo"), words)
    assert config.algorithm.args["minibatch_size"] == 3 * 8
    assert any("torchrun --nproc-per-node 3" in note for note in notes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_lamorels_examples_are_runs_of_ppo(name: str, tmp_path: Path) -> None:
    config, notes = read(write(tmp_path, name), needed(name, tmp_path))
    kind = ("writing", "token") if name == "lamorel-rlhf" else ("text", "action_scoring")
    assert (config.world.id, config.policy.id, config.algorithm.id) == (*kind, "ppo")
    assert (config.run_dir, config.seed, config.model.path) == (str(tmp_path), 1, "t5-small")
    assert not config.model.add_special_tokens
    assert any("as in Lamorel since November 2023" in note for note in notes)


def test_lamorels_epochs_are_updates(tmp_path: Path) -> None:
    config, notes = read(write(tmp_path, "lamorel-ppo-lora"), needed("lamorel-ppo-lora", tmp_path))
    assert config.name == "lamorel-ppo-lora" and config.model.lora == {"r": 16, "lora_alpha": 32}
    assert (config.world.num_steps, config.training.steps) == (5, 100 * 10)
    # max_ep_len=100 must not lengthen episodes or change 1 - 0.9 · steps / max_steps: the level has its own limit
    assert config.world.env == "BabyAI-GoToRedBall-v0" and config.world.args == {}
    args = config.algorithm.args
    assert (args["epochs"], args["minibatch_size"], args["micro_batch_size"]) == (4, 8, 1)
    assert (args["normalize_advantages"], args["adam_epsilon"]) == (True, 1e-8)
    for words in ("max_ep_len.*max_steps", "gloo_timeout.*wait for hours", "normalised over all envs"):
        assert any(re.search(words, note) for note in notes)


def test_special_tokens_of_prompts(tmp_path: Path) -> None:
    """Lamorel stopped adding special tokens in November 2023, after GLAM's runs."""
    words = [*needed("lamorel-rlhf", tmp_path), f"{LLM}.model_path=starter"]
    config, _ = read(write(tmp_path, "lamorel-rlhf"), words)
    lengths = {}
    for add in (False, True):
        model = config.model.model_copy(update={"add_special_tokens": add})
        one = config.model_copy(update={"model": model})
        encode = make_prompt_encoder(one.world, policy_of(one))
        lengths[add] = len(encode([Sample("0", "Say left", ())])[0].ids)
    assert lengths[True] == lengths[False] + 1
    config, notes = _glam(tmp_path)
    assert config.model.add_special_tokens and "model.add_special_tokens=false" in notes


def test_lamorels_ppo_on_tokens_is_a_writer(tmp_path: Path) -> None:
    file, words = write(tmp_path, "lamorel-rlhf"), needed("lamorel-rlhf", tmp_path)
    config, notes = read(file, words)
    world, args = config.world, config.algorithm.args
    assert (world.num_texts, world.num_tokens, config.training.steps) == (52, 5, 100 * 256)
    samples = pools.create(world.pool, **world.args).prepare("train")
    assert (samples[3].prompt, samples[3].references) == ("Say pick_up\nYour turn:", ("pick_up",))
    assert len(samples) == len(GLAM["lamorel-rlhf"]["rl_script_args"]["strings"])
    assert (args["epochs"], args["minibatch_size"], args["value_coefficient"]) == (4, 8, 1.0)
    all_notes = "\n".join(notes)
    assert "computed differently from Lamorel's example" in all_notes and "on tokens, which" not in all_notes
    assert "selects token-level PPO" not in all_notes
    more = [f"{RL}.kl_coef=0.1", f"{RL}.skip_ratio_spikes=true", f"{RL}.task=BabyAI-GoTo-v0"]
    config, notes = read(file, [*words, *more])
    assert config.algorithm.args["kl_coefficient"] == 0.1
    for note in ("kl_coef=0.1", "skip_ratio_spikes: no effect", "task: no effect"):
        assert f"{RL}.{note}" in "\n".join(notes)
    for given, message in (("strings=turn", "list of strings"), ("max_ep_len=0", "no tokens to generate")):
        with pytest.raises(ConfigError, match=message):
            read(file, [*words, f"{RL}.{given}"])
    _, notes = read(write(tmp_path, "lamorel-ppo"), [*words, f"{RL}.kl_coef=0.1"])
    assert any(f"{RL}.kl_coef" in note and f"{RL}.strings selects" in note for note in notes)


@pytest.mark.parametrize("name", [*NEEDED, *EXAMPLES])
def test_every_entry_of_the_shipped_files_is_known(name: str, tmp_path: Path) -> None:
    _, notes = read(write(tmp_path, name), needed(name, tmp_path))
    assert not [note for note in notes if "unknown" in note]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lamorel-saycan", r"SayCan plans .*LanguageModel.score.*docs/migration/lamorel.md"),
        ("lamorel-bare", r"set rl_script_args\.name_environment=BabyAI-MixedTrainLocal-v0"),
    ],
)
def test_a_file_without_an_env_says_what_to_add(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(write(tmp_path, name))
    added = f"{RL}.name_environment=BabyAI-MixedTrainLocal-v0"
    config, notes = read(write(tmp_path, name), [added])
    assert config.world.env == "BabyAI-MixedTrainLocal-v0" and config.model.path == "t5-small"
    assert not [note for note in notes if "unknown" in note]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sede=1", "'rl_script_args.seed'"),
        ("seed=1,2", "seed=1,2,3"),
        ("number_envs=many", "world.num_envs.*many"),
        ("batch_size=many", "batch_size must be a whole number"),
        ("name_environment=???", "name_environment=…"),
        ("loading_path=old", "pickled"),
        ("seed=[", "key=value"),
        ("action_space=drop", "must be a list"),
        ("lr=[1]", "must be a single value"),
        ("value_loss_coef=half", "value_loss_coef must be a number, got 'half'"),
    ],
)
def test_wrong_values_are_refused_in_one_line(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _glam(tmp_path, word)
    assert "\n" not in str(caught.value)


def test_shaping_is_a_kl_penalty(tmp_path: Path) -> None:
    config, notes = _glam(tmp_path, "reward_shaping_beta=0.5")
    assert config.algorithm.args["kl_coefficient"] == 0.5
    assert "reward_shaping_beta=0.5" in notes and "π₀" in notes


def test_all_open_entries_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_path=….*number_envs=….*name_environment=…") as caught:
        read(write(tmp_path, "glam-multi-node"))
    assert "main_process_ip" not in str(caught.value)  # has no effect here


def test_unknown_entries_of_a_file_are_named(tmp_path: Path) -> None:
    more = {"wandb_args": {"mode": "offline"}, "defaults": ["_self_", {"model": "t5"}]}
    path = write(tmp_path, "glam-local", **more)
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {RL: {"lrr": 1}}), path)
    _, notes = read(path, needed("glam-local", tmp_path))
    for name in (f"'{RL}.lrr'", "wandb_args", "{'model': 't5'}"):
        assert name in "\n".join(notes)


def _drrn_job(folder: Path) -> list[str]:
    """Return the arguments that the original's DRRN.slurm writes to the cluster file."""
    return [
        f"{RL}.seed=2",
        f"{RL}.number_envs=8",
        f"{RL}.num_steps=1500000",
        f"{RL}.action_space=[{','.join(ACTIONS)}]",
        f"{RL}.saving_path_logs={folder}",
        f"{RL}.name_experiment=drrn_mtrl",
        f"{RL}.name_model=DRRN",
        f"{RL}.name_environment=BabyAI-MixedTrainLocal-v0",
        f"{RL}.spm_path=unigram_8k.model",
        f"{PROCESSES}=0",
    ]


def test_without_a_language_model_the_agent_is_drrn(tmp_path: Path) -> None:
    path = write(tmp_path, "glam-multi-node")
    config, notes = read(path, _drrn_job(tmp_path))
    assert (config.policy.id, config.policy.args) == ("drrn", {})
    assert (config.algorithm.id, config.algorithm.args) == ("drrn", {"steps_per_gradient": 4 * 8})
    assert (config.world.num_steps, config.training.steps) == (4, 1_500_000)
    assert f"{RL}.lr," in "\n".join(notes) and "policy.args.tokenizer" in "\n".join(notes)
    small = ["device=cpu", "training.steps=64", f"run_dir={tmp_path}/run", "algorithm.args.batch_size=4"]
    assert convert_and_train(path, _drrn_job(tmp_path), small) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    for more, message in (("reward_shaping_beta=0.5", "reward_shaping_beta"), ("ppo_epochs=4", "Lamorel")):
        with pytest.raises(ConfigError, match=message):
            read(path, [*_drrn_job(tmp_path), f"{RL}.{more}"])


def test_a_french_run_is_french_throughout(tmp_path: Path) -> None:
    config, notes = _glam(tmp_path, "language=french")
    assert config.world.language == "french" and config.world.actions == [
        *("tourner à gauche", "tourner à droite", "aller tout droit", "ramasser", "lâcher", "basculer")
    ]
    assert config.world.probes is None and "template_test: ignored" in notes
    config, _ = _glam(tmp_path, "language=french", "action_space=[gauche,droite,avancer]")
    assert config.world.actions == ["gauche", "droite", "avancer"]
    with pytest.raises(GroundlingError, match="cannot translate the action 'sleep' to french"):
        _glam(tmp_path, "language=french", "action_space=[turn_left,turn_right,sleep]")
    small = ["model.path=starter", "device=cpu", "training.steps=4", "world.num_steps=2"]
    words = [*needed("glam-local", tmp_path), f"{RL}.language=french"]
    assert convert_and_train(write(tmp_path, "glam-local"), words, [*small, f"run_dir={tmp_path}/run"]) == 0


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bot=true"], "evaluate expert"),
        (["random_agent=true"], "evaluate random"),
        (["zero_shot=true"], "evaluate RUN --suite all"),
        (["im_learning=true"], "evaluate RUN .*glam/bc"),
        (["get_example_trajectories=true"], "collect RUN"),
        (["modified_action_space=true"], "evaluate RUN 'world.actions"),
        (["path=post-training_tests.py"], "evaluate random"),
        (["path=post-training_tests.py", "random_agent=false", "zero_shot=false"], "evaluate RUN --suite all"),
    ],
)
def test_tests_of_the_original_are_refused(words: list[str], command: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"instead of training: run groundling {command}") as caught:
        _glam(tmp_path, *words)
    assert "\n" not in str(caught.value)
    if not words[0].startswith("path"):  # the training script does not read these switches
        _glam(tmp_path, *words, "path=experiments/train_language_agent.py")


_CAMPAIGN = [
    *(f"{RL}.path=experiments/train_language_agent.py", f"{RL}.seed=3", f"{RL}.number_envs=32"),
    *(f"{RL}.num_steps=1500000", f"{RL}.template_test=1", f"{RL}.saving_path_model=models"),
    f'{RL}.action_space=["turn_left","turn_right","go_forward","pick_up","drop","toggle"]',
    *(f"{RL}.name_experiment='llm_mtrl'", f"{RL}.name_model='Flan_T5large'"),
    f"{RL}.name_environment='BabyAI-MixedTrainLocal-v0'",
]
"""Arguments that the commands of GLAM's campaigns have in common; folders and models are ours."""
_FLAN = [
    *(f"{LLM}.model_type=seq2seq", f"{LLM}.model_path=starter", f"{LLM}.minibatch_size=3"),
    *(f"{LLM}.parallelism.model_parallelism_size=2", "lamorel_args.accelerate_args.num_machines=1"),
]
_HEADS = [f"{RL}.use_action_heads=true", f"{LLM}.pretrained=false"]


@pytest.mark.parametrize(
    ("words", "policy", "init"),
    [
        (_FLAN, "action_scoring", "pretrained"),
        ([*_FLAN, *_HEADS, f"{RL}.load_embedding=true"], "action_head", "embeddings"),
        ([*_FLAN, *_HEADS], "action_head", "random"),
        ([f"{PROCESSES}=0", f"{RL}.spm_path=spm_models/unigram_8k.model"], "drrn", "pretrained"),
    ],
    ids=["GFlan", "NPAE", "NPA", "DRRN"],
)
def test_commands_of_the_campaigns_are_read(words: list[str], policy: str, init: str, tmp_path: Path) -> None:
    logs = f"{RL}.saving_path_logs={tmp_path / 'logs'}"
    config, _ = read(write(tmp_path, "glam-multi-node"), [*_CAMPAIGN, logs, *words])
    assert (config.policy.id, config.model.init) == (policy, init)
    assert (config.training.steps, config.seed, config.world.num_envs) == (1_500_000, 3, 32)


def test_each_script_of_a_campaign_has_its_own_run(tmp_path: Path) -> None:
    """In GLAM's scripts, GFlan-T5 and NPAE have the same experiment, model name and log path."""
    file, logs = write(tmp_path, "glam-multi-node"), f"{RL}.saving_path_logs={tmp_path / 'logs'}"
    scripts = [
        [],
        [*_HEADS, f"{RL}.load_embedding=true"],
        _HEADS,
        [_HEADS[1]],
        [f"{RL}.nbr_obs=1"],
        [f"{RL}.reward_shaping_beta=0.1"],
        [f"{RL}.number_envs=16"],
        [f"{RL}.action_space=[turn_left,turn_right,go_forward]"],
        [f"{PROCESSES}=0"],
    ]
    run_dirs = [read(file, [*_CAMPAIGN, *_FLAN, logs, *more])[0].run_dir for more in scripts]
    assert len({*run_dirs}) == len(scripts)
    again, _ = read(file, [*_CAMPAIGN, *_FLAN, logs, f"{RL}.num_steps=2000000"])
    assert again.run_dir == run_dirs[0]  # the same command, with more steps, resumes
