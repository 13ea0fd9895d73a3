"""Writes plain values with any Avro schema, a call per value: the path to which generated functions leave the rest."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.plain_reading import BITS, DEEPEST, FLOATS, default_of, too_deep
from riverrun.schemas.avro.values import Tags, UnionBranch, accepts, branches_of, logical_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.schemas.framed import Write

    Writing: TypeAlias = "Callable[[bytearray, Any, int], None]"


class _MisfitError(ValueError):
    """A value that does not fit, with the fields that lead to it, innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def plain_writer(schema: Any, head: bytes, tags: Tags) -> Write:
    """Return a function that writes plain values, whose records are dicts."""
    write = _Writer(definitions(schema), tags).of(schema)

    def plain(value: Any) -> bytes:
        out = bytearray(head)
        try:
            write(out, value, 0)
        except _MisfitError as error:
            message = f"{error}, at {'.'.join(reversed(error.path))}" if error.path else str(error)
            raise ValueError(message) from error
        except RecursionError as error:
            raise too_deep() from error
        return bytes(out)

    return plain


@dataclass(slots=True)
class _Writer:
    """Makes functions that write values of schemas."""

    defined: Mapping[str, Any]
    tags: Tags
    records: dict[str, Writing] = field(default_factory=dict)

    def of(self, schema: Any) -> Writing:
        """Return the function that writes values of a schema."""
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            return self._union(branches_of(schema, self.defined))
        write, logical = self._plain(kind_of(schema), schema), logical_of(schema)
        if logical is None:
            return write
        prepare = logical.writer(schema)

        def prepared(out: bytearray, value: Any, depth: int) -> None:
            try:
                plain = prepare(value)
            except (ArithmeticError, TypeError, ValueError) as error:
                raise _MisfitError(str(error)) from error
            if not isinstance(plain, int | str | bytes | bytearray | memoryview):
                raise _no(value, schema["logicalType"])
            write(out, plain, depth)

        return prepared

    def _plain(self, kind: str, schema: Any) -> Writing:
        match kind:
            case "record":
                return self._record(schema)
            case "array" | "map":
                return self._many(kind, schema)
            case "enum":
                return _symbol_writer(schema)
            case "fixed":
                return _fixed_writer(schema["size"], schema["name"])
        return _SIMPLE_WRITERS[kind]

    def _many(self, kind: str, schema: Any) -> Writing:
        write = self.of(schema["items" if kind == "array" else "values"])
        allowed: Any = Sequence if kind == "array" else Mapping

        def write_all(out: bytearray, value: Any, depth: int) -> None:
            if not isinstance(value, allowed) or isinstance(value, str | bytes | bytearray | memoryview):
                raise _no(value, kind)
            if depth > DEEPEST:
                raise _MisfitError(str(too_deep()))
            if value:
                _write_number(out, len(value))
                for each in value:
                    if kind == "array":
                        write(out, each, depth + 1)
                    else:
                        _write_text(out, each, depth)
                        write(out, value[each], depth + 1)
            out += b"\0"

        return write_all

    def _record(self, schema: Any) -> Writing:
        # A record may contain itself.
        if schema["name"] in self.records:
            return self.records[schema["name"]]
        parts: list[tuple[str, Writing, Callable[[], Any]]] = []
        key, tag = self.tags.of(schema["name"])
        names_it = all(each["name"] != key for each in schema["fields"])

        def write(out: bytearray, value: Any, depth: int) -> None:
            if not isinstance(value, Mapping):
                raise _no(value, schema["name"])
            if names_it and key in value and value[key] != tag:
                raise _MisfitError(f"a {value[key]} is not a {schema['name']}")
            if depth > DEEPEST:
                raise _MisfitError(str(too_deep()))
            for name, part, absent in parts:
                try:
                    part(out, value[name] if name in value else absent(), depth + 1)
                except _MisfitError as error:
                    error.path.append(name)
                    raise

        self.records[schema["name"]] = write
        parts += [(each["name"], self.of(each["type"]), self._absent(schema, each)) for each in schema["fields"]]
        return write

    def _absent(self, schema: Any, each: Any) -> Callable[[], Any]:
        """Return the function that returns the value of a field that a dict lacks."""
        kind = definition_of(each["type"], self.defined)
        if "default" in each:
            return lambda: default_of(each["type"], each["default"], self.defined, self.tags)
        if kind == "null" or (isinstance(kind, list) and "null" in kind):
            return lambda: None
        return _lacking(f"a {schema['name']} needs it")

    def _union(self, branches: tuple[UnionBranch, ...]) -> Writing:
        writers = [self.of(each.schema) for each in branches]

        def write(out: bytearray, value: Any, depth: int) -> None:
            branch, rest = self._chosen(branches, value)
            _write_number(out, branch.number)
            writers[branch.number](out, rest, depth)

        return write

    def _chosen(self, branches: tuple[UnionBranch, ...], value: Any) -> tuple[UnionBranch, Any]:
        if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str):  # noqa: PLR2004 - a name and a value
            has_items = any(each.cls is list for each in branches)
            named = [each for each in branches if each.name == value[0]]
            if named and (isinstance(value, tuple) or not has_items):
                return named[0], value[1]
            if isinstance(value, tuple) and not has_items:
                raise _none(branches, value)
        if isinstance(value, Mapping):
            return self._chosen_record(branches, value), value
        found = [each for each in branches if accepts(each.schema, value)]
        found = [each for each in found if each.cls is value.__class__] or found
        if not found:
            raise _none(branches, value)
        # A double loses no digits.
        doubles = [each for each in found if each.name == "double"]
        return (doubles[0] if found[0].name == "float" and doubles else found[0]), value

    def _chosen_record(self, branches: tuple[UnionBranch, ...], value: Mapping[Any, Any]) -> UnionBranch:
        records = [each for each in branches if each.is_record]
        for each in records:
            key, tag = self.tags.of(each.name)
            if key in value and value[key] == tag:
                return each
        found = [each for each in branches if each.cls is dict]
        if len(found) > 1 or (records and any(self.tags.of(each.name)[0] in value for each in records)):
            named = [key for each in records if (key := self.tags.of(each.name)[0]) in value and not _has(each, key)]
            if named:
                raise _none(branches, f"the {value[named[0]]}")
            found = [each for each in found if not each.is_record or self._fits(each.schema, value)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise _none(branches, value)
        names = " and ".join(each.name for each in found)
        first = found[0]
        how = f"({first.name!r}, {{...}})"
        if first.is_record:
            key, tag = self.tags.of(first.name)
            how = f"{{{key!r}: {tag!r}, ...}}"
        raise _MisfitError(f"{_short(value)} may be {names}, and does not name one of them, as {how} does")

    def _fits(self, schema: Any, value: Mapping[Any, Any]) -> bool:
        """Return whether a dict may be a record: it has the fields, and no others."""
        names = {each["name"] for each in schema["fields"]}
        return value.keys() <= names and all(self._fits_field(each, value) for each in schema["fields"])

    def _fits_field(self, each: Any, value: Mapping[Any, Any]) -> bool:
        kind = definition_of(each["type"], self.defined)
        if each["name"] not in value:
            return "default" in each or kind == "null" or (isinstance(kind, list) and "null" in kind)
        own = value[each["name"]]
        if isinstance(kind, list):
            return isinstance(own, tuple) or any(accepts(one.schema, own) for one in branches_of(kind, self.defined))
        return accepts(kind, own)


def _lacking(message: str) -> Callable[[], Any]:
    def absent() -> Any:
        raise _MisfitError(message)

    return absent


def _has(branch: UnionBranch, name: str) -> bool:
    return any(each["name"] == name for each in branch.schema["fields"])


def _none(branches: tuple[UnionBranch, ...], value: Any) -> _MisfitError:
    names = ", ".join(each.name for each in branches)
    return _MisfitError(
        f"{value if isinstance(value, str) and value[:4] == 'the ' else _short(value)} fits none of {names}"
    )


def _no(value: Any, name: str) -> _MisfitError:
    return _MisfitError(f"{_short(value)} is not of type {name}")


def _short(value: Any) -> str:
    # The text of a large value may be long, take long, or fail.
    if isinstance(value, int) and value.bit_length() >= 64:  # noqa: PLR2004 - no number of Avro
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, int | float | None) or (isinstance(value, str | bytes) and len(value) < 40):  # noqa: PLR2004
        return repr(value)
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, list(value)[:5])) or 'nothing'}"
    return f"a value of class {type(value).__name__}"


