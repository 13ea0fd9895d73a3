"""Decides which values a store may hand out several times, and which it keeps as bytes.

Users' code may change objects that it has put or received. So mutable objects are not shared between two calls, or with a
store: the store keeps the bytes, and each reader gets a new object. Immutable values that come back unchanged are kept and
handed out as they are; `Serde.immutable_types` names their possible classes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import DeserializationError, RegistryError, SerializationError, StreamsError
from riverrun.serde.api import hint_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder

# Number of characters of a key, or of bytes, shown in a message.
_SHOWN = 100
# An equal value of another of these classes, or of a subclass of one, behaves alike.
_SCALARS = (int, float, str)
# Classes of immutable values, whatever serde writes them.
_ATOMS = frozenset({int, float, str, bool, bytes, type(None)})

# The equality of objects whose class does not define it.
_IDENTITY: Any = object.__eq__


def shown(value: Any) -> str:
    """Return a key, or bytes, in the form for messages."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_atom(value: Any) -> bool:
    """Return whether the class of a value alone shows that it cannot be changed."""
    return type(value) in _ATOMS


@dataclass(slots=True, eq=False)
class StoredValues:
    """Converts the values of one store to bytes and back.

    Args:
        shared: Classes of values that may be handed out several times, among those seen so far.
    """

    store: str
    serde: Serde[Any]
    shared: set[type] = field(default_factory=set)
    serialize: Callable[[Any], bytes] = field(init=False)
    deserialize: Callable[[bytes], Any] = field(init=False)
    _seen: set[type] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.serialize, self.deserialize = self.serde.serialize, self.serde.deserialize

    def written(self, key: Any, value: Any) -> bytes:
        """Return a value as bytes, for stores that decode all values they return."""
        try:
            return self.serialize(value)
        except Exception as error:  # a serde may raise anything
            raise self.refused(key, value, error) from error

    def encode(self, key: Any, value: Any) -> bytes:
        """Return a value as bytes that can be read back; refuse a value that would come back as another one."""
        data = self.written(key, value)
        if type(value) not in self.shared:
            self.verify(key, value, data)
        return data

    def verify(self, key: Any, value: Any, data: bytes) -> Any:
        """Make sure that a value comes back as it was, and return the copy; None if it was not read.

        From then on its class may be shared, if its values are immutable.
        """
        serde, kind, copy = self.serde, type(value), None
        # A serde that is not exact is trusted: it may round, and its store holds the rounded value.
        if serde.exact:
            copy = self._read_back(key, value, data)
            is_equal = type(copy) is kind and copy == value
            # Equal values may differ in the classes of their parts, as a named tuple that comes back as a tuple. So the first
            # value of a class is compared in all parts.
            if (not is_equal or kind not in self._seen) and (found := difference(value, copy)) is not None:
                raise self._lossy(key, value, found)
            self._seen.add(kind)
        if kind in serde.immutable_types:
            self.shared.add(kind)
        return copy

    def read(self, key: Any, data: bytes) -> Any:
        try:
            return self.deserialize(data)
        except Exception as error:  # a serde may raise anything
            raise self.unreadable(key, data, error) from error

    def unreadable(self, key: Any, data: bytes, error: Exception) -> StreamsError:
        """Return the error about bytes that the serde cannot read; an error of a schema registry is returned unchanged."""
        if isinstance(error, RegistryError):
            return error
        why = refusal(self.serde, error)
        message = f"Store {self.store} cannot read the {len(data)} bytes of key {shown(key)}: {why}"
        return DeserializationError(message, hint="Give the store the serde that has written its values.")

    def refused(self, key: Any, value: Any, error: Exception) -> StreamsError:
        """Return the error about a value that the serde cannot write; an error of a schema registry is returned unchanged."""
        if isinstance(error, RegistryError):
            return error
        hint = hint_of(error) or "Give the store a serde for such values, or put values that its serde writes."
        return SerializationError(f"{self._cannot(key, value)}: {refusal(self.serde, error)}", hint=hint)

    def _read_back(self, key: Any, value: Any, data: bytes) -> Any:
        try:
            return self.deserialize(data)
        except RegistryError:  # an error of a schema registry
            raise
        except Exception as error:  # a serde may raise anything
            message = f"{self._cannot(key, value)}: serde {self.serde.name} could not read it back ({error})"
            raise SerializationError(message) from error

    def _lossy(self, key: Any, value: Any, found: str) -> SerializationError:
        message = f"{self._cannot(key, value)}: with serde {self.serde.name}, {found}"
        hint = "Give the store a serde of the type, such as JSON(tuple[int, int]), or put the value that the serde returns."
        return SerializationError(message, hint=hint)

    def _cannot(self, key: Any, value: Any) -> str:
        return f"Store {self.store} cannot keep the {type(value).__name__} of key {shown(key)}"


def stored_values(builder: StoreBuilder) -> StoredValues:
    return StoredValues(builder.name, builder.value_serde)


def difference(value: Any, copy: Any, path: str = "") -> str | None:
    """Describe the first difference between a value and its copy; None if there is none.

    >>> difference({"seen": (1, 2)}, {"seen": [1, 2]})
    'the tuple at .seen comes back as list'
    >>> difference({1: "a"}, {"1": "a"})
    'the key 1 comes back as another one'
    """
    at = f" at {path}" if path else ""
    if type(value) is not type(copy):
        is_same = isinstance(value, _SCALARS) and value == copy
        return None if is_same else f"the {type(value).__name__}{at} comes back as {type(copy).__name__}"
    parts, of_copy = _parts(value), _parts(copy)
    if parts is None or of_copy is None:
        # Objects without a definition of equality equal only themselves, so nothing can be said about their copies.
        is_same = getattr(type(value), "__eq__", None) is _IDENTITY or value == copy
        return None if is_same else f"the {type(value).__name__}{at} comes back as another one"
    for name, part in parts.items():
        if name not in of_copy:
            return f"the key {name!r}{at} comes back as another one"
        found = difference(part, of_copy[name], f"{path}.{name}")
        if found is not None:
            return found
    return None if len(parts) == len(of_copy) else f"the {type(value).__name__}{at} comes back as another one"


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value, by name or place; None if it has no parts that could differ in their class alone."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    return None
