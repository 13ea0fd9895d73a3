"""Decoders of types, made by one thread at a time.

msgspec 0.22 looks up the fields of a class when the first decoder for it is made, which runs Python code. A second thread that
makes a decoder for that class meanwhile is handed a half-made table, and the process dies of a segmentation fault. Modules
therefore make all typed decoders here; a finished decoder may be shared by threads.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_making = threading.RLock()
"""Held while a decoder is made. Reentrant: annotations may import a module that makes decoders."""


@overload
def json_decoder(type_: type[T], **options: Any) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(type_: Any, **options: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(type_: Any, **options: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON.

    Args:
        type_: Type of the values: any that msgspec decodes.
        options: Further arguments of `msgspec.json.Decoder`.

    >>> json_decoder(tuple[int, str]).decode(b'[1, "a"]')
    (1, 'a')
    """
    with _making:
        return msgspec.json.Decoder(type_, **options)


@overload
def msgpack_decoder(type_: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of MessagePack, for any type that msgspec decodes.

    >>> msgpack_decoder(list[int]).decode(bytes([0x92, 1, 2]))
    [1, 2]
    """
    with _making:
        return msgspec.msgpack.Decoder(type_)


def converter(type_: type[T]) -> Callable[[Any], T]:
    """Return the function that converts plain values to a type, as `msgspec.convert` does.

    >>> converter(tuple[int, ...])([1, 2])
    (1, 2)
    """
    json_decoder(type_)  # looks up the fields of all classes in it
    return partial(msgspec.convert, type=type_)
