"""Trained agents whose results are committed, for scripts/atlas.py.

All values are read from the files in results/ and benchmarks/results/. Folders written by `groundling study` are found
automatically; each of the other formats has its own function.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.baselines import AGENTS
from scripts.defaults_grid import SMOLLM2, SMOLLM2_STEPS, STEPS

from groundling.config.compose import compose
from groundling.intervals import estimate
from groundling.io.documents import read_yaml
from groundling.lm.load.model_files import STARTERS
from groundling.policies.policy import has_model
from groundling.studies.definition import read_study
from groundling.studies.run import make_jobs
from groundling.worlds import agents

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "not recorded"
_RESULTS, _BENCHMARKS = ROOT / "results", ROOT / "benchmarks" / "results"
_TUNING = "glam-tuning"  # learning rates for the arms of results/glam
_BEFORE = {"zero-shot": "untrained", "random": "random"}  # baselines in evaluations, best first
_GRID = {  # kind and name of each world in scripts/defaults_grid.py
    "plain": ("text", "Corridor"),
    "changing": ("text", "Treasures"),
    "free text": ("free text", "Echo"),
    "texts": ("writing", "verbs and objects"),
}
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One agent trained in one world with one reward."""

    kind: str  # family of worlds
    world: str
    policy: str
    model: str
    algorithm: str
    reward: str
    figure: str = UNKNOWN  # after training
    baseline: str = UNKNOWN
    seeds: int = 1
    steps: int = 0
    hours: str = UNKNOWN  # per run
    folder: Path = _RESULTS
    arm: str = ""
    command: str = ""


def rows() -> list[Row]:
    """Return all rows, by study."""
    found = [*_studies(), *_evaluations(), *_baselines(), *_grid(), *_free_text(), *_texts(), *_preferences()]
    return [replace(one, folder=one.folder.relative_to(ROOT)) for one in found]


def _studies() -> Iterator[Row]:
    """Yield the trained arms of the folders written by `groundling study`."""
    for path in sorted(_RESULTS.rglob("summary.json")):
        folder, study = path.parent, json.loads(path.read_text())
        if folder.name == _TUNING:
            continue
        seeds, shown = _figures(folder)
        for (arm,), lines in _grouped(_lines(folder / "curves.csv"), "arm").items():
            suite = "held-out" if (arm, "trained", "held-out") in shown else "(shared)"
            measure = "score" if "frames" in study else "success"
            before = [(arm, "zero-shot", suite), ("random", "random", suite)]
            yield replace(
                _row(_config(folder, study["study"], arm)),
                figure=f"{'' if suite == 'held-out' else 'mean over tests: '}{measure} {shown[arm, 'trained', suite]}",
                baseline=next((f"{_BEFORE[key[1]]} {shown[key]}" for key in before if key in shown), UNKNOWN),
                seeds=seeds[arm],
                steps=max(int(line["step"]) for line in lines),
                hours=_stated_cpu(folder, arm) or _wall(_grouped(lines, "seed").values()),
                folder=folder,
                arm=arm,
                command=re.sub(
                    r" --add \S+", "", study["command"]
                ),  # an option of earlier versions, for other machines
            )


def _figures(folder: Path) -> tuple[dict[str, int], dict[tuple[str, str, str], str]]:
    """Return a study's number of seeds by arm, and its figures by arm, agent and suite."""
    seeds, shown, evaluations = dict[str, int](), dict[tuple[str, str, str], str](), folder / "evaluations.csv"
    for line in _lines(folder / "summary.csv"):
        if line.get("figure") == "score":  # NetHack's studies report all metrics
            arm = line["arm"]
            shown[arm, arm if arm in agents() else "trained", "held-out"] = _shown(line, "mean")
        elif line.get("measure") == "success":
            shown[line["arm"], line["agent"], line["suite"]] = _shown(line)
        else:
            continue
        seeds[line["arm"]] = int(line["seeds"])
    lines = [line for line in _lines(evaluations) if seeds[line["arm"]] == 1] if evaluations.exists() else []
    for (suite,), tested in _grouped(lines, "suite").items():  # intervals over episodes
        trained = {line["task"] for line in tested if line["arm"] not in agents()} - {"all"}
        task = trained.pop() if len(trained) == 1 else "all"  # random actions may have been tested on more tasks
        for line in tested:
            if line["task"] == (task if line["arm"] in agents() else "all"):
                shown[line["arm"], line["agent"], suite] = _shown(line, "success")
    return seeds, shown


