"""Random schemas of Avro, values of them, and schemas that resolve them, for tests that compare two readers or writers."""

from __future__ import annotations

import datetime as dt
import io
import string
from typing import Any

from fastavro import schemaless_writer
from hypothesis import strategies as st

HEAD = b"\0\0\0\0\1"
"""The magic byte, and the id of a schema."""


class Plain(Exception):  # noqa: N818 - no error
    """Raised where a generated function calls the plain one."""


def refusing(_given: Any) -> Any:
    raise Plain


def written(schema: Any, value: Any) -> bytes:
    """A value as the library writes it, after the head."""
    out = io.BytesIO()
    out.write(HEAD)
    schemaless_writer(out, schema, value)
    return out.getvalue()


_NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=3)
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")
_LOGICAL: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, st.times()),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, st.times()),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC)),  # noqa: DTZ001 - of hypothesis
    ),
    "local-timestamp-micros": ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001 - of hypothesis
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.decimals(-9999, 9999, places=2, allow_nan=False),
    ),
}
_DEFAULTS: dict[str, Any] = {"null": None, "boolean": True, "int": 7, "long": 8, "double": 0.5, "string": "none"}
_WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",)}


@st.composite
def schemas(draw: Any, depth: int = 3) -> Any:
    """A schema in which each name is defined once, and may be used again."""
    return _schema(draw, depth, [0], [])


@st.composite
def schemas_together(draw: Any, count: int, depth: int = 3) -> list[Any]:
    """Several schemas for one record; a name that one defines may be used by the next ones."""
    numbers, named = [0], list[str]()
    return [_schema(draw, depth, numbers, named) for _ in range(count)]


def _schema(  # noqa: C901, PLR0911, PLR0912 - one case per type
    draw: Any, depth: int, numbers: list[int], named: list[str], *, in_union: bool = False
) -> Any:
    kinds = ["primitive", "primitive", "logical", "enum", "fixed", *(["named"] if named else [])]
    if depth:
        kinds += ["array", "map", "record", "record", *([] if in_union else ["union", "union", "optional", "alike"])]
    kind = draw(st.sampled_from(kinds))

    def inner() -> Any:
        return _schema(draw, depth - 1, numbers, named)

    numbers[0] += 1
    name = f"N{numbers[0]}"
    match kind:
        case "primitive":
            return draw(st.sampled_from(_PRIMITIVES))
        case "logical":
            return draw(st.sampled_from([schema for schema, _ in _LOGICAL.values()]))
        case "named":
            return draw(st.sampled_from(named))
        case "array":
            return {"type": "array", "items": inner()}
        case "map":
            return {"type": "map", "values": inner()}
        case "union":
            return _union(draw, depth, numbers, named)
        case "optional":
            branch = _schema(draw, 0, numbers, named, in_union=True)
            return ["null"] if branch == "null" else draw(st.permutations(["null", branch]))
        case "alike":  # records with equal fields, which their names alone tell apart
            record = _schema_record(draw, depth, numbers, named)
            twin = {"type": "record", "name": f"{record['name']}b", "fields": [{**f} for f in record["fields"]]}
            plain = all(isinstance(f["type"], str) for f in record["fields"])
            return draw(st.permutations(["null", record, *([twin] if plain else [])]))
        case "enum":
            named.append(name)
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
        case "fixed":
            named.append(name)
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 3))}
    return _schema_record(draw, depth, numbers, named)


def _schema_record(draw: Any, depth: int, numbers: list[int], named: list[str]) -> Any:
    numbers[0] += 1
    name = f"N{numbers[0]}"
    names = draw(st.lists(_NAMES, max_size=4, unique=True))
    fields = [{"name": each, "type": _schema(draw, depth - 1, numbers, named)} for each in names]
    named.append(name)
    return {"type": "record", "name": name, "fields": fields}


def _union(draw: Any, depth: int, numbers: list[int], named: list[str]) -> Any:
    branches: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 3))):
        before = len(named)
        branch = _schema(draw, depth - 1, numbers, named, in_union=True)
        if branches.setdefault(_kind(branch), branch) is not branch:  # what it has named is left out with it
            del named[before:]
    return list(branches.values())


def _kind(schema: Any) -> str:
    """The name of a schema that must be unique in a union."""
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


@st.composite
def values(draw: Any, schema: Any, defined: dict[str, Any] | None = None) -> Any:
    """A value of a schema."""
    return _value(draw, schema, {} if defined is None else defined)


