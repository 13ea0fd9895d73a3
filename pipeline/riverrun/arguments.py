"""Checks the arguments of calls that describe a topology, and names the line of the user's code in the message.

Calls declare their arguments by parameter name (`takes`). An argument that does not fit raises `TopologyError`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from riverrun.errors import ProcessingError, StreamsError, TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

STANDS_FOR = "riverrun_stands_for"
"""Name of the attribute of a class whose objects stand for functions of these arguments, and no others."""
_PACKAGE = str(Path(__file__).parent)
_STATEMENTS = f"{Path(_PACKAGE, 'sql')}/"
# Packages of Riverrun whose code describes topologies as users do.
_USERS = tuple(str(Path(_PACKAGE, room)) for room in ("apps", "demo"))


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a parameter takes.

    Args:
        wanted: Names the values in messages: `a timedelta`.
        complaint: Returns why a value does not fit, worded to follow the parameter's name; None if it fits.
        hint: What to do about it; None for no hint.
    """

    wanted: str
    complaint: Callable[[Any], str | None]
    hint: Callable[[Any], str | None] = lambda _given: None


def optional(kind: Kind) -> Kind:
    """Accept None as well as the values of a kind."""
    return Kind(kind.wanted, lambda given: None if given is None else kind.complaint(given), kind.hint)


def instance(*types: type, wanted: str, hint: Callable[[Any], str | None] = lambda _given: None) -> Kind:
    """Accept instances of any of the types."""
    return Kind(wanted, lambda given: None if isinstance(given, types) else _must_be(wanted, given), hint)


def one_of(*names: str, wanted: str, hint: Callable[[Any], str | None] = lambda _given: None) -> Kind:
    """Accept instances of Riverrun's classes, given by name so that callers need not import them."""

    def fits(given: object) -> bool:
        # Names rather than classes: this module is below those that declare them, and importing them here would be
        # circular.
        return any(cls.__name__ in names and cls.__module__.startswith("riverrun.") for cls in type(given).__mro__)

    return Kind(wanted, lambda given: None if fits(given) else _must_be(wanted, given), hint)


def function(*parameters: str, yields: bool = False, awaits: bool = False) -> Kind:
    """Accept functions that can be called with one of these lists of arguments (`"key, value"`; empty for none).

    `yields` accepts generator functions too, as the caller iterates over the result; `awaits` coroutine functions.
    """
    wanted = " or ".join(f"({names})" if names else "no arguments" for names in parameters)
    arities = tuple(names.count(",") + 1 if names else 0 for names in parameters)

    def complaint(given: Any) -> str | None:
        own = getattr(type(given), STANDS_FOR, None)
        if own is not None and not set(own).isdisjoint(parameters):
            return None
        if own is not None or not callable(given):
            return _must_be(f"a function of {wanted}", given)
        is_coroutine = not awaits and _is(given, inspect.iscoroutinefunction)
        if is_coroutine or _is(given, inspect.isasyncgenfunction):
            return f"must be a plain function, not {name_of_function(given)}, which is async: nothing would await it"
        if not yields and _is(given, inspect.isgeneratorfunction):
            return f"must return its result, but {name_of_function(given)} is a generator function"
        if not any(_can_take(given, arity) for arity in arities):
            return f"must be a function of {wanted}, but {name_of_function(given)} takes {_parameters(given)}"
        return None

    def hint(given: Any) -> str | None:
        if not callable(given):
            return f"lambda: {given!r}" if parameters == ("",) and isinstance(given, int | float | str) else None
        return None

    return Kind(f"a function of {wanted}", complaint, hint)


DURATION = instance(
    timedelta,
    wanted="a timedelta",
    hint=lambda given: f"timedelta(milliseconds={given})" if isinstance(given, int) else None,
)
MOMENT = instance(datetime, wanted="a datetime")
TEXT = instance(str, wanted="a str")
NUMBER = instance(int, wanted="an int")
FLAG = instance(bool, wanted="True or False")
MAPPING = instance(AnyMapping, wanted="a mapping")


def _serde_hint(given: object) -> str:
    named = f" A name is a keyword: name={given!r}." if isinstance(given, str) else ""
    return f"Use STRING, LONG, JSON and their like, or Serde(...).{named}"


SERDE = one_of("Serde", wanted="a Serde", hint=_serde_hint)
STORE = one_of("StoreBuilder", wanted="a store of Stores")
PUNCTUATOR = function("time_ms")
HANDLER = function("context, record, exception")
EXTRACTOR = function("record, partition_time_ms")
PARTITIONER = optional(function("topic, key, value, number_of_partitions"))
SUPPLIER = Kind(
    "a class, or a function of no arguments",
    function("").complaint,
    lambda given: None if callable(given) else "Pass the class, or a function that creates a new one.",
)
SINK_TOPIC = Kind(
    "a topic, or a function of (key, value, timestamp_ms)",
    lambda given: None if isinstance(given, str) else function("key, value, timestamp_ms").complaint(given),
)


def is_true(result: object) -> bool:
    """Return whether a predicate's result counts as true."""
    # A coroutine or a generator would always be true.
    refuse_unstarted(result, "The predicate")
    return bool(result)


