"""Generates functions that write Avro: the lines of one function per schema, without a call per field.

Values that such a function does not expect go to a plain writer, which converts them, or whose errors describe them: of other
classes than the schema's own, out of range, or incomplete. `tests/unit/schemas/test_avro_writing.py` compares both.
"""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from textwrap import indent
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.generated import Lines, NotGenerated, generated
from riverrun.records import EPOCH
from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.plain_reading import FLOATS
from riverrun.schemas.avro.plain_writing import plain_writer
from riverrun.schemas.avro.values import Tags, UnionBranch, branches_of, logical_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.schemas.avro.reading import MadeRecord
    from riverrun.schemas.framed import Write

_DEEPEST = 6
"""Greatest depth of nested arrays, maps and unions."""
_WRITE = """\
def write(value):
    try:
{lines}
        return join(({parts}))
    except Exception:  # the plain writer converts the value, or its error describes it
        pass
    return plain(value)
"""
_LONG = """\
if {value}.__class__ is not int:
    return plain(value)
n = {value} << 1 if {value} >= 0 else ~({value} << 1)
{name} = small[n] if n < 16384 else {large}(n)"""
_SIZED = """\
n = len({value})
{name} = small[n << 1] if n < 8192 else long_bytes(n << 1)"""
_TIMESTAMP = """\
if {value}.__class__ is datetime:
    n = {value} - EPOCH  # fails without a zone
    {name} = (n.days * 86400 + n.seconds) * 1000000 + n.microseconds
    {name} //= {step}
else:
    {name} = {value}"""
_STEPS = {"timestamp-millis": 1000, "timestamp-micros": 1}
_BITS, _MASK = 14, 16383
_INT_BITS, _LONG_BITS = 32, 64


def writer_of(schema: Any, head: bytes, tags: Tags) -> Write:
    """Return a function that writes plain values, whose records are dicts: a generated one if the schema is covered."""
    plain = plain_writer(schema, head, tags)
    try:
        return generated_writer(schema, None, head, plain, tags)
    except NotGenerated:
        return plain


def generated_writer(schema: Any, made: MadeRecord | None, head: bytes, plain: Write, tags: Tags) -> Write:
    """Return a function that writes a value after the magic byte and the schema's id.

    Args:
        schema: The schema, as the library parses it.
        made: The classes of records, as `struct_of` finds them; None for dicts.
        head: The magic byte and the id.
        plain: Writes values that the function does not cover, with the head, or raises the error that describes them.
        tags: How values of unions name their branch.
    """
    small, _ = _varints()
    known = {"long_bytes": _long_bytes, "int_bytes": _int_bytes, "small": small, "join": b"".join, "plain": plain}
    code = Lines(known | {"EPOCH": EPOCH, "datetime": dt.datetime})
    parts = [code.named(head), *_Writer(definitions(schema), code, tags).value("value", schema, made)]
    lines = indent("\n".join(code.written or ["pass"]), " " * 8)
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else "a value"
    return generated(f"avro writer of {name}", _WRITE.format(lines=lines, parts=f"{', '.join(parts)},"), code.names)


