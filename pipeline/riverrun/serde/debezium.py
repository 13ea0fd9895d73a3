"""Changes of rows in a database, as Debezium writes them: an envelope per change, and a null value after a deletion.

JSON with and without its schema is read, and envelopes that another serde decodes to dicts, such as `Avro()`. Columns have
the types that the schema names; without one, those that the application declares. Rows then look as JSON would show them:
dates and times as ISO 8601, decimals as text with all digits. A class of rows takes them from there.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from riverrun.decoders import converter, json_decoder
from riverrun.serde.api import PLAIN, Serde, immutable_types
from riverrun.serde.column_types import Convert, Schema, column_converter, declared_converters
from riverrun.serde.serdes import JSON
from riverrun.serde.unlogged import UNAVAILABLE, Placeholder, not_sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

V = TypeVar("V")
C = TypeVar("C")

TRUNCATE = "t"
_OPERATIONS = frozenset({"c", "u", "d", "r", "t", "m"})
# A topic rarely has more than one schema, but each text is kept: foreign records must not fill the memory.
_MOST_SCHEMAS = 64
# The schema of what these serdes write: columns have been converted already, and must not be once more.
_AS_IT_IS = {"type": "struct"}
# Dates and times that databases have, and Python has not, as columns have them (`column_types`).
_BEYOND = re.compile(r"-?infinity|([+-]\d+|0000)-\d\d-\d\d(T.*)?|-\d+:\d\d:.*|(2[4-9]|[3-9]\d|\d{3,}):\d\d:.*")
# With so many characters at most, and without an exponent, a number has 15 digits.
_FLOAT_LENGTH = 16
# Doubles may be written with so many digits, also if fewer would identify them.
_DOUBLE_DIGITS = 17
_MAY_HAVE_DECIMALS = frozenset({Decimal, dict, list})
_NO_ENVELOPE_HINT = (
    "Rows that ExtractNewRecordState has taken out of their envelopes are read as any others: Consumed(..., JSON). "
    "Those with __deleted are read as changes."
)
# Of rows without an envelope: `delete.tombstone.handling.mode` is `rewrite`. `add.fields` have such names as well.
_DELETED, _ADDED = "__deleted", "__"


@dataclass(frozen=True, slots=True)
class RowChange(Generic[V]):
    """A change of a row.

    Args:
        op: `c` if the row was inserted, `u` if it was updated, `d` if it was deleted, `r` if a snapshot has read it. `t` if the
            table was truncated; `m` for a message of the application.
        after: The row after the change; None if there is none.
        source: Where the change comes from: the database's own position and time, and what else the connector reports.
        ts_ms: When the connector processed the change, ms since the epoch; None if it does not say.
        unavailable: Columns of `after` that the database did not write to its log. They are missing in the row.
        row_before: Columns and values before the change; None if there are none.
        read_row: Makes a row of columns and values.
    """

    op: str
    after: V | None
    source: Mapping[str, Any]
    ts_ms: int | None = None
    unavailable: tuple[str, ...] = ()
    row_before: Mapping[str, Any] | None = None
    read_row: Callable[[Any], V] = field(default=lambda row: row, repr=False, compare=False)

    @property
    def before(self) -> V | None:
        """The row before the change; None if there was none, or the database did not write it to its log.

        Raises:
            ValueError: If the row lacks columns. PostgreSQL writes the key alone unless the table has `REPLICA IDENTITY FULL`.
        """
        return None if self.row_before is None else self.read_row(self.row_before)


class _Envelope(msgspec.Struct):
    """An envelope; with its schema, everything is within the payload. A row without an envelope has a mark of deletions."""

    op: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    ts_ms: int | None = None
    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    deleted: Any = msgspec.field(default=msgspec.UNSET, name=_DELETED)


class _Key(msgspec.Struct):
    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


def _number(text: str) -> float | Decimal:
    """Return a number of JSON as a float, or as a decimal if a float would have other digits.

    >>> _number("1.10"), _number("1234567890123456.78")
    (1.1, Decimal('1234567890123456.78'))
    """
    found = float(text)
    if repr(found) == text or (len(text) <= _FLOAT_LENGTH and "e" not in text.lower()):
        return found
    try:
        exact = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text} has an exponent that no number has") from error
    return found if math.isfinite(found) and exact == Decimal(repr(found)) else exact


_decode_envelope = json_decoder(_Envelope, float_hook=_number).decode
_to_envelope = converter(_Envelope)
_decode_key = json_decoder(_Key).decode
_decode: Callable[[bytes | msgspec.Raw], Any] = json_decoder(Any, float_hook=_number).decode
_decode_schema = json_decoder(Schema).decode


@dataclass(frozen=True, slots=True)
class _Converters:
    """Converters of the columns of one schema."""

    before: Convert | None
    after: Convert | None
    row: Convert | None


class _Schemas(Generic[C]):
    """The converters of the schemas that came with records so far, by their text."""

    def __init__(self, made_of: Callable[[Schema], C]) -> None:
        self._made_of = made_of
        self._known: dict[bytes, C] = {}

    def of(self, text: bytes) -> C:
        if text not in self._known:
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            self._known[text] = self._made_of(_decode_schema(text))
        return self._known[text]


def _of_envelope(schema: Schema) -> _Converters:
    rows = {each.field: column_converter(each) for each in schema.fields if each.field in {"before", "after"}}
    return _Converters(rows.get("before"), rows.get("after"), column_converter(schema))


Types: TypeAlias = "Mapping[str, str] | tuple[tuple[str, str], ...] | None"
"""Types by column, or pairs of both; the pairs are a part of fingerprints."""


def changes_serde(
    row: Any = None,
    types: Types = None,
    envelopes: Serde[Any] = JSON,
    placeholder: str = UNAVAILABLE,
    keeps_columns: bool = False,  # noqa: FBT001, FBT002 - `remake` has no names
) -> Serde[RowChange[Any]]:
    """Return the serde of changes.

    Args:
        row: Type of the rows, which msgspec can make of their columns; None for dicts.
        types: Types of columns without a schema, as `declared_converters` takes them.
        envelopes: Reads envelopes that are not JSON as dicts.
        placeholder: The connector's `unavailable.value.placeholder`.
        keeps_columns: Whether `after` is a dict of columns, and no row, if the database did not log some.
    """
    declared = declared_converters(dict(types or {}))
    unlogged = Placeholder.of(placeholder)
    name = f"debezium[{getattr(row, '__name__', row)}]" if row is not None else "debezium"
    # Fingerprints contain these arguments, so defaults are left out.
    given: tuple[Any, ...] = (row, _pairs(types), envelopes)
    if keeps_columns or placeholder != UNAVAILABLE:
        given = (*given, placeholder, keeps_columns)
    return Serde(
        name,
        lambda change: JSON.serialize({"schema": _AS_IT_IS, "payload": _sent(_plain(change, unlogged))}),
        _Reader(_row_reader(row), _Converters(declared, declared, declared), envelopes, unlogged, keeps_columns).read,
        remake=(changes_serde, given),
        value_type=Any,
        plain=lambda change: _plain(change, unlogged),
    )


def _pairs(types: Types) -> tuple[tuple[str, str], ...] | None:
    return None if types is None else tuple(sorted(dict(types).items()))


def key_serde(key: Any = None, types: Types = None, keys: Serde[Any] = JSON) -> Serde[Any]:
    """Return the serde of the keys of changes: the value of the only column of a primary key, or a dict of several."""
    declared = declared_converters(dict(types or {}))
    make = _row_reader(key)
    schemas = _Schemas(column_converter)
    read_other = keys.deserialize

    def columns(data: bytes) -> Any:
        if not _is_json(data):
            return _converted(msgspec.to_builtins(read_other(data)), declared)
        if data.lstrip()[:1] != b"{":
            # Written by this serde: a key that is a single value has no envelope.
            return _decode(data)
        outer = _decode_key(data)
        if outer.payload and outer.schema:
            return _converted(_decode(outer.payload), schemas.of(bytes(outer.schema)))
        found = _decode(data)
        # Next to others, `payload` is a column.
        return _converted(found["payload"] if outer.payload and len(found) == 1 else found, declared)

    def deserialize(data: bytes) -> Any:
        found = columns(data)
        if isinstance(found, dict) and len(found) == 1 and not _has_fields(key):
            (found,) = found.values()
        return make(found)

    name = f"debezium-key[{getattr(key, '__name__', key)}]" if key is not None else "debezium-key"
    return Serde(
        name,
        _written_key,
        deserialize,
        remake=(key_serde, (key, _pairs(types), keys)),
        value_type=Any if key is None else key,
        immutable_types=PLAIN if key is None else immutable_types(key),
    )


def rows_serdes(keys: Serde[Any], changes: Serde[Any]) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of the keys and rows of a table, for the serdes of its changes: JSON."""
    row = _arguments(changes)[0]
    key = keys.remake[1][0] if keys.remake and keys.remake[0] is key_serde else None
    return JSON if key is None else JSON(key), JSON if row is None else JSON(row)


