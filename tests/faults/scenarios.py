"""The commands that write files, at a small scale, with their inputs."""

import json
import time
from pathlib import Path
from typing import Any

import gymnasium

from groundling.judges import Reply, Request
from groundling.judges.asking.judge import judges
from groundling.judges.asking.rules import RulesJudge
from groundling.training import checkpoint
from groundling.training.tracking import read_metrics
from tests.conftest import Corridor  # this module registers test-table
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.faults.harness import Scenario, rows_of, run

gymnasium.register("faults/Corridor-v0", entry_point=Corridor)
_RULES = [["red", 1.0], ["left", 0.5]]
_CORRIDOR = "world.env=faults/Corridor-v0 ~world.args world.actions=[left,right,stay]"
_ENV = "world.env=faults/Corridor-v0 world.actions=[left,right,stay]"
_SMALL = "world.num_envs=4 world.num_steps=4 algorithm.args.minibatch_size=8 training.steps=96"
_FEW_TEXTS = "world.num_texts=4 world.num_tokens=6 algorithm.args.minibatch_size=8 training.steps=96"
_PARTS = {
    "table": f"demo-easy {_CORRIDOR} ~policy.args policy.id=test-table world.num_envs=4 world.num_steps=16 "
    "algorithm.args.minibatch_size=16 training.steps=1280",
    "scoring": f"demo-easy {_SMALL} policy.args.value_hidden_sizes=[16]",
    "doors": f"demo-easy {_SMALL} world.env=test/Doors-v0 ~world.args world.num_workers=2 "
    "policy.args.value_hidden_sizes=[8]",
    "conversation": f"demo {_SMALL} world.history=null policy.args.prompt=conversation "
    "policy.args.value_hidden_sizes=[8] algorithm.args.kl_coefficient=0.01 model.lora={r:2}",
    "thinking": f"demo {_SMALL} world.history=null policy.id=action_generating policy.args.prompt=conversation "
    "policy.args.value_hidden_sizes=[8] policy.args.thought_ends=So policy.args.max_thought_tokens=3 "
    "algorithm.args.credit=poad",
    "groups": f"demo {_SMALL} world.group_size=2 world.num_steps=8 ~algorithm.args algorithm.id=gigpo "
    "algorithm.args={minibatch_size:8} policy.args.value_hidden_sizes=[8]",
    "forms": f"demo {_SMALL} policy.args.value_hidden_sizes=[8] policy.args.prompt=[glam,brief,tagged] "
    "algorithm.args.contrast_coefficient=0.5 algorithm.args.contrast_prompts=[glam,brief,tagged]",
    "drrn": "demo-easy world.num_envs=4 world.num_steps=4 training.steps=160 ~policy.args ~algorithm.args "
    "policy.id=drrn policy.args={embedding_size:8,hidden_size:8} "
    "algorithm.id=drrn algorithm.args={batch_size:8,steps_per_gradient:4}",
    "judged": f"demo-easy {_SMALL} policy.args.value_hidden_sizes=[16] ~reward.env "
    "reward.reward_model.args.online={judge:rules,args:{rules:[[red,1.0],[left,0.5]]}}",
    "writer": f"rl4lms/increasing_numbers_ppo {_FEW_TEXTS}",
    "nlpo": f"rl4lms/increasing_numbers_nlpo {_FEW_TEXTS}",
    "nethack": "motif/score ~reward.reward_model world.args.max_episode_steps=20 world.num_envs=2 "
    "world.num_workers=1 world.ahead=false world.num_steps=8 algorithm.args.minibatch_size=16 "
    "policy.args={hidden_size:8,recurrence:4} training.steps=96",
}
"""Arguments of `groundling train`, by name."""
_BY_COUNTERS = ("judged", "nethack")
"""Runs that are not reproducible bit for bit: a judge answers in the background, and NetHack's episodes restart."""
_ALWAYS = ["device=cpu", "training.checkpoint_every=1", "evaluation.baselines=[]", "evaluation.episodes=4"]


@judges.register("test-slow-rules")
class SlowRules(RulesJudge):
    """The rules with a delay of some milliseconds per answer, so that kills occur while questions are in flight."""

    def answer(self, request: Request) -> Reply:
        time.sleep(0.004)
        return super().answer(request)


def train(name: str) -> list[str]:
    """Return the arguments that train one of the runs."""
    return ["train", *_PARTS[name].split(), *_ALWAYS, "run_dir={out}/out"]


