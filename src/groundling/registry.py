"""Named components: what a config may ask for by id."""

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from omegaconf import MISSING

from groundling.arguments import check_types
from groundling.errors import ConfigError

T = TypeVar("T")
_MOST_NAMES = 25
"""A message lists no more names than these."""
IMPORT = "if a module of yours registers it, add --import MODULE (in Python, import it first); "
"""What to do where none of the names is meant."""
imported_modules: list[str] = []
"""Modules that ``--import`` named, which worker processes import as well."""


def import_words(modules: Iterable[str]) -> list[str]:
    """Words of a command that import these modules; entries of a config that are no module name are left out."""
    return [word for name in modules if re.fullmatch(r"[\w.]+", name) for word in ("--import", name)]


_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass
class ComponentConfig:
    """A registered component as a config names it: `groundling list` tells the ids."""

    id: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


class Registry(Generic[T]):
    """Maps an id to the class or function that makes a component.

    A config names components by id and keyword arguments; nothing is ever imported from a path
    that stands in a config or a checkpoint. Users' own components get in by being imported
    (``--import my_module``), where they register themselves::

        @policies.register("mine")
        class MyPolicy: ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}
        self._origins: dict[str, tuple[str, str]] = {}
        self._adapted: list[tuple[Registry[Any], Callable[[str], Callable[..., T]]]] = []

    def register(self, id: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorate a class or function so that ``create(id, ...)`` calls it.

        One that is defined again takes its own place: in a reloaded module, or in a script that is imported, too.

        Raises:
            ConfigError: the id is taken by another component.
        """

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            origin = _origin(factory)
            if self._origins.get(id, origin) != origin:
                taken = self._factories[id].__module__
                raise ConfigError(f"{self.kind} {id!r} is registered already, by {taken}: choose another id")
            self._factories[id], self._origins[id] = factory, origin
            return factory

        return add

    def adapt(self, others: "Registry[Any]", adapt: Callable[[str], Callable[..., T]]) -> None:
        """Know the components of ``others``, too: ``adapt(id)`` gives what makes one of them a component of this kind.

        One's own come first, then those of whichever registry was adapted first.
        """
        self._adapted.append((others, adapt))

    def get(self, id: str) -> Callable[..., T]:
        """Return what ``id`` names.

        Raises:
            ConfigError: no such id; the message lists the nearest ones.
        """
        if id in self._factories:
            return self._factories[id]
        for others, adapt in self._adapted:
            if id in others:
                return adapt(id)
        raise ConfigError(unknown(self.kind, id, self, IMPORT))

    def create(self, id: str, *args: Any, **kwargs: Any) -> T:
        """Make the component ``id`` from its arguments.

        Raises:
            ConfigError: no such id, no such argument, or one that is needed and not given.
        """
        factory = self.get(id)
        self.check_arguments(id, kwargs)
        missing = self.missing_arguments(id, kwargs)[len(args) :]
        if missing:
            raise ConfigError(self.needs(id, missing))
        return factory(*args, **kwargs)

    def missing_arguments(self, id: str, given: Collection[str]) -> list[str]:
        """The names of the arguments that the component ``id`` needs and that are not ``given``, in their order."""
        parameters = inspect.signature(self.get(id)).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty and p.kind in _NAMED]
        return [name for name in needed if name not in given]

    def needs(self, id: str, missing: Sequence[str]) -> str:
        """What a message says of the component ``id`` without these arguments."""
        return f"{self.kind} {id!r} needs {', '.join(missing)}{self._hint(id)}"

    def _hint(self, id: str) -> str:
        adapted = (others for others, _ in self._adapted if id in others)
        others = None if id in self._factories else next(adapted, None)
        return "" if others is None else others._hint(id)

    def check_arguments(self, id: str, kwargs: Mapping[str, Any], withheld: Collection[str] = ()) -> None:
        """Raise `ConfigError` if the component ``id`` takes no argument of one of these names.

        The message names those that it takes, without the ``withheld``, which nobody can set.
        """
        parameters = inspect.signature(self.get(id)).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return
        names = [p.name for p in parameters if p.kind in _NAMED]
        for name in kwargs:
            if name not in names:
                known = [one for one in names if one not in withheld]
                raise ConfigError(unknown(f"argument of {self.kind} {id!r}", name, known))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._factories, *(id for others, _ in self._adapted for id in others)}))

    def in_order(self) -> list[str]:
        """The ids of this kind's own components in the order in which they were registered."""
        return list(self._factories)

    def __contains__(self, id: object) -> bool:
        return id in self._factories or any(id in others for others, _ in self._adapted)


def check_component(
    registry: Registry[Any],
    component: ComponentConfig,
    key: str,
    filled_in: Collection[str] = (),
    withheld: Collection[str] = (),
) -> None:
    """Check a component's id, and its arguments' names and types, before anything is built.

    Args:
        registry: Which knows it.
        component: As the config names it.
        key: Where it stands in the config, for messages: ``policy``, say, for policy.args.
        filled_in: Arguments that it gets otherwise.
        withheld: Arguments that no config can set, which no message suggests.

    Raises:
        ConfigError: an unknown id, an unknown argument, one that is missing, or a value of the wrong type.
    """
    factory = registry.get(component.id)
    if not isinstance(component.args.get("lm", ""), str):
        raise ConfigError(
            f"{key}.args.lm must be the folder or hub id of a language model, got {component.args['lm']!r}"
        )
    try:
        registry.check_arguments(component.id, component.args, withheld)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; where the {registry.kind} is not the experiment's, ~{key}.args takes the experiment's out"
        ) from error
    missing = registry.missing_arguments(component.id, {*component.args, *filled_in})
    if missing:
        raise ConfigError(registry.needs(component.id, [f"{key}.args.{name}" for name in missing]))
    check_types(factory, f"{key}.args.", component.args)


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    """The name of a definition and the file where it stands, whatever its module is called; without one, the module."""
    file = getattr(sys.modules.get(factory.__module__), "__file__", None)
    name = getattr(factory, "__qualname__", repr(factory))
    return name, os.path.realpath(file) if file else factory.__module__


def did_you_mean(name: str, known: Iterable[str], cutoff: float) -> str:
    """Ask for the names that are nearest, in whatever case; empty if none is as near as ``cutoff``, of `difflib`."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(by_lower[one]) for one in near)}? " if near else ""


def unknown(kind: str, name: str, known: Any, otherwise: str = "") -> str:
    """Say that ``name`` is not a known ``kind``, which names are nearest, and what ``otherwise`` to do."""
    names = sorted(known)
    hint = did_you_mean(name, names, 0.5) + otherwise
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"unknown {kind} {name!r}: {hint}there is {', '.join(names[:_MOST_NAMES]) or 'none'}{more}"
