"""Columns of JSON objects that generated functions read and write one by one, without a dict (`riverrun.runtime`).

Bytes and errors are those of `JSON`: what the classes here refuse is left to the serde's own functions.
"""

from __future__ import annotations

import dataclasses
import keyword
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.serdes import JSON, encode_json, is_json, refuse_odd_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import Serde

# Topics that exceed a limit of names, classes, or objects that no class reads are read as dicts: learning would never end.
_MOST_NAMES = 256
_MOST_CLASSES = 32
_MOST_ODD = 1000


@dataclass(frozen=True, slots=True)
class ColumnsWriter:
    """Writes an object of columns.

    Args:
        places: The index of a column for each item that `make` takes.
        doubtful: If the bytes contain this, `check` has to look at the values.
        check: Takes them as a dict, and raises the serde's error for a value that it does not write.
    """

    places: tuple[int, ...]
    make: Callable[..., Any]
    encode: Callable[[Any], bytes]
    doubtful: bytes
    check: Callable[[Any], None]


def columns_writer(serde: Serde[Any], names: tuple[str, ...]) -> ColumnsWriter | None:
    """Return the writer of dicts with these names; None if the serde has to write the dicts.

    >>> writer = columns_writer(JSON, ("price", "item"))
    >>> writer.encode(writer.make("pear", 3)), writer.places
    (b'{"item":"pear","price":3}', (1, 0))
    """
    if not is_json(serde) or serde.serialize is not JSON.serialize:
        return None
    return _writer(names)


@lru_cache(maxsize=256)
def _writer(names: tuple[str, ...]) -> ColumnsWriter | None:
    try:
        # `JSON` sorts names by their bytes, and equal values must have equal bytes.
        places = tuple(sorted(range(len(names)), key=lambda place: names[place].encode()))
        made = _class_of([(names[place], Any) for place in places])
    # A name that msgspec does not allow, or no text of Unicode.
    except ValueError:
        return None
    return ColumnsWriter(places, made, encode_json, b"null", refuse_odd_numbers)


def _class_of(columns: list[tuple[str, Any]], others: tuple[str, ...] = ()) -> Any:
    """Return a class with columns as `f0`, `f1` and so on, and others that it may have."""
    fields: list[Any] = [(f"f{number}", type_) for number, (_, type_) in enumerate(columns)]
    fields += [(f"f{number}", Any, None) for number in range(len(columns), len(columns) + len(others))]
    names = {f"f{number}": name for number, name in enumerate([*(name for name, _ in columns), *others])}
    return msgspec.defstruct("Columns", fields, rename=names, forbid_unknown_fields=True, gc=False)


@dataclass(slots=True)
class ColumnsReader:
    """Reads JSON objects as objects with the columns as attributes.

    The names of objects are unknown until some are read, so a class of the names seen so far reads objects that have no others.
    What it refuses is left to the serde, and then shown to `learn`.

    Args:
        known: The function that reads bytes, and the class of objects that have the columns. Values of other classes are the
            serde's.
        learns: Whether `learn` may change `known`.
    """

    attributes: Mapping[str, str]
    known: tuple[Callable[[bytes], Any], type]
    learns: bool = False
    _others: dict[str, None] = field(default_factory=dict)
    _classes: int = 0
    _odd: int = 0

    def learn(self, value: Any) -> None:
        """Extend the class by the names of a value that it has refused."""
        if not self.learns:
            return
        if value.__class__ is not dict or not self.attributes.keys() <= value.keys():
            self._note_odd()
            return
        new = [name for name in value if name not in self.attributes and name not in self._others]
        if self._classes and not new:
            self._note_odd()
            return
        self._others.update(dict.fromkeys(new))
        self._classes += 1
        if self._classes > _MOST_CLASSES or len(self._others) > _MOST_NAMES:
            self._give_up()
            return
        try:
            made = _class_of([(name, Any) for name in self.attributes], tuple(self._others))
        # A name that msgspec does not allow.
        except ValueError:
            self._give_up()
        else:
            self.known = json_decoder(made).decode, made

    def _note_odd(self) -> None:
        self._odd += 1
        if self._odd > _MOST_ODD:
            self._give_up()

    def _give_up(self) -> None:
        """Read dicts from now on, and make objects of those that have the columns."""
        self.learns = False
        names, decode = tuple(self.attributes), JSON.deserialize
        made: Any = msgspec.defstruct("Columns", list(self.attributes.values()), gc=False)

        def read(data: bytes) -> Any:
            value = decode(data)
            if value.__class__ is not dict:
                return value
            try:
                return made(*[value[name] for name in names])
            except KeyError:
                return value

        self.known = read, made


def columns_reader(serde: Serde[Any], names: tuple[str, ...]) -> ColumnsReader | None:
    """Return the reader of columns; None if the serde has to read whole values."""
    if not is_json(serde):
        return None
    if serde is JSON:
        return ColumnsReader({name: f"f{n}" for n, name in enumerate(names)}, (_refuse, _Unknown), learns=True)
    kind = serde.value_type
    if not isinstance(kind, type) or not set(names) <= _attributes(kind):
        return None
    return ColumnsReader({name: name for name in names}, (serde.deserialize, kind))


def _attributes(kind: type) -> set[str]:
    """Return the attributes of a class that hold what was read: no properties."""
    if issubclass(kind, msgspec.Struct):
        return set(filter(is_attribute, kind.__struct_fields__))
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {each.name for each in fields if is_attribute(each.name)}


def is_attribute(name: str) -> bool:
    """Return whether code may read the attribute of a name: Python reads another one if it normalizes the name.

    >>> is_attribute("price"), is_attribute("order-id"), is_attribute("class"), is_attribute("\ufb01ve")
    (True, False, False, False)
    """
    return name.isidentifier() and not keyword.iskeyword(name) and is_normalized("NFKC", name)


class _Unknown:
    """The class of no object."""


def _refuse(_data: bytes) -> Any:
    raise ValueError("no object has been read yet")
