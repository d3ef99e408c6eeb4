"""YAML, JSON, JSON lines and Parquet that somebody else may have written, read within limits.

Settings are small files that people write: YAML, and descriptions in JSON. Records are what programs write:
evaluations, checkpoints' states, predictions; they may be large. Neither is nested deeply, so a file that is made to
exhaust memory or the stack is refused before it does. A key that comes twice in one mapping is refused, too: readers
would differ over which counts. NaN and Infinity are read, for figures are written so.
"""

import io
import json
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.errors import GroundlingError

if TYPE_CHECKING:
    import pyarrow

SETTINGS = 2**20
"""Bytes of a file of settings, at most."""
RECORDS = 2**26
"""Bytes of a record in JSON, at most."""
LINE = 2**24
"""Bytes of one line of JSON lines, at most; the files may have any number of them."""
_DEPTH = 32
"""Levels of nesting, at most."""
_NODES = 10_000
"""Values of a file of settings, at most, each counted as often as aliases repeat it."""
_CARD_NODES = 100_000
"""Those of a dataset's card, which may describe hundreds of configurations."""
_VALUES = 2**23
"""Values of a record, at most."""
_EXPANDED = 2**20
"""Characters and values of settings once aliases and ``${name}`` are replaced, at most."""
_DIGITS = 4300
"""Characters of a number, at most: as many digits as Python reads. YAML's, which may be in base 60, are read in a time
that grows with their square."""
_LONGEST_CAUSE = 200
# With a line's end, as a text of several lines has it after the tag "!".
_NUMBER = re.compile(r"[-+.0-9][-+.:_0-9A-Fa-fx]*\n?")
"""What YAML may read as a number: none has a space."""
_NAME = re.compile(r"\$\{\s*(\.*)([^{}]*)\}")
_EVENTS: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(GroundlingError, ValueError):
    """A file that cannot be read, or is not read because it is past a limit."""


def read_yaml(path: Path) -> DictConfig:
    """A YAML file of settings, not resolved; of an empty one no settings.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it is no regular file, no mapping, no YAML, or past a limit; or a number is as `check_numbers`
            refuses it.
    """
    loaded = _parsed(path, _text(path, SETTINGS), _NODES, lambda text: OmegaConf.load(io.StringIO(text)))
    assert isinstance(loaded, DictConfig)
    check_numbers(OmegaConf.to_container(loaded, resolve=False), str(path))
    return loaded


def read_card(path: Path) -> dict[str, Any]:
    """What a dataset's folder says of it, as Hugging Face's libraries read it.

    Args:
        path: A YAML file, or a Markdown file that begins with YAML between two lines ``---``.

    Raises:
        OSError: it cannot be opened.
        DocumentError: as `read_yaml`.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    text = _text(path, SETTINGS)
    if path.suffix == ".md":
        block = REGEX_YAML_BLOCK.search(text)
        text = block[2] if block else ""
    card: dict[str, Any] = _parsed(path, text, _CARD_NODES, yaml.safe_load) or {}
    check_numbers(card, str(path))
    return card


def _parsed(path: Path, text: str, nodes: int, load: Callable[[str], Any]) -> Any:
    """What ``load`` makes of a file's YAML of at most so many ``nodes``."""
    try:
        _check_events(path, text, nodes)
        return load(text)
    except (yaml.YAMLError, ValueError, OmegaConfBaseException) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"{path} is no YAML: {_cause(error)}; mend it there") from error
    except (LookupError, AttributeError, TypeError) as error:  # as PyYAML fails on !!bool of what is none
        raise DocumentError(
            f"{path} is no YAML: a value is not what its tag says, as in !!bool maybe; leave the tags (!!…) out"
        ) from error


def read_json(path: Path, limit: int = RECORDS) -> Any:
    """A JSON file.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it is no regular file, no JSON, or past a limit.
    """
    return parse_json(_text(path, limit), str(path))


