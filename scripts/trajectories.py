"""Write digests of short training runs, one per experiment family, for comparison before and after a refactoring.

python -m scripts.trajectories --jobs 2 --output before.jsonl
python -m scripts.trajectories --jobs 2 --output after.jsonl --compare before.jsonl   # exits with 1 if they differ

For each row, Groundling's command line is run on the CPU, with one thread and a fixed seed, in a separate folder. This
script does not import the package, so a table depends only on commands, config keys, and files in a run's folder.
Compare only tables from the same machine, because other processors round differently.

Each command runs in a process forked from this one, so that PyTorch and Transformers are imported only once.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import re
import resource
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from string import Template
from typing import Any

import yaml
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]


def read_rows() -> dict[str, list[list[str]]]:
    """Return the arguments of each row's commands, from trajectories.yaml."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    names: dict[str, str] = {}
    for name, text in table["words"].items():
        names[name] = Template(text).substitute(names)
    rows: dict[str, list[list[str]]] = {}
    for row, commands in table["rows"].items():
        rows[row] = [shlex.split(Template(command).substitute(names)) for command in commands]
        for words in rows[row]:
            words += table["train"].split() if "train" in words[:2] else []
    return rows


ROWS = read_rows()
_OF_TIME_OR_MEMORY = re.compile(r"second|time|_mib|memory")
_STATE = re.compile(r"optimizer|random|collector|algorithm|table")
"""Tensor files that do not contain weights."""
_SHOWN = ("return_mean", "loss", "policy_loss", "entropy", "probability", "validation_loss")


def run_row(name: str, folder: Path) -> Row:
    """Run a row's commands in ``folder``, and return digests and metrics, or the error."""
    folder.mkdir(parents=True)
    for words in ROWS[name]:
        process = multiprocessing.get_context("fork").Process(target=_run, args=(words, folder))
        process.start()
        process.join()
        if process.exitcode != 0:
            return {"row": name, "error": f"{words[0]}: {(folder / 'log.txt').read_text().strip()[-600:]}"}
    figures = read_figures(folder)
    return {
        "row": name,
        "metrics": _digest([json.dumps(figures, sort_keys=True)]),
        "weights": _digest(_weights(folder)),
        "figures": figures,
    }


def _run(words: list[str], folder: Path) -> None:
    """Replace this process with ``python -m groundling`` and these arguments, or with torchrun and two processes."""
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # files from which an interrupted evaluation would continue
    with Path("log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if words[0] == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
        sys.exit(subprocess.run([*launcher, "groundling", *words[1:]]).returncode)
    sys.argv = ["groundling", *words]
    runpy.run_module("groundling", run_name="__main__", alter_sys=True)


def read_figures(folder: Path) -> dict[str, Any]:
    """Return the rows of the runs' ``*.jsonl`` files and the tables of evaluations, by file."""
    figures: dict[str, Any] = {}
    for name in ("metrics.jsonl", "validation.jsonl"):
        for path in sorted(folder.rglob(name)):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            figures[str(path.relative_to(folder))] = [
                {key: value for key, value in row.items() if not _OF_TIME_OR_MEMORY.search(key)} for row in rows
            ]
    for path in sorted(folder.rglob("evaluation/*.json")):
        figures[str(path.relative_to(folder))] = json.loads(path.read_text())["agents"]
    return figures


def _weights(folder: Path) -> list[str]:
    """Hash each tensor of the models below ``folder``, in an order that does not depend on the tensors' names."""
    files = [path for path in folder.rglob("*.safetensors") if not _STATE.search(path.name)]
    tensors = [tensor for path in files for tensor in load_file(path).values()]
    return sorted({_digest([f"{one.dtype}{one.shape}", one.tobytes().hex()]) for one in tensors})


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested lists and mappings, each with its path."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{path}/{key}")
    else:
        yield path, value


def differences(old: Row, new: Row) -> str | None:
    """Return the first values in which two rows differ and the largest relative difference; None if they are equal."""
    if "error" in old or "error" in new:
        return None if "error" in old and "error" in new else f"error: {new.get('error', old.get('error'))}"
    parts = [key for key in ("metrics", "weights") if old[key] != new[key]]
    before, after = dict(_flat(old["figures"])), dict(_flat(new["figures"]))
    pairs: dict[str, tuple[Any, Any]] = {key: (before.get(key), after.get(key)) for key in before | after}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    numbers = [pair for pair in changed.values() if all(isinstance(value, int | float) for value in pair)]
    largest = max((abs(x - y) / max(abs(x), abs(y)) for x, y in numbers), default=0)
    lines = [f"    {key}: {x!r} -> {y!r}" for key, (x, y) in itertools.islice(changed.items(), 4)]
    summary = f"{' and '.join(parts)}; {len(changed)} values differ, by at most {largest:.1e} in relative terms"
    return "\n".join([summary, *lines]) if parts else None


def show(row: Row) -> str:
    """Format a row for the terminal, with the digests and the run's last metrics."""
    if "error" in row:
        return f"{row['row']:22} failed: {row['error']}"
    rows = row["figures"]["run/metrics.jsonl"]
    seen = {key: value for line in rows for key, value in line.items() if value is not None}
    last = " ".join(f"{key}={seen[key]:.5g}" for key in _SHOWN if key in seen)
    return f"{row['row']:22} {row['metrics']} {row['weights']} {last}"


def _prepare() -> None:
    """Set the environment that every command inherits, and import the large libraries."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    sys.dont_write_bytecode = False
    sys.path.insert(0, str(ROOT / "src"))
    for module in ("torch", "transformers.models.auto.modeling_auto", "transformers.modeling_utils"):
        importlib.import_module(module)


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--output", type=Path, help="the table, as JSON lines")
    parser.add_argument("--compare", type=Path, metavar="TABLE", help="print rows that differ from TABLE")
    parser.add_argument("--only", metavar="ROW,...", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the rows' folders here")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(ROWS)
    if unknown := set(names) - set(ROWS):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    if shutil.which("java") is None and "textworldexpress" in names:
        print("textworldexpress: skipped, no Java")
        names.remove("textworldexpress")
    _prepare()
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows = (options.keep or Path(scratch)).absolute(), []
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
            for row in pool.map(run_row, names, [folder / name for name in names]):
                print(show(row), flush=True)
                rows.append(row)
    print(f"{len(rows)} rows, {sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]):.0f} s of CPU time")
    if options.output:
        options.output.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    failed = any("error" in row for row in rows)
    if options.compare:
        old = {row["row"]: row for row in map(json.loads, options.compare.read_text().splitlines())}
        missing = {"error": "no such row"}
        found = [(row["row"], differences(old.get(row["row"], missing), row)) for row in rows]
        lines = [f"{name} differs: {text}" for name, text in found if text]
        print("\n".join(lines) or "all rows are equal")
        failed = failed or bool(lines)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
