"""Measure the library: its size, the files that a training run enters, and its prose.

python -m scripts.measure [size|trace|prose] [--list] [--check]     # all three by default
"""

import argparse
import ast
import inspect
import io
import re
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "groundling"
MODULES, TESTS = sorted(SOURCE.rglob("*.py")), sorted((ROOT / "tests").rglob("*.py"))
TEMPLATES = sorted(path for path in SOURCE.rglob("*") if path.suffix in (".yaml", ".j2", ".html"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
Bars = dict[str, tuple[float, float]]  # by name: a value and its maximum
MAX_FILE_LINES, WORDS_PER_PHRASE = 400, 4_000
TINY = ("world.num_envs=2", "world.num_steps=4", "algorithm.args.minibatch_size=4")
# The phases of a run in order, each with the name of the function whose first call starts it.
PHASES = {"config": "main", "build": "train", "rollout": "collect", "update": "update"}
QUESTION = re.compile(r"(What|Whether|Who|Whom|Whose|Where|That)\b")
PHRASES = "told|anew|somebody|nobody|whoever|in vain|at hand|of those|goes on|is not to be had|are none|is none|beside"
PHRASE = re.compile(rf"\b({PHRASES})\b".replace(" ", r"\s+"), re.IGNORECASE)
STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))  # the second exists since Python 3.12
CODE = re.compile(
    r"^ *```.*?^ *```|<(style|script)\b.*?</\1>|`+[^`\n]*`+|\]\([^)\n]*\)|<[^>\n]*>|\{[^{}\n]*\}", re.S | re.M
)


def where(path: Path, line: int) -> str:
    """Return ``file:line``, relative to the repository."""
    return f"{path.relative_to(ROOT)}:{line}"


def folder_of(path: Path) -> str:
    """Return the top folder of a source file."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "(root)"


def docstrings(path: Path) -> list[ast.Constant]:
    """Return all strings that are statements: the docstrings of modules, classes, functions and attributes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def lines_of_code(path: Path) -> int:
    """Count the lines that are neither blank nor part of a comment or docstring."""
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(path):
        code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(code)


def size() -> tuple[Bars, list[str]]:
    """Print files, lines and lines of code by folder, long files, duplicate class names and ``raise`` statements."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES + TESTS}
    table, classes, raises = defaultdict[str, Counter[str]](Counter), defaultdict[str, list[str]](list), 0
    for path in MODULES:
        for name in ("src", folder_of(path)):
            table[name].update(files=1, lines=lines[path], code=lines_of_code(path))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raises += isinstance(node, ast.Raise)
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(where(path, node.lineno))
    for path in TESTS:
        table["tests"].update(files=1, lines=lines[path], code=lines_of_code(path))
    for name, row in sorted(table.items(), key=lambda item: -item[1]["lines"]):
        print(f"{name:16}{row['files']:6,} files {row['lines']:8,} lines {row['code']:8,} of code")
    long_files = [path for path in lines if lines[path] > MAX_FILE_LINES]
    duplicates = {name: places for name, places in sorted(classes.items()) if len(places) > 1}
    print(f"files over {MAX_FILE_LINES} lines in src: {sum(path in MODULES for path in long_files)}")
    print(f"class names defined more than once in src: {len(duplicates)}; raise statements: {raises:,}")
    bars: Bars = {
        "lines in src": (table["src"]["lines"], 47_000),
        "lines in tests": (table["tests"]["lines"], 43_000),
        f"files over {MAX_FILE_LINES} lines": (len(long_files), 0),
    }
    names = [f"class {name}: {', '.join(places)}" for name, places in duplicates.items()]
    return bars, [where(path, lines[path]) for path in long_files] + names


def calls_to_first_step(overrides: tuple[str, ...]) -> dict[str, list[CodeType]]:
    """Run ``groundling train demo`` in this process up to the first call of an optimizer's ``step``.

    Return the library's functions by phase, in the order of their calls. Module bodies are excluded; functions that
    they call, such as decorators, are included.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    class FirstStep(KeyboardInterrupt):
        """Passes through error handlers, like Ctrl-C."""

    def stop(*_: Any) -> None:
        sys.setprofile(None)  # interrupt handlers are not part of the run
        raise FirstStep

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # unlike the body of a module or class
        if event == "call" and is_function and code.co_filename.startswith(f"{SOURCE}/"):
            phase, begins = list(PHASES.items())[min(len(calls), len(PHASES) - 1)]
            if code.co_name == begins:
                calls.setdefault(phase, [])
            calls[list(calls)[-1]].append(code)

    (script,) = metadata.entry_points(group="console_scripts", name="groundling")
    main = getattr(import_module(script.module), "main", script.load())
    register_optimizer_step_pre_hook(stop)
    folder, output, calls = tempfile.TemporaryDirectory(), io.StringIO(), dict[str, list[CodeType]]()
    with folder, redirect_stdout(output), redirect_stderr(output), suppress(FirstStep):
        sys.setprofile(record)
        main(["train", "demo", f"run_dir={folder.name}/run", *overrides])
    sys.setprofile(None)
    if calls.keys() != PHASES.keys():
        sys.exit(f"only these phases of the run started: {', '.join(calls)}\n{output.getvalue()}")
    return calls


