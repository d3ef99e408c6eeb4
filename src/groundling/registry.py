"""Registries of components, which configs refer to by id."""

import hashlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from groundling.errors import ConfigError, UnknownEnv, UnusedKey, unknown
from groundling.fields import OnlyWith, Provided, Section, one_line, record

_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def named_parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be passed by name."""
    parameters = inspect.signature(factory).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _NAMED}


def declarations(factory: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Return the metadata of each argument's annotation: bounds, and markers such as `Provided`."""
    return {name: getattr(one.annotation, "__metadata__", ()) for name, one in named_parameters(factory).items()}


def provided(factory: Callable[..., Any]) -> dict[str, Provided]:
    """Return the arguments that a run provides to a component, by name."""
    declared = declarations(factory).items()
    return {name: fact for name, metadata in declared for fact in metadata if isinstance(fact, Provided)}


def missing_arguments(factory: Callable[..., Any], given: Collection[str]) -> list[str]:
    """Return the names of required arguments that are missing from ``given``, in order."""
    needed = [name for name, one in named_parameters(factory).items() if one.default is one.empty]
    return [name for name in needed if name not in given]


@cache
def arguments_model(factory: Callable[..., Any]) -> type[BaseModel]:
    """Build a pydantic model of the arguments that a config may set; it checks types and bounds strictly."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
    types = {name: _of_yaml(one.annotation) for name, one in named_parameters(factory).items()}
    types |= {name: one.settable for name, one in provided(factory).items()}
    config = ConfigDict(
        extra="allow" if takes_any else "forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    fields: dict[str, Any] = {name: (one, None) for name, one in types.items() if one is not None}
    return create_model("Arguments", __config__=config, **fields)


def _of_yaml(hint: Any) -> Any:
    """Allow lists instead of tuples, which YAML lacks; entries remain strict. Forward references become Any."""
    if hint is inspect.Parameter.empty or isinstance(hint, str) or "ForwardRef" in repr(hint):
        return Any
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[_of_yaml(args[0]), *args[1:]]
    if not args or origin not in (tuple, list, Sequence, dict, Mapping, Union, UnionType):
        return hint
    inside = tuple(_of_yaml(one) for one in args)
    if origin in (Union, UnionType):
        return Union[inside]  # noqa: UP007 (of a tuple)
    return Annotated[tuple.__class_getitem__(inside), Field(strict=False)] if origin is tuple else origin[inside]


def check_arguments(factory: Callable[..., Any], args: Mapping[str, Any], component: str, prefix: str = "") -> None:
    """Raise `ConfigError` if an argument, as read from YAML, is unknown, of the wrong type or out of bounds.

    Messages contain ``component``, such as ``policy 'token'``, and ``prefix``, such as ``policy.args.``.
    """
    model = arguments_model(factory)

    def refuse(key: str, known: Collection[str]) -> str:
        name = key.removeprefix(prefix)
        if (given := provided(factory).get(name)) is not None:
            return f"{key} cannot be set: the run provides it to {component}, from {given.decided_by or given.role}"
        takes_out = f"; ~{prefix[:-1]} removes the experiment's arguments" if prefix.endswith("args.") else ""
        return f"{component} has an " + unknown("argument", name, model.model_fields) + takes_out

    try:
        model.model_validate(dict(args))
    except ValidationError as error:
        raise ConfigError(one_line(error, model, prefix, refuse)) from error
    usual = {name: one.default for name, one in named_parameters(factory).items()}
    for name, metadata in declarations(factory).items():
        for fact in metadata:
            if isinstance(fact, OnlyWith) and args.get(name, usual[name]) != usual[name]:
                other = args.get(fact.name, usual[fact.name])
                if not (other in fact.values if fact.values else other):
                    wanted = "".join(f"={'null' if one is None else one}" for one in fact.values[:1])
                    setting, needed = f"{prefix}{name}={args[name]!s:.100}", f"{prefix}{fact.name}{wanted}"
                    raise ConfigError(f"{setting} does nothing without {needed}: set that too, or remove {name}")


def _check_construction(made: Any) -> None:
    """Make a class's constructor check its arguments as `check_arguments` does."""
    construct, signature = made.__init__, inspect.signature(made.__init__)

    @wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        given, known = signature.bind(self, *args, **kwargs).arguments, arguments_model(made).model_fields
        own = {name: value for name, value in given.items() if name in known and name not in provided(made)}
        check_arguments(made, own, made.__name__)
        construct(self, *args, **kwargs)

    made.__init__ = checked


def check_bounds(section: Any, prefix: str) -> None:
    """Check the fields of a dataclass instance as `check_arguments` does; ``prefix`` precedes their names."""
    made: Callable[..., Any] = type(section)
    known = {*arguments_model(made).model_fields} - {*provided(made)}
    values = {f.name: getattr(section, f.name) for f in fields(section) if f.name in known}
    check_arguments(made, values, type(section).__name__, prefix)


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``given`` keyword arguments that a function accepts."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}


T = TypeVar("T")
# Advice for an unknown id
IMPORT = "if your own module registers it, add --import MODULE (in Python, import it first); "
imported_modules: list[str] = []  # Passed with ``--import``; worker processes also import them
_MODULE = re.compile(r"[\w.]+(:\w+)?|[\w./-]+\.py:\w+")  # A module, or a function in a module or file


