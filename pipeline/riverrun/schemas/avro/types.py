"""Types of Python and Avro's schemas: converts one to the other, and finds how values of a schema become objects of a type."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Union, get_origin, is_typeddict

import msgspec
from msgspec import inspect

from riverrun.errors import ConfigError
from riverrun.generated import NotGenerated
from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.reading import MadeRecord, RecordPart
from riverrun.schemas.avro.values import Tags, UnionBranch, branches_of, class_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PLAIN: dict[type, Any] = {
    inspect.BoolType: "boolean",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.FloatType: "double",
    inspect.IntType: "long",
    inspect.NoneType: "null",
    inspect.StrType: "string",
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
}
_KINDS: dict[str, type] = {
    "float": inspect.FloatType,
    "int": inspect.IntType,
    **{kind: each for each, kind in _PLAIN.items() if isinstance(kind, str)},
}
_LOGICAL_KINDS: dict[str, type] = {
    "int-date": inspect.DateType,
    "long-timestamp-micros": inspect.DateTimeType,
    "long-timestamp-millis": inspect.DateTimeType,
}
_WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_ANY = (inspect.AnyType, inspect.CustomType, inspect.RawType)


def tags_of(type_: Any, schema: Any) -> Tags:
    """Return how records in unions of several name their branch, so that values of a type survive a round trip."""
    search = _Tagging(type_, definitions(schema), {}, set())
    search.walk([inspect.type_info(type_)], schema)
    return Tags(search.keys)


class _Tagging:
    """A search for the classes of records in unions."""

    def __init__(
        self, type_: Any, defined: Mapping[str, Any], keys: dict[str, tuple[str, Any]], seen: set[Any]
    ) -> None:
        self._type = type_
        self._defined = defined
        self.keys = keys
        self._seen = seen

    def walk(self, kinds: Sequence[Any], schema: Any) -> None:
        """Compare the values of a schema with the types that they have."""
        kinds = list(_single(kinds))
        if any(isinstance(kind, _ANY) for kind in kinds):
            # Values are plain there.
            return
        schema = definition_of(schema, self._defined)
        if isinstance(schema, list):
            for branch in branches_of(schema, self._defined):
                found = [self._named(kinds, branch)] if branch.is_tagged else kinds
                self.walk(found, branch.schema)
            return
        kind = kind_of(schema)
        if kind == "record":
            for each in kinds:
                self._walk_record(each, schema)
        elif kind == "array":
            items = [each.item_type for each in kinds if isinstance(each, inspect.CollectionType)]
            self.walk(items, schema["items"])
        elif kind == "map":
            values = [each.value_type for each in kinds if isinstance(each, inspect.DictType)]
            self.walk(values, schema["values"])

    def _walk_record(self, kind: Any, schema: Any) -> None:
        pair = getattr(kind, "cls", None), schema["name"]
        if pair in self._seen and pair[0] is not None:
            return
        self._seen.add(pair)
        types = {each.encode_name: each.type for each in kind.fields} if isinstance(kind, _WITH_FIELDS) else {}
        for each in schema["fields"]:
            if isinstance(kind, inspect.DictType):
                self.walk([kind.value_type], each["type"])
            elif each["name"] in types:
                self.walk([types[each["name"]]], each["type"])

    def _named(self, kinds: list[Any], branch: UnionBranch) -> Any:
        """Return the class of a branch whose values have to name it."""
        if branch.is_record:
            short = branch.name.rpartition(".")[2]
            structs = [each for each in kinds if isinstance(each, inspect.StructType) and each.tag is not None]
            names = ({each.tag: each for each in structs}, {each.cls.__name__: each for each in structs})
            for each in (names[0].get(branch.name), names[0].get(short), names[1].get(short)):
                if each is not None and each.tag_field is not None:
                    if self.keys.setdefault(branch.name, (each.tag_field, each.tag)) == (each.tag_field, each.tag):
                        return each
                    break
            for each in kinds:
                if isinstance(each, inspect.DictType):
                    return each
        message = f"{self._type} does not distinguish {branch.name} from the other branches of its union"
        hint = "Give each record of the union a msgspec.Struct with its name and tag=True, or read plain values: Avro(schema=)."
        raise ConfigError(message, hint=hint)


def _single(kinds: Iterable[Any]) -> Iterable[Any]:
    """Return the types of which unions and annotated types consist."""
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from _single(kind.types)
        elif isinstance(kind, inspect.Metadata):
            yield from _single([kind.type])
        else:
            yield kind


def struct_of(type_: Any, schema: Any) -> MadeRecord | None:
    """Return how the records in values of a schema are made; `NotGenerated` if values have to be converted or checked."""
    return _Fitting(definitions(schema), []).fit((inspect.type_info(type_),), schema)


class _Fitting:
    """A comparison of types with schemas."""

    def __init__(self, defined: Mapping[str, Any], open_: list[type]) -> None:
        self._defined = defined
        self._open = open_

    def fit(self, kinds: Sequence[Any], schema: Any) -> MadeRecord | None:
        """Return how records are made in a value that has one of these types."""
        kinds = [each for kind in kinds for each in (kind.types if isinstance(kind, inspect.UnionType) else (kind,))]
        schema = definition_of(schema, self._defined)
        if isinstance(schema, list):
            found = [made for branch in schema if (made := self.fit(kinds, branch)) is not None]
            if len(found) > 1:
                raise NotGenerated("several records are in a union")
            return found[0] if found else None
        kind = kind_of(schema)
        if kind == "record":
            return self._struct(_only(kinds, inspect.StructType), schema)
        if kind == "array":
            return self.fit((_only(kinds, inspect.ListType).item_type,), schema["items"])
        if kind == "map":
            found_kind = _only(kinds, inspect.DictType)
            _only((found_kind.key_type,), inspect.StrType)
            return self.fit((found_kind.value_type,), schema["values"])
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        _only(kinds, _KINDS.get(kind) if logical is None else _LOGICAL_KINDS.get(f"{kind}-{logical}"))
        return None

    def _struct(self, kind: inspect.StructType, schema: Any) -> MadeRecord:
        cls = kind.cls
        if kind.tag is not None or kind.array_like or kind.forbid_unknown_fields or hasattr(cls, "__post_init__"):
            raise NotGenerated(f"{cls.__name__} has custom rules")
        if cls in self._open:
            raise NotGenerated(f"{cls.__name__} contains itself")
        self._open.append(cls)
        fields = {each["name"]: each for each in schema["fields"]}
        parts: dict[str, RecordPart] = {}
        by_place = True
        arguments = signature(cls).parameters
        for own, in_class in zip(kind.fields, msgspec.structs.fields(cls), strict=True):
            if own.encode_name in fields:
                made = self.fit((own.type,), fields[own.encode_name]["type"])
                by_place = by_place and arguments[own.name].kind is Parameter.POSITIONAL_OR_KEYWORD
                parts[own.encode_name] = RecordPart(None if by_place else own.name, made, in_class.type)
            elif own.required:
                raise NotGenerated(f"the schema has no field {own.encode_name}")
            else:
                by_place = False
        self._open.pop()
        return MadeRecord(cls, parts)


def _only(kinds: Sequence[Any], wanted: type | None) -> Any:
    """Return the type of a kind among several, if it has no constraints."""
    plain = [each for each in kinds if type(each) is wanted and not _is_constrained(each)]
    if len(plain) != 1:
        raise NotGenerated(f"values would be converted to {kinds}")
    return plain[0]


def _is_constrained(kind: Any) -> bool:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
    return any(getattr(kind, name, None) is not None for name in names)


# Numbers of fewer than 64 bits, where they are the whole value.
_TOP = {"int": Annotated[int, 32], "float": Annotated[float, 32]}
# Called with types that are known at run time only, which type checkers do not expect.
_typed_dict: Any = TypedDict
_HINT = "Pass a schema: schema=."


def schema_of(type_: Any) -> Any:
    """Return the Avro schema of a type: fields in their order, with defaults where Avro can express them.

    >>> schema_of(list[int | None])
    {'type': 'array', 'items': ['long', 'null']}
    """
    try:
        found = inspect.type_info(type_)
    except TypeError as error:
        raise ConfigError(f"{type_!r} has no Avro schema: {error}", hint=_HINT) from error
    return _avro(found, {})


def type_of(schema: Any) -> Any:
    """Return the Python type of a schema's values; `Any` where it cannot be expressed."""
    if isinstance(schema, str) and schema in _TOP:
        return _TOP[schema]
    return _python(schema, {})


