"""Hostile runs and checkpoints for `test_audit`."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from groundling.training.checkpoint import MANIFEST
from tests.config.test_trust import demo_values, writing_values
from tests.hostile.plants import (
    ESCAPE,
    SCRIPT,
    SERVER,
    Bomb,
    Plant,
    described,
    lines,
    linked,
    pickled,
    sealed,
    settings,
    together,
    without,
    written,
)


@dataclass(frozen=True)
class Case:
    """A received file, and the command with which a user opens it."""

    plant: Plant
    words: str
    """A command, with names in capitals for received folders."""
    message: str | None = None
    """A regular expression for the error; None if the command succeeds."""


CHECKPOINT = "lm/checkpoints/000001"
RESUME = "train LM/config.yaml run_dir=LM training.steps=8"
EVALUATE = "evaluate LM --episodes 1"
DRY = "train ROOT/config.yaml device=cpu --dry-run"
PY_EXTENSION = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Bomb())}
"""Metadata that pyarrow before 14.0.1 unpickled (CVE-2023-47248)."""


def of_lm(**changes: Any) -> Plant:
    return settings("lm/config.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def of_demo(**changes: Any) -> Plant:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return settings("config.yaml", keys, demo_values())


def of_texts(**changes: Any) -> Plant:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return settings("config.yaml", keys, writing_values())


def checkpointed(*plants: Plant) -> Plant:
    return sealed(CHECKPOINT, *plants)


JUDGE = {"model": "m", "base_url": SERVER, "api_key_env": "GROUNDLING_SECRET"}
JUDGED = settings(
    "run/config.yaml",
    {"reward": {"reward_model": {"args": {"path": "model", "online": {"judge": "openai", "args": JUDGE}}}}},
)
_ROW = {"update": 1, "step": 4, "seconds": 1, "return_mean": 0.5, "success_rate": 0.5}
_ENV = "hostile_env:Env-v0"


def _scripts_in_sample(row: dict[str, Any]) -> dict[str, Any]:
    first = {**row["first"], "thing": SCRIPT, "target": "other", "named": [SCRIPT]}
    step = {"descriptions": [SCRIPT], "prompt": SCRIPT, "action": SCRIPT, "probabilities": {SCRIPT: 0.5}}
    steps = [{**one, **step} for one in row["steps"]]
    return {**row, "suite": SCRIPT, "mission": SCRIPT, "task": SCRIPT, "first": first, "steps": steps}


def _scripts_in_evaluation(content: dict[str, Any]) -> dict[str, Any]:
    agents = {
        f"{SCRIPT}{name}": {**agent, "figures": {**agent["figures"], SCRIPT: agent["figures"]["return"]}}
        for name, agent in content["agents"].items()
    }
    return {**content, "name": SCRIPT, "checkpoint": SCRIPT, "left_out": {SCRIPT: SCRIPT}, "agents": agents}


def in_samples(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return described("lm/samples/held-out.json", lambda rows: [change(row) for row in rows])


def with_overrides(*words: str) -> Plant:
    return in_samples(lambda row: {**row, "overrides": list(words)})


def in_evaluation(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return described("lm/evaluation/held-out.json", change)


NEW = "train LM/config.yaml run_dir=OUT"
SHOWN_ENV = with_overrides(f"world.env={_ENV}", "imports=[hostile_env]")
ESCAPED_ACTIONS = of_lm(world__actions=[f"{ESCAPE}{n}" for n in range(6)])
REWARD = of_lm(reward={"mine": {"id": "hostile_reward.score"}})
RUNS = {
    "imports of a run": Case(of_lm(imports=["hostile_imports"]), EVALUATE),
    "an env's id with a module": Case(of_lm(world__env=_ENV), EVALUATE, "unknown env"),
    "an env's entry point": Case(of_lm(world__args={"entry_point": "hostile_point:Env"}), EVALUATE, "entry_point"),
    "a suite's overrides in samples": Case(SHOWN_ENV, "report LM"),  # recorded episodes need no env
    "a resolver in samples": Case(with_overrides("name=${oc.env:GROUNDLING_SECRET}"), "report LM", "resolvers"),
    "a policy of a module": Case(of_lm(policy__id="hostile_policy.Policy"), EVALUATE, "unknown policy"),
    "an algorithm of a module": Case(of_lm(algorithm__id="hostile_learner:PPO"), NEW, "unknown algorithm"),
    "a reward of a module": Case(REWARD, NEW, "hostile_reward"),
    "a reward of a module, which nothing played needs": Case(REWARD, EVALUATE),
    "a world of a module": Case(of_lm(world__id="hostile_world"), EVALUATE, "hostile_world"),
    "a model at a server": Case(of_lm(model__path=SERVER), EVALUATE, "add to the command"),
    "a tokenizer at a server": Case(of_lm(model__tokenizer=SERVER), "watch LM --fast", "add to the command"),
    "attention of the hub": Case(of_lm(model__attention="hostile/kernel"), EVALUATE, "add to the command"),
    "a judge that is not needed": Case(JUDGED, "evaluate RUN --episodes 1"),
    "a script for a name": Case(of_lm(name=SCRIPT), "report LM"),
    "mathematics for a name": Case(of_lm(name=r"$\frac{\input{/etc/passwd}}$"), "report LM"),
    "scripts in samples": Case(in_samples(_scripts_in_sample), "report LM"),
    "scripts in an evaluation": Case(in_evaluation(_scripts_in_evaluation), "report LM"),
    "scripts in metrics": Case(lines("lm/metrics.jsonl", **_ROW, **{SCRIPT: 1.0}, loss=1e300), "report LM"),
    "figures that cannot be drawn": Case(
        lines("lm/metrics.jsonl", **{**_ROW, "seconds": 1e300, "return_mean": -1e308, "success_rate": 1e308}),
        "report LM",
        "cannot be shown",
    ),
    "scripts in texts to be rated": Case(
        lines("texts.jsonl", id=SCRIPT, prompt=SCRIPT, generation=SCRIPT, references=[SCRIPT], metrics={}),
        "rate OUT a=ROOT/texts.jsonl --samples 1",
    ),
    "escapes in actions, watched": Case(ESCAPED_ACTIONS, "watch LM --fast"),
    "escapes for an env": Case(of_lm(world__env=ESCAPE), EVALUATE, "env"),
    "escapes for a key": Case(of_lm(**{ESCAPE: 1}), EVALUATE, "config.yaml"),
    "escapes for a file": Case(
        lambda root: (root / CHECKPOINT / f"{ESCAPE}\n  ok     hostile.partial").write_text(""), "verify LM", "WRONG"
    ),
    "escapes in a manifest": Case(
        described(f"{CHECKPOINT}/{MANIFEST}", lambda names: {**names, ESCAPE: {"bytes": 1, "sha256": ""}}),
        "verify LM",
        "WRONG",
    ),
}
STATES = {
    **{
        f"a pickle as {name}": Case(checkpointed(pickled(f"{CHECKPOINT}/{name}")), EVALUATE, message)
        for name, message in (("model.safetensors", "cannot be loaded"), ("value_head.safetensors", "cannot be read"))
    },
    **{
        f"a pickle as {name}": Case(checkpointed(pickled(f"{CHECKPOINT}/{name}")), RESUME, "does not match")
        for name in ("optimizer.safetensors", "algorithm.json")
    },
    "a pickle for weights": Case(
        checkpointed(without(f"{CHECKPOINT}/model.safetensors"), pickled(f"{CHECKPOINT}/pytorch_model.bin")),
        EVALUATE,
        "cannot be loaded",
    ),
    "a pickle next to weights": Case(checkpointed(pickled(f"{CHECKPOINT}/pytorch_model.bin")), EVALUATE),
    "an index out of the folder": Case(
        checkpointed(
            without(f"{CHECKPOINT}/model.safetensors"),
            pickled("weights.bin"),
            written(
                f"{CHECKPOINT}/model.safetensors.index.json",
                '{"metadata": {}, "weight_map": {"a": "../../../weights.bin"}}',
            ),
        ),
        EVALUATE,
        "lies outside the folder",
    ),
    **{
        f"a manifest that names {name}": Case(
            described(
                f"{CHECKPOINT}/{MANIFEST}", lambda files, name=name: {**files, name: {"bytes": 0, "sha256": ""}}
            ),
            f"evaluate ROOT/{CHECKPOINT} --episodes 1",
            "is broken",
        )
        for name in ("../../config.yaml", "/dev/zero", "../../../../../../etc/passwd")
    },
    "a checkpoint's link": Case(
        together(sealed(CHECKPOINT, linked(f"{CHECKPOINT}/secret.txt", "outside.txt"))), "publish LM --output OUT"
    ),
    "a lock that is a link": Case(linked("lm/.lock", "outside/made"), RESUME, "is a link"),
    "figures that are a link": Case(linked("lm/metrics.jsonl", "outside.txt"), RESUME, "is not a row of metrics"),
    "an evaluation that is a link": Case(linked("lm/evaluation/held-out.json", "outside.txt"), EVALUATE),
    "a report that is a link": Case(linked("lm/report.html", "outside.txt"), "report LM"),
}
