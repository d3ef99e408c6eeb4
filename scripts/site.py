"""Assemble the documentation site's pages: ``python -m scripts.site``, then ``zensical build --strict``.

The pages in ``docs/`` link to results, examples and code in the repository. Linked pages are copied, and linked code
is shown on a separate page. The output folder is ``build/pages``.
"""

import argparse
import inspect
import os
import posixpath
import re
import shutil
import tomllib
from pathlib import Path

from groundling.algorithms.algorithm import algorithms
from groundling.cli.main import make_parser
from groundling.policies.policy import policies
from groundling.worlds import worlds

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".csv": "text", ".toml": "toml"}
"""The language for the syntax highlighting of a file, by its suffix."""
_PICTURES = (".png", ".svg", ".gif")
_MOST_LINES = 400


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    _write_catalogue()
    _write_command_line()
    waiting = [(path, f"docs/{path.relative_to(PAGES).as_posix()}") for path in PAGES.rglob("*.md")]
    done = {source for _, source in waiting}
    while waiting:
        page, source = waiting.pop()
        text, linked = _relinked(page.read_text(encoding="utf-8"), source)
        page.write_text(text, encoding="utf-8")
        for one in linked - done:
            done.add(one)
            made = _bring(one)
            if made.suffix == ".md" and one.endswith(".md"):
                waiting.append((made, one))
    print(f"{len(list(PAGES.rglob('*.md')))} pages in {PAGES.relative_to(ROOT)}")


def _write_catalogue() -> None:
    """Write a page for each algorithm, policy and kind of world, from `docs/catalogue.toml`."""
    (PAGES / "catalogue.toml").unlink()
    shown = tomllib.loads((ROOT / "docs" / "catalogue.toml").read_text(encoding="utf-8"))
    registries = {"algorithms": algorithms, "policies": policies, "worlds": worlds}
    for kind, registry in registries.items():
        folder = PAGES / "catalogue" / kind
        folder.mkdir(parents=True)
        if missing := {*registry} ^ {*shown[kind]}:
            raise SystemExit(f"docs/catalogue.toml: {kind} are {', '.join(registry)}; fix {', '.join(missing)}")
        lines = [f"# {kind.capitalize()}", ""]
        for id in sorted(registry):
            entry, factory = shown[kind][id], registry.get(id)
            text = [f"# `{id}`", "", f"```bash\n{entry['command']}\n```", ""]
            if "picture" in entry:
                text += [f"![measured curves](../../../{entry['picture']})", ""]
                text += [f"The command, seeds and machine: [results](../../../{entry['results']}).", ""]
            else:
                text += ["Its learning curves have not been measured.", ""]
            text += [f"::: {factory.__module__}.{factory.__name__}", ""]
            (folder / f"{id}.md").write_text("\n".join(text), encoding="utf-8")
            about = (inspect.getdoc(factory) or "").partition("\n")[0]
            lines.append(f"- [`{id}`]({id}.md): {about}")
        (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_command_line() -> None:
    """Write a page with the ``--help`` output of each command."""
    os.environ["COLUMNS"] = "100"  # argparse reads the terminal's width from it
    parser = make_parser()
    commands = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = ["# The command line", "", f"```text\n{parser.format_help().rstrip()}\n```", ""]
    for name, command in commands.items():
        lines += [f"## groundling {name}", "", f"```text\n{command.format_help().rstrip()}\n```", ""]
    (PAGES / "command_line.md").write_text("\n".join(lines), encoding="utf-8")


def _place(source: str) -> str:
    """Return the path that a file of the repository has among the pages, whose root is ``docs/``."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    is_itself = source.endswith((".md", *_PICTURES))
    return f"repository/{source}" if is_itself else f"repository/{source}.md"


def _relinked(text: str, source: str) -> tuple[str, set[str]]:
    """Return a page with its links replaced by links to other pages, and the repository files that it links to."""
    linked: set[str] = set()
    here = posixpath.dirname(_place(source))

    def relink(found: re.Match[str]) -> str:
        sign, label, target, anchor = found.groups()
        if re.match(r"[a-z]+:", target):
            return found.group()
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / file).is_file():  # folders have no page
            return label
        if not file.startswith("docs/"):
            linked.add(file)
        return f"{sign}[{label}]({posixpath.relpath(_place(file), here or '.')}{anchor or ''})"

    pieces = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(p if p.startswith("```") else _LINK.sub(relink, p) for p in pieces), linked


def _bring(source: str) -> Path:
    """Copy a page or an image, or write a page that shows a code file."""
    path, made = ROOT / source, PAGES / _place(source)
    made.parent.mkdir(parents=True, exist_ok=True)
    if source.endswith((".md", *_PICTURES)):
        shutil.copyfile(path, made)
        return made
    lines = path.read_text(encoding="utf-8").splitlines()
    shown = "\n".join(lines[:_MOST_LINES])
    more = "" if len(lines) <= _MOST_LINES else f"\n\nOnly the first {_MOST_LINES} of {len(lines)} lines are shown.\n"
    fence = "````"
    made.write_text(
        f"# {source}\n\n{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{shown}\n{fence}\n{more}", encoding="utf-8"
    )
    return made


if __name__ == "__main__":
    main()