def _arguments(changes: Serde[Any]) -> tuple[Any, ...]:
    function, arguments = changes.remake or (None, ())
    if function is not changes_serde:
        raise TypeError(f"{changes.name} does not read changes of rows: use Consumed.debezium()")
    return arguments


def keeping_columns(changes: Serde[Any]) -> Serde[Any]:
    """Return the serde of changes whose `after` is a dict of columns if the database did not log some."""
    row, types, envelopes, *others = _arguments(changes)
    return changes_serde(row, types, envelopes, others[0] if others else UNAVAILABLE, True)  # noqa: FBT003


def row_filled(changes: Serde[Any]) -> Callable[[RowChange[Any], Any], Any]:
    """Return the function from a change and the row before it to the row: columns that were not logged stay as they are."""
    type_ = _arguments(changes)[0]
    make = _row_reader(type_)
    fields = {each.encode_name for each in getattr(inspect.type_info(type_), "fields", ())}

    def filled(change: RowChange[Any], row: Any) -> Any:
        known = {} if row is None else msgspec.to_builtins(row)
        lacking = tuple(name for name in change.unavailable if name not in known)
        # A class has other columns than these, or defaults, which are no values of the database.
        if needed := lacking if type_ is None else tuple(name for name in lacking if row is None and name in fields):
            raise ValueError(not_sent(needed))
        kept = {name: known[name] for name in change.unavailable if name in known}
        return _row(make, {**row_after(change), **kept}, lacking)

    return filled


