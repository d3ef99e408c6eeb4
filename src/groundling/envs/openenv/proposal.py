"""Propose ``world.args`` for an OpenEnv server, based on its schema and a first observation."""

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from groundling.envs.openenv.env import PREFIX, OpenEnv, check_url, open_client
from groundling.errors import ConfigError

_MOST_BYTES, _SECONDS = 1_000_000, 10.0
_MOST_FIELDS, _MOST_ITEMS = 6, 8  # limits on the proposal and on the length of a described list
_ADMISSIBLE = re.compile(
    "(legal|admissible|valid|available|allowed|possible).*(action|move|command|choice)|^(action|move|command|choice)s$",
    re.IGNORECASE,
)
_GOAL = re.compile("goal|task|instruction|question|objective|mission|prompt", re.IGNORECASE)
_SAID = ("content", "text", "message")  # Keys of the text in a list of messages
_NAME = re.compile(r"\w{1,40}")  # Names allowed in a proposal, since the server is not trusted


@dataclass(frozen=True)
class Proposal:
    schema: list[tuple[str, str]]
    """Parts of the server's schema and their fields with types, for display."""
    args: dict[str, Any]


def propose(id: str, given: Mapping[str, Any]) -> Proposal:
    """Read the schema and a first observation of ``openenv:URL``, and return arguments for `OpenEnv`.

    Args:
        given: Arguments that are already set; the proposal includes them.

    Raises:
        ConfigError: The server is unreachable, or actions are not text and the admissible ones are unknown.
    """
    url = id.removeprefix(PREFIX)
    schema = read_schema(url)
    actions, observations = (_fields(schema.get(kind)) for kind in ("action", "observation"))
    args: dict[str, Any] = {"action": given.get("action") or _acting(id, schema, actions)}
    with closing(OpenEnv(url, **args, reset=given.get("reset"), descriptions=[])) as env:
        observation, _ = env.reset(seed=0)
    if "admissible" not in given:
        args |= _admissible(observation, actions.get(args["action"], {}), args["action"])
    goal = next(
        (n for n, v in observation.items() if isinstance(v, str) and _GOAL.search(n) and _NAME.fullmatch(n)), None
    )
    if goal is not None:
        args["goal"] = f"{{{goal}}}"
    hidden = {"metadata", goal, str(args.get("admissible"))}
    if read := [*_texts(observation, hidden)] or [*_numbers(observation, hidden)]:
        args["descriptions"] = read[:_MOST_FIELDS]
    shown = [("action", _described(actions)), ("observation", _described(observations))]
    return Proposal(shown, {**args, **given})


def read_schema(url: str) -> dict[str, Any]:
    """Return the server's JSON schemas by kind; raise `ConfigError` if they are missing or too large."""
    check_url(url)
    address = re.sub("^ws", "http", url.rstrip("/")) + "/schema"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as reply:
            schema = json.loads(reply.read(_MOST_BYTES))
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise ConfigError(f"no OpenEnv server answers at {url}: {address}: {error!s:.200}") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"{address} is not an OpenEnv schema: expected a mapping, got {schema!r:.60}")
    return schema


def count_sessions(id: str, most: int) -> int:
    """Count the concurrent sessions that ``openenv:URL`` allows, up to ``most``, by briefly opening that many."""
    url = id.removeprefix(PREFIX)
    clients: list[Any] = []
    try:
        while len(clients) < most:
            clients.append(open_client(url, _SECONDS, 0.0, closing=0.0 if clients else _SECONDS))
    except ConfigError:
        if not clients:
            raise
    finally:
        for client in clients:
            with suppress(Exception):
                client.close()
    return len(clients)


def _fields(schema: Any) -> dict[str, Mapping[str, Any]]:
    """Return a schema's properties by name with references resolved, without the metadata."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return {}
    defined, fields = schema.get("$defs"), dict[str, Mapping[str, Any]]()
    for name, one in schema["properties"].items():
        if isinstance(one, dict) and name != "metadata":
            target = str(one.get("$ref", "")).rpartition("/")[2]
            referred = defined.get(target) if isinstance(defined, dict) else None
            fields[name] = {**one, **(referred if isinstance(referred, dict) else {})}
    return fields


def _described(fields: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name}: {_type(one)}" for name, one in fields.items())[:400] or "not described"


def _type(schema: Mapping[str, Any]) -> str:
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(str, schema["enum"]))
    if isinstance(options := schema.get("anyOf"), list):
        return " | ".join(str(one.get("type")) for one in options if isinstance(one, dict))
    return str(schema.get("type", "any"))


def _acting(id: str, schema: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    required = schema.get("action", {}).get("required") if fields else None
    names = [name for name in fields if isinstance(required, list) and name in required] or [*fields]
    if not names or not _NAME.fullmatch(names[0]):
        raise ConfigError(f"the schema of {id} has no action: set world.args.action to the name of the action's field")
    return names[0]


def _admissible(observation: Mapping[str, Any], schema: Mapping[str, Any], action: str) -> dict[str, Any]:
    if isinstance(schema.get("enum"), list):
        return {"admissible": schema["enum"]}
    listed = [
        n for n, v in observation.items() if isinstance(v, list) and _ADMISSIBLE.search(n) and _NAME.fullmatch(n)
    ]
    if listed:
        return {"admissible": listed[0]}
    if "string" in _type(schema) or _type(schema) == "any":
        return {}
    raise ConfigError(
        f"the action's field {action!r} has type {_type(schema)}, and no field of the observation lists its values: "
        "set world.args.admissible=[0, 1, …]"
    )


def _texts(observation: Mapping[str, Any], hidden: set[str | None]) -> Iterator[str]:
    for name, value in observation.items():
        if name in hidden or not _NAME.fullmatch(name):
            continue
        if isinstance(value, str) and value:
            yield name
        elif isinstance(value, list) and value and isinstance(value[-1], dict):
            yield from (f"{name}.-1.{key}" for key in _SAID if isinstance(value[-1].get(key), str))


def _numbers(observation: Mapping[str, Any], hidden: set[str | None]) -> Iterator[str]:
    for name, value in observation.items():
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        if name in hidden or not _NAME.fullmatch(name) or not 0 < len(values) <= _MOST_ITEMS:
            continue
        if all(isinstance(one, int | float) for one in values):
            yield name
