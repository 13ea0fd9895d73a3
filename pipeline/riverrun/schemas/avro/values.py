"""Values of Avro in Python: the classes of logical types, and how values of unions name their branch."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from riverrun.decoders import exact_json
from riverrun.records import EPOCH, moment
from riverrun.schemas.avro.parsing import NAMED, definition_of, definitions, kind_of
from riverrun.serde.serdes import ODD_NUMBERS, without_odd_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Convert: TypeAlias = "Callable[[Any], Any]"

TAG = "-type"
"""The key under which a dict names its record, in unions of several. No field of Avro can have this name."""
LOCAL_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time has no zone
_FIRST_DAY = dt.date(1970, 1, 1).toordinal()
_DAY_MS = 24 * 60 * 60 * 1000
_SIMPLE: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "enum": str,
    "fixed": bytes,
    "array": list,
    "map": dict,
    "record": dict,
}
# Other classes whose values are written as a class.
_ACCEPTED: dict[type, tuple[type, ...]] = {
    float: (int,),
    dt.date: (str, int),
    dt.datetime: (int,),
    dt.time: (int,),
    uuid.UUID: (str,),
    decimal.Decimal: (bytes,),
    bytes: (bytearray, memoryview),
    list: (tuple,),
}
_PROMOTED: Mapping[tuple[str, str], Convert | None] = {
    ("int", "long"): None,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): None,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}
"""Types that a reader's type may replace, with the function that converts a value; None if it remains as it is."""


# Logical types


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type.

    Args:
        family: Its name without the unit; types of one family have values of one meaning.
        reader: Returns the function that makes a value of a plain one, for a schema.
        writer: Returns the function that makes a plain value, for a schema. It raises for values that do not fit.
        inline: An expression of `reader`'s result, for generated functions; empty if they call it.
    """

    cls: type
    family: str
    reader: Callable[[Mapping[str, Any]], Convert]
    writer: Callable[[Mapping[str, Any]], Convert]
    inline: str = ""


def logical_of(schema: Any) -> Logical | None:
    """Return the logical type of a definition; None if it has none that values show."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    return _LOGICAL.get(f"{schema['type']}-{schema['logicalType']}")


def _timestamp(per_second: int) -> Logical:
    step = 1_000_000 // per_second

    def read(number: int) -> dt.datetime:
        return EPOCH + dt.timedelta(0, 0, number * step)

    def write(value: Any) -> Any:
        if not isinstance(value, dt.datetime):
            return value
        since = moment(value) - EPOCH
        return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) // step

    inline = f"EPOCH + timedelta(0, 0, {{0}} * {step})" if step > 1 else "EPOCH + timedelta(0, 0, {0})"
    return Logical(dt.datetime, "timestamp", lambda _: read, lambda _: write, inline)


def _local_timestamp(per_second: int) -> Logical:
    step = 1_000_000 // per_second

    def read(number: int) -> dt.datetime:
        return LOCAL_EPOCH + dt.timedelta(0, 0, number * step)

    def write(value: Any) -> Any:
        if not isinstance(value, dt.datetime):
            return value
        if value.tzinfo is not None:
            message = f"{value.isoformat()} has a time zone, and a local timestamp has none: replace(tzinfo=None)"
            raise ValueError(message)
        return (value - LOCAL_EPOCH) // dt.timedelta(microseconds=step)

    return Logical(dt.datetime, "local-timestamp", lambda _: read, lambda _: write)


def _read_date(days: int) -> dt.date:
    return dt.date.fromordinal(days + _FIRST_DAY)


def _write_date(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        raise TypeError(f"{value!r} is a moment, not a date: pass its date()")
    if isinstance(value, str):
        value = dt.date.fromisoformat(value)
    return value.toordinal() - _FIRST_DAY if isinstance(value, dt.date) else value


def _time(per_second: int) -> Logical:
    step, whole = 1_000_000 // per_second, _DAY_MS * 1000

    def read(number: int) -> dt.time:
        number *= step
        if not 0 <= number < whole:
            raise ValueError(f"{number // step} is not a time of day")
        seconds, micros = divmod(number, 1_000_000)
        return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)

    def write(value: Any) -> Any:
        if isinstance(value, dt.time):
            if value.tzinfo is not None:
                message = f"{value.isoformat()} has a time zone, and a time of day has none: replace(tzinfo=None)"
                raise ValueError(message)
            return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) // step
        if isinstance(value, int):
            read(value)
        return value

    return Logical(dt.time, "time", lambda _: read, lambda _: write)


def _write_uuid(value: Any) -> Any:
    if isinstance(value, str):
        uuid.UUID(value)
    return str(value) if isinstance(value, uuid.UUID) else value


