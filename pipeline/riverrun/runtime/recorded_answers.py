"""Records look-up responses, so that dry runs need no external service.

A file has a line of JSON for each answer: `{"node": "priced", "argument": "pear", "answer": 3}`, with `error` and a text in
place of `answer` for a look-up that failed. The argument is the value, or `[key, value]` for a function of both.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_type_hints

import msgspec

from riverrun.decoders import converter, json_decoder
from riverrun.errors import ConfigError, ProcessingError
from riverrun.records import TopicPartition, shortened
from riverrun.serde.serdes import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TextIO

    from riverrun.processor.lookups import Lookup, LookupExecutor, PendingLookup

_SHOWN = 200
_NO_ANSWER = object()

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of an input record."""
Offsets: TypeAlias = "Mapping[TopicPartition, tuple[int, str]]"


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """A recorded answer of a look-up.

    Args:
        node: The node that looks up.
        argument: The value of the record, or a list of key and value if the function takes both.
        answer: What the function returned.
        error: The failure of the last attempt in its place; None for an answer.
    """

    node: str
    argument: Any
    answer: Any = None
    error: str | None = None

    def line(self) -> str:
        """Return the line of a file, without its line break."""
        told = {"answer": self.answer} if self.error is None else {"error": self.error}
        return encode_json({"node": self.node, "argument": self.argument} | told).decode()


