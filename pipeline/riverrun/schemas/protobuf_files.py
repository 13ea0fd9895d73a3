"""Files of Protobuf messages, made of schemas as registries hold them: serialized descriptors in Base64, or text.

Of text, only what decides the fields of messages is kept: packages, imports, messages, enums, and the options of Connect.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Neither google.protobuf nor the registry's client reads text; protoc would be a dependency, and files for each schema.
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
# Protobuf's parsers read no deeper descriptors.
_DEEPEST = 100
_LEFT_OUT = frozenset({"option", "service", "extend"})


def file_of_text(text: str) -> Any:
    """Return the descriptor of a file (`FileDescriptorProto`), without its name."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra

    file = FileDescriptorProto()
    _Reader(text).fill(file)
    return file


class _Reader:
    """Reads the words of a file in order."""

    def __init__(self, text: str) -> None:
        self._words = list(_split(text))
        self._at = 0
        self._depth = 0

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
            elif word in _LEFT_OUT:
                self._skip()
            elif word != ";":
                raise ValueError(f"{word!r} stands where a declaration is expected")
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
        self._depth += 1
        if self._depth > _DEEPEST:
            problem = f"messages are nested more than {_DEEPEST} levels deep"
            raise ValueError(problem)
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
        self._depth -= 1
        # As protoc does: these choices of one field come after all others.
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

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
            raise ValueError("groups are not supported")
        if type_ == "map" and self._peek() == "<":
            return self._map(message)
        name = self._next()
        self._expect("=")
        field = message.field.add(name=name, number=int(self._next(), 0), label=label or 1)
        _set_type(field, type_)
        field.proto3_optional = label == 1 and is_proto3
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
        """Take the options in brackets, and the semicolon after them; keep those that Connect reads."""
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
        """Skip a statement: up to its semicolon, or all in its braces."""
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
            raise ValueError("it ends too early")
        self._at += 1
        return self._words[self._at - 1]

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            raise ValueError(f"{found!r} stands where {word!r} is expected")


def _split(text: str) -> Iterator[str]:
    return (found["word"] for found in _WORDS.finditer(text) if found["word"])


def _set_type(field: Any, type_: str) -> None:
    if type_ in _SCALARS:
        field.type = getattr(field, f"TYPE_{type_.upper()}")
    else:
        field.type_name = type_


DECIMAL_FILE = "confluent/type/decimal.proto"
_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
_GOOGLE = re.compile(r"google/(protobuf|type)/\w+\.proto")
_CONFLUENT = {
    "confluent/meta.proto": ("meta_pb2",),
    DECIMAL_FILE: ("type.decimal_pb2", "types.decimal_pb2"),  # from confluent-kafka 2.16 on, and before
}


def is_built_in(name: str) -> bool:
    """Return whether every registry knows an imported file, so that it is not registered."""
    return name.startswith(_BUILT_IN)


def is_same_file(one: Any, other: Any, _registry: object = None) -> bool:
    """Return whether a registry has one id for two schemas of Protobuf, which may be text or serialized."""
    is_protobuf = one.schema_type == other.schema_type == "PROTOBUF"
    return is_protobuf and bool(file_of(one.schema_str, "file") == file_of(other.schema_str, "file"))


def file_of(text: str, name: str) -> Any:
    """Return the descriptor of a file (`FileDescriptorProto`) from Base64, or from the text of a `.proto` file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        file: Any = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, ValueError, binascii.Error):
        file = file_of_text(text)
    file.name = name
    for number, imported in enumerate(file.dependency):
        if imported.startswith("confluent/") and imported.endswith("/decimal.proto"):
            # Two names exist, and a pool takes a message only once.
            file.dependency[number] = DECIMAL_FILE
    return file


def add_file(pool: Any, file: Any) -> Any:
    """Add a file to a pool, after the built-in files that it imports; the pool has the others."""
    for name in file.dependency:
        built_in = _built_in(name)
        if built_in is not None:
            add_file(pool, built_in)
    # The file may be there already, which is no error.
    return pool.AddSerializedFile(file.SerializeToString())


def _built_in(name: str) -> Any:
    """Return a file that every registry knows, out of its Python module; None if there is no such file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra

    if name in _CONFLUENT:
        modules = [f"confluent_kafka.schema_registry.confluent.{each}" for each in _CONFLUENT[name]]
    elif _GOOGLE.fullmatch(name):
        modules = [name.removesuffix(".proto").replace("/", ".") + "_pb2"]
    else:
        return None
    for module in modules:
        with suppress(ModuleNotFoundError):
            file = FileDescriptorProto.FromString(import_module(module).DESCRIPTOR.serialized_pb)
            file.name = name
            return file
    return None
