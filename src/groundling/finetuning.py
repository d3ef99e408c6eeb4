"""Train a text generator on the user's own prompts and rewards in one call."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from groundling.algorithms.algorithm import algorithms
from groundling.config.compose import compose
from groundling.config.overrides import Change
from groundling.envs.text_generation.own_data import DATA, pool_of, rows_of, write_rows
from groundling.errors import ConfigError
from groundling.io.terminal import make_console
from groundling.lm.load.model import load_tokenizer
from groundling.lm.load.model_files import Source, resolve
from groundling.objects import coefficients_of
from groundling.runs import Run, train
from groundling.training.checkpoint import check_folder

RewardFunction = str | Callable[..., Any]


def finetune(
    model: Any,
    reward_funcs: RewardFunction | Sequence[RewardFunction],
    train_dataset: Any,
    *,
    eval_dataset: Any = None,
    processing_class: Any = None,
    reward_weights: Sequence[float] | None = None,
    algorithm: str = "grpo",
    steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Run:
    """Train a language model to generate texts with high rewards; arguments are named as in TRL.

    A model object is copied and not modified. Load the trained model with `Run.agent`, or from a checkpoint with
    Transformers' ``from_pretrained``.

    Args:
        model: A folder, a hub id, a bundled model, or a Transformers model.
        reward_funcs: A reward or a list of rewards to sum. Each is an id from ``groundling list rewards``, or a
            function as in TRL, called with ``prompts``, ``completions`` and the data's other columns as keyword
            arguments.
        train_dataset: A JSON Lines, Parquet, CSV or text file, a list of prompts, a list of dicts, or a
            `datasets.Dataset`, with prompts as strings or lists of messages.
        eval_dataset: Data for `Run.evaluate`, in the same formats. If None, a tenth of the prompts is held out for
            evaluation and a tenth for validation.
        processing_class: The tokenizer of a model object. If None, it is loaded from the model's ``name_or_path``.
        reward_weights: One coefficient per reward; the default is 1 for each.
        algorithm: An id from ``groundling list algorithms``, such as grpo or ppo. For dpo and kto, which learn from
            preferences instead of rewards, use ``groundling.train("dpo", …)`` with ``world.args.path=pairs.jsonl``.
        steps: Total number of tokens to generate in training.
        seed, run_dir, overrides: As in `groundling.train`.

    Raises:
        ConfigError, RunError, KeyboardInterrupt: As in `groundling.train`.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides must be a list of strings, not a single string: use overrides=[{overrides!r}]")
    if getattr(algorithms.get(algorithm), "needs_reference", False):  # it learns from preferences
        call = f'groundling.train("{algorithm}", model=…, overrides=["world.args.path=pairs.jsonl"])'
        raise ConfigError(f"algorithm={algorithm!r} learns from preferences instead of rewards: use {call}")
    reward = _weighted(reward_funcs, reward_weights)
    data = {"train": train_dataset} | ({} if eval_dataset is None else {"val": eval_dataset, "test": eval_dataset})
    is_file = isinstance(train_dataset, str | Path)
    task = re.sub(r"[^\w.-]+", "-", Path(train_dataset).stem if is_file else "-".join(coefficients_of(reward) or ()))
    paths = {split: _path(given, task, split) for split, given in data.items()}
    if len({pool_of(path) for path in paths.values()}) > 1:
        raise ConfigError(f"{paths['train']} and {paths['test']} have different formats: use one format for both")
    changes: list[Any] = [
        Change("name", f"{task}-${{algorithm.id}}"),
        Change("world.args", takes_out=True),
        Change("world.pool", pool_of(paths["train"])),
        Change("world.args", {"path": paths["train"] if eval_dataset is None else paths}),
        *([Change("world.replacement", True)] if algorithm == "supervised" else []),  # its default
        *overrides,
    ]
    values = {"algorithm.id": algorithm, "seed": seed, "run_dir": None if run_dir is None else str(run_dir)}
    set_here = [Change(key, value) for key, value in values.items() if value is not None]
    config = compose("writing", [*set_here, *changes])
    world = cast(Any, config.world)
    check_folder(Path(config.run_dir))
    if isinstance(model, str | Path):  # before the data are written
        resolve(model)
    for split, given in data.items():
        if not isinstance(given, str | Path):
            name = "train_dataset" if split == "train" else "eval_dataset"
            write_rows(Path(config.run_dir), Path(paths[split]).name, rows_of(given, name))
    make_console().print(world.read_prompts(), highlight=False, soft_wrap=True)
    return train(
        "writing",
        model=model,
        tokenizer=_tokenizer(model, processing_class),
        algorithm=algorithm,
        reward=reward,
        steps=steps,
        seed=seed,
        run_dir=run_dir,
        overrides=[*changes, Change("world.chat", world.chat)],
    )


def _weighted(
    functions: RewardFunction | Sequence[RewardFunction], weights: Sequence[float] | None
) -> list[tuple[Any, float]]:
    """Return each reward with its coefficient."""
    chosen: Sequence[Any] = functions if isinstance(functions, list | tuple) else [functions]
    try:
        weights = [1.0] * len(chosen) if weights is None else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise ConfigError(f"reward_weights must be a list of numbers, got {weights!r:.80}") from None
    if not chosen:
        raise ConfigError("reward_funcs is empty: pass a function of completions, or the id of a reward")
    if len(weights) != len(chosen):
        raise ConfigError(f"reward_weights must have one number for each reward, got {len(weights)} for {len(chosen)}")
    return list(zip(chosen, weights, strict=True))


def _path(data: Any, task: str, split: str) -> str:
    """Return a file's path, or the path that rows from Python will have in the run's folder."""
    if isinstance(data, str | Path):
        return str(data)
    return f"${{run_dir}}/{DATA}/{task}{'' if split == 'train' else '-eval'}.jsonl"


def _tokenizer(model: Any, given: Any) -> Any:
    """Return the tokenizer of a model object: the given one, or the one at the model's ``name_or_path``."""
    if given is not None or isinstance(model, str | Path) or not hasattr(model, "name_or_path"):
        return given
    if not model.name_or_path:
        raise ConfigError("the model has no tokenizer: pass processing_class=tokenizer")
    return load_tokenizer(Source(model.name_or_path))