def _value(draw: Any, schema: Any, defined: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        chosen = draw(st.integers(0, len(schema) - 1))
        return [_value(draw, each, defined) for each in schema][chosen]
    if isinstance(schema, str):
        return _value(draw, defined[schema], defined) if schema in defined else draw(_PLAIN_VALUES[schema])
    if "logicalType" in schema:
        return draw(_LOGICAL[schema["logicalType"]][1])
    if "name" in schema:
        defined[schema["name"]] = schema
    match schema["type"]:
        case "array":
            first = _value(draw, schema["items"], defined)
            return [first, *(_value(draw, schema["items"], defined) for _ in range(draw(st.integers(0, 2))))]
        case "map":
            return {
                name: _value(draw, schema["values"], defined) for name in ["a", *draw(st.lists(_NAMES, max_size=2))]
            }
        case "enum":
            return draw(st.sampled_from(schema["symbols"]))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
    return {field["name"]: _value(draw, field["type"], defined) for field in schema["fields"]}


_PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1) | st.integers(-200, 20_000),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 20_000),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5) | st.text(min_size=60, max_size=80),
    "bytes": st.binary(max_size=5),
}


def encoded(draw: Any, schema: Any) -> bytes:
    """The bytes of a random value, made without the library: each branch of a union is as likely as another."""
    return HEAD + _encoded(draw, schema, {}, 6)


def _encoded(draw: Any, schema: Any, defined: dict[str, Any], depth: int) -> bytes:  # noqa: PLR0911 - one case per type
    if isinstance(schema, list):
        _define(schema, defined)
        number = draw(st.integers(0, len(schema) - 1)) if depth > 0 else 0
        return _number(number) + _encoded(draw, schema[number], defined, depth - 1)
    if isinstance(schema, str):
        if schema in defined:
            return _encoded(draw, defined[schema], defined, depth - 1)
        return _raw(schema, draw(_PLAIN_VALUES[schema]))
    _define(schema, defined)
    if schema.get("logicalType") == "decimal":  # as Java writes it, in as few bytes as possible
        number = int(draw(_LOGICAL_VALUES["decimal"]).scaleb(2))
        return _raw("bytes", number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, signed=True))
    if "logicalType" in schema:
        return written(schema, draw(_LOGICAL_VALUES[schema["logicalType"]]))[len(HEAD) :]
    match schema["type"]:
        case "array" | "map" as kind:
            count = draw(st.integers(0, 2)) if depth > 0 else 0
            keys = draw(st.lists(_NAMES, min_size=count, max_size=count, unique=True))
            part = schema["items" if kind == "array" else "values"]
            items = (
                (b"" if kind == "array" else _raw("string", key)) + _encoded(draw, part, defined, depth - 1)
                for key in keys
            )
            return (_number(count) if count else b"") + b"".join(items) + b"\0"
        case "enum":
            return _number(draw(st.integers(0, len(schema["symbols"]) - 1)))
        case "fixed":
            return bytes(draw(st.binary(min_size=schema["size"], max_size=schema["size"])))
    return b"".join(_encoded(draw, field["type"], defined, depth - 1) for field in schema["fields"])


def _define(schema: Any, defined: dict[str, Any]) -> None:
    """Add all names that a schema defines, as later ones may be used before they are passed."""
    if isinstance(schema, list):
        for each in schema:
            _define(each, defined)
    elif isinstance(schema, dict):
        if "name" in schema:
            defined[schema["name"]] = schema
        for each in (*(field["type"] for field in schema.get("fields", ())), schema.get("items"), schema.get("values")):
            _define(each, defined)


def _number(value: int) -> bytes:
    return written("long", value)[len(HEAD) :]


def _raw(schema: Any, value: Any) -> bytes:
    return written(schema, value)[len(HEAD) :]


_LOGICAL_VALUES = {name: values_ for name, (_, values_) in _LOGICAL.items()}


def evolved(draw: Any, schema: Any) -> Any:
    """A schema that a later reader may have: fields come, go and move, numbers get wider, null becomes possible."""
    if isinstance(schema, list):
        branches = [each if isinstance(later := evolved(draw, each), list) else later for each in schema]
        return draw(st.permutations(list({_kind(each): each for each in branches}.values())))
    if isinstance(schema, str):
        change = draw(st.sampled_from(("none", "none", "wider", "null")))
        if change == "wider" and schema in _WIDER:
            return draw(st.sampled_from(_WIDER[schema]))
        return ["null", schema] if change == "null" and schema != "null" else schema
    match schema["type"]:
        case "array":
            return {**schema, "items": evolved(draw, schema["items"])}
        case "map":
            return {**schema, "values": evolved(draw, schema["values"])}
        case "record":
            fields = [_renamed(draw, {**each, "type": evolved(draw, each["type"])}) for each in schema["fields"]]
            kept = [each for each in fields if draw(st.integers(0, 4))]
            kind = draw(st.sampled_from(sorted(_DEFAULTS)))
            added = [{"name": "added", "type": kind, "default": _DEFAULTS[kind]}] if draw(st.booleans()) else []
            return {**schema, "fields": draw(st.permutations([*kept, *added]))}
    return schema


def _renamed(draw: Any, field: Any) -> Any:
    return field if draw(st.integers(0, 4)) else {**field, "name": f"{field['name']}_later", "aliases": [field["name"]]}