def read_object(path: Path, limit: int = RECORDS) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it holds none, or as `read_json`.
    """
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise DocumentError(f"{path} holds {_kind(content)}: expected an object, {{…}}")
    return content


def parse_json(text: str | bytes, where: str) -> Any:
    """JSON that has been read already; ``where`` is its file or line.

    Raises:
        DocumentError: it is no JSON, or past a limit.
    """
    commas, opening = (",", "[{") if isinstance(text, str) else (b",", b"[{")
    opened = sum(map(text.count, (opening[:1], opening[1:])))  # type: ignore[arg-type]
    if text.count(commas) + opened > _VALUES:  # type: ignore[arg-type]
        raise DocumentError(
            f"{where} has more than {_VALUES:,} values, more than any file that Groundling writes: it is not read"
        )
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise _too_deep(where) from None
    except UnicodeDecodeError as error:
        raise _no_utf8(where, error) from error
    except ValueError as error:
        raise DocumentError(f"{where} is not JSON: {_cause(error)}") from error
    if opened > _DEPTH:  # fewer brackets nest no deeper
        check_depth(content, where)
    return content


def read_parquet(path: Path) -> "pyarrow.Table":
    """A Parquet file, with pyarrow there; its values are what their types say: texts are UTF-8, lists are whole.

    Raises:
        DocumentError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        _check_regular(path)
        table = pq.read_table(path, partitioning=None)  # the names of folders are no columns
        table.validate(full=True)
    except DocumentError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DocumentError(f"{path} cannot be read as Parquet: {_cause(error)}") from error
    return table


def check_depth(content: Any, where: str) -> None:
    """Raise `DocumentError` if dicts and lists are nested too deeply."""
    level, depth = [content], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > _DEPTH:
            raise _too_deep(where)
        level = [one for node in level for one in (node.values() if isinstance(node, dict) else node)]


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The values of a file of JSON lines, each with where it stands; empty lines are left out.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it is no regular file, or a line is no JSON, or past a limit.
    """
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(line, where)


def lines_of(path: Path, offset: int = 0) -> Iterator[bytes]:
    r"""The lines of a file, from an offset in bytes on, with their ends, `\n`; the last one may have none.

    Raises:
        OSError: it cannot be opened.
        DocumentError: it is no regular file, or a line is too long.
    """
    _check_regular(path)
    with path.open("rb") as file:
        file.seek(offset)
        number = 0
        while line := file.readline(LINE + 1):
            number += 1
            if len(line) > LINE:
                raise DocumentError(f"{path}:{number} has more than {LINE:,} bytes: it is not read")
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 and not offset else line


def check_numbers(node: Any, where: str = "", path: tuple[Any, ...] = ()) -> None:
    """Check that whole numbers, those that are keys among them, take less than 64 bits.

    Nothing of ours is greater, and Python does not write out those of thousands of digits, which YAML may hold in
    hexadecimal.

    Args:
        node: A value, or nested ones.
        where: Their file, for the message; "" where it is not a file's alone.
        path: The keys that lead to them.

    Raises:
        DocumentError: one takes more.
    """
    if isinstance(node, int) and abs(node) >= 2**63:
        named = f"{where}: " if where else ""
        named += ".".join(map(str, path))[:80]
        raise DocumentError(f"{named} must be less than 2**63, got a number of {node.bit_length()} bits")
    if isinstance(node, Mapping):
        for name, value in node.items():
            check_numbers(name, where, (*path, "(a key)"))
            check_numbers(value, where, (*path, name))
    elif isinstance(node, list | tuple | set):
        for place, value in enumerate(node):
            check_numbers(value, where, (*path, place))


def check_expansion(values: Any, where: str) -> None:
    """Check that settings stay small once each ``${name}`` in them is replaced, before OmegaConf does so.

    Args:
        values: Nested, not resolved.
        where: Their file, for the message.

    Raises:
        DocumentError: they do not, or lead into each other without end.
    """
    sizes: dict[tuple[str, ...], int] = {}

    def size(path: tuple[str, ...], depth: int) -> int:
        if depth > 2 * _DEPTH:
            raise DocumentError(
                f"{where}: {'.'.join(path)[:80]}: ${{…}} refer to each other too often: write the value"
            )
        if path not in sizes:
            node = _at(values, path)
            sizes[path] = 1
            if isinstance(node, Mapping):
                sizes[path] += sum(size((*path, str(key)), depth + 1) for key in node)
            elif isinstance(node, list):
                sizes[path] += sum(size((*path, str(place)), depth + 1) for place in range(len(node)))
            elif isinstance(node, str):
                sizes[path] += len(node) + sum(size(to, depth + 1) for to in _named(node, path))
            if sizes[path] > _EXPANDED:
                key = ".".join(path)[:80] or "all of it"
                raise DocumentError(
                    f"{where}: {key} becomes longer than {_EXPANDED:,} characters when ${{…}} are replaced: write the "
                    "value itself"
                )
        return sizes[path]

    size((), 0)


def _named(text: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where the ``${…}`` of the value at ``path`` lead; leading dots go up from it."""
    for match in _NAME.finditer(text):
        dots, names = match.groups()
        start = path[: max(len(path) - len(dots), 0)] if dots else ()
        yield (*start, *(name for name in re.split(r"[.\[\]]+", names) if name))


