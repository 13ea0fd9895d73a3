"""Checks the suppliers of users' processors, and what they make.

A processor that is never called loses all records without a trace: a method of another name, a coroutine that nothing awaits, a
generator over which nothing iterates. Classes are examined without being called. Functions are called when the topology is
built, as in Kafka Streams, so what they return is examined.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from riverrun.arguments import function, name_of_function, refuse_unstarted
from riverrun.errors import ProcessingError, TopologyError
from riverrun.processor.api import FixedKeyProcessor, FixedKeyRecord, Processor, ValueTransformerWithKey
from riverrun.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import StoreBuilder

T = TypeVar("T")

# Inherited from a protocol, these do nothing: a user's class must define them.
_UNDEFINED = tuple(
    vars(protocol)[name]
    for protocol, name in (
        (Processor, "process"),
        (FixedKeyProcessor, "process"),
        (ValueTransformerWithKey, "transform"),
    )
)
_FORWARD = "Send results on with context.forward(record)."
_CLOSE_ENOUGH = 0.6


@dataclass(frozen=True, slots=True)
class SuppliedObject:
    """Describes the objects that a supplier makes: they have `init(context)`, `close()` and one more method.

    Args:
        called: The method that is called for each record.
        parameters: Its arguments.
        advice: How it returns its results, for hints.
    """

    called: str
    parameters: str
    advice: str

    def check(self, given: object, label: str) -> None:
        """Refuse a class, or an object, that cannot be called, or whose calls would do nothing."""
        for name, parameters in (("init", "context"), (self.called, self.parameters), ("close", "")):
            method = _method(given, name)
            if method is None:
                raise self._undefined(given, label, name)
            complaint = function(parameters).complaint(method)
            if complaint is not None:
                raise TopologyError(f"{label}: {name} {complaint}", hint=self.advice if name == self.called else None)

    def defined_by(self, given: object) -> bool:
        """Return whether a class, or an object, has the method that is called for each record."""
        return _method(given, self.called) is not None

    def _undefined(self, given: object, label: str, name: str) -> TopologyError:
        parameters = self.parameters if name == self.called else "context" if name == "init" else ""
        what = "" if isinstance(given, type) or _is_plain(given) else f", which makes {given!r},"
        message = f"{label}{what} does not define {name}({parameters})"
        others = [other for other in dir(given) if not other.startswith("_") and other not in {"init", "close", name}]
        others = [other for other in others if callable(inspect.getattr_static(given, other))]
        close = get_close_matches(name, others, 1, _CLOSE_ENOUGH)
        return TopologyError(message, hint=f"Rename {close[0]} to {name}." if close else f"Define it. {self.advice}")


PROCESSOR = SuppliedObject("process", "record", _FORWARD)
VALUE_TRANSFORMER = SuppliedObject("transform", "key, value", "It returns the new value, or None.")


def check_supplier(supplier: Callable[[], Any], made: SuppliedObject) -> None:
    """Check that a supplier returns a new instance on each call (`ApiUtils.checkSupplier`), and one that will be called."""
    label = name_of_function(supplier)
    if isinstance(supplier, type):
        # Called only if the class seems to lack the method, which its objects may have nevertheless.
        made.check(supplier if made.defined_by(supplier) else supplier(), label)
        return
    one = supplier()
    if isinstance(one, type):
        message = f"{label} returns the class {one.__qualname__}, not an object of it"
        raise TopologyError(message, hint=f"Pass {one.__qualname__} itself.")
    made.check(one, label)
    # Tasks would share it.
    if one is supplier():
        message = f"{label} generates single reference. Supplier#get() must return a new object each time it is called."
        raise TopologyError(message, hint="Pass the class, or a function that creates a new one.")


def supplied(supplier: Callable[[], T], made: SuppliedObject) -> T:
    """Return a new object of a supplier, for a task."""
    given = supplier()
    # A function may make something else than when the topology was built.
    made.check(given, name_of_function(supplier))
    return given


def refuse_result(result: object, what: str) -> None:
    """Refuse a result that means nothing: a coroutine, a generator, or records that were not forwarded."""
    refuse_unstarted(result, what)
    if isinstance(result, Record | FixedKeyRecord | list | tuple):
        raise ProcessingError(f"{what} returns {result!r}: nothing is done with it", hint=_FORWARD)


def connected_stores(supplier: Callable[[], Any]) -> tuple[StoreBuilder, ...]:
    """Return the stores that a supplier brings (`org.apache.kafka.streams.processor.ConnectedStoreProvider`).

    A supplier brings stores if it has a method `stores()` that returns their builders. If the supplier is a class, it
    must be a method of the class (`@staticmethod` or `@classmethod`), as there is no instance yet.
    """
    if isinstance(supplier, type):
        declared = inspect.getattr_static(supplier, "stores", None)
        if not isinstance(declared, staticmethod | classmethod):
            return ()
    stores = getattr(supplier, "stores", None)
    if not callable(stores):
        return ()
    complaint = function("", yields=True).complaint(stores)
    if complaint is not None:
        raise TopologyError(f"{name_of_function(supplier)}: stores {complaint}")
    return tuple(stores())


def _method(given: object, name: str) -> Any:
    """Return a method as it is called on an object; None if there is none, or only that of a protocol."""
    found = inspect.getattr_static(given, name, None)
    if found in _UNDEFINED or getattr(found, "__isabstractmethod__", False):
        return None
    if isinstance(given, type) and isinstance(found, FunctionType):
        return MethodType(found, given)
    return getattr(given, name, None)


def _is_plain(given: object) -> bool:
    """Return whether an object's class says what it is, as it is not built in."""
    return type(given).__module__ != "builtins"
