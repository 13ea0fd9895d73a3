"""Finds the node that runs in a frame of Python, and raises failures with their nodes and the lines of the user's code."""

from __future__ import annotations

from opcode import opmap
from traceback import walk_tb
from types import CodeType
from typing import TYPE_CHECKING, NoReturn

from riverrun.config.code import users_line
from riverrun.errors import RecordError, RefusedRecordError, StreamsError, as_exception
from riverrun.generated import owner_before, owner_of
from riverrun.runtime.compile import sink, writer
from riverrun.runtime.failures import Failures, located, processing_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

_PUNCTUATE = Failures.punctuate.__code__
# Of operators, of inputs' queues, and of what chooses topics and partitions.
_METHODS = frozenset({"process", "advance_stream_time", "finish", "head", "pop", "__call__"})
# The functions of sinks that call serdes.
_SINKS = frozenset(
    code
    for maker in (sink, writer)
    for code in maker.__code__.co_consts
    if isinstance(code, CodeType) and "node" in code.co_freevars
)
_RESUME = opmap["RESUME"]


def node_at(frame: FrameType | None, node_of: Callable[[object], str]) -> str:
    """Return the innermost node whose code has run, or has called what has run; empty if there is none."""
    # Python handles a signal at the next call, so a function that has just been called has not taken the time. What ran
    # before the call has: the caller, or in a generated function the node of the call before.
    if frame is not None and _has_just_begun(frame):
        frame = frame.f_back
        if frame is not None and (node := owner_before(frame.f_code.co_filename, frame.f_lineno)):
            return node
    while frame is not None:
        node = _node_in(frame, frame.f_lineno, node_of)
        if node:
            return node
        frame = frame.f_back
    return ""


def fail_at(
    error: BaseException,
    coordinates: Mapping[str, str | int],
    what: str = "Processing",
    *,
    node_of: Callable[[object], str],
    lines: Mapping[str, str],
    instead: str = "",
) -> NoReturn:
    """Raise a caught failure with the place where it happened; errors of user code become errors of this project.

    `node_of` returns the node whose operator or queue an object is; `lines` are those of the user's code that made nodes.
    `instead` is the hint in place of how to skip the record.
    """
    if isinstance(error, RecordError):
        # A source has said all about a record that it cannot read.
        if "offset" in error.coordinates:
            raise error
        raise _pointed(located(error, coordinates, instead), error, node_of, lines) from error
    if isinstance(error, RefusedRecordError):
        where = ", ".join(f"{name} {value}" for name, value in coordinates.items())
        raise RefusedRecordError(f"{error.message} ({where})", hint=error.hint) from error
    # It concerns no record, so no place is added.
    if isinstance(error, StreamsError):
        raise error
    failure = as_exception(error)
    found = located(processing_error(what, failure), coordinates, instead)
    raise _pointed(found, failure, node_of, lines) from failure


def _pointed(
    found: RecordError, error: BaseException, node_of: Callable[[object], str], lines: Mapping[str, str]
) -> RecordError:
    """Return what is raised for an error: with the node that raised it, and a hint at the line of the user's code."""
    # The innermost cause is the user's own error, which nodes and handlers put into others.
    raised = causes(error)[::-1]
    node = next(filter(None, (_raising_node(each, node_of) for each in raised)), "")
    told = found.at(node=node) if node else found
    where = next(filter(None, map(users_line, raised)), None)
    if where is None and node in lines:
        where = f"{node} is made at {lines[node]}."
    if where is not None and where not in (told.hint or ""):
        told.hint = "\n".join(filter(None, (where, told.hint)))
    return told


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, its cause, the cause of that and so on."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found


def _raising_node(error: BaseException, node_of: Callable[[object], str]) -> str:
    """Return the innermost node that an error has passed; empty if there is none."""
    frames = reversed(list(walk_tb(error.__traceback__)))
    return next(filter(None, (_node_in(frame, line, node_of) for frame, line in frames)), "")


def _node_in(frame: FrameType, line: int | None, node_of: Callable[[object], str]) -> str:
    """Return the node whose code a frame runs at a line; empty if it is none's."""
    code = frame.f_code
    if node := owner_of(code.co_filename, line):
        return node
    if code is _PUNCTUATE:
        return str(frame.f_locals["node"])
    if code in _SINKS:
        return str(frame.f_locals["node"].name)
    return node_of(frame.f_locals.get("self")) if code.co_name in _METHODS else ""


def _has_just_begun(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    return 0 <= at < len(code) - 1 and code[at] == _RESUME and code[at + 1] == 0