@cache
def _varints() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the bytes of numbers of up to 14 bits: as whole numbers, and as the lower bits of larger ones."""
    whole = (bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(_MASK + 1))  # noqa: PLR2004
    return tuple(whole), tuple(bytes((n & 127 | 128, n >> 7 | 128)) for n in range(_MASK + 1))


def _long_bytes(number: int) -> bytes:
    """Return the bytes of a number in zigzag."""
    if number >> _LONG_BITS:
        raise OverflowError
    small, lower = _varints()
    found = b""
    while number > _MASK:
        found += lower[number & _MASK]
        number >>= _BITS
    return found + small[number]


def _int_bytes(number: int) -> bytes:
    if number >> _INT_BITS:
        raise OverflowError
    return _long_bytes(number)


@dataclass(slots=True)
class _Writer:
    """Writes the lines of one function."""

    defined: Mapping[str, Any]
    code: Lines
    tags: Tags
    open: list[str] = field(default_factory=list)
    """Records whose fields are being written: the lines of one within itself would not end."""
    depth: int = 0

    def value(self, value: str, schema: Any, made: MadeRecord | None, *, is_named: bool = False) -> list[str]:
        """Write the lines for the value of a variable, and return expressions of its bytes.

        `is_named` says that the value is known to name its record.
        """
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            return [self._union(value, schema, made)]
        kind = kind_of(schema)
        value = self._prepared(value, schema)
        match kind:
            case "record":
                return self._record(value, schema, made, is_named=is_named)
            case "array" | "map":
                return [self._many(kind, value, schema, made)]
            case "enum":
                symbols = {symbol: _long_bytes(n << 1) for n, symbol in enumerate(schema["symbols"])}
                return [self.code.assigned(f"{self.code.named(symbols)}[{value}]")]
            case "fixed":
                self._refuse_unless(f"{value}.__class__ is bytes and len({value}) == {int(schema['size'])}")
                return [value]
        return self._simple(kind, value)

    def _prepared(self, value: str, schema: Any) -> str:
        """Write the lines that make a value of a logical type a plain one."""
        logical = logical_of(schema)
        if logical is None:
            return value
        step = _STEPS.get(schema["logicalType"])
        if step is None:
            return self.code.assigned(f"{self.code.named(logical.writer(schema))}({value})")
        name = self.code.new()
        self.code.add(_TIMESTAMP.format(value=value, name=name, step=step))
        return name

    def _simple(self, kind: str, value: str) -> list[str]:
        match kind:
            case "int" | "long":
                name = self.code.new()
                self.code.add(_LONG.format(value=value, name=name, large=f"{kind}_bytes"))
                return [name]
            case "string":
                self._refuse_unless(f"{value}.__class__ is str")
                encoded = self.code.assigned(f"{value}.encode()")
                return [self._sized(encoded), encoded]
            case "bytes":
                self._refuse_unless(f"{value}.__class__ is bytes")
                return [self._sized(value), value]
            case "boolean":
                self._refuse_unless(f"{value}.__class__ is bool")
                return [self.code.assigned(rf"b'\1' if {value} else b'\0'")]
            case "float" | "double":
                self.code.names |= {f"pack_{kind}": FLOATS[kind].pack}
                self._refuse_unless(f"{value}.__class__ is float")
                return [self.code.assigned(f"pack_{kind}({value})")]
            case "null":
                self._refuse_unless(f"{value} is None")
                return []
        raise NotGenerated(f"there is no type {kind}")

    def _record(self, value: str, schema: Any, made: MadeRecord | None, *, is_named: bool) -> list[str]:
        if schema["name"] in self.open:
            raise NotGenerated("a record contains itself")
        attributes: dict[str, str] = {}
        if made is not None:
            cls: Any = made.make
            attributes = {each.encode_name: each.name for each in msgspec.structs.fields(cls)}
            has_all = {each["name"] for each in schema["fields"]} <= attributes.keys()
            if not has_all or cls.__struct_config__.omit_defaults:
                raise NotGenerated(f"{made.make} has not all fields")
        self._refuse_unless(f"{value}.__class__ is {'dict' if made is None else self.code.named(made.make)}")
        key, tag = self.tags.of(schema["name"])
        if made is None and not is_named and all(each["name"] != key for each in schema["fields"]):
            self._refuse_unless(f"{key!r} not in {value} or {value}[{key!r}] == {tag!r}")
        self.open.append(schema["name"])
        parts = []
        for each in schema["fields"]:
            name = each["name"]
            own = self.code.assigned(f"{value}[{name!r}]" if made is None else f"{value}.{attributes[name]}")
            parts += self.value(own, each["type"], None if made is None else made.parts[name].made)
        self.open.pop()
        return parts

    def _many(self, kind: str, value: str, schema: Any, made: MadeRecord | None) -> str:
        """Write a loop over the items of an array or a map: one block of them, if there are any, and an end."""
        self._refuse_unless(f"{value}.__class__ is {'list' if kind == 'array' else 'dict'}")
        found, item = self.code.assigned("[]"), self.code.new()
        key = self.code.new() if kind == "map" else ""
        self.code.add(f"if {value}:")
        with self._indented():
            self.code.add(f"{found}.append({self._sized(value)})")
            self.code.add(f"for {key}, {item} in {value}.items():" if key else f"for {item} in {value}:")
            with self._indented():
                parts = self._simple("string", key) if key else []
                parts += self.value(item, schema["values" if key else "items"], made)
                self.code.add(f"{found} += ({''.join(f'{part}, ' for part in parts)})")
        return self.code.assigned(rf"join({found}) + b'\0'")

    def _union(self, value: str, schema: list[Any], made: MadeRecord | None) -> str:
        """Write the lines for each branch. Values that neither name theirs nor show it go to the plain writer."""
        found, branches = self.code.new(), branches_of(schema, self.defined)
        is_optional = len(branches) == 2 and "null" in schema  # noqa: PLR2004 - a value, or none
        for branch in branches:
            own = f"{value} is {'' if branch.name == 'null' else 'not '}None"
            test = own if is_optional else self._test(value, branch, made)
            self.code.add(f"{'elif' if branch.number else 'if'} {test}:")
            with self._indented():
                is_pair = branch.is_tagged and not branch.is_record
                inner = self.code.assigned(f"{value}[1]") if is_pair else value
                parts = self.value(inner, branch.schema, made, is_named=branch.is_tagged)
                index = self.code.named(_long_bytes(branch.number << 1))
                self.code.add(f"{found} = join(({', '.join([index, *parts])},))")
        self.code.add("else:\n    return plain(value)")
        return found

    def _test(self, value: str, branch: UnionBranch, made: MadeRecord | None) -> str:
        """Return the condition for a value that belongs to a branch."""
        if branch.is_record and made is not None:
            return f"{value}.__class__ is {self.code.named(made.make)}"
        if not branch.is_tagged:
            return f"{value}.__class__ is {self.code.named(branch.cls)}"
        if not branch.is_record:
            return f"{value}.__class__ is tuple and len({value}) == 2 and {value}[0] == {branch.name!r}"
        key, tag = self.tags.of(branch.name)
        return f"{value}.__class__ is dict and {value}.get({key!r}) == {tag!r}"

    def _sized(self, value: str) -> str:
        name = self.code.new()
        self.code.add(_SIZED.format(value=value, name=name))
        return name

    def _refuse_unless(self, condition: str) -> None:
        self.code.add(f"if not ({condition}):\n    return plain(value)")

    @contextmanager
    def _indented(self) -> Iterator[None]:
        if self.depth == 2 * _DEEPEST:
            raise NotGenerated("it is nested too deeply")
        self.depth += 1
        with self.code.indented():
            yield
        self.depth -= 1
