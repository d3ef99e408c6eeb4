"""A trained policy as a folder of its own, with a model card: what is kept of a run, or put on the hub."""

import json
import shutil
from pathlib import Path
from typing import Any

import jinja2
from omegaconf import OmegaConf

from groundling.configs.compose import recorded
from groundling.configs.trust import shareable
from groundling.errors import ConfigError, RunError
from groundling.evaluation.evaluate import read_evaluation
from groundling.evaluation.target import Target
from groundling.training import checkpoint

_OF_TRAINING = (
    *("optimizer.safetensors", "random.safetensors", "collector.safetensors", "online.safetensors"),
    *("algorithm.json", "run.json", "manifest.json", "reward_table.safetensors"),
)
"""Files of a checkpoint that only its run needs."""


def publish(target: Target, output: Path) -> Path:
    """Write the weights (as `from_pretrained` loads a language model), ``config.yaml`` and a model card.

    Settings and JSON files are written as `shareable`: of a path on this machine its last name remains.

    Args:
        target: A run or one of its checkpoints.
        output: A folder that is not there yet, or empty.

    Raises:
        ConfigError: the target is not trained, or the folder holds something.
    """
    if target.checkpoint is None:
        raise ConfigError(f"{target.agent} has no checkpoint: name a run's folder or one of its checkpoints")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"--output {output} holds something already: name another folder")
    shutil.copytree(target.checkpoint, output, dirs_exist_ok=True, ignore=_left_out)
    for path in output.rglob("*.json"):
        _leave_paths_out(path)
    (output / "config.yaml").write_text(
        OmegaConf.to_yaml(OmegaConf.create(_settings(target))), encoding="utf-8"
    )
    (output / "README.md").write_text(model_card(target), encoding="utf-8")
    return output


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Files that are only the run's, and links: who made the run may have let them point at the publisher's files."""
    return {name for name in names if name in _OF_TRAINING or (Path(folder) / name).is_symlink()}


def _settings(target: Target) -> dict[str, Any]:
    settings: dict[str, Any] = shareable(recorded(target.run_dir / "config.yaml"))
    return settings


def _leave_paths_out(path: Path) -> None:
    """Rewrite a JSON file whose ``…path`` entries, such as an adapter's ``base_model_name_or_path``, are absolute."""

    def without(node: Any) -> Any:
        if isinstance(node, dict):
            return {
                key: shareable(value) if isinstance(value, str) and key.endswith("path") else without(value)
                for key, value in node.items()
            }
        return [without(value) for value in node] if isinstance(node, list) else node

    content = json.loads(path.read_text(encoding="utf-8"))
    if (changed := without(content)) != content:
        path.write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_card(target: Target) -> str:
    """The card: what was trained on what, how, and what the evaluations of this checkpoint say."""
    assert target.checkpoint is not None
    evaluations = {
        path.stem: read_evaluation(path) for path in sorted((target.run_dir / "evaluation").glob("*.json"))
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.evaluation", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("model_card.md.j2").render(
        config=_settings(target),
        world=target.world.spec.name,
        checkpoint=target.checkpoint.name,
        steps=checkpoint.step_of(target.checkpoint),
        tables={
            name: _table(evaluation)
            for name, evaluation in evaluations.items()
            if evaluation.get("checkpoint") == target.checkpoint.name
        },
        is_language_model=(target.checkpoint / "config.json").exists(),
    )


def upload(folder: Path, repository: str, private: bool) -> str:
    """Put an exported folder on the Hugging Face hub, as ``huggingface-cli login`` or HF_TOKEN lets it.

    Returns:
        The address of what was uploaded.

    Raises:
        RunError: the hub refuses it or cannot be reached; the folder stays.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        address = api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # the hub's client raises what its many parts raise, httpx's errors among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not upload {folder} to {repository}: {reason}; the folder stays") from error
    return str(address)


def _table(evaluation: dict[str, Any]) -> dict[str, dict[str, str]]:
    """By agent, the figures of an evaluation."""
    return {
        name: {"episodes": str(agent["episodes"])}
        | {figure: _figure_cell(value) for figure, value in agent["figures"].items()}
        for name, agent in evaluation["agents"].items()
    }


def _figure_cell(figure: dict[str, float | None]) -> str:
    value, low, high = (figure[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"