def _avro(found: Any, named: dict[str, Any]) -> Any:
    if isinstance(found, inspect.Metadata):
        return _avro(found.type, named)
    if isinstance(found, inspect.UnionType):
        return [_avro(each, named) for each in found.types]
    if isinstance(found, inspect.CollectionType):
        return {"type": "array", "items": _avro(found.item_type, named)}
    if isinstance(found, inspect.DictType) and isinstance(found.key_type, inspect.StrType):
        return {"type": "map", "values": _avro(found.value_type, named)}
    if isinstance(found, inspect.EnumType | inspect.LiteralType):
        return _of_choices(found, named)
    if isinstance(found, _WITH_FIELDS):
        return _record(found, named)
    if type(found) not in _PLAIN:
        raise ConfigError(f"Avro has no type for {found!r}", hint=_HINT)
    return _PLAIN[type(found)]


def _of_choices(found: Any, named: dict[str, Any]) -> Any:
    """Return an Avro enum for text choices with a name that are legal symbols; otherwise their type."""
    is_enum = isinstance(found, inspect.EnumType)
    values = [member.value for member in found.cls] if is_enum else list(found.values)
    if all(isinstance(value, int) for value in values):
        return "long"
    if not all(isinstance(value, str) for value in values):
        raise ConfigError(f"Avro has no type for {found!r}", hint=_HINT)
    if not is_enum or not all(value.isidentifier() and value.isascii() for value in values):
        return "string"
    name = found.cls.__name__
    if name in named:
        return _again(found.cls, named[name])
    named[name] = found.cls
    return {"type": "enum", "name": name, "symbols": values}