def row_now(change: RowChange[V] | None) -> V | None:
    """Return the row that a table has after a change; None if it is deleted. Raises if the change does not say."""
    if change is None or change.op == "d":
        return None
    if change.unavailable:
        raise ValueError(not_sent(change.unavailable))
    return row_after(change)


def row_after(change: RowChange[V]) -> V:
    if change.after is None:
        cause = "its table was truncated" if change.op == TRUNCATE else f"a change with op {change.op!r} has no row"
        raise ValueError(f"No row can be read: {cause}")
    return change.after


class _Reader:
    """Reads envelopes, and rows that say whether they are deleted."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        declared: _Converters,
        envelopes: Serde[Any],
        unlogged: Placeholder,
        keeps_columns: bool,  # noqa: FBT001 - the only user names none of them
    ) -> None:
        self._make = make
        self._declared = declared
        self._read_other = envelopes.deserialize
        self._unlogged = unlogged
        self._keeps_columns = keeps_columns
        self._schemas = _Schemas(_of_envelope)

    def read(self, data: bytes) -> RowChange[Any]:
        if not _is_json(data):
            found = msgspec.to_builtins(self._read_other(data))
            return self._change(_envelope(found, _to_envelope, _unchanged), self._declared, lambda: found)
        envelope, converters, content = _envelope(data), self._declared, data
        if envelope.payload and envelope.deleted is msgspec.UNSET:
            content = envelope.payload
            if envelope.schema:
                converters = self._schemas.of(bytes(envelope.schema))
            envelope = _envelope(content)
        return self._change(envelope, converters, lambda: _decode(content))

    def _change(self, envelope: _Envelope, converters: _Converters, content: Callable[[], Any]) -> RowChange[Any]:
        if envelope.deleted is not msgspec.UNSET:
            return self._of_row(content(), converters.row)
        if envelope.op not in _OPERATIONS:
            found = "there is no op" if envelope.op is None else f"its op is {envelope.op!r}"
            raise ValueError(f"this is not a Debezium change: {found}. {_NO_ENVELOPE_HINT}")
        after, unavailable = self._available(envelope.after)
        return RowChange(
            envelope.op,
            None if after is None else self._row(_converted(after, converters.after), unavailable),
            envelope.source or {},
            envelope.ts_ms,
            unavailable,
            row_before=_converted(self._available(envelope.before)[0], converters.before),
            read_row=self._make,
        )

    def _of_row(self, row: dict[str, Any], convert: Convert | None) -> RowChange[Any]:
        """Return the change to a row without an envelope; what the connector adds to it is its source."""
        added = {name.removeprefix(_ADDED): value for name, value in row.items() if name.startswith(_ADDED)}
        columns = {name: value for name, value in row.items() if not name.startswith(_ADDED)}
        found, unavailable = self._available(columns)
        found = _converted(found, convert)
        is_deleted = str(added.pop("deleted")).lower() == "true"
        op = "d" if is_deleted else str(added.pop("op", "u"))
        return RowChange(
            op,
            None if is_deleted else self._row(found, unavailable),
            added,
            added.get("ts_ms"),
            () if is_deleted else unavailable,
            row_before=found if is_deleted else None,
            read_row=self._make,
        )

    def _row(self, columns: Any, unavailable: tuple[str, ...]) -> Any:
        return columns if unavailable and self._keeps_columns else _row(self._make, columns, unavailable)

    def _available(self, row: dict[str, Any] | None) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Return the columns that the database has logged, and the names of the others."""
        stands_in = self._unlogged.stands_in
        if row is None or not (unavailable := tuple([name for name, value in row.items() if stands_in(value)])):
            return row, ()
        return {name: value for name, value in row.items() if name not in unavailable}, unavailable