def _counters(output: Path) -> Any:
    """Return the counters up to a complete checkpoint."""
    last = checkpoint.list_checkpoints(output / "checkpoints")[-1]
    assert checkpoint.find_problem(last) is None
    return [(row["update"], row["step"]) for row in read_metrics(output)], checkpoint.step_of(last)


def _matching(folder: Path, pattern: str) -> list[Path]:
    while True:
        try:
            return list(folder.rglob(pattern))
        except FileNotFoundError:  # the command has just renamed a folder
            continue


def _files(pattern: str) -> Any:
    return lambda output: len(_matching(output.parent, pattern))


def _lines(pattern: str) -> Any:
    return lambda output: sum(p.read_bytes().count(b"\n") for p in _matching(output.parent, pattern))


def scenarios(materials: Path) -> list[Scenario]:
    """Return all scenarios; those after training require what `prepare` wrote to ``materials``."""
    exact = [name for name in _PARTS if name not in _BY_COUNTERS]
    run_dir, study = materials / "out", materials / "study.yaml"
    rules = f"rules={json.dumps(_RULES, separators=(',', ':'))}"
    others = {
        "collect --episodes": f"collect {run_dir} --episodes 600 --output {{out}}/out",
        "collect --pairs": f"collect random {_ENV} --pairs 300 --output {{out}}/out",
        "collect --pairs (NetHack)": "collect explorer world.env=NetHackScore-v1 world.args.max_episode_steps=60 "
        "--pairs 40 --stride 4 --output {out}/out",
        "annotate": f"annotate {{out}}/pairs --judge test-slow-rules {rules} --name slow",
        "distill": f"distill {materials / 'pairs'} --preferences return learning_rate=1e-3 batch_size=8 epochs=8 "
        "device=cpu --output {out}/out",
        "evaluate": "evaluate {out}/out --episodes 200",
        "report": "report {out}/out --output {out}/page.html",
        "publish": f"publish {run_dir} --output {{out}}/out",
        "evaluate writer": "evaluate {out}/writer --episodes 8",
        "study": f"study {study} --runs {{out}}/all/runs --output {{out}}/all/out --jobs 1",
    }
    progress = {"collect --episodes": _files("*.parquet"), "collect --pairs": _files("*.jsonl"), "distill": rows_of}
    progress["annotate"] = _lines("answers/**/*.jsonl")
    needs = {"annotate": "pairs", "evaluate": "out", "evaluate writer": "writer", "report": "out"}
    output = {"annotate": "pairs/preference", "evaluate writer": "writer", "report": "page.html", "study": "all"}
    return [
        *(Scenario(f"train {name}", train(name), progress=rows_of) for name in exact),
        *(Scenario(f"train {name}", train(name), progress=rows_of, compared=_counters) for name in _BY_COUNTERS),
        *(
            Scenario(
                name, words.split(), output.get(name, "out"), needs.get(name), progress.get(name, lambda output: 0)
            )
            for name, words in others.items()
        ),
    ]


_STUDY = """
name: tiny
seeds: [1, 2]
suites: [held-out]
episodes: 20
common: [world.env=faults/Corridor-v0, ~world.args, "world.actions=[left, right, stay]", world.num_envs=4,
  training.steps=320, world.num_steps=16, "evaluation.baselines=[]", device=cpu]
arms:
  quick: {experiment: demo-easy, overrides: ["~policy.args", policy.id=test-table]}
  random: {experiment: random}
"""


def prepare(materials: Path, all_of_them: bool = False) -> None:
    """Make the run, pairs and study that some scenarios require; with ``all_of_them``, also the text generation run.

    That run was continued after an evaluation, whose texts must not be combined with new figures.
    """
    (materials / "study.yaml").write_text(_STUDY)
    for words in (
        train("table"),
        [*f"collect random {_ENV} --pairs 80 --output".split(), str(materials / "pairs")],
        ["annotate", str(materials / "pairs"), "--judge", "return"],
        *(_extended_writer(materials / "writer") if all_of_them else ()),
    ):
        ended = run([word.replace("{out}", str(materials)) for word in words], materials)
        assert ended.status == 0, (words, ended.error)


def _extended_writer(run_dir: Path) -> list[list[str]]:
    longer = [*train("writer"), f"run_dir={run_dir}"]
    return [[*longer, "training.steps=24"], ["evaluate", str(run_dir), "--episodes", "8"], longer]