def _again(cls: type, named: type) -> str:
    if cls is not named:
        raise ConfigError(f"{cls!r} and {named!r} would have one name in the Avro schema", hint=_HINT)
    return cls.__name__


def _record(found: Any, named: dict[str, Any]) -> Any:
    name = found.cls.__name__
    if name in named:
        return _again(found.cls, named[name])
    named[name] = found.cls
    return {"type": "record", "name": name, "fields": [_field(field, named) for field in found.fields]}


def _field(field: Any, named: dict[str, Any]) -> dict[str, Any]:
    kind = _avro(field.type, named)
    default = field.default
    if field.default_factory in (list, dict):
        default = field.default_factory()
    if not field.required and default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        # An optional key of a TypedDict.
        default = None
        kind = ["null", kind] if not isinstance(kind, list) else ["null", *(each for each in kind if each != "null")]
    if default is None or not isinstance(default, bool | int | float | str | list | dict):
        # No default, or one that JSON cannot express.
        if default is not None:
            return {"name": field.encode_name, "type": kind}
        kind = ["null", *(each for each in kind if each != "null")] if isinstance(kind, list) else kind
    # A union's default must have its first type.
    elif isinstance(kind, list):
        kind = [*(each for each in kind if each != "null"), "null"] if "null" in kind else kind
    return {"name": field.encode_name, "type": kind, "default": default}


def _python(schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _union([_python(each, named) for each in schema])
    if isinstance(schema, str):
        return named[schema] if schema in named else _class(schema)
    kind = schema["type"]
    if kind == "array":
        return list[_python(schema["items"], named)]  # type: ignore[misc]
    if kind == "map":
        return dict[str, _python(schema["values"], named)]  # type: ignore[misc]
    if kind != "record":
        made = _python(kind, named) if isinstance(kind, dict | list) else _class(schema)
        named |= {schema["name"]: made} if "name" in schema else {}
        return made
    fields = {field["name"]: _python(field["type"], named) for field in schema["fields"]}
    named[schema["name"]] = _typed_dict(schema["name"].rpartition(".")[2], fields)
    return named[schema["name"]]


def _class(schema: Any) -> Any:
    found = class_of(schema)
    return {object: Any, type(None): None}.get(found, found)


def _union(types: list[Any]) -> Any:
    """Return the union of types; `Any` if values have to name their branch, since two types have one class."""
    classes = [get_origin(each) or (dict if is_typeddict(each) else each) for each in types]
    found: Any = Union[tuple(types)]  # noqa: UP007 - made of values
    try:
        inspect.type_info(found)
    except TypeError:
        return Any
    return found if len(set(classes)) == len(classes) else Any
