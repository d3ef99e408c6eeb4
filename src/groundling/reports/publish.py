"""A trained policy as a folder of its own, with a model card: what is kept of a run, or put on the hub."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from omegaconf import OmegaConf

from groundling.config.checking import naming_modules
from groundling.config.compose import recorded
from groundling.errors import ConfigError
from groundling.evaluation.evaluate import read_evaluation
from groundling.evaluation.protocols import PROTOCOLS
from groundling.evaluation.tables import as_code, in_markdown
from groundling.evaluation.target import Target
from groundling.io.documents import SETTINGS, read_json, read_object
from groundling.io.files import new_folder
from groundling.io.locks import locked, output_lock
from groundling.io.redaction import shareable
from groundling.io.terminal import plain
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import DESCRIPTION
from groundling.lm.load.gguf import SMOLLM2
from groundling.lm.load.loading import STARTERS
from groundling.reports.run_folder import suite_files, usual_suite
from groundling.rewards.reward_model_part import MODEL, has_rewarded
from groundling.rewards.sum import FOLDER
from groundling.training import checkpoint

_LICENSES: dict[str | None, str] = {**dict.fromkeys(STARTERS, "mit"), SMOLLM2: "apache-2.0"}
"""By model, its licence as the hub knows it."""
_BASES: dict[str | None, str | None] = {
    **dict.fromkeys(STARTERS),
    SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct",
}
"""By model, what the hub calls it; None: it is not there."""
_OF_TRAINING = (
    *("optimizer.safetensors", "random.safetensors", "collector.safetensors"),
    *("algorithm.json", "run.json"),
)
"""Files of a checkpoint that only its run needs."""
_READ_BY_A_MODEL = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "chat_template.json"),
)
"""A tokenizer's files, which hold texts that a model reads."""
_NAMES_A_FILE = ("path", "file", "dir", "folder")
"""Ends of keys whose value is a path."""


def publish(
    target: Target,
    output: Path,
    warn: Callable[[str], None] = warnings.warn,
    *,
    license: str | None = None,
    repository: str | None = None,
) -> Path:
    """Write a folder that is a policy by itself, wherever it is copied to.

    It holds the weights (as `from_pretrained` loads a language model), the run's reward models, ``config.yaml``, a
    model card, and a manifest by which `groundling.evaluation.target.find` knows it. Settings and JSON files are
    written as `shareable`: of a path on this machine its last name remains.

    Args:
        target: A run, one of its checkpoints, or a published policy.
        output: A folder that is not there yet, or empty; it is there as a whole or not at all.
        warn: Told if the file system has no locks, and of a reward model that is left out.
        license: As the hub knows it, such as ``mit``; None: that of the model, of those that we know.
        repository: OWNER/NAME on the hub, which the card then names.

    Raises:
        ConfigError: the target is not trained, or the folder holds something.
        RunError: another process publishes into it.
    """
    if target.checkpoint is None:
        raise ConfigError(f"{target.agent} has no checkpoint: name a run's folder or one of its checkpoints")
    with naming_modules(target.config.imports, target.run_dir):
        target.config.world.check()
    with locked(output_lock(output), f"is publishing into {output}"), new_folder(output) as partial:
        for name in _files_of_the_policy(target.checkpoint):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target.checkpoint / name, partial / name)
        _add_reward_models(target, partial, warn)
        for path in partial.rglob("*.json"):
            _leave_paths_out(path)
        counters = checkpoint.counters_of(target.checkpoint)
        checkpoint.write_json(partial / "run.json", {"counters": counters, "versions": checkpoint.versions()})
        checkpoint.seal(partial)  # but for what people may change
        settings = OmegaConf.to_yaml(OmegaConf.create(_settings(target)))
        (partial / "config.yaml").write_text(settings, encoding="utf-8")
        (partial / "README.md").write_text(model_card(target, license, repository), encoding="utf-8")
    return output


def _files_of_the_policy(folder: Path) -> Iterator[str]:
    """What lies in a checkpoint and in its manifest, but for files that only the run needs.

    Links are left out: who made the run may have let them point at the publisher's files.
    """
    written = read_object(folder / checkpoint.MANIFEST)
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (
            name in written
            and name not in _OF_TRAINING
            and not _is_of_a_reward_in_training(path.relative_to(folder))
            and not path.is_symlink()
        ):
            yield name


def _is_of_a_reward_in_training(path: Path) -> bool:
    """Whether it is a reward part's file, and not its model: what a judge was shown and said, say."""
    return path.parts[0] == FOLDER and path.parts[2:3] != (MODEL,)


