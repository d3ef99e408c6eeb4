"""`groundling publish`: write a trained policy and its model card to a folder."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from omegaconf import OmegaConf

from groundling.config.compose import recorded
from groundling.config.facts import shareable
from groundling.errors import ConfigError, warn_caller
from groundling.evaluation.evaluate import as_code, in_markdown
from groundling.evaluation.protocols import PROTOCOLS
from groundling.evaluation.target import Target
from groundling.io.documents import SETTINGS, read_json, read_object
from groundling.io.files import locked, new_folder, output_lock
from groundling.io.terminal import plain
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import DESCRIPTION
from groundling.lm.load.gguf import SMOLLM2
from groundling.lm.load.model_files import STARTERS
from groundling.registry import naming_modules
from groundling.reports.run_folder import read_evaluations
from groundling.rewards.reward_model_part import MODEL, has_rewarded
from groundling.rewards.sum import FOLDER
from groundling.training import checkpoint

_KNOWN_MODELS: dict[str, tuple[str, str | None]] = {  # licence, and hub id if there is one
    **dict.fromkeys(STARTERS, ("mit", None)),
    SMOLLM2: ("apache-2.0", "HuggingFaceTB/SmolLM2-135M-Instruct"),
}
_TRAINING_FILES = (  # checkpoint files that only training needs
    *("optimizer.safetensors", "random.safetensors", "collector.safetensors"),
    *("algorithm.json", "run.json"),
)
_TOKENIZER_FILES = (  # files with text that a model reads
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "chat_template.json"),
)
_PATH_KEYS = ("path", "file", "dir", "folder")  # suffixes of keys whose values are paths


def publish(
    target: Target,
    output: Path,
    warn: Callable[[str], None] = warn_caller,
    *,
    license: str | None = None,
    repository: str | None = None,
) -> Path:
    """Atomically write a self-contained folder with a policy that no longer depends on its run.

    It contains the weights (for a language model, in the format of `from_pretrained`), the run's reward models,
    ``config.yaml``, a model card, and a manifest by which `groundling.evaluation.target.find` recognises the folder.
    Settings and JSON files are redacted: paths on this machine are reduced to their last component.

    Args:
        warn: Called with a message about each reward model that is omitted.
        license: Licence id on the hub, such as ``mit``. If None, the licence of a bundled model is used.
        repository: OWNER/NAME on the hub, for the card.
    """
    if target.checkpoint is None:
        raise ConfigError(f"{target.agent} has no checkpoint: pass a run's folder or one of its checkpoints")
    with naming_modules(target.config.imports, target.run_dir, target.config.objects):
        target.config.world.check()
    with locked(output_lock(output), f"is publishing into {output}"), new_folder(output) as partial:
        for name in _policy_files(target.checkpoint):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target.checkpoint / name, partial / name)
        _add_reward_models(target, target.checkpoint, partial, warn)
        for path in partial.rglob("*.json"):
            _redact(path)
        counters = checkpoint.counters_of(target.checkpoint)
        checkpoint.write_json(partial / "run.json", {"counters": counters, "versions": checkpoint.versions()})
        checkpoint.seal(partial)  # excludes the files written below, which users may edit
        settings = OmegaConf.to_yaml(OmegaConf.create(_settings(target)))
        (partial / "config.yaml").write_text(settings, encoding="utf-8")
        (partial / "README.md").write_text(model_card(target, license, repository), encoding="utf-8")
    return output


def _policy_files(folder: Path) -> Iterator[str]:
    """Yield the files in a checkpoint's manifest, except training files and symlinks (which may point elsewhere)."""
    written = read_object(folder / checkpoint.MANIFEST)
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        # Publish only the model of a reward part, not a judge's inputs and replies.
        is_of_training = relative.parts[0] == FOLDER and relative.parts[2:3] != (MODEL,)
        name = relative.as_posix()
        if name in written and name not in _TRAINING_FILES and not is_of_training and not path.is_symlink():
            yield name


def _add_reward_models(target: Target, trained: Path, output: Path, warn: Callable[[str], None]) -> None:
    """Save the run's reward models where a checkpoint stores reward models that are being trained."""
    for name, part in target.config.reward.items():
        if part is None or (part.id or name) != "reward_model" or not part.args.get("path"):
            continue
        source, place = Path(part.args["path"]), output / FOLDER / name / MODEL
        if (source / DESCRIPTION).is_file() and not place.exists():
            # The run's author chose this path. On the publisher's machine, it may be a folder unrelated to the policy.
            # Loading and saving the model ensures that nothing else is copied.
            model = load_reward_model(source)
            if not has_rewarded(model, trained / FOLDER / name):
                warn(
                    f"reward.{name}.args.path={source} is not published, since {trained} was not trained with the "
                    "reward model in that folder: to include the reward model, restore the one used in training"
                )
                continue
            model.save(place, shareable(read_object(source / DESCRIPTION, SETTINGS).get("about")))