def trace(overrides: tuple[str, ...] = TINY) -> tuple[Bars, list[str]]:
    """Print how many files and functions the demo enters up to its first optimizer step, by phase and by folder."""
    calls = calls_to_first_step(overrides)
    whole = [code for codes in calls.values() for code in codes]
    rows = {"all": whole, **{f"phase {phase}": codes for phase, codes in calls.items()}}
    for code in whole:
        rows.setdefault(f"folder {folder_of(Path(code.co_filename))}", []).append(code)
    counts = dict[str, tuple[int, int]]()
    print(f"groundling train demo {' '.join(overrides)}, from main to the first optimizer step")
    for name, codes in rows.items():
        named = {code for code in codes if not code.co_name.startswith("<")}  # no lambdas or comprehensions
        counts[name] = len({code.co_filename for code in named}), len(named)
        print("{:24}{:5} files {:5} functions".format(name, *counts[name]), end="")
        print(f" {len(set(codes)):5} with lambdas and comprehensions")
    files = [code.co_filename for code in whole if not code.co_name.startswith("<")]
    print(f"moves from file to file, call by call: {sum(last != file for last, file in pairwise(files)):,}")
    bars: Bars = {
        "files entered": (counts["all"][0], 70),
        "functions entered": (counts["all"][1], 450),
        "files entered in phase config": (counts["phase config"][0], 12),
    }
    return bars, sorted(f"{where(Path(c.co_filename), c.co_firstlineno)} {c.co_qualname}" for c in set(whole))


def prose_of(path: Path) -> str:
    """Return a file's text without its code, each word in its original line.

    The prose of Python files is comments, docstrings and other strings with a space; of YAML, comments and values.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        text = re.sub(r"^[ -]*[\w.]+:", "", text, flags=re.M)
    if path.suffix == ".py":
        lines = [""] * (text.count("\n") + 2)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type in STRINGS and " " in token.string):
                for row, part in enumerate(token.string.splitlines(), token.start[0] - 1):
                    lines[row] += " " + re.sub(r"^ *(#+|[a-zA-Z]{0,2}[\"']+)|[\"']+$", "", part)
        text = "\n".join(lines)
    return CODE.sub(lambda match: " " + "\n" * match.group().count("\n"), text)


def prose() -> tuple[Bars, list[str]]:
    """Print the number of docstrings that begin with a question word, and how often each of `PHRASES` occurs."""
    found = [(path, node) for path in MODULES for node in docstrings(path)]
    begins = [(path, node.lineno, QUESTION.match(str(node.value).lstrip())) for path, node in found]
    questions = [f"{where(path, line)} {match.group()}" for path, line, match in begins if match]
    phrases, words, places = Counter[str](), Counter[str](), list[str]()
    for path in [*MODULES, *TEMPLATES, *DOCUMENTS]:
        text = prose_of(path)
        words["src" if path.is_relative_to(SOURCE) else "docs"] += len(re.findall(r"[A-Za-z][\w'’-]*", text))
        for match in PHRASE.finditer(text):
            phrase = " ".join(match.group().lower().split())
            phrases[phrase] += 1
            places.append(f"{where(path, text.count(chr(10), 0, match.start()) + 1)} {phrase}")
    print(f"{len(questions):,} of {len(found):,} docstrings begin with {QUESTION.pattern}")
    print(f"{words['src']:,} words in src, {words['docs']:,} in docs; in {WORDS_PER_PHRASE:,} words:")
    rates = {name: n * WORDS_PER_PHRASE / words.total() for name, n in phrases.most_common()}
    print("\n".join(f"{rate:8.2f} {name} ({phrases[name]})" for name, rate in rates.items()))
    bars: Bars = {
        "docstrings that begin with a question word": (len(questions), 0),
        f"phrases to avoid in {WORDS_PER_PHRASE:,} words": (sum(rates.values()), 1),
    }
    return bars, questions + places


def main() -> int:
    """Print the measurements; return 1 if ``--check`` is set and a value is too high."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("size", "trace", "prose"))
    parser.add_argument("--list", action="store_true", help="list the counted files, functions and locations")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a value is too high")
    arguments, verdicts = parser.parse_args(), list[bool]()
    for measure in (size, trace, prose):
        if arguments.what in (None, measure.__name__):
            bars, listed = measure()
            for name, (value, most) in bars.items():
                verdicts.append(value <= most)
                print(f"{'ok' if value <= most else 'TOO HIGH'}: {name} {value:,.6g}, at most {most:,}")
            print("\n".join(listed if arguments.list else []))
    return int(arguments.check and not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