def _decimal_reader(schema: Mapping[str, Any]) -> Convert:
    precision, scale = schema["precision"], schema.get("scale", 0)
    limit, most_bytes = 10**precision, precision // 2 + 2
    context = decimal.Context(prec=precision + 1, Emin=-decimal.MAX_EMAX, Emax=decimal.MAX_EMAX)

    def read(data: bytes) -> decimal.Decimal:
        # More bytes may only repeat the sign. If not, a number of them all could take very long to convert.
        if len(data) > most_bytes:
            data = _shortened(data, most_bytes)
        number = int.from_bytes(data, signed=True)
        if not -limit < number < limit:
            raise ValueError(f"a decimal of {precision} digits has more")
        return decimal.Decimal(number).scaleb(-scale, context)

    return read


def _shortened(data: bytes, most_bytes: int) -> bytes:
    """Return the last bytes of a number whose other bytes only repeat its sign; otherwise bytes of a number too large."""
    rest = data[: len(data) - most_bytes]
    sign = b"\xff" if data[0] & 0x80 else b"\0"
    return data[-most_bytes - 1 :] if rest.count(sign) == len(rest) else b"\x7f" + b"\xff" * most_bytes


def _decimal_writer(schema: Mapping[str, Any]) -> Convert:
    precision, scale, size = schema["precision"], schema.get("scale", 0), schema.get("size")
    limit = 10**precision

    def write(value: Any) -> Any:
        if not isinstance(value, decimal.Decimal):
            return value
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            message = f"{value} is not a number of Avro"
            raise ValueError(message)  # noqa: TRY004 - a value, not its class
        shift = exponent + scale if any(digits) else 0
        # Before any arithmetic: 1E+999999999 is a short value, and a number of a billion digits.
        if shift > precision or len(digits) > precision + max(0, -shift):
            raise ValueError(f"{value} has more digits than decimal({precision}, {scale})")
        number = 0
        for digit in digits:
            number = number * 10 + digit
        number, left = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
        if left or number >= limit:
            raise ValueError(f"{value} does not fit decimal({precision}, {scale})")
        number = -number if sign else number
        length = (number ^ (number >> precision * 4)).bit_length() // 8 + 1 if size is None else size
        return number.to_bytes(length, signed=True)

    return write


_DECIMAL = Logical(decimal.Decimal, "decimal", _decimal_reader, _decimal_writer)
_LOGICAL = {
    "long-timestamp-millis": _timestamp(1000),
    "long-timestamp-micros": _timestamp(1_000_000),
    "long-local-timestamp-millis": _local_timestamp(1000),
    "long-local-timestamp-micros": _local_timestamp(1_000_000),
    "int-date": Logical(dt.date, "date", lambda _: _read_date, lambda _: _write_date),
    "int-time-millis": _time(1000),
    "long-time-micros": _time(1_000_000),
    "bytes-decimal": _DECIMAL,
    "fixed-decimal": _DECIMAL,
    "string-uuid": Logical(uuid.UUID, "uuid", lambda _: uuid.UUID, lambda _: _write_uuid),
}


def class_of(schema: Any) -> type:
    """Return the class of the values that are read with a definition, which is not a union."""
    logical = logical_of(schema)
    return _SIMPLE.get(kind_of(schema), object) if logical is None else logical.cls


def accepts(schema: Any, value: Any) -> bool:
    """Return whether a definition may have a value, judged by the value itself and not by its parts."""
    cls: Any = class_of(schema)
    kind = kind_of(schema)
    if isinstance(value, bool) or value is None or not isinstance(value, cls):
        if cls in {bool, type(None)} or isinstance(value, bool):
            return value.__class__ is cls
        if not isinstance(value, _ACCEPTED.get(cls, ())):
            return False
    if cls is dt.date:
        return not isinstance(value, dt.datetime)
    if kind == "enum":
        return bool(value in schema["symbols"])
    if kind == "fixed" and cls is bytes:
        return bool(len(value) == schema["size"])
    if kind in {"int", "long"} and isinstance(value, int):
        return -1 << (bits := 31 if kind == "int" else 63) <= value < 1 << bits
    return kind != "float" or not math.isfinite(value) or abs(value) < 3.5e38  # noqa: PLR2004 - the highest float


# Unions


@dataclass(frozen=True, slots=True)
class UnionBranch:
    """A branch of a union; `cls` is the class of its values.

    Args:
        name: The name of its type: full, or that of a primitive or complex type.
        is_tagged: Whether values name their branch, since another branch has values of this class too.
    """

    number: int
    schema: Any
    name: str
    cls: type
    is_tagged: bool

    @property
    def is_record(self) -> bool:
        """Return whether its values are records, which name their branch in a key rather than in a tuple."""
        return kind_of(self.schema) == "record"