def _at(values: Any, path: tuple[str, ...]) -> Any:
    node = values
    for name in path:
        if isinstance(node, Mapping):
            node = node.get(name, next((value for key, value in node.items() if str(key) == name), None))
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def _check_events(path: Path, text: str, most: int) -> None:
    """Go through a file's events, of which none is composed yet, and count what aliases would make of them."""
    nodes = characters = depth = 0
    # The anchors of what is not yet closed, and the counts before it.
    open_nodes: list[tuple[str | None, int, int]] = []
    anchored: dict[str, tuple[int, int, int]] = {}  # nodes, characters and levels
    deepest: list[int] = []

    def close(anchor: str | None, nodes_before: int, characters_before: int, levels: int) -> None:
        if anchor is not None:
            anchored[anchor] = nodes - nodes_before, characters - characters_before, levels
        if deepest:
            deepest[-1] = max(deepest[-1], levels)

    for event in yaml.parse(text, Loader=_EVENTS):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes, characters))
            deepest.append(0)
            nodes, depth = nodes + 1, depth + 1
        elif isinstance(event, yaml.CollectionEndEvent):
            close(*open_nodes.pop(), deepest.pop() + 1)
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > _DIGITS and _may_be_number(event):
                raise DocumentError(
                    f"{path} has a number of more than {_DIGITS:,} characters, {event.value[:20]!r}…: a text that "
                    "looks like a number is to stand in quotes"
                )
            before = nodes, characters
            nodes, characters = nodes + 1, characters + len(event.value)
            close(event.anchor, *before, 0)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchored:
                raise DocumentError(
                    f"{path}: the alias *{event.anchor[:40]} is used inside the value that it repeats, or before it"
                )
            count, length, levels = anchored[event.anchor]
            nodes, characters = nodes + count, characters + length
            if depth + levels > _DEPTH:
                raise _too_deep(str(path))
            close(None, nodes, characters, levels)
        elif isinstance(event, yaml.DocumentStartEvent) and nodes:
            raise DocumentError(f"{path} holds more than one document (---): leave one")
        if depth > _DEPTH:
            raise _too_deep(str(path))
        if nodes > most or characters > _EXPANDED:
            limit = f"{most:,} values" if nodes > most else f"{_EXPANDED:,} characters"
            raise DocumentError(
                f"{path} has more than {limit}, those that aliases (*name) repeat included: it is not read"
            )
        if depth == 0 and isinstance(event, yaml.NodeEvent) and not _is_nothing(event):
            raise DocumentError(f"{path} holds no settings by name: expected key: value")
        if depth == 1 and isinstance(event, yaml.SequenceStartEvent) and len(open_nodes) == 1:
            raise DocumentError(f"{path} holds a list: expected settings by name, key: value")


def _may_be_number(event: Any) -> bool:
    """Whether YAML may read a scalar as a number: in quotes, and without a tag, it is a text."""
    if event.tag not in (None, "!"):
        return bool(event.tag.endswith((":int", ":float")))
    # After "!" PyYAML reads what stands in quotes, too, as if it did not.
    is_plain = event.tag == "!" or event.implicit[0]
    return bool(is_plain and _NUMBER.fullmatch(event.value))


def _is_nothing(event: Any) -> bool:
    return (
        isinstance(event, yaml.ScalarEvent)
        and event.implicit[0]
        and event.value in ("", "~", "null", "Null", "NULL")
    )


def _text(path: Path, limit: int) -> str:
    """A file's text, with or without a byte order mark."""
    _check_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DocumentError(
            f"{path} has more than {limit:,} bytes, more than any such file that Groundling writes: it is not read"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_utf8(str(path), error) from error


def _check_regular(path: Path) -> None:
    """Raise `DocumentError` if it is a folder, or a pipe, which would be waited for without end; links may lead on.

    Raises:
        OSError: it is not there.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise DocumentError(f"{path} is no regular file: it is not read; put a file there, or a link to one")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:80]!r} comes twice")
            seen.add(name)
    return content


def _too_deep(where: str) -> DocumentError:
    return DocumentError(
        f"{where} is nested deeper than {_DEPTH} levels, deeper than any file that Groundling writes: it is not read"
    )


def _no_utf8(where: str, error: UnicodeDecodeError) -> DocumentError:
    return DocumentError(
        f"{where} is not UTF-8 (it has a byte {error.object[error.start]:#04x}): save it as UTF-8"
    )


def _kind(value: Any) -> str:
    names: dict[type, str] = {
        type(None): "null",
        list: "a list",
        dict: "an object",
        str: "a text",
        bool: "a boolean",
    }
    return names.get(type(value), "a number")


def _cause(error: Exception) -> str:
    """What a reader said, in one short line."""
    return " ".join(str(error).split())[:_LONGEST_CAUSE]
