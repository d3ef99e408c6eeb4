"""Where trust ends: what counts only if this command line says it, and what no file can do.

Whoever gives a run, an experiment, a study or a dataset away gives files away. Files are settings, and settings
cannot run code, choose servers, name the variable of an API key, have envs write files or read the environment.
`only_said` tells which settings could: those count if the words of the present command give them, and are refused if
only a file does. What is read from a file passes `check_plain`, for OmegaConf's resolvers read the environment. What is
given away passes `groundling.io.redaction`.
"""

import inspect
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from groundling.envs.nethack import RECORDING
from groundling.errors import ConfigError
from groundling.io.redaction import SERVERS

EVERYTHING = ("",)
"""As ``unused`` of a reader: a run is only looked at, and what only the command line can say is of no use."""
TRAINING_ALONE = (r"reward\..+\.args\.online\.", rf"world\.args\.({'|'.join(RECORDING)})$")
"""As ``unused``: what an agent that is only played does not need, and what recorded the games of its training."""
ENV = (*TRAINING_ALONE, r"world\.env$")
"""As ``unused``: what an agent in the user's own loop does not need, where the env is the caller's."""

_CODE = ("trust_remote_code", "custom_generate", "megatron_core")
"""Arguments of Transformers and peft that have Python loaded: from the hub, a folder, or a module by its name."""
_ONLINE_JUDGE = re.compile(r"reward\..+\.args\.online\.judge")
_URL = re.compile(r"\s*[A-Za-z][\w+.-]*://")
_PLAIN = re.compile(r"\$\{\.*[A-Za-z_]\w*(\.\w+|\[\w+\])*\}")
_SHOWN = 120
"""Characters of a value that a message repeats."""


def only_said(key: str, value: Any) -> bool:
    """Whether a setting counts only if the command line gives it.

    That is what runs code that comes with a model, what names a server (a URL anywhere, a judge that asks one), what
    names the variable of an API key, and what has an env write files.

    Args:
        key: Dotted, from the root of a `Config`.
        value: No mapping and no list: one of their `leaves`.
    """
    if value is None or value == 0:  # or False: it is off
        return False
    if any(name in _CODE + SERVERS + RECORDING for name in re.split(r"[.\[]", key)):
        return True
    if _ONLINE_JUDGE.fullmatch(key):
        return asks_a_server(str(value))
    if not isinstance(value, str):
        return False
    is_kernel = key == "model.attention" and "/" in value  # compiled code of the hub's, to Transformers
    return is_kernel or _URL.match(value) is not None


def asks_a_server(judge: str) -> bool:
    """Whether a judge of `groundling list judges` sends requests, with an API key if there is one."""
    from groundling.judges import judges

    return "api_key_env" in inspect.signature(judges.get(judge)).parameters


def leaves(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """The values in ``node`` by their keys, dotted and with ``[i]``; empty mappings and lists have none."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from leaves(f"{key}.{name}" if key else str(name), value)
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            yield from leaves(f"{key}[{place}]", value)
    else:
        yield key, node


def admit(
    values: Mapping[str, Any], said: Mapping[str, Any], where: str, unused: Sequence[str] = ()
) -> dict[str, Any]:
    """Nested settings as they may be obeyed.

    Args:
        values: Of a whole `Config`, the command line's among them.
        said: The `leaves` that the command line gives.
        where: Who else gives settings, for a message: a file or an experiment.
        unused: The beginnings of keys whose settings nobody is going to use, as regular expressions: there, what the
            command line does not give is left out instead of refused.

    Returns:
        ``values`` without what is left out.

    Raises:
        ConfigError: something counts only if it is said, and is not; the message has the words to say.
    """
    unsaid = {key: value for key, value in leaves("", values) if only_said(key, value)}
    unsaid = {key: value for key, value in unsaid.items() if key not in said or said[key] != value}
    refused = {key: value for key, value in unsaid.items() if not any(re.match(one, key) for one in unused)}
    if refused:
        raise ConfigError(
            f"{where} sets {', '.join(refused)}, and no file may run code, choose a server, name an API key or have an "
            f"env write files: if you trust it, add to the command: {' '.join(map(_word, refused, refused.values()))}"
        )
    # Who judged remains: it tells what a run's reward was, and only training makes the judge.
    left_out = {key for key in unsaid if not _ONLINE_JUDGE.fullmatch(key)}
    return {name: _without(value, name, left_out) for name, value in values.items()}


def _without(node: Any, key: str, keys: Collection[str]) -> Any:
    """``node`` but for the leaves at ``keys``."""
    if not keys:
        return node
    if isinstance(node, Mapping):
        return {
            name: _without(value, f"{key}.{name}", keys) for name, value in node.items() if f"{key}.{name}" not in keys
        }
    if isinstance(node, list | tuple):
        inside = [(f"{key}[{place}]", value) for place, value in enumerate(node)]
        return [_without(value, place, keys) for place, value in inside if place not in keys]
    return node


def _word(key: str, value: Any) -> str:
    """What to type, safe to be copied into a shell: the file's author chose the value and perhaps the key."""
    name, bracket, _ = key.partition("[")
    if bracket or len(key) > _SHOWN or not key.isprintable():
        return shlex.quote(f"{name[:_SHOWN]}=[…]" if name.isprintable() else "KEY=[…]")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > _SHOWN or not text.isprintable():
        return shlex.quote(f"{key}=…")
    if not re.fullmatch(r"[\w.:/@-]+", text):
        text = quoted(text)
    return shlex.quote(f"{key}={text}")


def quoted(text: str) -> str:
    """A text as the value of an override: Hydra's grammar reads a backslash as itself, but for those before a quote."""
    return QuotedString(text, Quote.single).with_quotes()


def check_plain(node: Any, where: str) -> None:
    """Check that texts hold no interpolation but ``${key}``, before OmegaConf sees to them.

    Args:
        node: A text, or nested values, not yet resolved.
        where: Where they stand, for the message.

    Raises:
        ConfigError: one has a resolver, such as ``${oc.env:NAME}``.
    """
    for key, text in leaves("", node):
        if not isinstance(text, str):
            continue
        if any(_PLAIN.match(text, match.start()) is None for match in re.finditer(r"\$\{", text)):
            excerpt = f"{key[:_SHOWN]}={text[:_SHOWN]!r}" if key else repr(text[:_SHOWN])
            raise ConfigError(
                f"{where}: {excerpt} is not read: resolvers, which could read the environment, are off, and ${{ only "
                "begins the name of another key, as in ${name}; write the value itself"
            )