def _envelope(data: Any, read: Callable[[Any], _Envelope] = _decode_envelope, plain: Convert = _decode) -> _Envelope:
    try:
        return read(data)
    except msgspec.ValidationError:
        # Columns of a row without an envelope may have its names, and values of any type.
        row = plain(data)
        if isinstance(row, dict) and _DELETED in row:
            return _Envelope(deleted=row[_DELETED])
        raise


def _row(make: Callable[[Any], Any], columns: Any, unavailable: tuple[str, ...]) -> Any:
    try:
        return make(columns)
    except ValueError as error:
        reason = not_sent(unavailable) if unavailable else _beyond(columns)
        if not reason:
            raise
        raise ValueError(f"{error}. {reason}") from error


def _beyond(columns: Any) -> str:
    """Return the reason why a time cannot be read; empty if Python has all of them."""
    for name, value in columns.items() if isinstance(columns, dict) else ():
        if isinstance(value, str) and _BEYOND.fullmatch(value):
            return f"Python has no time {value}: give {name} the type str"
    return ""


def _converted(row: Any, convert: Convert | None) -> Any:
    return row if row is None or convert is None else convert(row)


def _is_json(data: bytes) -> bool:
    # Records of a schema registry begin with a zero byte, which JSON never does.
    return data[:1] != b"\0"