def refuse_unstarted(result: object, what: str, error: type[StreamsError] = ProcessingError) -> None:
    """Refuse what a user's function returned, if none of its code has run yet; `what` names the function in the message."""
    if isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        kind = type(result).__name__.replace("_", " ")
        message = f"{what} returns the {kind} {result.__qualname__}(), which never runs"
        # Otherwise Python warns of a coroutine that was never awaited, as well.
        if isinstance(result, CoroutineType):
            result.close()
        raise error(message, hint="Call plain functions there, without `async` and `yield`.")


def takes(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function, and add the line of the user's call to each `TopologyError`.

    Of parameters like `*stores` each argument is checked. Omitted arguments are not.
    """

    def checked(called: Callable[P, R]) -> Callable[P, R]:
        places = _places(called)
        label = called.__qualname__.removesuffix(".__init__")

        @functools.wraps(called)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                for name, kind in kinds.items():
                    for given in _given(name, places.get(name), args, kwargs):
                        _check(label, name, kind, given, kinds)
                return called(*args, **kwargs)
            except TopologyError as error:
                # Calls between Riverrun's own modules pass through here, too: only the outermost has the user's line.
                if not _is_ours(sys._getframe(1)):  # noqa: SLF001 - the only way to the caller
                    error.locate(users_line())
                raise

        return call

    return checked


def takes_fields(**kinds: Kind) -> Callable[[C], C]:
    """Check the fields of a dataclass when it is created, as `takes` does."""

    def checked(cls: C) -> C:
        cls.__init__ = takes(**kinds)(cls.__init__)  # type: ignore[misc]
        return cls

    return checked


def users_line() -> str | None:
    """Return the line of the user's code that led here, as `file:line`; None if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    while frame is not None and _is_ours(frame):
        # Statements make such a topology, wherever Python code has them run.
        if frame.f_code.co_filename.startswith(_STATEMENTS):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    path = Path(frame.f_code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.f_lineno}"


def name_of_function(given: Any) -> str:
    while isinstance(given, functools.partial):
        given = given.func
    name = getattr(given, "__qualname__", None) or type(given).__qualname__
    return str(name.rpartition("<locals>.")[2])


def _places(called: Callable[..., Any]) -> dict[str, slice]:
    """Map each parameter to its place among the positional arguments of a call."""
    code = inspect.unwrap(called).__code__
    places = {name: slice(at, at + 1) for at, name in enumerate(code.co_varnames[: code.co_argcount])}
    if code.co_flags & inspect.CO_VARARGS:
        places[code.co_varnames[code.co_argcount + code.co_kwonlyargcount]] = slice(code.co_argcount, None)
    return places


def _given(name: str, place: slice | None, args: tuple[Any, ...], kwargs: AnyMapping[str, Any]) -> tuple[Any, ...]:
    if name in kwargs:
        return (kwargs[name],)
    return () if place is None else args[place]


def _check(label: str, name: str, kind: Kind, given: object, kinds: AnyMapping[str, Kind]) -> None:
    complaint = kind.complaint(given)
    if complaint is None:
        return
    message, hint = f"{label}: {name} {complaint}", kind.hint(given)
    if given is not None and not callable(given):
        fitting = [other for other, its in kinds.items() if other != name and its.complaint(given) is None]
        hint = hint or (f"Pass it as {fitting[0]}=." if len(fitting) == 1 else None)
    raise TopologyError(message, hint=hint)


def _must_be(wanted: str, given: object) -> str:
    if isinstance(given, type):
        return f"must be {wanted}, not the class {given.__qualname__}"
    return f"must be {wanted}, not {given!r} ({type(given).__qualname__})"


def _is(given: Any, test: Callable[[Any], bool]) -> bool:
    """Test a function, the function that a partial calls, or the method that makes an object callable."""
    while isinstance(given, functools.partial):
        given = given.func
    if isinstance(given, FunctionType):
        return test(given)
    called = None if isinstance(given, type) else inspect.getattr_static(type(given), "__call__", None)
    return test(given) or test(getattr(called, "__func__", called))


def _can_take(given: Callable[..., Any], arity: int) -> bool:
    """Check that a function accepts this number of arguments; a function without a known signature passes."""
    # Faster than a signature. With a `__dict__`, `functools.wraps` may have given it the signature of another function.
    if type(given) is FunctionType and not given.__dict__:
        code = given.__code__
        if not code.co_flags & inspect.CO_VARARGS and not code.co_kwonlyargcount:
            return code.co_argcount - len(given.__defaults__ or ()) <= arity <= code.co_argcount
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(arity))
    except TypeError:
        return False
    return True


def _parameters(given: Callable[..., Any]) -> str:
    names = [
        f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else parameter.name
        for parameter in inspect.signature(given).parameters.values()
    ]
    return f"({', '.join(names)})" if names else "no arguments"


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return (name.startswith(_PACKAGE) and not name.startswith(_USERS)) or name == _DATACLASSES


_DATACLASSES = inspect.getfile(dataclass)
