"""Read untrusted YAML, JSON, JSON Lines and Parquet files within limits on size and nesting.

Duplicate keys are rejected, since parsers differ in which one they keep; NaN and Infinity are accepted, since metrics
contain them. Each reader raises `OSError` if the file cannot be opened, and `DocumentError` if it is not a regular
file, is malformed, or exceeds a limit.
"""

import io
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow

SETTINGS = 2**20  # Maximum number of bytes in a settings file
RECORDS = 2**26  # Maximum number of bytes in a JSON record
LINE = 2**24  # Maximum number of bytes in a line of JSON Lines; the number of lines is unlimited
_DEPTH = 32  # Maximum nesting depth
_NODES = 10_000  # Maximum number of values in a settings file, after expanding aliases
_CARD_NODES = 100_000  # Maximum number of values in a dataset card, which may describe hundreds of configurations
_VALUES = 2**23  # Maximum number of values in a record
_EXPANDED = 2**20  # Maximum number of characters and values in settings after expanding aliases and ``${name}``
_DIGITS = 4300  # Maximum length of a YAML number, as in Python; PyYAML parses base 60 (1:30:00) in quadratic time
_LONGEST_CAUSE = 200
_NAME = re.compile(r"\$\{\s*(\.*)([^{}]*)\}")
# PyYAML's safe loaders create plain values only.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FEWER = "Groundling never writes such a file, so it refuses to read it"


class DocumentError(ConfigError, ValueError):
    """A file that cannot be read or that exceeds a limit."""


def read_yaml(path: Path) -> DictConfig:
    """Read unresolved settings from a YAML file that contains a mapping or is empty."""
    loaded = _parse_yaml(path, _text(path, SETTINGS), _NODES, lambda text: OmegaConf.load(io.StringIO(text)))
    assert isinstance(loaded, DictConfig)
    check_numbers(OmegaConf.to_container(loaded, resolve=False), str(path))
    return loaded


def read_bundled(path: Path) -> Any:
    """Read a YAML file that is part of this package, without limits."""
    return yaml.load(path.read_text("utf-8"), _LOADER)


def read_card(path: Path) -> dict[str, Any]:
    """Read a dataset card as Hugging Face's libraries do: YAML, or Markdown that starts with YAML between ``---``."""
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    text = _text(path, SETTINGS)
    if path.suffix == ".md":
        block = REGEX_YAML_BLOCK.search(text)
        text = block[2] if block else ""
    card: dict[str, Any] = _parse_yaml(path, text, _CARD_NODES, yaml.safe_load) or {}
    check_numbers(card, str(path))
    return card


def read_json(path: Path, limit: int = RECORDS) -> Any:
    """Read a JSON file of at most ``limit`` bytes."""
    return parse_json(_text(path, limit), str(path))


def read_object(path: Path, limit: int = RECORDS) -> dict[str, Any]:
    """Read a JSON file that contains an object."""
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise DocumentError(f"{path} contains {json.dumps(content):.40}: expected an object, {{…}}")
    return content


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON; ``where`` is the file or line for error messages."""
    commas, opening = (",", "[{") if isinstance(text, str) else (b",", b"[{")
    opened = sum(map(text.count, (opening[:1], opening[1:])))  # type: ignore[arg-type]
    if text.count(commas) + opened > _VALUES:  # type: ignore[arg-type]
        raise DocumentError(f"{where} has more than {_VALUES:,} values; {_FEWER}")
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise _too_deep(where) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from error
    except ValueError as error:
        raise DocumentError(f"{where} is not JSON: {_cause(error)}") from error
    if opened > _DEPTH:  # fewer brackets cannot be nested too deeply
        check_depth(content, where)
    return content


def read_parquet(path: Path) -> "pyarrow.Table":
    """Read a Parquet file, and check that strings are valid UTF-8 and that the offsets of lists are in bounds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        _check_regular(path)
        table = pq.read_table(path, partitioning=None)  # folder names are not columns
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
    """Yield the location (file and line) and value of each line of a JSON Lines file, skipping empty lines."""
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(line, where)


def lines_of(path: Path) -> Iterator[bytes]:
    r"""Yield the lines of a file including their `\n`, which the last one may lack."""
    _check_regular(path)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE + 1):
            number += 1
            if len(line) > LINE:
                raise DocumentError(f"{path}:{number} exceeds {LINE:,} bytes, the limit for a line: shorten it")
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def check_numbers(node: Any, where: str = "", path: tuple[Any, ...] = ()) -> None:
    """Raise `DocumentError` for nested integers (values or keys) beyond 64 bits; Python cannot print very long ones."""
    if isinstance(node, int) and abs(node) >= 2**63:
        named = f"{where}: " if where else ""
        named += ".".join(map(str, path))[:80]
        raise DocumentError(f"{named} must be less than 2**63, got a number with {node.bit_length()} bits")
    if isinstance(node, Mapping):
        for name, value in node.items():
            check_numbers(name, where, (*path, "(a key)"))
            check_numbers(value, where, (*path, name))
    elif isinstance(node, list | tuple | set):
        for place, value in enumerate(node):
            check_numbers(value, where, (*path, place))


