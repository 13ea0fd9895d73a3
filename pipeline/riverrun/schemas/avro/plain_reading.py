"""Reads Avro with any schemas, a call per value: the path to which generated functions leave the rest.

Depth, counts and lengths are checked before they are used: foreign bytes cannot exhaust the stack or the memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.schemas.avro.parsing import definition_of, definitions, free_values, kind_of, smallest_of
from riverrun.schemas.avro.values import (
    Tags,
    UnionBranch,
    branches_of,
    conversions,
    fields_between,
    logical_of,
    matches,
    name_of,
    resolved,
)
from riverrun.schemas.framed import HEAD_BYTES
from riverrun.serde.serdes import ODD_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.schemas.framed import Read

    Reading: TypeAlias = "Callable[[_Source, int], Any]"

# Leaves room on Python's stack for the calls of nested records, arrays and maps.
DEEPEST = 200
# Parts without bytes (nulls, empty records) that any value may have, and further ones per byte: a short value could claim
# billions of them.
_FREE, _PER_BYTE = 10_000, 16
FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
BITS = {"int": 32, "long": 64, "enum": 32}


def plain_reader(written: Any, wanted: Any, tags: Tags | None) -> Read:
    """Return a function that reads a value after the magic byte and the id; parameters are `generated_reader`'s."""
    read = _Reader(definitions(written), definitions(wanted), tags).of(written, wanted)

    def plain(data: bytes) -> Any:
        try:
            return read(_Source(data), 0)
        except RecursionError as error:
            raise too_deep() from error

    return plain