Answers: TypeAlias = "str | Path | Iterable[LookupAnswer]"
"""Recorded answers, or the file that has them."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    argument: Any
    answer: Any = _NO_ANSWER
    error: str | None = None


_line = json_decoder(_Line).decode


def answers_of(given: Answers) -> tuple[LookupAnswer, ...]:
    if not isinstance(given, str | Path):
        return tuple(given)
    try:
        lines = Path(given).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"The answers in {given} cannot be read: {error.strerror}") from error
    return tuple(_answer(line, f"{given}, line {n}") for n, line in enumerate(lines, 1) if line.strip())


def _answer(line: bytes, where: str) -> LookupAnswer:
    try:
        found = _line(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{where} is not an answer: {error}"
        raise ConfigError(message, hint='Write {"node": ..., "argument": ..., "answer": ...}.') from error
    if (found.answer is _NO_ANSWER) == (found.error is None):
        raise ConfigError(f"{where} needs either answer or error")
    return LookupAnswer(found.node, found.argument, None if found.error is not None else found.answer, found.error)


class AnsweredLookups:
    """A `LookupExecutor` that calls nothing: look-ups get recorded answers at once.

    Several answers to one argument are used in order, and the last one repeatedly.
    """

    def __init__(self, answers: Iterable[LookupAnswer]) -> None:
        self.finished = 0
        self._answers: dict[tuple[str, bytes], deque[LookupAnswer]] = {}
        self._used: list[tuple[Place | None, LookupAnswer, deque[LookupAnswer]]] = []
        self._missing: ConfigError | None = None
        for answer in answers:
            known = answer.node, _told(answer.argument, answer.node)
            self._answers.setdefault(known, deque()).append(answer)

    def check_nodes(self, nodes: Iterable[str]) -> None:
        """Refuse answers of nodes that look nothing up."""
        known = sorted(nodes)
        for node, _ in self._answers:
            if node not in known:
                message = f"An answer is recorded for node {node}, which looks nothing up"
                raise ConfigError(message, hint=f"Nodes that do: {', '.join(known) or 'none'}.")

    def commit(self, offsets: Offsets) -> None:
        """Use no answer again that was used for records before these offsets."""
        self._used = [used for used in self._used if not _is_before(offsets, used[0])]

    def undo(self, aside: Place) -> None:
        """Use answers again that were used since the last commit, except those for the record that is set aside."""
        while self._used:
            place, answer, known = self._used.pop()
            if place != aside:
                known.appendleft(answer)

    def check(self) -> None:
        """Raise the error about the first answer that was missing or did not fit."""
        # A processing handler may have skipped the record on which the look-up failed, but the dry run must still fail.
        if self._missing is not None:
            raise self._missing

    def start(self, flights: Iterable[PendingLookup]) -> None:
        """Finish look-ups: those of a batch have an answer each."""
        for flight in flights:
            try:
                self._finish(flight)
            except ConfigError as error:
                self._missing = self._missing or error
                flight.error = error
            flight.is_done = True
            self.finished += 1
            if flight.landed is not None:
                flight.landed(flight)

    def _finish(self, flight: PendingLookup) -> None:
        argument = _argument(flight)
        known = self._answers.get((flight.node, _told(argument, flight.node)))
        if known is None:
            message = f"No answer is recorded for node {flight.node} and the argument {_shown(argument)}"
            line = LookupAnswer(flight.node, argument, "...").line()
            raise ConfigError(message, hint=f"Record it, or add a line: {line}")
        found = known[0]
        if len(known) > 1:
            self._used.append((flight.place, known.popleft(), known))
        if found.error is not None:
            flight.error = ProcessingError(found.error)
            flight.counts.failures += 1
            return
        flight.result = _fitted(found.answer, flight)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Return at once: replayed look-ups never wait."""

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Do nothing: replayed look-ups never wait."""

    def close(self) -> None:
        """Do nothing: it holds no resources."""


class RecordingLookups:
    """A `LookupExecutor` that writes each answer to a file.

    Args:
        lookups: Runs the look-ups, and calls `landed` before a task forwards the result.
    """

    def __init__(self, lookups: LookupExecutor, path: Path) -> None:
        self._lookups = lookups
        self._lines: list[tuple[Place | None, str]] = []
        # Of input records, as they came first: an answer for one that is set aside is older than what is repeated.
        self._order: dict[Place | None, int] = {}
        self._refused: ConfigError | None = None
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"Answers cannot be recorded in {path}: {error.strerror}") from error

    @property
    def finished(self) -> int:
        """Number of look-ups that have finished so far."""
        return self._lookups.finished

    def commit(self, offsets: Offsets) -> None:
        """Write the answers for records before these offsets."""
        self._write([found for found in self._lines if _is_before(offsets, found[0])])
        self._lines = [found for found in self._lines if not _is_before(offsets, found[0])]

    def undo(self, aside: Place) -> None:
        """Forget the answers since the last commit, except those for the record that is set aside: they are asked for again."""
        self._lines = [(place, line) for place, line in self._lines if place == aside]

    def check(self) -> None:
        """Raise the error about the first answer that was not recorded, even if a handler has skipped its record."""
        if self._refused is not None:
            raise self._refused

    def start(self, flights: Sequence[PendingLookup]) -> None:
        for flight in flights:
            self._order.setdefault(flight.place, len(self._order))
            flight.landed = self._recording(flight.landed)
        self._lookups.start(flights)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until more look-ups have finished than `seen`, or the time (s) is up."""
        self._lookups.wait(seen, timeout_s)

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Cancel look-ups, and wait briefly for their cleanup."""
        self._lookups.cancel(flights)

    def close(self) -> None:
        """Complete the file. Idempotent."""
        if not self._file.closed:
            self._write(self._lines)
        self._file.close()

    def _write(self, lines: list[tuple[Place | None, str]]) -> None:
        self._file.writelines(line for _, line in sorted(lines, key=lambda found: self._order[found[0]]))

    def _recording(self, landed: Callable[[PendingLookup], None] | None) -> Callable[[PendingLookup], None]:
        def recorded(done: PendingLookup) -> None:
            self._record(done)
            if landed is not None:
                landed(done)

        return recorded

    def _record(self, flight: PendingLookup) -> None:
        if flight.is_cancelled:
            return
        try:
            self._lines.append((flight.place, f"{_recorded(flight).line()}\n"))
        except ConfigError as error:
            self._refused = self._refused or error
            flight.error = error


def _is_before(offsets: Offsets, place: Place | None) -> bool:
    return place is None or place[2] < offsets.get(TopicPartition(*place[:2]), (0, ""))[0]


def _recorded(flight: PendingLookup) -> LookupAnswer:
    argument = msgspec.json.decode(_told(_argument(flight), flight.node))
    if flight.error is not None:
        text = f"{type(flight.error).__name__}: {flight.error}"
        return LookupAnswer(flight.node, argument, error=text)
    # An iterator can be read once, and the task reads it too.
    if hasattr(flight.result, "__next__"):
        flight.result = list(flight.result)
    answer = _NO_ANSWER
    with suppress(TypeError, ValueError, RecursionError):
        answer = msgspec.json.decode(encode_json(flight.result))
    if answer is _NO_ANSWER or not _is_alike(answer, flight):
        message = f"The answer of node {flight.node} cannot be recorded: {_shown(flight.result)} does not survive JSON"
        hint = "Annotate what the function returns with a type that msgspec reads, such as a dataclass."
        raise ConfigError(message, hint=hint)
    return LookupAnswer(flight.node, argument, answer)


def _is_alike(answer: Any, flight: PendingLookup) -> bool:
    try:
        return bool(_fitted(answer, flight) == flight.result)
    except (ValueError, ConfigError):
        return False


def _argument(flight: PendingLookup) -> Any:
    return [flight.key, flight.value] if flight.lookup.takes_key else flight.value


def _told(argument: Any, node: str) -> bytes:
    try:
        return encode_json(argument)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"Node {node} looks up {_shown(argument)}, which has no JSON: {error}"
        raise ConfigError(message, hint="Answers are found by arguments as JSON.") from error


def _fitted(answer: Any, flight: PendingLookup) -> Any:
    """Return an answer as an object of the type that the function is annotated to return."""
    convert = _converter(flight.lookup)
    try:
        return answer if convert is None else convert(answer)
    except msgspec.ValidationError as error:
        message = f"The answer of node {flight.node} for {_shown(_argument(flight))} does not fit: {error}"
        raise ConfigError(message) from error


def _converter(lookup: Lookup) -> Callable[[Any], Any] | None:
    """Return the function that makes an answer of JSON; None if the function is not annotated."""
    function = lookup.function
    try:
        hints = get_type_hints(function if hasattr(function, "__code__") else type(function).__call__)
        returned = hints.get("return", Any)
        if lookup.batches is not None:
            returned = (*get_args(returned), Any)[0]
        return converter(returned) if returned is not Any else None
    except Exception:  # noqa: BLE001 - no annotation, or none that msgspec reads
        return None


def _shown(value: Any) -> str:
    return shortened(value, _SHOWN)


_conforms: type[LookupExecutor] = AnsweredLookups
_conforms_too: type[LookupExecutor] = RecordingLookups
