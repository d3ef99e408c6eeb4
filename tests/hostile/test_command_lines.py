"""Invalid command lines and overrides produce one line, never a traceback."""

import pytest

from tests.hostile.received import SMALL, Things, refusal_of
from tests.thorough import one_in

_VALUES = {
    "world.actions": "glob(*) | 1 | [] | {a: b} | [null]",
    "world.args": "{a: glob(*)} | 1 | [1] | {nothing: 1} | {max_steps: []} | {?: 1} | {a: {b: {c: [",
    "seed": "[range(1,3)] |  | null | abc | [1] | {a: 1} | -1 | 1e999 | nan | 2.5 | 999999999999999999999999999999",
    "run_dir": "glob(x) |  | [a]",
    "name": " | [a] | ${oc.env:HOME} | ${name} | ${nothing}",
    "world": "null | 1 | [1]",
    "world.id": "nethack | null",
    "world.env": " | null | [a] | né | 'ﷺ'",
    "world.num_envs": "0 | -1 | 1.5 | null | [2]",
    "world.num_steps": "0 | inf",
    "world.history": "0 | nan",
    "world.language": "klingon | [english]",
    "world.timeout": "-1 | nan",
    "world.num_workers": "-1 | x",
    "model.path": "[a] | /nowhere",
    "policy.id": " | [a] | nobody",
    "policy.args": "1 | [1] | {x: 1}",
    "algorithm.args.learning_rate": "nan | [1] | inf | -1",
    "algorithm.args.gamma": "x | nan | 7",
    "algorithm.args.minibatch_size": "0 | 99999999999999999999",
    "algorithm.args.max_grad_norm": "nan | -1",
    "reward": "1 | [] | {'a b': {}}",
    "reward.env.coefficient": "nan | x",
    "training.steps": "0 | x | null",
    "evaluation.baselines": "1 | [nobody]",
    "device": " | gpu9 | meta | [cpu]",
}
"""Invalid values, by key."""
_OTHERS = """
    world.args.max_steps=abc | world.dataset=/nowhere | world.entropy_floor=x | model=1 | model.lora=1 |
    policy=1 | policy.args.memory=7.5 | algorithm.id=null | algorithm.args.epochs=0 |
    algorithm.args.nothing=1 | algorithm.args.clip_range=nan | algorithm=[] | reward.env=1 |
    reward.env.args.scale=nan | reward.env.args=1 | reward.nobody={} |
    reward.reward_model.args.path=/nowhere | reward.é={} | training.epochs=1 | training=null |
    training.checkpoint_every=0 | training.keep_checkpoints=0 | training.wandb=[] | evaluation.episodes=0 |
    evaluation.num_envs=0 | imports=[os] | nothing=1 | a.b.c=1 | world..env=a | world.env.x=a |
    reward.env.args.x.y=1 | =1 | ~nothing | ~world.id | ++x=1 | seed
"""
OVERRIDES = [
    *(f"{key}={value.strip()}" for key, values in _VALUES.items() for value in values.split("|")),
    *(override.strip() for override in _OTHERS.split("|")),
    *("seed=" + "9" * 5000, "x=" + "[" * 500, "x=" + "[" * 300 + "]" * 300, "\x00=1"),
]
"""Overrides for training."""


@pytest.mark.parametrize("override", one_in(2, OVERRIDES), ids=lambda text: text[:40])
def test_an_override_is_refused(override: str, things: Things, capsys: pytest.CaptureFixture[str]) -> None:
    refusal_of(["train", "glam/symbolic", f"run_dir={things.root / 'other'}", *SMALL, "--dry-run", override], capsys)


_COMMANDS = {
    "": " | list none | no-such-command",
    "annotate": "ROOT/none --name a --judge rules | PAIRS --name ../a --judge rules rules=[[a,1]]",
    "train demo": """
        --config-dir ROOT/none | --slurm nonsense | --slurm nodes=x --dry-run | --no-such-option |
        --import no.such.module | --import
    """,
    "train": " | ROOT | ROOT/none.yaml | RUN/metrics.jsonl | é",
    "convert": " | ROOT | ROOT/none.yaml | RUN/config.yaml | RUN/metrics.jsonl",
    "evaluate RUN": """
        --episodes 0 | --episodes x | --episodes 1e9 | --suite none | --suite , | --jobs 0 | seed=1,2 |
        world.env=none | world.env=1,2 | evaluation.baselines=glob(*)
    """,
    "evaluate": """
         | ROOT/none | RUN/checkpoints/999999 | RUN/checkpoints | random world.env=[] | expert
        world.env=Shelf-v0 run_dir=ROOT/e
    """,
    "watch": "ROOT/none | RUN --suite none | RUN --episode x | RUN --output ROOT/none/x.gif",
    "collect RUN --output ROOT/c": "--episodes -1 | --pairs x | --pairs 2 --segment 0 | --validation 7",
    "collect": " | ROOT/none --output ROOT/c | RUN | RUN --output RUN",
    "annotate PAIRS --name a --judge": """
        none | rules | rules rules=1 | rules rules=[ | rules rules=glob(*) | rules nothing=1 | rules
        rules=[[a,1]] --chunks 2 --chunk 7 | rules rules=[[a,1]] --goal none
    """,
    "distill PAIRS --preferences rules --output": """
        ROOT/y learning_rate=[ | ROOT/y learning_rate=x | ROOT/y learning_rate=nan | ROOT/y
        learning_rate=1,2 | ROOT/y learning_rate | ROOT/y ~learning_rate | ROOT/y epochs=0 | ROOT/y
        epochs={a:1} | ROOT/y batch_size=0 | ROOT/y model=1 | ROOT/y model.args=[1] | ROOT/y
        model.args={none:1} | ROOT/y model.args=glob(*) | ROOT/y --model none | RUN | RUN/config.yaml |
        ROOT/y device=none
    """,
    "distill": """
        PAIRS | ROOT/none --preferences x --output ROOT/y | PAIRS --preferences none --output ROOT/y
    """,
    "study demo": "seeds=x | seeds= | episodes=0 | suites=none --output ROOT/s | arms=none",
    "study": "none | ROOT/none.yaml | RUN/config.yaml",
    "report": "ROOT/none | ROOT | ",
    "publish": "ROOT/none --output ROOT/p | RUN --output RUN | random --output ROOT/p",
    "rate": "form | write x=ROOT/none --output ROOT/f | read ROOT/none ROOT/none.csv",
    "check-env": """
        none | no.such:thing | os:getcwd | os:nothing | examples.shelf:Shelf world.args=glob(*) | Shelf-v0
        world.args={none:1} | Shelf-v0 world.history=x | Shelf-v0 --episodes 0 | CartPole-v1
    """,
    "serve-env": "Shelf-v0 --port x | Shelf-v0 --host 0.0.0.0 | Shelf-v0 --output ROOT",
}
"""Command lines without their beginnings, by beginning; words in capitals are replaced by existing files."""
COMMANDS = [
    " ".join([*beginning.split(), *rest.split()])
    for beginning, rests in _COMMANDS.items()
    for rest in rests.split("|")
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_line_is_refused(words: str, things: Things, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "pairs", "root"):
        words = words.replace(name.upper(), str(getattr(things, name)))
    refusal_of(words.split(), capsys)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["abc", "-1", "1.5", ""])
def test_a_launchers_numbers_are_checked(
    name: str, value: str, things: Things, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, value)
    error = refusal_of(["train", "glam/symbolic", f"run_dir={things.root / 'other'}", *SMALL], capsys)
    assert name in error