def resolve(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace each ``${key}`` in nested settings with that setting, as OmegaConf does; leading dots make it relative.

    Raises `DocumentError` for an unknown key, a result that is too large, or circular references.
    """
    left = _EXPANDED

    def resolved(node: Any, path: tuple[str, ...], depth: int) -> Any:
        nonlocal left
        left -= 1 + (len(node) if isinstance(node, str) else 0)
        key = ".".join(path)[:80]
        if depth > 2 * _DEPTH:
            raise DocumentError(f"{where}: the references (${{…}}) of {key} are circular or too deep: write the value")
        if left < 0:
            raise DocumentError(f"{where}: {key} expands to over {_EXPANDED:,} characters: write the value itself")
        if isinstance(node, Mapping):
            return {name: resolved(one, (*path, str(name)), depth + 1) for name, one in node.items()}
        if isinstance(node, list | tuple):
            return [resolved(one, (*path, str(place)), depth + 1) for place, one in enumerate(node)]
        if not isinstance(node, str):
            return node

        def named(match: re.Match[str]) -> Any:
            dots, names = match.groups()
            start = path[: max(len(path) - len(dots), 0)] if dots else ()
            to = (*start, *(name for name in re.split(r"[.\[\]]+", names) if name))
            found: Any = values
            try:
                for name in to:
                    found = found[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                raise DocumentError(f"{key}: {match[0]} does not exist: use a key such as ${{world.env}}") from None
            return resolved(found, to, depth + 1)

        whole = _NAME.fullmatch(node)
        return named(whole) if whole else _NAME.sub(lambda match: str(named(match)), node)

    result: dict[str, Any] = resolved(values, (), 0)
    return result


def _parse_yaml(path: Path, text: str, most: int, load: Callable[[str], Any]) -> Any:
    """Load YAML that contains a mapping of at most ``most`` values."""
    try:
        _check_nesting(path, text)
        root = yaml.compose(text, Loader=_LOADER)
        if root is not None and root.tag != "tag:yaml.org,2002:null":
            if not isinstance(root, yaml.MappingNode):
                kind = "a list" if isinstance(root, yaml.SequenceNode) else "one value"
                raise DocumentError(f"{path} contains {kind}: expected a mapping, key: value")
            _check_size(path, root, most)
        return load(text)
    except DocumentError:
        raise
    except (yaml.YAMLError, ValueError, OmegaConfBaseException) as error:
        raise DocumentError(f"{path} is not YAML: {_cause(error)}; fix the file") from error
    except (LookupError, AttributeError, TypeError) as error:  # PyYAML raises these for invalid !!bool values
        raise DocumentError(f"{path} is not YAML: a value does not match its tag (!!…); remove the tag") from error


def _check_nesting(path: Path, text: str) -> None:
    """Raise `DocumentError` if brackets are nested so deeply that parsing could exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise _too_deep(str(path))


def _check_size(path: Path, root: yaml.Node, most: int) -> None:
    """Raise `DocumentError` if a document is too large after expanding its aliases."""
    sizes = dict[int, tuple[int, int, int] | None]()

    def measure(node: yaml.Node) -> tuple[int, int, int]:
        """Return the number of values, characters and levels below a node."""
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise DocumentError(f"{path}: an alias is used inside the value that it refers to")
            return known
        sizes[id(node)] = None
        values, characters, levels = 1, 0, 0
        if isinstance(node, yaml.ScalarNode):
            characters = len(node.value)
            if characters > _DIGITS and node.tag.endswith((":int", ":float")):
                shown = f"{node.value[:20]!r}…: quote strings that look like numbers"
                raise DocumentError(f"{path} has a number with more than {_DIGITS:,} characters, {shown}")
        else:
            is_mapping = isinstance(node, yaml.MappingNode)
            for child in (one for pair in node.value for one in pair) if is_mapping else node.value:
                below = measure(child)
                values, characters = values + below[0], characters + below[1]
                levels = max(levels, 1 + below[2])
        if values > most or characters > _EXPANDED:
            limit = f"{most:,} values" if values > most else f"{_EXPANDED:,} characters"
            raise DocumentError(f"{path} has more than {limit} after expanding aliases (*name): make it smaller")
        if levels > _DEPTH:
            raise _too_deep(str(path))
        sizes[id(node)] = values, characters, levels
        return values, characters, levels

    measure(root)


def _text(path: Path, limit: int) -> str:
    """Read a text file, with or without a byte order mark."""
    _check_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DocumentError(f"{path} has more than {limit:,} bytes; {_FEWER}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(str(path), error) from error


def _check_regular(path: Path) -> None:
    """Raise `DocumentError` for a folder, a device or a pipe, which could block forever; links are followed."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise DocumentError(f"{path} is not a regular file: replace it with a file or a link to one")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {name[:80]!r} is duplicated")
    return content


def _too_deep(where: str) -> DocumentError:
    return DocumentError(f"{where} is nested deeper than {_DEPTH} levels; {_FEWER}")


def _not_utf8(where: str, error: UnicodeDecodeError) -> DocumentError:
    return DocumentError(f"{where} is not UTF-8 (it has the byte {error.object[error.start]:#04x}): save it as UTF-8")


def _cause(error: Exception) -> str:
    """Return a parser's message as one short line."""
    return " ".join(str(error).split())[:_LONGEST_CAUSE]
