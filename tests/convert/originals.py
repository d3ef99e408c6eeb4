"""Config files of GLAM, Lamorel and RL4LMs, rebuilt from their entries, which are stored by file name."""

import copy
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf


def _read(name: str) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return files


GLAM, _RL4LMS = _read("glam_files.yaml"), _read("rl4lms_files.yaml")
RL4LMS = sorted(_RL4LMS)
ACTIONS = ["turn_left", "turn_right", "go_forward", "pick_up", "drop", "toggle"]
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
NEEDED = {
    "glam-local": [],
    "glam-multi-node": [*_CLUSTER, "rl_script_args.num_steps=80"],
    "glam-multi-node-test": [*_CLUSTER, "rl_script_args.number_episodes=7"],
}
"""The overrides in the campaign's scripts, by file of GLAM."""
EXAMPLES = {
    "lamorel-ppo": "PPO_finetuning",
    "lamorel-ppo-lora": "PPO_LoRA_finetuning",
    "lamorel-rlhf": "RLHF-like_PPO_LoRA_finetuning",
}
"""The folder of Lamorel's example, by file."""


def write_glam(folder: Path, name: str, **more: Any) -> Path:
    """Write a Hydra file of GLAM or Lamorel."""
    path = folder / f"{name}.yaml"
    OmegaConf.save(
        OmegaConf.create({"defaults": ["_self_"], "hydra": {"run": {"dir": "."}}, **GLAM[name], **more}), path
    )
    return path


def needed(name: str, folder: Path) -> list[str]:
    """Return the overrides that a file requires; Lamorel's examples pass them to the launcher."""
    if name in EXAMPLES:
        path = f"PROJECT_PATH/examples/{EXAMPLES[name]}/main.py"
        return [f"rl_script_args.path={path}", f"rl_script_args.output_dir={folder}"]
    return [*NEEDED[name], f"rl_script_args.saving_path_logs={folder}"]


def rl4lms(name: str) -> dict[str, Any]:
    """Return the entries of one of RL4LMs' files."""
    return copy.deepcopy(_RL4LMS[name])