def branches_of(union: list[Any], defined: Mapping[str, Any]) -> tuple[UnionBranch, ...]:
    found = [definition_of(each, defined) for each in union]
    classes = [class_of(each) for each in found]
    return tuple(
        UnionBranch(number, each, name_of(each), cls, classes.count(cls) > 1)
        for number, (each, cls) in enumerate(zip(found, classes, strict=True))
    )


def name_of(definition: Any) -> str:
    """Return the full name of a named definition, or the name of its type."""
    return str(definition["name"]) if kind_of(definition) in NAMED else kind_of(definition)


@dataclass(frozen=True, slots=True)
class Tags:
    """How records in unions of several name their branch: by a key of their dict.

    Args:
        keys: Key and value by the record's full name, where they are not `TAG` and the name.
    """

    keys: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    def of(self, record: str) -> tuple[str, Any]:
        """Return the key and the value that name a record."""
        return self.keys.get(record, (TAG, record))


# Texts


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Plain values in JSON: bytes in base64, times and decimals as text.

    In a union, a list of a branch's name and a value stands for a value that JSON alone would take for another branch's.
    """

    schema: Any
    defined: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Any) -> JsonForm:
        defined = definitions(schema)
        return cls(definition_of(schema, defined), defined)

    @property
    def _kind(self) -> str:
        return "union" if isinstance(self.schema, list) else kind_of(self.schema)

    def shown(self, value: Any) -> Any:
        """Return a value as JSON has it; bytes that are a whole value remain bytes."""
        is_whole = isinstance(value, bytes) and self._kind != "union"
        return value if is_whole else self._shown(self.schema, value)

    def of_text(self, text: str) -> Any:
        """Return the value of a text: JSON, or the value itself if all values are texts or bytes."""
        if self._kind != "union" and class_of(self.schema) is bytes:
            return bytes.fromhex(text.removeprefix("0x"))
        shown: Any = text
        if self._kind == "union" or class_of(self.schema) in {bool, dict, float, int, list, type(None)}:
            try:
                shown = exact_json(text)
            except ValueError:
                if text[:1] in {"{", "["}:
                    raise
        return self._value(self.schema, shown)

    def _shown(self, schema: Any, value: Any) -> Any:
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            branches = branches_of(schema, self.defined)
            branch, own = _branch_of(branches, value)
            found = self._shown(branch.schema, own)
            if branch.is_record and branch.is_tagged:
                return {TAG: branch.name, **found}
            return found if self._chosen(branches, found) is branch else [branch.name, found]
        kind = kind_of(schema)
        if kind == "record":
            return {each["name"]: self._shown(each["type"], value[each["name"]]) for each in schema["fields"]}
        if kind == "array":
            return [self._shown(schema["items"], each) for each in value]
        if kind == "map":
            return {name: self._shown(schema["values"], each) for name, each in value.items()}
        return without_odd_numbers(msgspec.to_builtins(value))

    def _value(self, schema: Any, shown: Any) -> Any:
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            return self._value_in_union(branches_of(schema, self.defined), shown)
        kind = kind_of(schema)
        if kind == "record" and isinstance(shown, dict):
            fields = {each["name"]: each["type"] for each in schema["fields"]}
            return {name: self._value(fields[name], each) if name in fields else each for name, each in shown.items()}
        if kind == "array" and isinstance(shown, list):
            return [self._value(schema["items"], each) for each in shown]
        if kind == "map" and isinstance(shown, dict):
            return {name: self._value(schema["values"], each) for name, each in shown.items()}
        return _of_json(schema, shown)

    def _value_in_union(self, branches: tuple[UnionBranch, ...], shown: Any) -> Any:
        branch = self._chosen(branches, shown)
        if branch is None:
            # The writer's error says why.
            return shown
        own = shown[1] if _is_pair(branches, shown) else shown
        value = self._value(branch.schema, own)
        if branch.is_record and branch.is_tagged and isinstance(value, dict):
            return {TAG: branch.name, **value}
        return (branch.name, value)

    def _chosen(self, branches: tuple[UnionBranch, ...], shown: Any) -> UnionBranch | None:
        """Return the branch to which JSON belongs; None if there is none, or several records."""
        if _is_pair(branches, shown):
            return next(each for each in branches if each.name == shown[0])
        if isinstance(shown, dict):
            dicts = [each for each in branches if each.cls is dict]
            named = [each for each in dicts if each.is_record and shown.get(TAG) == each.name]
            return named[0] if named else dicts[0] if len(dicts) == 1 else None
        read = [(each, found) for each in branches if (found := _read_as(each.schema, shown)) is not _NOTHING]
        exact = [each for each, found in read if found.__class__ is each.cls]
        return next(iter([*exact, *(each for each, _ in read)]), None)


_NOTHING = object()


def _is_pair(branches: tuple[UnionBranch, ...], shown: Any) -> bool:
    is_pair = isinstance(shown, list) and len(shown) == 2 and isinstance(shown[0], str)  # noqa: PLR2004 - name and value
    return is_pair and any(each.name == shown[0] for each in branches)


def _branch_of(branches: tuple[UnionBranch, ...], value: Any) -> tuple[UnionBranch, Any]:
    """Return the branch of a value that was read, and the value without its name."""
    if isinstance(value, tuple):
        return next(each for each in branches if each.name == value[0]), value[1]
    if isinstance(value, dict):
        dicts = [each for each in branches if each.cls is dict]
        return next((each for each in dicts if each.is_record and value.get(TAG) == each.name), dicts[0]), value
    return next(each for each in branches if each.cls is value.__class__), value


def _read_as(schema: Any, shown: Any) -> Any:
    """Return the value of a definition that JSON stands for; `_NOTHING` if it cannot be its."""
    try:
        value = _of_json(schema, shown)
    except (ArithmeticError, TypeError, ValueError):
        return _NOTHING
    return value if accepts(schema, value) else _NOTHING


def _of_json(schema: Any, shown: Any) -> Any:
    """Return a value without parts from JSON; what does not fit is left to the writer, which says why."""
    cls = class_of(schema)
    # Text has been read with decimals in place of floats, so that no digit is lost.
    if isinstance(shown, float):
        shown = decimal.Decimal(repr(shown))
    if isinstance(shown, decimal.Decimal):
        return shown if cls is decimal.Decimal else float(shown)
    if cls is decimal.Decimal and isinstance(shown, str | int):
        return decimal.Decimal(shown)
    if not isinstance(shown, str):
        return shown
    if cls is float and shown in ODD_NUMBERS:
        return float(shown)
    read = _OF_TEXT.get(cls)
    return shown if read is None else read(shown)


_OF_TEXT: Mapping[type, Callable[[str], Any]] = {
    bytes: lambda text: base64.b64decode(text, validate=True),
    dt.date: dt.date.fromisoformat,
    dt.datetime: dt.datetime.fromisoformat,
    dt.time: dt.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}


# Resolution


def resolved(written: Any, branches: tuple[UnionBranch, ...]) -> UnionBranch | None:
    """Return the branch of a reader's union to which values of a definition belong."""
    # In Java's order: type and full name, then a short name or an alias, and at last a promotion of numbers or texts.
    kind = kind_of(written)
    same = [each for each in branches if kind_of(each.schema) == kind]
    exact = next((each for each in same if each.name == name_of(written)), None)
    others = (each for each in same if matches(written, each.schema))
    promoted = (each for each in branches if (kind, kind_of(each.schema)) in _PROMOTED)
    return exact or next(others, None) or next(promoted, None)