def number_at(data: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """Return the number at a position, still in zigzag, and the position after it."""
    found, shift, end = 0, 0, at
    try:
        while (byte := data[end]) > 127 and shift < bits:  # noqa: PLR2004 - the eighth bit says that more follows
            found |= (byte & 127) << shift
            shift += 7
            end += 1
        found |= byte << shift
        if shift < bits and not found >> bits:
            return found, end + 1
    except IndexError:
        pass
    why = f"has more than {bits} bits" if end < len(data) or shift >= bits else "ends too early"
    raise ValueError(f"a number {why}, at byte {at} of {len(data)}")


class _Source:
    """Bytes that are being read."""

    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.left = data, HEAD_BYTES, _FREE + _PER_BYTE * len(data)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.at + size
        if not self.at <= end <= len(self.data):
            raise ValueError(
                f"truncated: expected {size} bytes at byte {self.at}, but only {len(self.data) - self.at} are left"
            )
        found = self.data[self.at : end]
        self.at = end
        return found

    def spend(self, count: int) -> None:
        """Count values that may have no bytes of their own."""
        self.left -= count
        if self.left < 0:
            raise ValueError(f"{len(self.data)} bytes hold too many values")

    def number(self, bits: int = 64) -> int:
        found, self.at = number_at(self.data, self.at, bits)
        return (found >> 1) ^ -(found & 1)

    def choice(self, number: int, what: str) -> int:
        found = self.number(BITS["int"])
        if not 0 <= found < number:
            raise ValueError(f"there is no {what} {found}, only {number}")
        return found


@dataclass(slots=True)
class _Reader:
    """Makes functions that read values of schemas.

    Args:
        tags: How values of unions name their branch; None if they do not.
    """

    written: Mapping[str, Any]
    wanted: Mapping[str, Any]
    tags: Tags | None
    shows: bool = True
    records: dict[tuple[str, str | None], Reading] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def of(self, written: Any, wanted: Any) -> Reading:
        """Return the function that reads a value of one schema as that of another; None for the same one."""
        written, wanted = definition_of(written, self.written), definition_of(wanted, self.wanted)
        if isinstance(written, list):
            return self._union(written, wanted)
        if isinstance(wanted, list):
            branch = resolved(written, branches_of(wanted, self.wanted))
            if branch is None:
                return _refusing(f"the reader's union has no {name_of(written)}")
            return self._tagged(self.of(written, branch.schema), branch)
        if wanted is not None and not matches(written, wanted):
            return _refusing(f"a {name_of(written)} is not read as a {name_of(wanted)}")
        return self._converted(written, wanted)

    def _converted(self, written: Any, wanted: Any) -> Reading:
        read = self._plain(kind_of(written), written, wanted)
        try:
            steps = conversions(written, wanted) if self.shows else []
        except ValueError as error:
            return _refusing(str(error))
        for convert, _ in steps:
            read = _then(read, convert)
        return read

    def _plain(self, kind: str, written: Any, wanted: Any) -> Reading:  # noqa: C901, PLR0911 - one case per type
        match kind:
            case "record":
                return self._record(written, wanted)
            case "array" | "map":
                return self._many(kind, written, wanted)
            case "enum":
                return _enum(written, wanted)
            case "null":
                return lambda _source, _depth: None
            case "boolean":
                return lambda source, _depth: source.take(1) != b"\0"
            case "int" | "long":
                bits = BITS[kind]
                return lambda source, _depth: source.number(bits)
            case "float" | "double":
                form = FLOATS[kind]
                return lambda source, _depth: form.unpack(source.take(form.size))[0]
            case "string":
                return lambda source, _depth: source.take(source.number()).decode()
            case "bytes":
                return lambda source, _depth: source.take(source.number())
            case "fixed":
                size = written["size"]
                return lambda source, _depth: source.take(size)
        return _refusing(f"there is no type {kind}")

    def _many(self, kind: str, written: Any, wanted: Any) -> Reading:
        part = "items" if kind == "array" else "values"
        read = self.of(written[part], None if wanted is None else wanted[part])
        smallest = (kind == "map") + smallest_of(written[part], self.written, self.sizes)

        def counts(source: _Source, depth: int) -> Any:
            if depth > DEEPEST:
                raise too_deep()
            source.spend(1)
            while count := source.number():
                if count < 0:
                    count = -count
                    # The size of the block, which lets readers skip it.
                    source.number()
                # Before the loop, which would take as long as a foreign count says.
                if count * smallest > len(source.data) - source.at:
                    raise ValueError(f"{count} values do not fit in {len(source.data) - source.at} bytes")
                source.spend(0 if smallest else count)
                yield from range(count)

        if kind == "array":
            return lambda source, depth: [read(source, depth + 1) for _ in counts(source, depth)]
        return lambda source, depth: {
            source.take(source.number()).decode(): read(source, depth + 1) for _ in counts(source, depth)
        }

    def _union(self, written: list[Any], wanted: Any) -> Reading:
        branches = branches_of(written, self.written)
        choices = [self.of(each.schema, wanted) for each in branches]
        if wanted is None:
            choices = [self._tagged(read, branch) for read, branch in zip(choices, branches, strict=True)]
        return lambda source, depth: choices[source.choice(len(choices), "branch")](source, depth)

    def _tagged(self, read: Reading, branch: UnionBranch) -> Reading:
        if self.tags is None or not branch.is_tagged:
            return read
        name = branch.name
        if not branch.is_record:
            return lambda source, depth: (name, read(source, depth))
        key, tag = self.tags.of(branch.name)
        return lambda source, depth: {key: tag, **read(source, depth)}

    def _record(self, written: Any, wanted: Any) -> Reading:
        key = written["name"], None if wanted is None else wanted["name"]
        # A record may contain itself.
        if key in self.records:
            return self.records[key]
        steps: list[tuple[str | None, Reading]] = []
        defaults: list[tuple[str, Callable[[], Any]]] = []
        cost = free_values(written, self.written, self.sizes)

        def read(source: _Source, depth: int) -> dict[str, Any]:
            if depth > DEEPEST:
                raise too_deep()
            source.spend(cost)
            found = {}
            for name, part in steps:
                value = part(source, depth + 1)
                if name is not None:
                    found[name] = value
            for name, default in defaults:
                found[name] = default()
            return found

        self.records[key] = read
        pairs, lacking = fields_between(written, wanted)
        # Fields that the reader lacks are read to find where they end: plain, as a logical type could refuse them.
        unused = _Reader(self.written, {}, None, shows=False)
        for each, own in pairs:
            if own is None:
                steps.append((None, unused.of(each["type"], None)))
            else:
                steps.append((own["name"], self.of(each["type"], None if wanted is None else own["type"])))
        defaults += [(each["name"], self._default(wanted, each)) for each in lacking]
        return read

    def _default(self, wanted: Any, each: Any) -> Callable[[], Any]:
        if "default" not in each:
            message = f"the writer has no field {each['name']} of {wanted['name']}, which has no default"
            return lambda: _raise(ValueError(message))
        return lambda: default_of(each["type"], each["default"], self.wanted, self.tags)


def _then(read: Reading, convert: Callable[[Any], Any]) -> Reading:
    return lambda source, depth: convert(read(source, depth))


def _enum(written: Any, wanted: Any) -> Reading:
    symbols = list(written["symbols"])
    if wanted is None:
        return lambda source, _depth: symbols[source.choice(len(symbols), "symbol")]
    default = wanted.get("default")
    known = [symbol if symbol in wanted["symbols"] else default for symbol in symbols]

    def read(source: _Source, _depth: int) -> str:
        number = source.choice(len(symbols), "symbol")
        found: str | None = known[number]
        if found is None:
            raise ValueError(f"the reader's {wanted['name']} has no symbol {symbols[number]}")
        return found

    return read


def default_of(schema: Any, default: Any, defined: Mapping[str, Any], tags: Tags | None) -> Any:
    """Return the value for which a field's default, as JSON, stands."""
    schema = definition_of(schema, defined)
    if isinstance(schema, list):
        for branch in branches_of(schema, defined):
            try:
                found = default_of(branch.schema, default, defined, tags)
            except (TypeError, ValueError):
                continue
            if tags is None or not branch.is_tagged:
                return found
            return dict([tags.of(branch.name)], **found) if branch.is_record else (branch.name, found)
        raise ValueError(f"{default!r} is not a default of a union")
    kind, logical = kind_of(schema), logical_of(schema)
    found = _plain_default(kind, schema, default, defined, tags)
    return found if logical is None else logical.reader(schema)(found)


def _plain_default(  # noqa: C901, PLR0911 - one case per type
    kind: str, schema: Any, default: Any, defined: Mapping[str, Any], tags: Tags | None
) -> Any:
    match kind, default:
        case (("bytes" | "fixed"), str()):
            found = default.encode("latin-1")
            if kind == "bytes" or len(found) == schema["size"]:
                return found
        case (("float" | "double"), (int() | float())) if not isinstance(default, bool):
            return float(default)
        case (("float" | "double"), str()) if default in ODD_NUMBERS:
            return float(default)
        case (("int" | "long"), int()) if not isinstance(default, bool):
            return default
        case ("null", None) | ("boolean", bool()) | ("string", str()):
            return default
        case "enum", str() if default in schema["symbols"]:
            return default
        case "array", list():
            return [default_of(schema["items"], each, defined, tags) for each in default]
        case "map", dict():
            return {name: default_of(schema["values"], each, defined, tags) for name, each in default.items()}
        case "record", dict():
            return {
                each["name"]: default_of(
                    each["type"], default[name] if (name := each["name"]) in default else each["default"], defined, tags
                )
                for each in schema["fields"]
                if each["name"] in default or "default" in each or _raise(ValueError(f"{each['name']} has no default"))
            }
    raise ValueError(f"{default!r} is not a default of {name_of(schema)}")


def _refusing(message: str) -> Reading:
    # Avro's rules: schemas that do not resolve are an error only once there is such a value.
    return lambda _source, _depth: _raise(ValueError(message))


def _raise(error: Exception) -> Any:
    raise error


def too_deep() -> ValueError:
    """Return the error for values within too many others."""
    return ValueError(f"values are nested more than {DEEPEST} levels deep")