def _config(folder: Path, study: str, arm: str) -> Line:
    """Return an arm's config, as the study saved it, or else as the bundled study defines it."""
    if (folder / "arms" / f"{arm}.yaml").exists():
        saved: Line = read_yaml(folder / "arms" / f"{arm}.yaml")
        return saved
    definition, arms = read_study(study)
    return make_jobs(definition, {arm: arms[arm]}, Path("runs"))[0].arm_config.model_dump()


def _row(config: Line) -> Row:
    """Return a row with the world, policy, model, algorithm and reward of a config."""
    world, policy, model, algorithm = (
        config["world"],
        config["policy"]["id"],
        config["model"],
        config["algorithm"]["id"],
    )
    name, given = f"`{world.get('env') or world.get('pool')}`", {**(world.get("args") or {})}
    given |= given.pop("params", {})
    if "task" in given:  # one of the tasks
        given.pop("tasks", None)
    told = world["id"] == "text" and given
    init = {"random": ", random weights", "embeddings": ", random weights except embeddings"}.get(model["init"], "")
    named = {"env": "env reward", "count": "count bonus", "reward_model": "distilled judge"}
    parts = [
        named.get(part["id"] or key, f"metric: {part['id'] or key}")
        for key, part in (config["reward"] or {"env": {"id": None, "coefficient": 1}}).items()
        if part is not None and part["coefficient"] != 0
    ]
    reward = parts[0] if len(parts) == 1 else f"composite: {' + '.join(parts)}"
    return Row(
        kind="BabyAI" if "BabyAI" in name else {"nethack": "NetHack"}.get(world["id"], world["id"]),
        world=", ".join([name, *(f"{key}={value}" for key, value in sorted(given.items()))]) if told else name,
        policy=policy,
        model=f"{model['path']}{init}{', LoRA' if model['lora'] else ''}" if has_model(policy) else "",
        algorithm=algorithm,
        reward="none: clones demonstrations" if algorithm in ("bc", "supervised") else reward,
    )


def _evaluations() -> Iterator[Row]:
    """Yield the clones whose results are files written by `groundling evaluate`, with one seed."""
    sources = {  # evaluation, figure, overrides of balrog-agent, curves
        "balrog": ("balrog-babyai.json", "mean", [], "curve.csv"),
        "mixture": ("held-out-epyc.json", "success", ["~world.args"], "curve*.csv"),
        "demo-smollm2": ("epyc/held-out.json", "success", [f"model.path={SMOLLM2}"], "curve.csv"),
    }
    for name, (file, figure, words, curves) in sources.items():
        home = _RESULTS / name
        evaluation, lines = json.loads((home / file).read_text()), [_lines(path) for path in sorted(home.glob(curves))]
        shown = {player: _shown(one["figures"][figure]) for player, one in evaluation["agents"].items()}
        config = compose("balrog-agent", [*words, "world.dataset=runs/episodes"]).model_dump()
        config["world"] |= {key: evaluation["world"][key] for key in ("env", "args")}
        config["model"]["lora"] = name == "demo-smollm2"
        trained, arm = shown["trained"], ""
        if name == "mixture":
            trained = "; ".join(re.findall(r"\*\*(\d\.\d\d \[.*?\])\*\*", (home / "README.md").read_text()))
            arm = "one seed on three machines"
        yield replace(
            _row(config),
            figure=f"success {trained}",
            baseline=next(f"{word} {shown[player]}" for player, word in _BEFORE.items() if player in shown),
            steps=int(lines[0][-1]["step"]),
            hours=_wall(lines),
            folder=home,
            arm="an earlier version of the experiment" if name == "demo-smollm2" else arm,
            command=_command(home),
        )