def matches(written: Any, wanted: Any) -> bool:
    """Return whether values of one definition are read as another's; neither is a union. Ignores parts."""
    one, other = kind_of(written), kind_of(wanted)
    if one != other:
        return (one, other) in _PROMOTED
    if one not in NAMED:
        return True
    if one == "fixed" and written["size"] != wanted["size"]:
        return False
    short = written["name"].rpartition(".")[2]
    aliases = wanted.get("aliases", ())
    return short == wanted["name"].rpartition(".")[2] or written["name"] in aliases or short in aliases


def conversions(written: Any, wanted: Any) -> list[tuple[Convert, str]]:
    """Return the functions that make the reader's value of a plain one, in order, each with its expression or an empty text.

    The reader's schema decides whether there is a logical type, and the writer's how it is read.
    """
    logical, by, promote = logical_of(written), written, None
    if wanted is not None:
        own = logical_of(wanted)
        if own is None or logical is None:
            logical, by, promote = own, wanted, _PROMOTED.get((kind_of(written), kind_of(wanted)))
        elif own.family != logical.family:
            raise ValueError(f"a {logical.family} is not read as a {own.family}")
    found = [] if promote is None else [(promote, "")]
    return found if logical is None else [*found, (logical.reader(by), logical.inline)]


def fields_between(written: Any, wanted: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Return the fields of a record, each with the reader's field for it or None, and the fields that only the reader has."""
    if wanted is None:
        return [(each, each) for each in written["fields"]], []
    lacking = {each["name"]: each for each in wanted["fields"]}
    by_name = {alias: each for each in wanted["fields"] for alias in each.get("aliases", ())} | lacking
    pairs = []
    for each in written["fields"]:
        own = by_name.get(each["name"])
        pairs.append((each, None if own is None else lacking.pop(own["name"], None)))
    return pairs, list(lacking.values())