def from_file(path: Path) -> ModuleType:
    """Import a file once, as a module named after its path; its folder is added to the import search path."""
    name = str(path.resolve())
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.path.append(str(path.resolve().parent))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def source_digests() -> dict[str, str]:
    """Return the SHA-256 of the source file of each module in `imported_modules`."""
    digests = {}
    for name in imported_modules:
        path = name.partition(":")[0]
        module = sys.modules.get(str(Path(path).resolve()) if path.endswith(".py") else path)
        if (file := getattr(module, "__file__", None)) is not None and Path(file).is_file():
            digests[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return digests


def import_words(modules: Iterable[str]) -> list[str]:
    """Return the ``--import`` arguments of a command line for modules, omitting invalid names."""
    return [word for name in modules if _MODULE.fullmatch(name) for word in ("--import", name)]


@contextmanager
def naming_modules(imports: Sequence[str], where: object, objects: Mapping[str, str] = {}) -> Iterator[None]:
    """Add the missing ``imports`` and ``objects`` (MODULE:NAME by id) to the message of a `ConfigError`; ``where`` is
    the config's file or run.
    """
    try:
        yield
    except UnusedKey:
        raise
    except ConfigError as error:
        text, missing = str(error), missing_modules(imports)
        words = " ".join(import_words(missing))
        origin = next((origin for id, origin in objects.items() if repr(id) in text), None)
        if origin is not None and origin not in text:
            text += (
                f"; {where} was made from the Python object {origin:.100}: repeat the call to groundling.train, or "
                "import a module that registers the object under this id (--import MODULE)"
            )
        elif missing and words not in text:
            text += (
                f"; {where} was created with custom modules: if you have and trust them, add "
                f"{words} (in Python, import them first)"
            )
        else:
            raise
        raise (UnknownEnv if isinstance(error, UnknownEnv) else ConfigError)(text) from error


def missing_modules(imports: Sequence[str]) -> list[str]:
    """Return the modules that are not imported, or an empty list if an entry is not a valid (safe) module name."""
    present = {*sys.modules, *imported_modules}
    missing = [name for name in imports if present.isdisjoint((name, name.partition(":")[0]))]
    return missing if all(map(_MODULE.fullmatch, missing)) else []


class ComponentConfig(Section):
    """A registered component, selected by its id in a config; `groundling list` shows the ids."""

    id: str
    args: dict[str, Any] = {}


@dataclass(eq=False)
class Registry(Generic[T]):
    """Maps ids to the classes or functions that create components.

    A config specifies components by id and keyword arguments; no path in a config or checkpoint is ever imported.
    Custom components are registered when their module is imported, for example with ``--import my_module``::

        @policies.register("mine")
        class MyPolicy: ...
    """

    kind: str
    _factories: dict[str, Callable[..., T]] = field(default_factory=dict)
    _origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    _adapted: "list[tuple[Registry[Any], Callable[[str], Callable[..., T]]]]" = field(default_factory=list)

    def register(self, id: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorate a class or function so that ``create(id, ...)`` calls it; raise `ConfigError` if the id is taken.

        A registered class checks its arguments on construction. The same definition may be registered again, for
        example when a module is reloaded or a script imports itself.
        """

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            file = getattr(sys.modules.get(factory.__module__), "__file__", None)
            name = getattr(factory, "__qualname__", repr(factory))
            origin = name, os.path.realpath(file) if file else factory.__module__
            if self._origins.get(id, origin) != origin:
                taken = self._factories[id].__module__
                raise ConfigError(f"{self.kind} {id!r} is already registered by {taken}: choose a different id")
            self._factories[id], self._origins[id] = factory, origin
            record(declarations(factory))
            if isinstance(factory, type) and named_parameters(factory):
                _check_construction(factory)
            return factory

        return add

    def adapt(self, others: "Registry[Any]", adapt: Callable[[str], Callable[..., T]]) -> None:
        """Add the components of another registry after this one's; ``adapt(id)`` returns a component's factory."""
        self._adapted.append((others, adapt))

    def get(self, id: str) -> Callable[..., T]:
        """Return the class or function registered as ``id``; raise `ConfigError` if the id is unknown."""
        if id in self._factories:
            return self._factories[id]
        for others, adapt in self._adapted:
            if id in others:
                return adapt(id)
        raise ConfigError(unknown(self.kind, id, self, IMPORT))

    def create(self, id: str, *args: Any, **kwargs: Any) -> T:
        """Create the component ``id``; raise `ConfigError` for an unknown id, or invalid or missing arguments."""
        factory = self.get(id)
        given = provided(factory)
        check_arguments(factory, {k: v for k, v in kwargs.items() if k not in given}, f"{self.kind} {id!r}")
        if missing := missing_arguments(factory, kwargs)[len(args) :]:
            raise ConfigError(f"{self.kind} {id!r} needs {', '.join(missing)}{self._hint(id)}")
        return factory(*args, **kwargs)

    def check(self, id: str, args: dict[str, Any], key: str) -> None:
        """Check the id and arguments at a config's ``key`` as `create` does, without building anything."""
        factory, component = self.get(id), f"{self.kind} {id!r}"
        check_arguments(factory, args, component, f"{key}.args.")
        if missing := missing_arguments(factory, {*args, *provided(factory)}):
            names = ", ".join(f"{key}.args.{name}" for name in missing)
            raise ConfigError(f"{component} needs {names}{self._hint(id)}")

    def _hint(self, id: str) -> str:
        """Return a hint to append to the message about missing arguments of the component ``id``."""
        others = next((one for one, _ in self._adapted if id in one and id not in self._factories), None)
        return "" if others is None else others._hint(id)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._factories, *(id for others, _ in self._adapted for id in others)}))

    def in_order(self) -> list[str]:
        """Return the ids of this registry's own components, in order of registration."""
        return list(self._factories)

    def __contains__(self, id: object) -> bool:
        # In an invalid config, the id may be a list, which is not hashable.
        return isinstance(id, str) and (id in self._factories or any(id in others for others, _ in self._adapted))
