"""Reads Protobuf schemas as registries hold them: the text of a `.proto` file, or a serialized descriptor in Base64.

Only what decides the fields of messages is kept: packages, imports, messages, enums, and the options of Connect.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

from pipeline.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.sql.columns.written_schemas import ReferencedSchema, WrittenSchema

_WORDS = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/  # nothing
    | (?P<word> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [\w.+-]+ | [^\s\w] )""",
    re.VERBOSE | re.DOTALL,
)
_SCALARS = frozenset(
    "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes".split()  # noqa: SIM905 - words
)
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_META = "(confluent.field_meta)"


def message_of(schema: WrittenSchema, full_name: str | None) -> Any:
    """Return the descriptor of a schema's message: the named one, or the only one.

    Raises:
        SchemaError: If the schema cannot be read, or has no such message, or several and none is named.
    """
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - of an extra

    pool = DescriptorPool()
    try:
        _add_imported(pool)
        file = _added(pool, "schema.proto", schema)
    except (TypeError, ValueError, LookupError) as error:
        message = f"The Protobuf schema cannot be read: {error}"
        raise SchemaError(message) from error
    package = f"{file.package}." if file.package else ""
    names = [f"{package}{name}" for name in file.message_types_by_name]
    if full_name is None and len(names) == 1:
        full_name = names[0]
    if full_name is None:
        message = f"The schema has several messages: {', '.join(names)}"
        raise SchemaError(message, hint="Name one of them, with VALUE_SCHEMA_FULL_NAME or KEY_SCHEMA_FULL_NAME.")
    try:
        return pool.FindMessageTypeByName(full_name)
    except KeyError:
        message = f"The schema has no message {full_name}"
        raise SchemaError(message, hint=f"There are {', '.join(names)}.") from None


