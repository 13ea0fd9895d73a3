"""Generates functions that read Avro: the lines of one function per writer's schema, without a call per field.

Bytes that such a function does not expect go to a plain reader, whose errors describe them: truncated or corrupt ones, and
layouts that are rarely written, such as arrays in blocks with sizes. `tests/unit/schemas/test_avro_reading.py` compares both.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from textwrap import indent
from typing import TYPE_CHECKING, Any

from riverrun.decoders import converter
from riverrun.generated import Lines, NotGenerated, generated
from riverrun.records import EPOCH
from riverrun.schemas.avro.parsing import definition_of, definitions, free_values, kind_of, smallest_of
from riverrun.schemas.avro.plain_reading import BITS, FLOATS, default_of, number_at
from riverrun.schemas.avro.values import (
    Tags,
    UnionBranch,
    branches_of,
    conversions,
    fields_between,
    matches,
    resolved,
)
from riverrun.schemas.framed import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.schemas.framed import Read

# Of nested arrays and maps, two loops each; Python allows 20 blocks.
_DEEPEST = 6
# Of nested records; Python allows 100 levels of indentation.
_MOST_RECORDS = 30
_READ = """\
def read(data):
    try:
        p = {head}
{lines}
        if {all_read}:
            return {value}
    except Exception:  # the plain reader's errors describe the bytes
        pass
    return plain(data)
"""
_LONG = """\
n = data[p]
if n < 128:
    p += 1
elif (b := data[p + 1]) < 128:
    n += (b << 7) - 128
    p += 2
elif (c := data[p + 2]) < 128:
    n += (b << 7) + (c << 14) - 16512
    p += 3
else:
    n, p = number_at(data, p, {bits})
{name} = ~(n >> 1) if n & 1 else n >> 1"""
_SIZE = """\
n = data[p]
if n & 129:  # more than one byte, or negative
    n, p = size_at(data, p)
