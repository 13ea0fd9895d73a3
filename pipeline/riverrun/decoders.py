"""Decoders of types, made by one thread at a time.

Other processes have written most of what is decoded: members of a group, owners of a topic, peers. `foreign_decoder` is for
such records. It ignores fields that it does not know, which a newer version may have added, and raises one kind of error.
"""

from __future__ import annotations

import decimal
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

import msgspec

from riverrun.locks import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONGEST_RECORD = 16 * 2**20
"""Default limit of a foreign record, bytes."""
_LONGEST_REASON = 200

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of Kafka's: an offset, a size, a time or a count."""
Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A time of a clock, ms since the epoch, up to the year 9999."""
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of partitions, replicas or steps."""
Name = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")]
"""The name of a topic, an application or a version: it can be part of a topic's name, and of a path."""
Word = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,300}\Z")]
"""An id or a digest: printable, without spaces."""
Line = Annotated[str, msgspec.Meta(max_length=10_000)]
"""A text for messages."""


class UnreadableError(ValueError):
    """A record of another process that cannot be understood; the message says why, briefly and on one line."""


# msgspec 0.22 looks up the fields of a class when the first decoder for it is made, which runs Python code. A second
# thread that makes a decoder for that class meanwhile is handed a half-made table, and the process dies of a
# segmentation fault. So all typed decoders are made here; a finished decoder may be shared by threads.
# Reentrant: annotations may import a module that makes decoders.
_making = ProcessLock(threading.RLock)


@overload
def json_decoder(type_: type[T], **options: Any) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(type_: Any, **options: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(type_: Any, **options: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON.

    >>> json_decoder(tuple[int, str]).decode(b'[1, "a"]')
    (1, 'a')
    """
    with _making.held():
        return msgspec.json.Decoder(type_, **options)


def _exact(text: str) -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(f"{text} has an exponent that is too long") from None


exact_json: Callable[[str | bytes], Any] = json_decoder(Any, float_hook=_exact).decode
"""Decodes JSON with all digits: numbers with a point or an exponent become decimals."""


def double_or_exact(text: str) -> float | decimal.Decimal:
    """Return a number as a double, or as a decimal if doubles do not have it.

    >>> double_or_exact("1.10"), double_or_exact("1e400")
    (1.1, Decimal('1E+400'))
    """
    double = float(text)
    shown = repr(double)
    return double if shown == text or decimal.Decimal(shown) == (exact := _exact(text)) else exact


plain_json: Callable[[str | bytes], Any] = json_decoder(Any, float_hook=double_or_exact).decode
"""Decodes JSON with all digits: numbers that doubles do not have become decimals."""


@overload
def msgpack_decoder(type_: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of MessagePack, for any type that msgspec decodes.

    >>> msgpack_decoder(list[int]).decode(bytes([0x92, 1, 2]))
    [1, 2]
    """
    with _making.held():
        return msgspec.msgpack.Decoder(type_)


@overload
def foreign_decoder(type_: type[T], longest: int = LONGEST_RECORD) -> Callable[[bytes], T]: ...
@overload
def foreign_decoder(type_: Any, longest: int = LONGEST_RECORD) -> Callable[[bytes], Any]: ...
def foreign_decoder(type_: Any, longest: int = LONGEST_RECORD) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON of another process, and raises `UnreadableError` for everything else.

    Limits of names and numbers belong into the annotations of the type.

    >>> foreign_decoder(tuple[Name, Natural])(b'["orders", 7]')
    ('orders', 7)
    >>> foreign_decoder(tuple[Name, Natural])(b'["orders", -7]')
    Traceback (most recent call last):
    riverrun.decoders.UnreadableError: Expected `int` >= 0 - at `$[1]`
    """
    decode = json_decoder(type_).decode

    def decoded(data: bytes) -> Any:
        if len(data) > longest:
            raise UnreadableError(f"it has {len(data)} bytes, and at most {longest} are read")
        try:
            return decode(data)
        # msgspec's errors are ValueErrors; deeply nested JSON of others exceeds the limit of recursion.
        except (ValueError, RecursionError) as error:
            raise UnreadableError(why_unreadable(error)) from error

    return decoded


def why_unreadable(error: BaseException) -> str:
    """Return the reason of a decoder in one short line; the decoded text may be part of it."""
    reason = "".join(each if each.isprintable() else "?" for each in str(error)[: _LONGEST_REASON + 1])
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def converter(type_: type[T]) -> Callable[[Any], T]:
    """Return the function that converts plain values to a type, as `msgspec.convert` does.

    >>> converter(tuple[int, ...])([1, 2])
    (1, 2)
    """
    # `msgspec.convert` looks up fields as decoders do, without a lock: afterwards it finds them looked up.
    json_decoder(type_)
    return partial(msgspec.convert, type=type_)
