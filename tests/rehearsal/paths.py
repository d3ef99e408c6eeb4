"""Paths of runs on a GPU, as small as possible.

A path is run on the CPU and on the device, and returns figures and tensors by name, which must agree.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from rich.console import Console
from safetensors.torch import load_file
from scripts.combinations import PAID, Combination, config_of, learners, rewarded, verdict
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from groundling.config.schema import Config
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.target import find
from groundling.training.tracking import TrainingProgress, read_metrics
from groundling.training.train import train
from groundling.training.trainer import Trainer
from tests.rehearsal import materials
from tests.rehearsal.events import phase
from tests.runs import TIME_KEYS

Outcome = Mapping[str, Tensor | float]
DRAWN = "drawn by the device"
"""Prefix of figures that a GPU samples with its own generator."""
UNITS: collections.Counter[str] = collections.Counter()
"""Number of steps, tokens or gradient steps in each phase of a path."""


class Played(Protocol):
    """A function that runs a path on a device, in an empty folder, and returns its outcome."""

    def __call__(self, device: str, folder: Path) -> Outcome: ...


HAS_NETHACK = find_spec("nle") is not None
_CONSOLE = Console(quiet=True)


def settings(one: Combination) -> Config:
    """Return the config of a combination's run, with the smallest models."""
    clones = one.clones and one.world.startswith("text")
    encodes = one.world == "text"  # with an encoder-decoder; in other worlds with a causal model
    model = materials.model("starter" if encodes else "starter-causal")
    config = config_of(one, materials.distilled(), str(model), str(materials.dataset(one.world)) if clones else "")
    if encodes and config.model.path:
        config.model.attention = "sdpa"  # as on accelerators
    if "learning_rate" in config.algorithm.args:
        # Adam amplifies gradients that consist only of rounding errors.
        config.algorithm.args["learning_rate"] = 1e-4
    return config


def combinations() -> Iterator[Combination]:
    """Yield all compatible worlds, policies and algorithms, and all rewards."""
    for one in dict.fromkeys([*learners(), *rewarded()]):
        if one.world == "NetHack" and not HAS_NETHACK:
            continue
        if verdict(config_of(one, materials.distilled())) is None:
            yield one


def trained(config: Config, device: str, folder: Path, updates: int = 2) -> Outcome:
    """Return a run's figures and weights after some updates."""
    run = Trainer(config.model_copy(update={"device": device}), folder, warn=_fail)
    with _in_phases(run):
        progress = TrainingProgress(_CONSOLE, config.training.steps, 0)
        rows = [run.update(progress) for _ in range(updates)]
        run.collector.close()
    return {**_figures(rows), **dict(run.policy.named_parameters())}


def whole_run(config: Config, device: str, folder: Path) -> Outcome:
    """Stop a run at a checkpoint, resume and evaluate it."""
    steps = config.world.num_rows * config.world.steps_per_row
    for updates in (1, 2):
        training = config.training.model_copy(update={"steps": updates * steps, "checkpoint_every": 1})
        evaluation = config.evaluation.model_copy(update={"episodes": 2, "baselines": ["zero-shot"]})
        parts = {"device": device, "training": training, "evaluation": evaluation, "run_dir": str(folder / "run")}
        with phase("run with checkpoints"):
            UNITS["run with checkpoints"] += 1
            assert train(config.model_copy(update=parts), _CONSOLE, _fail)
    target = find(str(folder / "run"), [f"device={device}"], _fail)
    with phase("evaluation"):
        played = evaluate(target, next(iter(target.world.suites)), 2, warn=_fail)
    UNITS["evaluation"] += 2
    last = max((folder / "run" / "checkpoints").iterdir())
    return {
        **_figures(read_metrics(folder / "run")),
        **{
            f"{path.name}:{name}": tensor
            for path in last.glob("*.safetensors")
            for name, tensor in load_file(path).items()
            if not name.startswith("cuda.")  # the state of a GPU's own generator
        },
        **{f"{agent}.{name}": figure.value for agent, one in played.items() for name, figure in one.figures().items()},
    }