def _settings(target: Target) -> dict[str, Any]:
    original = recorded(target.run_dir / "config.yaml")
    settings: dict[str, Any] = shareable(original)
    settings.setdefault("name", target.run_dir.name)  # redaction removes names that contain an address
    for name in ("path", "tokenizer"):
        settings["model"][name] = _public_name(original["model"][name])
    return settings


def _public_name(path: str | None) -> str | None:
    """Return a model's public name: the name of a bundled model, a hub id, or ``./NAME`` for any other folder."""
    for name, folder in STARTERS.items():
        if path in (name, str(folder)):
            return name
    if path is None or (shareable(path) == path and not Path(path).is_dir()):
        return path
    return f"./{PureWindowsPath(shareable(path)).name}"


def _redact(path: Path) -> None:
    """Redact a JSON file; in files with text that a model reads, redact only paths and the base model's name."""
    is_read = path.name in _TOKENIZER_FILES or FOLDER in path.parts

    def redacted(node: Any, key: str = "") -> Any:
        if isinstance(node, dict):
            return {name: redacted(value, name) for name, value in node.items()}
        if isinstance(node, list):
            return [redacted(value, key) for value in node]
        if key == "base_model_name_or_path":
            return _public_name(node)
        return shareable(node) if key.endswith(_PATH_KEYS) or not is_read else node

    content = read_json(path)
    if (changed := redacted(content)) != content:
        path.write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_card(target: Target, license: str | None = None, repository: str | None = None) -> str:
    """Return the model card: world, training, evaluations of this checkpoint, and result metadata for the hub.

    Names chosen by the run's author are untrusted, so they are escaped by `in_markdown` or `as_code`.
    """
    assert target.checkpoint is not None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(as_code=as_code, in_markdown=in_markdown)
    settings, world = _settings(target), shareable(target.world.spec.name)
    digest = checkpoint.digest_of(target.checkpoint)
    evaluations = {
        name: evaluation
        for name, evaluation in read_evaluations(target.run_dir, type(target.world)).items()
        if evaluation.get("checkpoint") == target.checkpoint.name
        and evaluation.get("checkpoint_sha256") in (None, digest)  # None if an earlier version wrote it
    }
    path = settings["model"]["path"]
    is_language_model = (target.checkpoint / "config.json").exists()
    known_license, base = _KNOWN_MODELS.get(path, (None, path)) if is_language_model else (None, None)
    results = [result for name, evaluation in evaluations.items() for result in _results(world, name, evaluation)]
    head = ModelCardData(
        license=license or known_license,
        library_name="groundling",
        base_model=base if base and not base.startswith("./") else None,
        tags=["reinforcement-learning", settings["algorithm"]["id"]],
        model_name=plain(settings["name"]),
        eval_results=results or None,
    )
    body = environment.get_template("model_card.md.j2").render(
        place=repository or "THIS-FOLDER",
        imports=[module for module in target.config.imports if re.fullmatch(r"[\w.]+", module)],
        writes=target.world.presentation.episodes == "texts",
        config=settings,
        world=world,
        checkpoint=target.checkpoint.name,
        steps=checkpoint.step_of(target.checkpoint),
        tables=[
            (name, evaluation.get("overrides", []), _table(evaluation), evaluation.get("notes", []))
            for name, evaluation in evaluations.items()
        ],
        is_language_model=is_language_model,
        license=head.license,
    )
    return str(ModelCard(shareable(f"---\n{head.to_yaml()}\n---\n\n{body}")))


def _results(world: str, suite: str, evaluation: Mapping[str, Any]) -> Iterator[EvalResult]:
    """Yield the trained agent's results on a suite in the hub's format."""
    if evaluation.get("suite") not in PROTOCOLS:  # a protocol's results are not named after the env
        world = shareable(plain(str(evaluation.get("name", world))))
    trained = evaluation["agents"].get("trained", {"figures": {}})
    for name, figure in trained["figures"].items():
        if figure["value"] is not None:
            yield EvalResult(
                task_type="reinforcement-learning",
                dataset_type=world,
                dataset_name=f"{world}, {suite}",
                dataset_config=suite,  # the hub tells results apart by this field
                metric_type=name,
                metric_value=figure["value"],
                metric_args={"low": figure["low"], "high": figure["high"], "episodes": trained["episodes"]},
            )


def _table(evaluation: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        name: {"episodes": str(agent["episodes"])}
        | {figure: _figure_cell(value) for figure, value in agent["figures"].items()}
        for name, agent in evaluation["agents"].items()
    }


def _figure_cell(figure: Mapping[str, float | None]) -> str:
    value, low, high = (figure[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"