def _add_imported(pool: Any) -> None:
    """Add the files that every registry knows."""
    from confluent_kafka.schema_registry.confluent import meta_pb2  # noqa: PLC0415 - of an extra
    from confluent_kafka.schema_registry.confluent.types import decimal_pb2  # noqa: PLC0415
    from google.protobuf import (  # noqa: PLC0415
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.type import date_pb2, timeofday_pb2  # noqa: PLC0415

    known = (any_pb2, descriptor_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
    for each in (*known, date_pb2, timeofday_pb2, meta_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    decimals = descriptor_pb2.FileDescriptorProto.FromString(decimal_pb2.DESCRIPTOR.serialized_pb)
    decimals.name = "confluent/type/decimal.proto"
    pool.AddSerializedFile(decimals.SerializeToString())


def _added(pool: Any, name: str, schema: WrittenSchema | ReferencedSchema) -> Any:
    """Add the file of a schema, after those that it imports."""
    for each in schema.references:
        _added(pool, each.name, each)
    return pool.AddSerializedFile(file_of(schema.text, name).SerializeToString())


def file_of(text: str, name: str) -> Any:
    """Return the descriptor of a file (`FileDescriptorProto`).

    Raises:
        ValueError: If the text is no Protobuf schema.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    file = FileDescriptorProto()
    try:
        file.ParseFromString(base64.standard_b64decode(text.encode("ascii")))
    except (DecodeError, UnicodeEncodeError, binascii.Error):
        file = FileDescriptorProto()
        _Reader(text).fill(file)
    file.name = name
    for number, imported in enumerate(file.dependency):
        if imported.startswith("confluent/") and imported.endswith("/decimal.proto"):
            file.dependency[number] = "confluent/type/decimal.proto"  # two names exist
    return file


def serialized(schema: Any) -> Any:
    """Return a schema (`Schema`) with a serialized descriptor, for registries that hand out texts only."""
    from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - of an extra

    data = file_of(schema.schema_str, "schema.proto").SerializeToString()
    return Schema(base64.standard_b64encode(data).decode(), "PROTOBUF", schema.references)


class _Reader:
    """Reads the words of a file in order."""

    def __init__(self, text: str) -> None:
        self._words = list(_split(text))
        self._at = 0

    def fill(self, file: Any) -> None:
        """Add all that the text declares to a file."""
        while self._at < len(self._words):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                file.syntax = self._next()[1:-1]
                self._expect(";")
            elif word == "package":
                file.package = self._next()
                self._expect(";")
            elif word == "import":
                self._import(file)
            elif word == "message":
                self._message(file.message_type.add(name=self._next()), is_proto3=file.syntax == "proto3")
            elif word == "enum":
                self._enum(file.enum_type.add(name=self._next()))
            elif word != ";":
                self._skip()
        if file.syntax == "proto2":
            file.ClearField("syntax")

    def _import(self, file: Any) -> None:
        word = self._next()
        if word in {"public", "weak"}:
            word = self._next()
        file.dependency.append(word[1:-1])
        self._expect(";")

    def _message(self, message: Any, *, is_proto3: bool) -> None:
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "message":
                self._message(message.nested_type.add(name=self._next()), is_proto3=is_proto3)
            elif word == "enum":
                self._enum(message.enum_type.add(name=self._next()))
            elif word == "oneof":
                self._one_of(message, self._next())
            elif word in {"option", "reserved", "extensions", "extend"}:
                self._skip()
            elif word != ";":
                self._field(message, word, is_proto3=is_proto3)

    def _one_of(self, message: Any, name: str) -> None:
        number = len(message.oneof_decl)
        message.oneof_decl.add(name=name)
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._skip()
            elif word != ";":
                self._field(message, word, is_proto3=False).oneof_index = number

    def _field(self, message: Any, word: str, *, is_proto3: bool) -> Any:
        label = _LABELS.get(word)
        type_ = word if label is None else self._next()
        if type_ == "group":
            raise ValueError("groups are not supported")  # noqa: EM101, TRY003 - told by the caller
        if type_ == "map" and self._peek() == "<":
            return self._map(message)
        name = self._next()
        self._expect("=")
        field = message.field.add(name=name, number=int(self._next(), 0), label=label or 1)
        _set_type(field, type_)
        if label == 1 and is_proto3:
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
        self._options(field)
        return field

    def _map(self, message: Any) -> Any:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        self._expect("=")
        entry = message.nested_type.add(name="".join(p[:1].upper() + p[1:] for p in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=1), key)
        _set_type(entry.field.add(name="value", number=2, label=1), value)
        field = message.field.add(name=name, number=int(self._next(), 0), label=3, type=11, type_name=entry.name)
        self._options(field)
        return field

    def _enum(self, enum: Any) -> None:
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                if self._peek() == "allow_alias":
                    enum.options.allow_alias = True
                self._skip()
            elif word == "reserved":
                self._skip()
            elif word != ";":
                self._expect("=")
                enum.value.add(name=word, number=int(self._next(), 0))
                self._options(None)

    def _options(self, field: Any) -> None:
        """Take the options in brackets, and the semicolon behind them; keep those that Connect reads."""
        words = []
        while (word := self._next()) != ";":
            words.append(word)
        text = " ".join(words).replace("( ", "(").replace(" )", ")")
        if field is None or _META not in text:
            return
        from confluent_kafka.schema_registry.confluent import meta_pb2  # noqa: PLC0415 - of an extra
        from google.protobuf import text_format  # noqa: PLC0415

        found = re.search(re.escape(_META) + r" = \{(.*)\}", text)
        if found is not None:
            text_format.Parse(found[1], field.options.Extensions[meta_pb2.field_meta], allow_unknown_field=True)

    def _skip(self) -> None:
        """Leave out a statement: up to its semicolon, or all in its braces."""
        depth = 0
        while True:
            word = self._next()
            depth += (word == "{") - (word == "}")
            if depth == 0 and word in {";", "}"}:
                return

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        if self._at >= len(self._words):
            raise ValueError("it ends too early")  # noqa: EM101, TRY003 - told by the caller
        self._at += 1
        return self._words[self._at - 1]

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            message = f"{found!r} stands where {word!r} is expected"
            raise ValueError(message)


def _split(text: str) -> Iterator[str]:
    return (found["word"] for found in _WORDS.finditer(text) if found["word"])


def _set_type(field: Any, type_: str) -> None:
    if type_ in _SCALARS:
        field.type = getattr(field, f"TYPE_{type_.upper()}")
    else:
        field.type_name = type_
