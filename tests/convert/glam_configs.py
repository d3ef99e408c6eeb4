"""Hydra files of GLAM and Lamorel, rebuilt from their entries."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

ACTIONS = ["turn_left", "turn_right", "go_forward", "pick_up", "drop", "toggle"]


def _lamorel(llm: dict[str, Any], size: Any = 1, use_gpu: bool = True, **more: Any) -> dict[str, Any]:
    accelerate = more.pop("accelerate", {"machine_rank": 0, "main_process_ip": "127.0.0.1", "num_machines": 1})
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
    ("seed", "number_envs", "num_steps", "action_space", "name_experiment", "name_model", "name_environment"), "???"
)
_OPEN_LLM = dict.fromkeys(("model_type", "model_path", "minibatch_size"), "???")
_OPEN_MACHINES = {"machine_rank": 0} | dict.fromkeys(("num_machines", "num_processes", "main_process_ip"), "???")
_TEST_ONLY = {"modified_action_space": False, "get_example_trajectories": False, "im_learning": False, "bot": False}
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
STRINGS = ["turn left", "turn right", "go forward", "pick_up", "drop", "toggle"]
_BABYAI = {"number_envs": 2, "task": "BabyAI-GoToRedBall-v0", "action_space": ACTIONS}

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
            "action_space": ACTIONS,
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
            "strings": STRINGS,
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
            {"load_in_4bit": False, "seed": 5}, gloo_timeout=1800, accelerate={"machine_rank": 0, "num_machines": 1}
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
    f"rl_script_args.action_space=[{','.join(ACTIONS)}]",
    "rl_script_args.name_experiment=llm_gtl",
    "rl_script_args.name_model=starter",
    "rl_script_args.name_environment=BabyAI-GoToLocal-v0",
]
"""What the original's campaign scripts would give to its cluster files."""
NEEDED = {
    "glam-local": [],
    "glam-multi-node": [*_CLUSTER, "rl_script_args.num_steps=80"],
    "glam-multi-node-test": [*_CLUSTER, "rl_script_args.number_episodes=7"],
}


def write(folder: Path, name: str, **more: Any) -> Path:
    path = folder / f"{name}.yaml"
    OmegaConf.save(
        OmegaConf.create({"defaults": ["_self_"], "hydra": {"run": {"dir": "."}}, **FILES[name], **more}), path
    )
    return path


EXAMPLES = {
    "lamorel-ppo": "PPO_finetuning",
    "lamorel-ppo-lora": "PPO_LoRA_finetuning",
    "lamorel-rlhf": "RLHF-like_PPO_LoRA_finetuning",
}
"""By file, the folder of Lamorel's example."""


def needed(name: str, folder: Path) -> list[str]:
    """What must be given: of Lamorel's examples, what their pages give to its launcher."""
    if name in EXAMPLES:
        path = f"PROJECT_PATH/examples/{EXAMPLES[name]}/main.py"
        return [f"rl_script_args.path={path}", f"rl_script_args.output_dir={folder}"]
    return [*NEEDED[name], f"rl_script_args.saving_path_logs={folder}"]
