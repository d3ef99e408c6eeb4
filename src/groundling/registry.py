"""Registries of components, which a config names by id."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from groundling.arguments import check_arguments, declarations, missing_arguments, provided
from groundling.errors import ConfigError, unknown
from groundling.fields import Section, record

T = TypeVar("T")
# Advice for an unknown id
IMPORT = "if a module of yours registers it, add --import MODULE (in Python, import it first); "
imported_modules: list[str] = []  # Named by ``--import``, and imported by worker processes as well


def import_words(modules: Iterable[str]) -> list[str]:
    """Return the ``--import`` words of a command line for modules; invalid names are left out."""
    return [word for name in modules if re.fullmatch(r"[\w.]+", name) for word in ("--import", name)]


class ComponentConfig(Section):
    """A registered component as a config names it; `groundling list` shows the ids."""

    id: str
    args: dict[str, Any] = {}


class Registry(Generic[T]):
    """Map an id to the class or function that makes a component.

    A config names components by id and keyword arguments; nothing is imported from a path in a config or checkpoint.
    Users' components register themselves in modules that are imported, as by ``--import my_module``::

        @policies.register("mine")
        class MyPolicy: ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}
        self._origins: dict[str, tuple[str, str]] = {}
        self._adapted: list[tuple[Registry[Any], Callable[[str], Callable[..., T]]]] = []

    def register(self, id: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorate a class or function so that ``create(id, ...)`` calls it; raise `ConfigError` if the id is taken.

        A definition replaces itself, as when a module is reloaded or a script imports itself.
        """

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            origin = _origin(factory)
            if self._origins.get(id, origin) != origin:
                taken = self._factories[id].__module__
                raise ConfigError(f"{self.kind} {id!r} is registered already, by {taken}: choose another id")
            self._factories[id], self._origins[id] = factory, origin
            record(declarations(factory))
            return factory

        return add

    def adapt(self, others: "Registry[Any]", adapt: Callable[[str], Callable[..., T]]) -> None:
        """Include components of another registry, after this one's own; ``adapt(id)`` returns a factory for this one."""
        self._adapted.append((others, adapt))

    def get(self, id: str) -> Callable[..., T]:
        """Return the class or function that ``id`` names; raise `ConfigError` if it is unknown."""
        if id in self._factories:
            return self._factories[id]
        for others, adapt in self._adapted:
            if id in others:
                return adapt(id)
        raise ConfigError(unknown(self.kind, id, self, IMPORT))

    def create(self, id: str, *args: Any, **kwargs: Any) -> T:
        """Make the component ``id``; raise `ConfigError` for an unknown id, or invalid or missing arguments."""
        factory = self.get(id)
        given = provided(factory)
        check_arguments(factory, {k: v for k, v in kwargs.items() if k not in given}, f"{self.kind} {id!r}")
        if missing := missing_arguments(factory, kwargs)[len(args) :]:
            raise ConfigError(f"{self.kind} {id!r} needs {', '.join(missing)}{self._hint(id)}")
        return factory(*args, **kwargs)

    def check(self, id: str, args: dict[str, Any], key: str) -> None:
        """Check an id and arguments, given in a config at ``key``, before anything is built; errors as in `create`."""
        factory, component = self.get(id), f"{self.kind} {id!r}"
        check_arguments(factory, args, component, f"{key}.args.")
        if missing := missing_arguments(factory, {*args, *provided(factory)}):
            raise ConfigError(
                f"{component} needs {', '.join(f'{key}.args.{name}' for name in missing)}{self._hint(id)}"
            )

    def _hint(self, id: str) -> str:
        """Add to the message about missing arguments of the component ``id``."""
        others = next((one for one, _ in self._adapted if id in one and id not in self._factories), None)
        return "" if others is None else others._hint(id)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._factories, *(id for others, _ in self._adapted for id in others)}))

    def in_order(self) -> list[str]:
        """Return the ids of this kind's own components in the order in which they were registered."""
        return list(self._factories)

    def __contains__(self, id: object) -> bool:
        return id in self._factories or any(id in others for others, _ in self._adapted)


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    """Return the name of a definition, and its file or, without one, its module."""
    file = getattr(sys.modules.get(factory.__module__), "__file__", None)
    name = getattr(factory, "__qualname__", repr(factory))
    return name, os.path.realpath(file) if file else factory.__module__