def _baselines() -> Iterator[Row]:
    """Yield the runs of benchmarks/baselines.py."""
    curves = _grouped(_lines(_BENCHMARKS / "baselines.csv"), "agent")
    for name, players in json.loads((_BENCHMARKS / "baselines.json").read_text()).items():
        yield replace(
            _row(compose(AGENTS[name][0], AGENTS[name][1:]).model_dump()),
            figure=f"success {_shown(players['trained']['figures']['success'])}",
            baseline=f"random {_shown(players['random']['figures']['success'])}",
            steps=int(curves[(name,)][-1]["step"]),
            folder=_BENCHMARKS,
            arm=name,
            command="python benchmarks/baselines.py",
        )


def _grid() -> Iterator[Row]:
    """Yield the cells of scripts/defaults_grid.py, with all seeds of a cell in one row."""
    home, policy = _RESULTS / "defaults", {"free text": "action_generating", "writing": "token"}
    cells = [json.loads(line) for line in (home / "cells.jsonl").read_text().splitlines()]
    cells.sort(key=lambda cell: (list(_GRID).index(cell["world"]), cell["model"], cell["algorithm"]))
    for (world, model, algorithm), seeds in _grouped(cells, "world", "model", "algorithm").items():
        kind, name = _GRID[world]
        yield Row(
            kind,
            name,
            policy.get(kind) or compose("text", []).policy.id,
            model if model in (*STARTERS, SMOLLM2) else f"untrained {model}",
            algorithm,
            "metric: vowels" if kind == "writing" else "env reward",
            figure=f"{seeds[0]['metric']} {_over([one['after'] for one in seeds])}",
            baseline=f"untrained {_over([one['before'] for one in seeds])}",
            seeds=len(seeds),
            steps=SMOLLM2_STEPS if model == SMOLLM2 else STEPS[world],
            hours=_cpu(one["cpu_seconds"] for one in seeds),
            folder=home,
            command=_command(home),
        )


def _free_text() -> Iterator[Row]:
    """Yield the worlds of scripts/free_text.py, whose results are a table in the README."""
    home, script = _RESULTS / "free_text", (ROOT / "scripts" / "free_text.py").read_text()
    steps = dict(re.findall(r'"what": "(.*)",\s+"steps": ([\d_]+)', script))
    cells = [line.strip("| ").split(" | ") for line in (home / "README.md").read_text().splitlines()]
    table = [
        dict(zip(("world", "seed", "before", "after", "", "", "cpu"), c, strict=True)) for c in cells if len(c) == 7
    ]
    for (world,), seeds in _grouped(table[1:], "world").items():
        after, before = (
            [[float(x) for x in re.findall(r"[\d.]+", one[w])] for one in seeds] for w in ("after", "before")
        )
        start = "cloned" if "shop" in world else "untrained"
        yield Row(
            *(
                "free text",
                world,
                "action_generating",
                f"{start} Llama",
                compose("text", []).algorithm.id,
                "env reward",
            ),
            figure=f"return {_over(after)}",
            baseline=f"{start} {_over(before)}",
            seeds=len(seeds),
            steps=int(steps[world]),
            hours=_cpu(float(one["cpu"]) for one in seeds),
            folder=home,
            command=_command(home),
        )


