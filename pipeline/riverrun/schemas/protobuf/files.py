"""Files of Protobuf messages, made of schemas as registries hold them: serialized descriptors in Base64, or text."""

from __future__ import annotations

import base64
import binascii
import re
from importlib import import_module
from typing import Any

from riverrun.schemas.protobuf.text import file_of_text

DECIMAL_FILE = "confluent/type/decimal.proto"
_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
_GOOGLE = re.compile(r"google/(protobuf|type)/\w+\.proto")
_CONFLUENT = {"confluent/meta.proto": "meta_pb2", DECIMAL_FILE: "types.decimal_pb2"}


def is_built_in(name: str) -> bool:
    """Return whether every registry knows an imported file, so that it is not registered."""
    return name.startswith(_BUILT_IN)


def is_same_file(one: Any, other: Any, _registry: object = None) -> bool:
    """Return whether a registry has one id for two schemas of Protobuf, which may be text or serialized."""
    is_protobuf = one.schema_type == other.schema_type == "PROTOBUF"
    return is_protobuf and bool(file_of(one.schema_str, "file") == file_of(other.schema_str, "file"))


def file_of(text: str, name: str) -> Any:
    """Return the descriptor of a file (`FileDescriptorProto`).

    Args:
        text: The schema: a serialized descriptor in Base64, or the text of a `.proto` file.
        name: The name for the file.

    Raises:
        ValueError: If the text is no Protobuf schema.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        file: Any = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, ValueError, binascii.Error):
        file = file_of_text(text)
    file.name = name
    for number, imported in enumerate(file.dependency):
        if imported.startswith("confluent/") and imported.endswith("/decimal.proto"):
            file.dependency[number] = DECIMAL_FILE  # two names exist
    return file


def add_file(pool: Any, file: Any) -> Any:
    """Add a file to a pool, after the built-in files that it imports; the pool has the others.

    Args:
        pool: A `DescriptorPool`.
        file: A `FileDescriptorProto`.

    Returns:
        The file's descriptor in the pool.

    Raises:
        TypeError: If the file does not fit, for example because an import is missing.
    """
    for name in file.dependency:
        built_in = _built_in(name)
        if built_in is not None:
            add_file(pool, built_in)
    return pool.AddSerializedFile(file.SerializeToString())  # the file may be there already


def _built_in(name: str) -> Any:
    """Return a file that every registry knows, out of its Python module; None if there is no such file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra

    if name in _CONFLUENT:
        module = f"confluent_kafka.schema_registry.confluent.{_CONFLUENT[name]}"
    elif _GOOGLE.fullmatch(name):
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    else:
        return None
    try:
        serialized = import_module(module).DESCRIPTOR.serialized_pb
    except ModuleNotFoundError:
        return None
    file = FileDescriptorProto.FromString(serialized)
    file.name = name
    return file