def _write_number(out: bytearray, value: int) -> None:
    rest = value << 1 if value >= 0 else ~(value << 1)
    while rest > 127:  # noqa: PLR2004 - seven bits and one that says that more follows
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)


def _number_writer(kind: str) -> Writing:
    limit = 1 << BITS[kind] - 1

    def write(out: bytearray, value: Any, _depth: int) -> None:
        if isinstance(value, bool) or not hasattr(value.__class__, "__index__"):
            raise _no(value, kind)
        number = value.__index__()
        if not -limit <= number < limit:
            raise _MisfitError(f"{_short(number)} has more than {BITS[kind]} bits")
        _write_number(out, number)

    return write


def _float_writer(kind: str) -> Writing:
    form = FLOATS[kind]

    def write(out: bytearray, value: Any, _depth: int) -> None:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise _no(value, kind)
        try:
            number = float(value)
            data = form.pack(number)
        except OverflowError as error:
            raise _MisfitError(str(error)) from error
        # A whole number must survive: more than 53 bits may not.
        if isinstance(value, int) and int(number) != value:
            raise _MisfitError(f"{_short(value)} has more digits than a double")
        out.extend(data)

    return write


def _write_text(out: bytearray, value: Any, _depth: int) -> None:
    if not isinstance(value, str):
        raise _no(value, "string")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise _MisfitError(str(error)) from error
    _write_number(out, len(data))
    out.extend(data)


def _write_bytes(out: bytearray, value: Any, _depth: int) -> None:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _no(value, "bytes")
    _write_number(out, len(value))
    out.extend(value)


def _write_boolean(out: bytearray, value: Any, _depth: int) -> None:
    if value is not True and value is not False:
        raise _no(value, "boolean")
    out.append(value)


def _write_null(_out: bytearray, value: Any, _depth: int) -> None:
    if value is not None:
        raise _no(value, "null")


def _fixed_writer(size: int, name: str) -> Writing:
    def write(out: bytearray, value: Any, _depth: int) -> None:
        if not isinstance(value, bytes | bytearray | memoryview) or len(value) != size:
            raise _MisfitError(f"{_short(value)} is not a {name} of {size} bytes")
        out.extend(value)

    return write


def _symbol_writer(schema: Any) -> Writing:
    numbers = {symbol: number for number, symbol in enumerate(schema["symbols"])}

    def write(out: bytearray, value: Any, _depth: int) -> None:
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            raise _MisfitError(f"{_short(value)} is not a symbol of {schema['name']}")
        _write_number(out, number)

    return write


_SIMPLE_WRITERS: dict[str, Writing] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _number_writer("int"),
    "long": _number_writer("long"),
    "float": _float_writer("float"),
    "double": _float_writer("double"),
    "string": _write_text,
    "bytes": _write_bytes,
}