"""
_SYMBOL = _SIZE.replace("(data, p)", f"(data, p, {BITS['enum']})")
_LOOP = """\
while True:
{size}
    p += 1
    if n == 0:
        break
    if n >> 1 > len(data):
        return plain(data)
    for _ in range(n >> 1):
{item}"""
_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class RecordPart:
    """A field of a record that is made, or a column of a row.

    Args:
        argument: The keyword that it is passed by, or its name in a dict; None for its place.
        made: How the records in it are made; None for dicts.
        convert: Converts its value; None if it is used as it is.
    """

    argument: str | None
    made: MadeRecord | None
    type_: Any
    convert: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """How a record is made, if not as a dict of all its fields. Fields that it does not name are skipped.

    Args:
        make: A class that is called with the values; or `tuple` or `dict`, which have None for parts without a field.
    """

    make: Callable[..., Any]
    parts: Mapping[str, RecordPart]


def generated_reader(written: Any, wanted: Any, made: MadeRecord | None, plain: Read, tags: Tags | None = None) -> Read:
    """Return a function that reads a value after the magic byte and the schema's id.

    Args:
        written: The writer's schema, as the library parses it.
        wanted: The reader's schema; None if it is the writer's.
        made: How records are made; None for dicts.
        plain: Reads values that the function does not cover, or raises the error that describes them.
        tags: How values of unions name their branch; None if they do not.
    """
    reader = _Reader(definitions(written), definitions(wanted), tags)
    value, code = reader.value(written, wanted, made), reader.code
    lines = indent("\n".join(code.written), " " * 8)
    # Slices end silently at the end of the bytes, so truncated ones are noticed by the position alone.
    all_read = "True" if reader.touches_end else "p <= len(data)"
    text = _READ.format(head=HEAD_BYTES, lines=lines, all_read=all_read, value=value)
    return generated(f"avro reader of {_label(written)}", text, code.names | {"plain": plain})


def _label(schema: Any) -> str:
    return str(schema["name"]) if isinstance(schema, dict) and "name" in schema else "a value"


def _size_at(data: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """Return a size at a position, doubled by zigzag, and the position of its last byte."""
    found, end = number_at(data, at, bits)
    if found & 1:  # negative
        raise ValueError
    return found, end - 1


def _skipped(bits: int) -> str:
    """Return the lines that pass over a number, with a call only for those that may have too many bits."""
    short = "".join(f"if data[p + {each}] < 128: p += {each + 1}\nel" for each in range(bits // 7))
    return f"{short}se: p = number_at(data, p, {bits})[1]"


_KNOWN = {"number_at": number_at, "size_at": _size_at, "EPOCH": EPOCH, "timedelta": timedelta}


@dataclass(slots=True)
class _Reader:
    """Writes the lines of one function.

    Args:
        tags: How values of unions name their branch; None if they do not.
    """

    written: Mapping[str, Any]
    wanted: Mapping[str, Any]
    tags: Tags | None
    code: Lines = field(default_factory=lambda: Lines(dict(_KNOWN)))
    sizes: dict[str, int] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    """Records whose fields are being written: the lines of one within itself would not end."""
    depth: int = 0
    touches_end: bool = False
    """True if the last byte so far was read by its position, so that reading past the end fails."""

    def value(self, written: Any, wanted: Any, made: MadeRecord | None) -> str:
        """Write the lines that read a value, and return the name of the variable, or an expression of such names."""
        written, wanted = definition_of(written, self.written), definition_of(wanted, self.wanted)
        if isinstance(written, list):
            return self._union(written, wanted, made)
        branch = None
        if isinstance(wanted, list):
            branch = resolved(written, branches_of(wanted, self.wanted))
        if wanted is not None and (not matches(written, wanted) if branch is None else False):
            raise NotGenerated("the schemas differ")
        return self._of_branch(written, wanted if branch is None else branch.schema, made, branch)

    def _of_branch(self, written: Any, wanted: Any, made: MadeRecord | None, branch: UnionBranch | None) -> str:
        """Write the lines that read a value, which names its branch if it is one of a union that needs this."""
        kind = kind_of(written)
        tag = branch if branch is not None and branch.is_tagged and self.tags is not None else None
        value = self._read(kind, written, wanted, made, tag if kind == "record" else None)
        value = self._of_reader(value, written, wanted)
        return value if tag is None or kind == "record" else self.code.assigned(f"({tag.name!r}, {value})")

    def _of_reader(self, value: str, written: Any, wanted: Any) -> str:
        """Write the lines that convert a plain value to the reader's type, and to its logical type."""
        try:
            steps = conversions(written, wanted)
        except ValueError as error:
            raise NotGenerated(str(error)) from error
        for convert, inline in steps:
            expression = inline or f"{self.code.named(convert)}({{0}})"
            value = self.code.assigned(expression.format(value))
        return value

    def _read(self, kind: str, written: Any, wanted: Any, made: MadeRecord | None, tag: UnionBranch | None) -> str:
        match kind:
            case "record":
                return self._record(written, wanted, made, tag)
            case "array" | "map":
                return self._many(kind, written, wanted, made)
            case "enum":
                return self._enum(written, wanted)
            case "null":
                return "None"
            case "boolean":
                name = self.code.assigned("data[p] != 0")
                self.code.add("p += 1")
                self.touches_end = True
                return name
            case "int" | "long":
                name = self.code.new()
                self.touches_end = True
                self.code.add(_LONG.format(name=name, bits=BITS[kind]))
                return name
        return self._bytes(kind, written)

    def _bytes(self, kind: str, written: Any) -> str:
        self.touches_end = kind in {"float", "double"}
        match kind:
            case "string" | "bytes":
                self.code.add(_SIZE)
                found = "data[p + 1 : (p := p + 1 + (n >> 1))]"
                return self.code.assigned(f"{found}.decode()" if kind == "string" else found)
            case "fixed":
                return self.code.assigned(f"data[p : (p := p + {int(written['size'])})]")
            case "float" | "double":
                self.code.names |= {f"unpack_{kind}": FLOATS[kind].unpack_from}
                name = self.code.assigned(f"unpack_{kind}(data, p)[0]")
                self.code.add(f"p += {FLOATS[kind].size}")
                return name
        raise NotGenerated(f"there is no type {kind}")

    def _enum(self, written: Any, wanted: Any) -> str:
        symbols = written["symbols"]
        if wanted is not None and not set(symbols) <= set(wanted["symbols"]):
            raise NotGenerated("the reader lacks symbols")
        self.code.add(f"{_SYMBOL}p += 1")
        self.touches_end = True
        return self.code.assigned(f"{self.code.named(tuple(symbols))}[n >> 1]")

    def _many(self, kind: str, written: Any, wanted: Any, made: MadeRecord | None) -> str:
        part, empty = ("items", "[]") if kind == "array" else ("values", "{}")
        self._check_items(kind, written)
        name = self.code.assigned(empty)
        with self._loop():
            key = self._bytes("string", "string") if kind == "map" else ""
            value = self.value(written[part], None if wanted is None else wanted[part], made)
            self.code.add(f"{name}[{key}] = {value}" if kind == "map" else f"{name}.append({value})")
        return name

    def _check_items(self, kind: str, written: Any) -> None:
        if kind == "array" and smallest_of(written["items"], self.written, self.sizes) == 0:
            raise NotGenerated("items have no bytes, so that any number of them may follow")

    def _union(self, written: list[Any], wanted: Any, made: MadeRecord | None) -> str:
        name = self.code.new()

        def read(branch: UnionBranch) -> None:
            if wanted is None:
                self.code.add(f"{name} = {self._of_branch(branch.schema, None, made, branch)}")
            elif self._has(wanted, branch.schema):
                self.code.add(f"{name} = {self.value(branch.schema, wanted, made)}")
            else:
                self.code.add("return plain(data)")

        self._branches(written, read)
        return name

    def _has(self, wanted: Any, written: Any) -> bool:
        """Return whether the values of a branch are read as a schema, or as some branch of it."""
        if isinstance(wanted, list):
            return resolved(written, branches_of(wanted, self.wanted)) is not None
        return matches(written, wanted)

    def _record(self, written: Any, wanted: Any, made: MadeRecord | None, tag: UnionBranch | None) -> str:
        if free_values(written, self.written, self.sizes) > (not written["fields"]):
            raise NotGenerated("many fields have no bytes")
        pairs, lacking = fields_between(written, wanted)
        values: dict[str, str] = {}
        with self._within(written["name"]):
            for each, own in pairs:
                if own is None or (made is not None and own["name"] not in made.parts):
                    self.skip(each["type"])
                    continue
                part = None if made is None else made.parts[own["name"]]
                wanted_type = None if wanted is None else own["type"]
                value = self.value(each["type"], wanted_type, None if part is None else part.made)
                values[own["name"]] = value if part is None else self._converted(value, part)
        for each in lacking:
            values |= self._default(each["name"], each, made)
        return self._made(values, made, tag)

    def _default(self, name: str, wanted: Any, made: MadeRecord | None) -> dict[str, str]:
        if "default" not in wanted:
            raise NotGenerated(f"the writer has no field {name}")
        if made is not None and name not in made.parts:
            return {}
        try:
            found = default_of(wanted["type"], wanted["default"], self.wanted, self.tags)
            found = found if made is None else converter(made.parts[name].type_)(found)
        except ValueError as error:  # also msgspec's
            raise NotGenerated(str(error)) from error
        if isinstance(found, list | dict):
            # The function would hand out one object for all values.
            raise NotGenerated("a default may be changed")
        return {name: self.code.named(found)}

    def _converted(self, value: str, part: RecordPart) -> str:
        return value if part.convert is None else self.code.assigned(f"{self.code.named(part.convert)}({value})")

    def _made(self, values: Mapping[str, str], made: MadeRecord | None, tag: UnionBranch | None) -> str:
        if made is None:
            if tag is not None and self.tags is not None:
                key, named = self.tags.of(tag.name)
                values = {key: repr(named), **values}
            return self.code.assigned(f"{{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}")
        given = [(part.argument, values.get(name)) for name, part in made.parts.items()]
        if made.make is tuple:
            return self.code.assigned(f"({''.join(f'{value}, ' for _, value in given)})")
        if made.make is dict:
            return self.code.assigned(f"{{{', '.join(f'{name!r}: {value}' for name, value in given)}}}")
        arguments = (
            value if keyword is None else f"{keyword}={value}" for keyword, value in given if value is not None
        )
        return self.code.assigned(f"{self.code.named(made.make)}({', '.join(arguments)})")

    def skip(self, written: Any) -> None:
        """Write the lines that pass over a value."""
        written = definition_of(written, self.written)
        if isinstance(written, list):
            self._branches(written, lambda branch: self.skip(branch.schema))
            return
        kind = kind_of(written)
        if kind != "null":
            self.touches_end = kind in {"int", "long", "enum"}
        if kind in _FIXED_SIZES or kind == "fixed":
            self.code.add(f"p += {_FIXED_SIZES[kind] if kind in _FIXED_SIZES else int(written['size'])}")
        elif kind in {"int", "long", "enum"}:
            self.code.add(_skipped(BITS[kind]))
        elif kind in {"string", "bytes"}:
            self.code.add(f"{_SIZE}p += 1 + (n >> 1)")
        else:
            self._skip_parts(kind, written)

    def _skip_parts(self, kind: str, written: Any) -> None:
        if kind == "record":
            with self._within(written["name"]):
                for each in written["fields"]:
                    self.skip(each["type"])
        elif kind in {"array", "map"}:
            self._check_items(kind, written)
            with self._loop():
                if kind == "map":
                    self.skip("string")
                self.skip(written["items" if kind == "array" else "values"])
        else:
            raise NotGenerated(f"{kind} cannot be skipped")

    def _branches(self, written: list[Any], write: Callable[[UnionBranch], None]) -> None:
        self.code.add("n = data[p]\np += 1")
        for number, branch in enumerate(branches_of(written, self.written)):
            self.code.add(f"{'if' if number == 0 else 'elif'} n == {number * 2}:")
            with self.code.indented():
                write(branch)
                self.code.add("pass")
        self.code.add("else:\n    return plain(data)")
        # A branch may end with a slice.
        self.touches_end = False

    @contextmanager
    def _within(self, record: str) -> Iterator[None]:
        if record in self.open or len(self.open) == _MOST_RECORDS:
            raise NotGenerated("a record contains itself, or many others")
        # Also records that need no lines count towards the limit of lines.
        self.code.add("")
        self.open.append(record)
        yield
        self.open.pop()

    @contextmanager
    def _loop(self) -> Iterator[None]:
        """Write a loop over the blocks of an array or a map around lines for one item."""
        if self.depth == _DEEPEST:
            raise NotGenerated("it is nested too deeply")
        self.depth += 1
        with self.code.aside() as lines:
            yield
        item = indent("\n".join([*lines, "pass"]), " " * 8)
        self.code.add(_LOOP.format(size=indent(_SIZE.rstrip(), " " * 4), item=item))
        self.touches_end = True
        self.depth -= 1
