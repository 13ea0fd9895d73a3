"""Compares types with Avro schemas: how records name their class, and whether they become objects without conversion."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from riverrun.errors import ConfigError
from riverrun.schemas.avro.lines import NotGenerated
from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.reading import Made, Part
from riverrun.schemas.avro.values import Branch, Tags, branches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_KINDS: dict[str, type] = {
    "boolean": inspect.BoolType,
    "bytes": inspect.BytesType,
    "double": inspect.FloatType,
    "float": inspect.FloatType,
    "int": inspect.IntType,
    "long": inspect.IntType,
    "null": inspect.NoneType,
    "string": inspect.StrType,
}
_LOGICAL_KINDS: dict[str, type] = {
    "int-date": inspect.DateType,
    "long-timestamp-micros": inspect.DateTimeType,
    "long-timestamp-millis": inspect.DateTimeType,
}
_WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_ANY = (inspect.AnyType, inspect.CustomType, inspect.RawType)


def tags_of(type_: Any, schema: Any) -> Tags:
    """Return how records in unions of several name their branch, so that values of a type come back as they were.

    Args:
        type_: Type of the values.
        schema: Their schema, as the library parses it.

    Raises:
        ConfigError: If the type does not tell branches of a union apart.
    """
    search = _Tagging(type_, definitions(schema), {}, set())
    search.walk([inspect.type_info(type_)], schema)
    return Tags(search.keys)


class _Tagging:
    """A search for the classes of records in unions.

    Args:
        type_: The whole type.
        defined: Named schemas.
        keys: What is found.
        seen: Pairs of classes and records that have been compared.
    """

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
            return  # values are plain there
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

    def _named(self, kinds: list[Any], branch: Branch) -> Any:
        """Return the class of a branch whose values have to name it.

        Raises:
            ConfigError: If there is none.
        """
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
        message = f"{self._type} does not tell {branch.name} from the other branches of its union"
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


def struct_of(type_: Any, schema: Any) -> Made | None:
    """Return how the records in values of a schema are made, if a type takes the values without conversion.

    Args:
        type_: Type of the values.
        schema: Their schema, as the library parses it.

    Raises:
        NotGenerated: If values have to be converted or checked.
    """
    return _Fitting(definitions(schema), []).fit((inspect.type_info(type_),), schema)


class _Fitting:
    """A comparison of types with schemas."""

    def __init__(self, defined: Mapping[str, Any], open_: list[type]) -> None:
        self._defined = defined
        self._open = open_

    def fit(self, kinds: Sequence[Any], schema: Any) -> Made | None:
        """Return how records are made in a value that has one of these types."""
        kinds = [each for kind in kinds for each in (kind.types if isinstance(kind, inspect.UnionType) else (kind,))]
        schema = definition_of(schema, self._defined)
        if isinstance(schema, list):
            found = [made for branch in schema if (made := self.fit(kinds, branch)) is not None]
            if len(found) > 1:
                message = "several records are in a union"
                raise NotGenerated(message)
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

    def _struct(self, kind: inspect.StructType, schema: Any) -> Made:
        cls = kind.cls
        if kind.tag is not None or kind.array_like or kind.forbid_unknown_fields or hasattr(cls, "__post_init__"):
            message = f"{cls.__name__} has rules of its own"
            raise NotGenerated(message)
        if cls in self._open:
            message = f"{cls.__name__} contains itself"
            raise NotGenerated(message)
        self._open.append(cls)
        fields = {each["name"]: each for each in schema["fields"]}
        parts: dict[str, Part] = {}
        by_place = True
        arguments = signature(cls).parameters
        for own, in_class in zip(kind.fields, msgspec.structs.fields(cls), strict=True):
            if own.encode_name in fields:
                made = self.fit((own.type,), fields[own.encode_name]["type"])
                by_place = by_place and arguments[own.name].kind is Parameter.POSITIONAL_OR_KEYWORD
                parts[own.encode_name] = Part(None if by_place else own.name, made, in_class.type)
            elif own.required:
                message = f"the schema has no field {own.encode_name}"
                raise NotGenerated(message)
            else:
                by_place = False
        self._open.pop()
        return Made(cls, parts)


def _only(kinds: Sequence[Any], wanted: type | None) -> Any:
    """Return the type of a kind among several, if it has no constraints.

    Raises:
        NotGenerated: If there is none.
    """
    plain = [each for each in kinds if type(each) is wanted and not _is_constrained(each)]
    if len(plain) != 1:
        message = f"values would be converted to {kinds}"
        raise NotGenerated(message)
    return plain[0]


def _is_constrained(kind: Any) -> bool:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
    return any(getattr(kind, name, None) is not None for name in names)