def _texts() -> Iterator[Row]:
    """Yield the algorithms of benchmarks/writing.py."""
    home, lines = _RESULTS / "rl4lms", _grouped(_lines(_RESULTS / "rl4lms" / "curves.csv"), "algorithm")
    for name, one in json.loads((home / "curves.json").read_text())["algorithms"].items():
        yield replace(
            _row(compose(f"rl4lms/increasing_numbers_{name}", []).model_dump()),
            figure=f"reward {_shown(one['reward'])}",
            baseline=f"untrained {one['start']:.2f}",
            seeds=len(one["seeds"]),
            steps=max(int(line["step"]) for line in lines[(name,)]),
            hours=_cpu([one["cpu_seconds"]]),
            folder=home,
            arm=name,
            command=_command(home),
        )


def _preferences() -> Iterator[Row]:
    """Yield the learners of scripts/preferences.py: a rewarded one, and those that learn from pairs."""
    home, ends = _RESULTS / "preferences", {"trained": "after", "zero-shot": "before"}
    for name, seeds in json.loads((home / "results.json").read_text()).items():
        if not isinstance(seeds, list):  # the machine
            continue
        shown = dict[str, str]()
        for agent, when in ends.items():
            pairs = [[one["pairs"][when]["accuracy"]] for one in seeds if "pairs" in one]
            texts = {
                "learned reward" if key == "reward" else "true measure": _over(
                    [one["texts"][agent][key] for one in seeds]
                )
                for key in seeds[0]["texts"][agent]
            }
            told = {**({"accuracy on pairs": _over(pairs)} if pairs else {}), **texts}
            shown[agent] = "; ".join(f"{key} {value}" for key, value in told.items())
        reward = "distilled judge" if "reward_model" in seeds[0] else "none: learns from pairs"
        yield Row(
            *("writing", "`preferences`", "token", "starter-causal", name, reward),
            figure=shown["trained"],
            baseline=f"untrained: {shown['zero-shot']}",
            seeds=len(seeds),
            steps=seeds[0]["tokens"],
            hours=_wall([one] for one in seeds),
            folder=home,
            arm=name,
            command=_command(home),
        )


def _shown(line: Line, value: str = "value") -> str:
    """Return a value with its interval, as in "0.90 [0.87, 0.94]"."""
    values = [float(line[key]) for key in (value, "low", "high")]
    return "{} [{}, {}]".format(*(f"{one:.2f}" if abs(one) < 10 else f"{one:.0f}" for one in values))


def _over(seeds: Sequence[Sequence[float]]) -> str:
    """Return the mean of several seeds' values with its interval, or the only seed's value and interval."""
    over = estimate(np.array([one[0] for one in seeds]))
    only = seeds[0] if len(seeds) == 1 else (over.value, over.low, over.high)
    return _shown(dict(zip(("value", "low", "high"), only, strict=True)))


def _wall(runs: Iterable[Sequence[Line]]) -> str:
    """Return the median of the runs' wall-clock hours."""
    return f"{median(float(lines[-1]['seconds']) for lines in runs) / 3600:.2g} wall"


def _cpu(seconds: Iterable[float]) -> str:
    return f"{median(seconds) / 3600:.2g} CPU"


def _stated_cpu(folder: Path, arm: str) -> str | None:
    """Return an arm's CPU hours, if the study's note states them as "ARM for N minutes (M of CPU time)"."""
    text = " ".join((folder / "README.md").read_text().split())
    found = re.search(rf"(?i)\b{arm}(?: trained)? for [\d to]+ minutes \((\d+) of CPU time\)", text)
    return None if found is None else _cpu([60 * int(found[1])])


def _command(folder: Path) -> str:
    """Return the first commands in a folder's README."""
    text = (folder / "README.md").read_text()
    found = re.search(r"```\w*\n(.*?)\n```|`((?:OMP_\w+=1 )?(?:groundling|python|make) .*?)`", text, re.DOTALL)
    assert found is not None, f"{folder}: no command in README.md"
    return " && ".join(re.sub(r" *\\\n *", " ", found[1] or found[2]).splitlines())


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _grouped(lines: Iterable[Line], *names: str) -> dict[tuple[Any, ...], list[Any]]:
    """Group lines by the values of columns, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in names), []).append(line)
    return groups