def _add_reward_models(target: Target, output: Path, warn: Callable[[str], None]) -> None:
    """Put the run's reward models where a checkpoint has one that learns: what is seen of a policy tells of them."""
    assert target.checkpoint is not None
    for name, part in target.config.reward.items():
        if part is None or (part.id or name) != "reward_model" or not part.args.get("path"):
            continue
        source, place = Path(part.args["path"]), output / FOLDER / name / MODEL
        if (source / DESCRIPTION).is_file() and not place.exists():
            # The folder is named by whoever made the run: it may be one of the publisher's, which the policy never
            # learnt from. And what lies there is loaded and saved instead of copied.
            model = load_reward_model(source)
            if not has_rewarded(model, target.checkpoint / FOLDER / name):
                warn(
                    f"reward.{name}.args.path={source} is left out, since {target.checkpoint} was not trained with "
                    "the reward model in that folder: to publish the reward model too, bring back the one of the "
                    "training"
                )
                continue
            model.save(place, shareable(read_object(source / DESCRIPTION, SETTINGS).get("about")))


def _settings(target: Target) -> dict[str, Any]:
    recorded_ones = recorded(target.run_dir / "config.yaml")
    settings: dict[str, Any] = shareable(recorded_ones)
    settings.setdefault("name", target.run_dir.name)  # a config has one, also if its own had an address in it
    for name in ("path", "tokenizer"):
        settings["model"][name] = _name_of_model(recorded_ones["model"][name])
    return settings


def _name_of_model(path: str | None) -> str | None:
    """As others can name a model: a bundled one by its name, a folder as ``./NAME``, which no hub is asked for."""
    for name, folder in STARTERS.items():
        if path in (name, str(folder)):
            return name
    if path is None or (shareable(path) == path and not Path(path).is_dir()):
        return path
    return f"./{PureWindowsPath(shareable(path)).name}"


def _leave_paths_out(path: Path) -> None:
    """Rewrite a JSON file as `shareable`, and the name of an adapter's base model.

    Of a tokenizer's files and a reward model's, whose texts a model reads, only the entries that name a file.
    """
    is_read = path.name in _READ_BY_A_MODEL or FOLDER in path.parts

    def without(node: Any, key: str = "") -> Any:
        if isinstance(node, dict):
            return {name: without(value, name) for name, value in node.items()}
        if isinstance(node, list):
            return [without(value, key) for value in node]
        if key == "base_model_name_or_path":
            return _name_of_model(node)
        return shareable(node) if key.endswith(_NAMES_A_FILE) or not is_read else node

    content = read_json(path)
    if (changed := without(content)) != content:
        path.write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_card(target: Target, license: str | None = None, repository: str | None = None) -> str:
    """The card: what was trained on what, how, and what the evaluations of this checkpoint say.

    Its head is for machines, with the trained agent's figures and their intervals. Its names are those of whoever made
    the run, who may have wanted to write the card: they stand there `in_markdown` or `as_code`.
    """
    assert target.checkpoint is not None
    folder, usual = target.run_dir / "evaluation", usual_suite(target.world)
    evaluations = {path.stem: read_evaluation(path) for path in suite_files(folder, usual)}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(as_code=as_code, in_markdown=in_markdown)
    settings, world = _settings(target), shareable(target.world.spec.name)
    digest = checkpoint.digest_of(target.checkpoint)
    of_checkpoint = {
        name: evaluation
        for name, evaluation in evaluations.items()
        if evaluation.get("checkpoint") == target.checkpoint.name
        and evaluation.get("checkpoint_sha256") in (None, digest)  # None: of an earlier version
    }
    base = _BASES.get(settings["model"]["path"], settings["model"]["path"])
    is_language_model = (target.checkpoint / "config.json").exists()
    head = ModelCardData(
        license=license or _LICENSES.get(settings["model"]["path"] if is_language_model else None),
        library_name="groundling",
        base_model=base if is_language_model and base and not base.startswith("./") else None,
        tags=["reinforcement-learning", settings["algorithm"]["id"]],
        model_name=plain(settings["name"]),
        eval_results=[
            result
            for name, evaluation in of_checkpoint.items()
            for result in _results(world, name, evaluation)
        ]
        or None,
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
            for name, evaluation in of_checkpoint.items()
        ],
        is_language_model=is_language_model,
    )
    return str(ModelCard(shareable(f"---\n{head.to_yaml()}\n---\n\n{body}")))


def _results(world: str, suite: str, evaluation: Mapping[str, Any]) -> Iterator[EvalResult]:
    """What the hub is told of the trained agent in a suite, of the run's own world or another one."""
    if evaluation.get("suite") not in PROTOCOLS:  # whose name is not a world's
        world = shareable(plain(str(evaluation.get("name", world))))
    trained = evaluation["agents"].get("trained", {"figures": {}})
    for name, figure in trained["figures"].items():
        if figure["value"] is not None:
            yield EvalResult(
                task_type="reinforcement-learning",
                dataset_type=world,
                dataset_name=f"{world}, {suite}",
                dataset_config=suite,  # by which the hub tells them apart
                metric_type=name,
                metric_value=figure["value"],
                metric_args={"low": figure["low"], "high": figure["high"], "episodes": trained["episodes"]},
            )


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