def variants() -> Iterator[tuple[str, Config]]:
    """Yield runs with other features: references, adapters, checkpointed gradients, filters, masks."""
    reading = Combination("text", "action_scoring", "ppo", PAID)
    writing = Combination("writing", "token", "ppo", "metric")
    lora = {"r": 2, "target_modules": "all-linear"}
    for one in (reading, writing):
        config = settings(one)
        config.algorithm.args |= {"kl_coefficient": 0.1}
        config.model.lora = dict(lora)
        yield f"LoRA and a KL penalty, {one.world}", config
        config = settings(one)
        config.algorithm.args |= {"kl_coefficient": 0.1, "kl_target": 0.1, "normalize_rewards": True}
        config.model.gradient_checkpointing = True
        yield f"checkpointed gradients and a reference, {one.world}", config
    config = settings(writing)
    config.policy.args = {"value": "separate", "generation": {"top_k": 50, "temperature": 0.7, "min_length": 8}}
    yield "filters, separate values", config
    config = settings(writing)
    config.policy.args = {"value": "lora", "value_lora": dict(lora), "filtered_log_probs": False}
    yield "values by an adapter", config
    for algorithm, mask in (("nlpo", "learned_top_k"), ("ppo", "topk")):
        config = settings(dataclasses.replace(writing, algorithm=algorithm))
        config.policy.args |= {"mask_type": mask, "top_mask": 20}
        config.policy.args.pop("min_tokens_to_keep", None)
        yield f"{algorithm.upper()} under the mask {mask}", config
    if HAS_NETHACK:
        config = settings(Combination("NetHack", "nethack", "appo", PAID))
        config.world.ahead = True
        config.policy.args["core"] = "lstm"
        yield "NetHack ahead, LSTM", config
    config = settings(reading)
    config.world.bootstrap_truncated = True
    yield "bootstrapped time-outs", config
    config = settings(reading)
    config.policy.args["prompt"] = ["glam", "brief"]
    config.algorithm.args |= {"contrast_coefficient": 0.5, "contrast_prompts": ["glam", "brief", "tagged"]}
    yield "forms of a prompt, contrast", config
    for policy in ("action_scoring", "action_writing"):
        config = conversing(policy, "ppo")
        config.algorithm.args |= {"kl_coefficient": 0.1}
        config.model.lora = dict(lora)
        yield f"conversations, {policy}", config
    config = conversing("action_generating", "ppo")
    config.policy.args |= {"thought_ends": "So", "max_thought_tokens": 3, "guided": False}
    config.algorithm.args |= {"kl_coefficient": 0.1, "credit": "poad"}
    yield "conversations, thoughts", config
    config = conversing("action_scoring", "grpo")
    config.world.group_size = 2
    yield "conversations, groups of episodes", config


def conversing(policy: str, algorithm: str) -> Config:
    """Return a run whose policy reads whole episodes as conversations."""
    config = settings(Combination("text", policy, algorithm, PAID))
    config.model.path = str(materials.model("starter-causal"))
    config.world.history = None
    config.policy.args |= {"prompt": "conversation"}
    return config


def whole_runs() -> Iterator[tuple[str, Config]]:
    """Yield runs that are stopped, resumed and evaluated."""
    for one in (
        Combination("text", "action_scoring", "ppo", "distilled judge"),
        Combination("writing", "token", "nlpo", "metric"),
        Combination("NetHack", "nethack", "appo", PAID),
    ):
        if one.world == "NetHack" and not HAS_NETHACK:
            continue
        config = settings(one)
        yield f"stopped, resumed, evaluated: {one.world}", config
    yield "stopped, resumed, evaluated: conversations", conversing("action_scoring", "ppo")


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{row['update']}:{name}": float(value)
        for row in rows
        for name, value in row.items()
        if name not in TIME_KEYS and isinstance(value, int | float)
    }


def _fail(message: str) -> None:
    raise AssertionError(message)


@contextlib.contextmanager
def _in_phases(run: Trainer) -> Iterator[None]:
    """Assign events to collection and learning."""
    collect, update = run.collector.collect, run.algorithm.update
    world = run.config.world

    def collecting(*args: Any, **options: Any) -> Any:
        with phase("collection"):
            rollout, episodes = collect(*args, **options)
        if rollout.tokens is not None:  # generated turn by turn in all envs together
            UNITS["collection"] += int(rollout.tokens.ids.any(1).sum())
        elif rollout.mask is not None:
            UNITS["collection"] += int(rollout.mask.sum(0).max())
        else:
            UNITS["collection"] += world.steps_per_row
        return rollout, episodes

    def learning(*args: Any, **options: Any) -> Any:
        with phase("learning"):
            return update(*args, **options)

    hook = register_optimizer_step_post_hook(_count_step)
    with mock.patch.object(run.collector, "collect", collecting), mock.patch.object(run.algorithm, "update", learning):
        yield
    hook.remove()


def _count_step(*_: Any) -> None:
    UNITS["learning"] += 1