def _row_reader(type_: Any) -> Callable[[Any], Any]:
    """Return the function that makes rows of columns; only fields that are decimals have decimals."""
    if type_ is None:
        return _without_decimals
    make, found = converter(type_), inspect.type_info(type_)
    whole = _number_converter(found)
    each_field = ((each.encode_name, _number_converter(each.type)) for each in getattr(found, "fields", ()))
    fields = {name: convert for name, convert in each_field if convert is not None}
    if not fields and whole is None:
        return make

    def read(columns: Any) -> Any:
        if not fields or not isinstance(columns, dict):
            return make(columns if whole is None else whole(columns))
        if _MAY_HAVE_DECIMALS.isdisjoint(map(type, columns.values())):
            return make(columns)
        plain = {name: convert(columns[name]) for name, convert in fields.items() if name in columns}
        return make({**columns, **plain})

    return read


def _number_converter(type_: inspect.Type) -> Convert | None:
    """Return the function that makes other numbers of the decimals in values of a type; None if they stay."""
    kinds = frozenset(_kinds(type_, set()))
    if inspect.DecimalType in kinds:
        return None
    if inspect.AnyType in kinds:
        return _without_decimals
    return _with_doubles if inspect.FloatType in kinds else None


def _kinds(part: Any, known: set[int]) -> Iterator[type]:
    """Return the kinds of types of which a type consists."""
    if isinstance(part, tuple):
        for each in part:
            yield from _kinds(each, known)
    elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in known:
        known.add(id(part))
        yield type(part)
        for name in part.__struct_fields__:
            yield from _kinds(getattr(part, name), known)


def _without_decimals(value: Any) -> Any:
    """Return a row, or a part of it, with numbers that have more digits than a double as texts."""
    if isinstance(value, Decimal):
        return str(value) if len(value.as_tuple().digits) > _DOUBLE_DIGITS or _is_beyond(value) else float(value)
    return _with_parts(value, _without_decimals)


def _with_doubles(value: Any) -> Any:
    if isinstance(value, Decimal):
        if _is_beyond(value):
            raise ValueError(f"{value} is more than a double can hold")
        return float(value)
    return _with_parts(value, _with_doubles)


def _sent(value: Any) -> Any:
    """Return a part of an envelope with its decimals as numbers of JSON, as they came."""
    if isinstance(value, Decimal):
        return msgspec.Raw(str(value).encode())
    return _with_parts(value, _sent)


def _with_parts(value: Any, convert: Convert) -> Any:
    """Return a value with its parts converted, if some may be decimals."""
    if isinstance(value, dict):
        if _MAY_HAVE_DECIMALS.isdisjoint(map(type, value.values())):
            return value
        return {name: convert(each) for name, each in value.items()}
    return [convert(each) for each in value] if isinstance(value, list) else value


def _is_beyond(number: Decimal) -> bool:
    return math.isinf(float(number))


def _unchanged(value: Any) -> Any:
    return value


def _has_fields(type_: Any) -> bool:
    return isinstance(type_, type) and bool(getattr(type_, "__annotations__", None))


def _plain(change: RowChange[Any], unlogged: Placeholder) -> dict[str, Any]:
    envelope = {"op": change.op, "before": change.row_before, "after": change.after, "source": change.source}
    if change.unavailable:
        envelope["after"] = {**msgspec.to_builtins(change.after), **dict.fromkeys(change.unavailable, unlogged.text)}
    return envelope if change.ts_ms is None else {**envelope, "ts_ms": change.ts_ms}


def _written_key(key: Any) -> bytes:
    columns = msgspec.to_builtins(key)
    return JSON.serialize({"schema": _AS_IT_IS, "payload": columns} if isinstance(columns, dict) else key)
