"""Reads rows of JSON in one step, as objects of a class made from the names seen in records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.decoders import json_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MOST_NAMES = 256
_MOST_CLASSES = 32
_MOST_ODD = 1000
"""Limit of names, classes and records that no class reads; topics that exceed it are left to the plain reader."""


@dataclass(frozen=True, slots=True)
class Part:
    """One column.

    kind: The class of its values, if JSON values need no conversion.
    read: Converts a value from JSON.
        kind: The class of its values, if JSON has such values as they are.
        read: Makes a value of what JSON has.
    """

    name: str
    kind: type | None
    read: Callable[[Any], Any]


@dataclass(slots=True)
class ObjectReader:
    """Reads the values of columns from objects, with names in any case.

    The names of a record are unknown until one is read. A class of the names seen so far reads records without other names. It
    has the types of columns whose values had these types in all records.

    Records that the class refuses are left to the plain reader, and examined for the next class.

    Args:
        parts: The columns.
        plain: Reads any object, name by name.
        decode: Reads any JSON.
        options: Options of msgspec's decoder.
    """

    parts: Sequence[Part]
    plain: Callable[[Any], Sequence[Any]]
    decode: Callable[[bytes], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    _names: dict[str, None] = field(default_factory=dict)
    _loose: set[str] = field(default_factory=set)
    _classes: int = 0
    _odd: int = 0

    def reader(self) -> Callable[[bytes], Any]:
        """Return the function that reads a row, or None from JSON's null."""
        known: Callable[[bytes], Any] | None = None
        finish: Callable[[tuple[Any, ...]], Any] | None = None
        width, values_of = len(self.parts), msgspec.structs.astuple

        def read(data: bytes) -> Any:
            nonlocal known, finish
            if known is not None:
                try:
                    row = values_of(known(data))[:width]
                    return row if finish is None else finish(row)
                except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError):
                    pass  # a new name or type, or a mistake, which the plain reader finds again
            found = self.decode(data)
            if found is None:
                return None
            row = tuple(self.plain(found))
            if self._classes < _MOST_CLASSES and self._learns(found):
                known, finish = self._known(), self._finish()
            return row

        return read

    def _learns(self, found: dict[str, Any]) -> bool:
        """Return whether a record has changed the class."""
        before = len(self._names) + len(self._loose)
        self._names.update(dict.fromkeys(found))
        spelled = self._spelled()
        for each in self.parts:
            value = found.get(spelled.get(each.name.upper(), each.name))
            if each.kind is None or (value is not None and value.__class__ is not each.kind):
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

    def _known(self) -> Callable[[bytes], Any] | None:
        """Return the function that reads records of known names as objects; None if names do not identify the columns."""
        spelled, columns = self._spelled(), {each.name.upper() for each in self.parts}
        alike = [name.upper() for name in self._names if name.upper() in columns]
        if len(columns) < len(self.parts) or len(set(alike)) < len(alike) or len(self._names) > _MOST_NAMES:
            self._classes = _MOST_CLASSES
            return None
        types = [Any if each.name in self._loose or each.kind is None else each.kind | None for each in self.parts]
        names = [spelled.get(each.name.upper(), each.name) for each in self.parts]
        others = [name for name in self._names if name.upper() not in columns]
        fields = [(f"f{n}", type_, None) for n, type_ in enumerate([*types, *([Any] * len(others))])]
        renamed = {f"f{n}": name for n, name in enumerate([*names, *others])}
        try:
            made: Any = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
        except ValueError:  # a name that msgspec does not allow
            self._classes = _MOST_CLASSES
            return None
        decode: Callable[[bytes], Any] = json_decoder(made, **self.options).decode
        return decode

    def _finish(self) -> Callable[[tuple[Any, ...]], Any] | None:
        """Return the function that converts columns whose types the class lacks; None if there are none."""
        loose = [(n, each.kind, each.read) for n, each in enumerate(self.parts) if each.name in self._loose]

        def finish(values: tuple[Any, ...]) -> Any:
            row = list(values)
            for n, kind, part in loose:
                value = row[n]
                if value is not None and value.__class__ is not kind:
                    row[n] = part(value)
            return tuple(row)

        return finish if loose else None
