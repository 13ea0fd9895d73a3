"""User code named by settings: attributes of modules, or functions that travel with their code to other processes."""

from __future__ import annotations

import importlib
import linecache
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.errors import USER_ERRORS, ConfigError, StreamsError, as_exception
from riverrun.extras import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.arguments import Kind


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function with its code.

    Args:
        name: `module:function`, for messages.
        code: The function, pickled by cloudpickle. Only the same version of Python reads it.
    """

    name: str
    code: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def load(self) -> Any:
        import cloudpickle  # noqa: PLC0415 - few applications have such functions

        return cloudpickle.loads(self.code)


def reference_of(function: Callable[..., Any] | str) -> str | PickledFunction:
    """Return a reference for other processes: the name of an importable function, otherwise the function with its code."""
    if isinstance(function, str):
        return function
    if not callable(function):
        message = f"{function!r} is not a function"
        raise ConfigError(
            message, hint="Pass a Topology, a function of a StreamsBuilder, or its name: my_module:build."
        )
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__qualname__)
    reference = f"{module}:{name}"
    # `__main__` is another module in other processes. A function inside of another one, or of that name, is not importable.
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return reference
    from riverrun.config.by_value import dumps  # noqa: PLC0415 - as above

    try:
        return PickledFunction(reference, dumps(function))
    except Exception as error:  # pickling a referenced object may raise anything
        message = f"{reference} cannot be sent to other processes: {type(error).__name__}: {error}"
        raise ConfigError(
            message, hint="Pass a function, and create such objects, for example a connection, inside it."
        ) from error


_LIBRARY = Path(__file__).resolve().parents[1]
_APPS = _LIBRARY / "apps"
_PYTHON = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
"""Directories of installed packages."""
_CALLED = frozenset(
    {"cloudpickle", "confluent_kafka", "croniter", "fastavro", "google", "jsonschema", "pyarrow", "sqlglot"}
)
"""Installed packages that Riverrun calls itself: what fails there is no code of a user."""
_RENAME = "Give your own module another name."


def load_attribute(reference: str | PickledFunction) -> Any:
    """Return the object that `module:attribute` names, or a function that travels with its code."""
    if isinstance(reference, PickledFunction):
        return reference.load()
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"{reference!r} is not module:attribute", hint="For example my_module:build.")
    _refuse_main(reference, module_name, attribute)
    _refuse_shadow()
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"Module {module_name!r} cannot be imported: {error}"
        if module_name.partition(".")[0] == _LIBRARY.name and isinstance(error, ModuleNotFoundError):
            own = ConfigError(message, hint=f"`{_LIBRARY.name}` is Riverrun's own package. {_RENAME}")
            raise missing_extra(error) or own from error
        hint = "Is it installed, or next to streams.toml? Executors of a cluster need it, too: [spark]."
        raise ConfigError(message, hint=hint) from error
    except StreamsError:
        raise
    except USER_ERRORS as error:  # a user's module may raise anything when it is imported
        as_exception(error)
        message = f"Module {module_name!r} cannot be imported: {_described(error)}"
        raise ConfigError(message, hint=users_line(error)) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"Module {module_name} has no attribute {attribute!r}", hint=nearest(attribute, vars(module)))
    return getattr(module, attribute)


def load_function(reference: str | PickledFunction, kind: Kind, *, role: str, hint: str) -> Any:
    """Return a function that can be called in a role, such as "a timestamp extractor"; a class is instantiated.

    Raises:
        ConfigError: If it takes other arguments, or is no function.
    """
    found = load_attribute(reference)
    given = call_attribute(reference) if isinstance(found, type) else found
    complaint = kind.complaint(given)
    if complaint is not None:
        raise ConfigError(f"{reference} cannot be called as {role}: it {complaint}", hint=hint)
    return given


def look_beside(config: Path, *, first: bool = False) -> None:
    """Make the modules next to `streams.toml` importable, wherever the program was started.

    Args:
        config: The path of `streams.toml`.
        first: Whether they come before everything else that is on the path, rather than after it.
    """
    directory = str(config.resolve().parent)
    if first:
        sys.path[:] = [directory, *(entry for entry in sys.path if entry != directory)]
    elif directory not in sys.path:
        sys.path.append(directory)


def call_attribute(reference: str | PickledFunction, *arguments: object) -> Any:
    """Call the function that `module:attribute` names, or one that travels with its code, and return its result."""
    function = load_attribute(reference)
    kind = type(function).__name__
    if not callable(function):
        raise ConfigError(f"{reference} is of type {kind}, not a function")
    try:
        return function(*arguments)
    except StreamsError as error:
        error.hint = error.hint or users_line(error)
        raise
    # A user's function may raise anything.
    except USER_ERRORS as error:
        as_exception(error)
        message = f"{reference} raised {_described(error)}"
        raise ConfigError(
            message, hint=users_line(error) or f"It is of type {kind}. Does it name the right function?"
        ) from error


def _refuse_main(reference: str, module_name: str, attribute: str) -> None:
    # `__main__` is another module in processes that run tasks.
    if module_name == "__main__":
        message = f"{reference} is defined in a script or notebook, which other processes cannot import"
        raise ConfigError(message, hint=f"Move it to its own file, my_module.py, and name my_module:{attribute}.")


def _refuse_shadow() -> None:
    """Refuse a user's module that other processes would import instead of this library."""
    for entry in map(Path, sys.path):
        # Python searches in this order: entries after Riverrun's cannot hide it.
        if (entry / _LIBRARY.name).resolve() == _LIBRARY:
            return
        found = [entry / f"{_LIBRARY.name}.py", entry / _LIBRARY.name / "__init__.py"]
        for file in filter(Path.is_file, found):
            raise ConfigError(f"{file} hides Riverrun, whose package is called `{_LIBRARY.name}`", hint=_RENAME)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def users_line(error: BaseException) -> str | None:
    """Return the innermost line of the user's code that led to an error; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"Look at {error.filename}, line {error.lineno}."
    found = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__) if is_users(frame.f_code.co_filename)]
    if not found:
        return None
    packages = [_package(code.co_filename) for code, _ in found]
    # Code that is not installed, or of an installed application, which is called first: it may call libraries, which are
    # not the user's.
    own = None if None in packages else packages[0]
    if own in _CALLED:
        return None
    code, line = [place for place, package in zip(found, packages, strict=True) if package == own][-1]
    linecache.checkcache(code.co_filename)
    text = linecache.getline(code.co_filename, line).strip()
    return f"Look at {code.co_filename}, line {line}, in {code.co_name}{f': {text}' if text else '.'}"


def _package(filename: str) -> str | None:
    """Return the installed package that a file is of; None if it is not installed."""
    parts = Path(filename).parts
    return next((package for where, package in pairwise(parts) if where in INSTALLED), None)


@lru_cache(1_000)
def is_users(filename: str) -> bool:
    """Return whether a file is the user's: not Riverrun's (except its example applications) and not Python's."""
    parents = Path(filename).parents
    if _LIBRARY in parents:
        return _APPS in parents
    return not filename.startswith("<") and (_PYTHON not in parents or INSTALLED & set(Path(filename).parts) != set())
