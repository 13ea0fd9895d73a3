"""Handlers as users write them, to be named in settings as `tests.handlers:...`. Their arguments are in `asked`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from riverrun import Response, dead_letter_queue_record

if TYPE_CHECKING:
    from riverrun import ErrorHandlerContext

asked: list[tuple[ErrorHandlerContext, Any, Exception]] = []


def skip(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
    asked.append((context, record, exception))
    return Response.resume()


def stop(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
    asked.append((context, record, exception))
    return Response.fail()


def retry(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
    asked.append((context, record, exception))
    return Response.retry()


def set_aside(_context: ErrorHandlerContext, _record: Any, _exception: Exception) -> Response:
    return Response.set_aside()


def of_two(_context: ErrorHandlerContext, _record: Any) -> Response:
    return Response.resume()


class NeedsATopic:
    """Cannot be created without an argument."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(self, _context: ErrorHandlerContext, _record: Any, _exception: Exception) -> Response:
        return Response.resume()


class SkipAndKeep:
    """A class is instantiated."""

    def __call__(self, context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
        asked.append((context, record, exception))
        return Response.resume(dead_letter_queue_records=[dead_letter_queue_record("kept", context, exception)])


def broken(_context: ErrorHandlerContext, _record: Any, _exception: Exception) -> Response:
    message = "handler"
    raise RuntimeError(message)


def silent(context: ErrorHandlerContext, record: Any, exception: Exception) -> None:
    asked.append((context, record, exception))


def one_later(record: Any, _partition_time: int) -> int:
    """A timestamp extractor."""
    return int(record.timestamp) + 1


not_a_handler = 3


def exiting(_context: ErrorHandlerContext, _record: Any, _exception: Exception) -> Response:
    sys.exit(1)
