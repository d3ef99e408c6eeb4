"""Imports follow the layers in docs/architecture.md, without cycles."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = _ROOT / "src" / "groundling"


def _module_of(path: Path) -> str:
    parts = ("groundling", *path.relative_to(_SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_MODULES = {_module_of(path): path for path in _SOURCE.rglob("*.py")}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _imported(path: Path, typing_too: bool = False) -> set[str]:
    """Return the modules of the package that a file imports, optionally including those only for type checkers."""
    tree = _tree(path)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in typing_only and not typing_too:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in _MODULES else node.module for name in below}
    return {name for name in names if name in _MODULES}


@functools.cache
def _graph() -> dict[str, set[str]]:
    return {module: _imported(path) - {module} for module, path in _MODULES.items()}


def _layers() -> list[set[str]]:
    """Return the layers in the page's block, starting from the bottom."""
    page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"```layers\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return [set(line.split()) for line in reversed(block[1].strip().splitlines())]


def _part(module: str) -> str:
    """Return the top-level package or file of a module."""
    return module.partition(".")[2].partition(".")[0] or "groundling"


def test_every_part_is_on_the_page_once() -> None:
    named = [part for layer in _layers() for part in layer]
    assert sorted(named) == sorted({_part(module) for module in _MODULES} - {"groundling", "__main__"})


def test_parts_import_only_what_stands_below_them() -> None:
    height = {part: number for number, layer in enumerate(_layers()) for part in layer}
    upwards = {
        f"{module} imports {other}"
        for module, imported in _graph().items()
        for other in imported
        if (above := _part(module)) in height
        and (below := _part(other)) in height
        and above != below
        and height[above] <= height[below]
    }
    assert not upwards, "\n".join(sorted(upwards))


def test_imports_have_no_circle() -> None:
    # A package's __init__ imports its files, which may import each other's package. Type-only imports count.
    files = {
        module: _imported(path, typing_too=True) - {module}
        for module, path in _MODULES.items()
        if path.name != "__init__.py"
    }
    try:
        list(TopologicalSorter({m: {o for o in imports if o in files} for m, imports in files.items()}).static_order())
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


_WORLDS = {folder.parent.name for folder in (_SOURCE / "worlds").glob("*/__init__.py")}


def _knows_a_world(module: str) -> bool:
    """Return True for the modules of a world, of envs or of converters."""
    folders = {f"groundling.worlds.{world}" for world in _WORLDS} | {"groundling.envs", "groundling.convert"}
    return any(f"{module}.".startswith(f"{f}.") for f in folders)


def _asks_for_a_world(node: ast.AST) -> bool:
    """Return True if code compares with a world's name, or uses one as a default."""

    def names(part: ast.AST | None) -> bool:
        return part is not None and any(
            isinstance(one, ast.Constant) and one.value in _WORLDS for one in ast.walk(part)
        )

    if isinstance(node, ast.Compare):
        return any(map(names, [node.left, *node.comparators]))
    if isinstance(node, ast.MatchValue):
        return names(node.value)
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target) in ("world", "subject", "kind") and names(node.value)
    if isinstance(node, ast.Dict):
        return sum(map(names, node.keys)) > 1  # a table of worlds
    return False


def test_nothing_outside_a_worlds_folder_asks_which_world_it_is() -> None:
    assert {"text", "nethack", "writing"} <= _WORLDS
    asking = [
        f"{path.relative_to(_ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for module, path in _MODULES.items()
        if not _knows_a_world(module)
        for node in ast.walk(_tree(path))
        if _asks_for_a_world(node)
    ]
    assert not asking, "\n".join(asking)
    tried = ["a.id == 'text'", "{'text': 1, 'nethack': 2}", "w in ('writing', 'x')", "world: str = 'nethack'"]
    assert all(any(map(_asks_for_a_world, ast.walk(ast.parse(code)))) for code in tried)


def test_worlds_are_imported_only_where_they_are_registered() -> None:
    importing = {
        f"{module} imports {other}"
        for module, path in _MODULES.items()
        if not _knows_a_world(module) and module != "groundling.worlds"
        for other in _imported(path, typing_too=True)
        if any(f"{other}.".startswith(f"groundling.worlds.{world}.") for world in _WORLDS)
    }
    assert not importing, "\n".join(sorted(importing))


def test_the_files_on_the_page_exist() -> None:
    page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|yaml|html\.j2))`", page))
    missing = [name for name in sorted(named) if not any((root / name).exists() for root in (_SOURCE, _ROOT))]
    assert len(named) > 10 and not missing
