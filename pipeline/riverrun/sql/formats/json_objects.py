"""Reads rows of JSON in one step, as objects of a class made from the names seen in records."""

from __future__ import annotations

import decimal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import reading_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_MOST_NAMES = 256
_MOST_CLASSES = 32
_MOST_ODD = 1000
"""Limit of names, classes and records that no class reads; topics that exceed it are left to the plain reader."""
_ALIKE: Mapping[type, Collection[type]] = {float: {float, int, decimal.Decimal}}
"""Classes of values that msgspec reads as those of another class."""
_SCALARS = int | float | str | bool | dict | list | None  # type: ignore[type-arg]
"""Any JSON, for names that are no columns: as a type of its own, so that floats do not become decimals in vain."""


@dataclass(frozen=True, slots=True)
class Part:
    """One column.

    Args:
        name: Its name.
        kind: The class of its values, if JSON has such values as they are.
        declared: The type by which msgspec accepts just its values: the class, or a part of the class.
        read: Makes a value of what JSON has.
    """

    name: str
    kind: type | None
    declared: Any
    read: Callable[[Any], Any]

    @property
    def passing(self) -> type | None:
        """Return the class all of whose objects are values of the column."""
        return self.kind if self.declared is self.kind else None


class _Nothing(msgspec.Struct, gc=False):
    """An object whose names do not matter."""


@dataclass(slots=True)
class ObjectReader:
    """Reads the values of columns from objects, with names in any case (`riverrun.serde.api.ReadsFields`).

    The names of a record are unknown until one is read. A class of the names seen so far reads records without other names. It
    has the types of columns whose values had these types in all records.

    Records that the class refuses are left to the plain reader, and examined for the next class.

    Args:
        parts: The columns.
        places: The index of a part for each item of a row; None for an item that is not read.
        plain: Reads any object, name by name.
        decode: Reads any JSON.
        options: Options of msgspec's decoder.
    """

    parts: Sequence[Part]
    places: Sequence[int | None]
    plain: Callable[[Any], Sequence[Any]]
    decode: Callable[[bytes], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[bytes], Any] = field(init=False)
    """Reads a row of known names as an object, whose attributes are `fields`; refuses others."""
    _held: Any = field(init=False)
    _names: dict[str, None] = field(default_factory=dict)
    _loose: set[str] = field(default_factory=set)
    _classes: int = 0
    _odd: int = 0

    def __post_init__(self) -> None:
        """Know nothing yet; without parts, no name matters."""
        self.known = _refuse
        self._held = msgspec.defstruct("Held", [each for each in self.fields if each is not None], gc=False)
        if not self.parts:
            self._classes = _MOST_CLASSES
            self.known = json_decoder(_Nothing).decode

    @property
    def fields(self) -> tuple[str | None, ...]:
        """Return the attributes of the columns."""
        return tuple(None if number is None else f"f{number}" for number in self.places)

    def holding(self, row: Sequence[Any] | None) -> Any:
        """Return an object with the items of a row as attributes; None for None."""
        if row is None:
            return None
        held = {each: item for each, item in zip(self.fields, row, strict=True) if each is not None}
        return self._held(**held)

    def reader(self) -> Callable[[bytes], Any]:
        """Return the function that reads a row, or None from JSON's null."""
        values_of = msgspec.structs.astuple

        def read(data: bytes) -> Any:
            try:
                return self._row(values_of(self.known(data)))
            except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError):
                return self._read_plainly(data)  # a new name or type, or a mistake, which the plain reader finds again

        return reading_fields(read, self)

    def _read_plainly(self, data: bytes) -> Any:
        found = self.decode(data)
        if found is None:
            return None
        row = self._row(self.plain(found))
        if self._classes < _MOST_CLASSES and self._learns(found):
            self.known = self._knowing()
        return row

    def _row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row of the parts' values, which may have others behind them."""
        return tuple([None if number is None else values[number] for number in self.places])

    def _learns(self, found: dict[str, Any]) -> bool:
        """Return whether a record has changed the class."""
        before = len(self._names) + len(self._loose)
        self._names.update(dict.fromkeys(found))
        spelled = self._spelled()
        for each in self.parts:
            value = found.get(spelled.get(each.name.upper(), each.name))
            if each.kind is None or (value is not None and value.__class__ not in _ALIKE.get(each.kind, {each.kind})):
                self._loose.add(each.name)
        if self._classes and before == len(self._names) + len(self._loose):
            self._odd += 1
            if self._odd > _MOST_ODD:
                self._classes = _MOST_CLASSES
            return False
        self._classes += 1
        return True

    def _spelled(self) -> dict[str, str]:
        return {name.upper(): name for name in self._names}

    def _knowing(self) -> Callable[[bytes], Any]:
        """Return the function that reads records of known names; by the plain reader if names do not identify columns."""
        spelled, columns = self._spelled(), {each.name.upper() for each in self.parts}
        alike = [name.upper() for name in self._names if name.upper() in columns]
        if len(columns) < len(self.parts) or len(set(alike)) < len(alike) or len(self._names) > _MOST_NAMES:
            return self._without_class()
        types = [Any if each.name in self._loose or each.kind is None else each.declared | None for each in self.parts]
        names = [spelled.get(each.name.upper(), each.name) for each in self.parts]
        others = [name for name in self._names if name.upper() not in columns]
        fields = [(f"f{n}", type_, None) for n, type_ in enumerate([*types, *([_SCALARS] * len(others))])]
        renamed = {f"f{n}": name for n, name in enumerate([*names, *others])}
        try:
            made: Any = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
        except ValueError:  # a name that msgspec does not allow
            return self._without_class()
        return self._finishing(json_decoder(made, **self.options).decode)

    def _without_class(self) -> Callable[[bytes], Any]:
        """Return the function that reads all records by the plain reader from now on."""
        self._classes = _MOST_CLASSES
        made: Any = msgspec.defstruct("Row", [f"f{number}" for number in range(len(self.parts))], gc=False)
        return lambda data: made(*self.plain(self.decode(data)))

    def _finishing(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return a function that converts columns whose types the class lacks; the given one if there are none."""
        loose = [(f"f{n}", each.passing, each.read) for n, each in enumerate(self.parts) if each.name in self._loose]

        def finished(data: bytes) -> Any:
            row = decode(data)
            for name, kind, part in loose:
                value = getattr(row, name)
                if value is not None and value.__class__ is not kind:
                    setattr(row, name, part(value))
            return row

        return finished if loose else decode


def _refuse(_data: bytes) -> Any:
    message = "no record has been read yet"
    raise ValueError(message)
