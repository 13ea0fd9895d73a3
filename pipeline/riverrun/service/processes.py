"""Processes that plan and compute the queries of an SQL application, each of which can be ended.

A query is text of others, and reads records of others. Python cannot end a thread that computes. One that never lets go of the
interpreter stops all others, also those that keep the instance in its group. So neither the text nor a record is evaluated in
the process of the instance. Others do so; one that takes too much time or memory is ended, and another one is started.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from riverrun.config.checks import read_text
from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import StreamsError
from riverrun.kafka.admin import Admin
from riverrun.runtime.serde_places import with_places
from riverrun.service.rendering import from_base64
from riverrun.state.api import StoreKind
from riverrun.windows import Window
from riverrun.worker.spawning import start_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from riverrun.config import AppConfig, StreamsConfig
    from riverrun.hosting.application import Application
    from riverrun.sql.answers import PullQuery
    from riverrun.sql.catalog import Catalog
    from riverrun.sql.commands import Select
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.spawning import ChildProcess

log = logging.getLogger(__name__)

_WAITING = 4
"""Number of queries per process that may run or wait; they keep threads of the HTTP interface."""
_LOOK_SECONDS = 0.02
"""How often the memory of a process is looked at."""
_LATER_SECONDS = 2
"""A process that computes for so much longer than allowed ends itself: its instance may have been killed."""
_OTHERS, _STARTING = "Other queries are running", "The process for queries is starting"
_SHOWN = 200
"""Greatest number of characters of a query in the log, and of an unexpected error in an answer."""
_encode = msgspec.json.Encoder(decimal_format="number").encode


class QueryRefusedError(Exception):
    """A query has no answer.

    Args:
        error: The kind of error, for programs.
        message: The reason, for people.
        status: The status of HTTP.
    """

    def __init__(self, error: str, message: str, status: int) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.status = status


class TimeOverError(Exception):
    """The time of a push query is over."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A query as its instance reads it from a store: bytes and plain values.

    Args:
        columns: Names and types of its rows.
        store: The store.
        keys: The keys to look up; None for all keys between the bounds.
        lower: First key; None if there is no lower bound.
        upper: Last key; None if there is no upper bound.
        time_from: Earliest start of a window, ms.
        time_to: Latest start of a window, ms.
        limit: Greatest number of rows; None for all.
    """

    columns: tuple[tuple[str, str], ...]
    store: str
    keys: tuple[bytes, ...] | None
    lower: bytes | None
    upper: bytes | None
    time_from: int
    time_to: int
    limit: int | None


class QueryProcesses:
    """The processes that compute the queries of an application.

    Args:
        application: An application whose topology is a file of statements.
    """

    def __init__(self, application: Application) -> None:
        streams = application.config.streams
        self._application = application
        self._streams = streams
        self._lock = threading.RLock()  # a forgotten reader may be collected, and leave, wherever its thread is
        self._free = threading.Semaphore(streams.server_query_processes)
        self._idle: list[QueryProcess] = []
        self._all: set[QueryProcess] = set()
        self._callers = 0
        self._is_closed = False

    @property
    def seconds(self) -> float:
        """Maximum time for a query."""
        return self._streams.server_query_timeout_ms / 1000

    @property
    def most(self) -> int:
        """Maximum number of queries at a time."""
        return self._streams.server_query_processes

    def start(self) -> None:
        """Start a process, so that the first query need not wait for it."""
        with self._lock:
            if not self._all and not self._is_closed:
                self._idle.append(self._started())

    def close(self) -> None:
        """End all processes, and with them the queries that they compute."""
        with self._lock:
            self._is_closed = True
            ended = list(self._all)
        for each in ended:
            each.end()

    @contextmanager
    def process(self, until: float) -> Iterator[QueryProcess]:
        """Take a process for one query.

        Args:
            until: When the query must be answered (`time.monotonic`).

        Raises:
            QueryRefusedError: If too many queries run.
        """
        self._enter()
        try:
            if not self._free.acquire(timeout=max(until - time.monotonic(), 0)):
                raise _busy()
            try:
                taken = self._taken()
                try:
                    yield taken
                finally:
                    self._leave(taken)
            finally:
                self._free.release()
        finally:
            with self._lock:
                self._callers -= 1

    def _enter(self) -> None:
        with self._lock:
            if self._is_closed or self._callers >= _WAITING * self._streams.server_query_processes:
                raise _busy()
            self._callers += 1

    def _taken(self) -> QueryProcess:
        with self._lock:
            if self._is_closed:
                raise _busy()
            while self._idle:
                found = self._idle.pop()
                if found.is_alive:
                    return found
                self._all.discard(found)
            return self._started()

    def _leave(self, process: QueryProcess) -> None:
        """Keep a process for the next query; start another one in place of one that was ended."""
        with self._lock:
            if not process.is_alive:
                self._all.discard(process)
                process = process if self._is_closed else self._started()
            self._idle.append(process)

    def _started(self) -> QueryProcess:
        process = QueryProcess(self._application, self._streams)
        self._all.add(process)
        return process


def _busy(reason: str = _OTHERS) -> QueryRefusedError:
    error = "too-many-queries"
    return QueryRefusedError(error, f"{reason}: try again", 503)


class QueryProcess:
    """A process that computes one query at a time."""

    def __init__(self, application: Application, streams: StreamsConfig) -> None:
        self._streams = streams
        self._is_ready = self._is_following = False
        self._line, theirs = multiprocessing.Pipe()
        with theirs:
            config = replace(application.config, streams=streams.without_secrets())
            given = (config, application.version, dict(application.kafka))
            self._child: ChildProcess = start_child("queries", compute_queries, [theirs], given)

    @property
    def is_alive(self) -> bool:
        """Whether it can compute."""
        return self._child.is_alive()

    def end(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.join()

    def plan(self, text: str, until: float) -> Planned:
        """Plan a query.

        Raises:
            QueryRefusedError: If it has a mistake, or takes too much.
        """
        found: Planned = self._ask(text, text, until)
        return found

    def rows(self, found: Sequence[Any], most: int | None, text: str, until: float) -> list[bytes]:
        """Return the rows that the planned query makes of entries of its store, as JSON.

        Args:
            found: Entries, as `row_object` shows them.
            most: Greatest number of rows.
            text: The query, for the log.
            until: When they must be there.

        Raises:
            QueryRefusedError: If that takes too much.
        """
        made: list[bytes] = self._ask((found, most, self._streams.server_query_max_bytes), text, until)
        return made

    def changes(self, text: str, start: str, until: float, beat_s: float) -> Iterator[Any]:
        """Yield the names of a push query's columns, then its rows as JSON as they come, and None if none has come for a while.

        Args:
            text: The query.
            start: Where topics begin: `latest` or `earliest`.
            until: When it ends (`time.monotonic`).
            beat_s: That while, s.

        Raises:
            QueryRefusedError: If it has a mistake, or takes too much.
            TimeOverError: When the time is over.
        """
        if not self._is_ready:
            self._wait_until_ready(until)
        self._is_following = True
        seconds = max(until - time.monotonic(), 0.001)
        try:
            self._line.send_bytes(pickle.dumps((seconds, Following(text, start, self._streams.server_query_max_bytes))))
            while True:
                if not self._is_heard(text, until, beat_s):
                    yield None
                    continue
                answer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - of a process of our own
                if answer is None or isinstance(answer, _Mistake):
                    break
                yield answer
        except (OSError, EOFError):
            self._refuse("query-failed", "ended its process", text)
        self._is_following = False
        if isinstance(answer, _Mistake):
            raise QueryRefusedError(answer.error, answer.message, answer.status)

    def end_unless_idle(self) -> None:
        """Kill the process if a push query still runs."""
        if self._is_following:
            self.end()

    def _is_heard(self, text: str, until: float, beat_s: float) -> bool:
        """Wait for an answer for a while. Returns whether there is one.

        Raises:
            TimeOverError: When the time is over.
        """
        most, beat = self._streams.server_query_max_memory_bytes, time.monotonic() + beat_s
        while not self._line.poll(_LOOK_SECONDS):
            if time.monotonic() > until:
                raise TimeOverError
            if _memory_bytes(self._child.pid) > most:
                reason = f"needed more than {most} bytes of memory (server.query.max.memory.bytes)"
                self._refuse("query-too-large", reason, text)
            if time.monotonic() > beat:
                return False
        if time.monotonic() > until:
            raise TimeOverError
        return True

    def _ask(self, question: Any, text: str, until: float) -> Any:
        if not self._is_ready:
            self._wait_until_ready(until)
        seconds = max(until - time.monotonic(), 0.001)
        try:
            self._line.send_bytes(pickle.dumps((seconds, question)))
            self._watch(text, until)
            answer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - of a process of our own
        except (OSError, EOFError):
            self._refuse("query-failed", "ended its process", text)
        if isinstance(answer, _Mistake):
            raise QueryRefusedError(answer.error, answer.message, answer.status)
        return answer

    def _wait_until_ready(self, until: float) -> None:
        if not self._line.poll(max(until - time.monotonic(), 0)):
            raise _busy(_STARTING)
        with suppress(OSError, EOFError):
            self._line.recv_bytes()
        self._is_ready = True

    def _watch(self, text: str, until: float) -> None:
        """Wait for an answer, or the end of the process."""
        most = self._streams.server_query_max_memory_bytes
        while not self._line.poll(_LOOK_SECONDS):
            if time.monotonic() > until:
                milliseconds = self._streams.server_query_timeout_ms
                self._refuse("query-too-long", f"took longer than {milliseconds} ms (server.query.timeout.ms)", text)
            if _memory_bytes(self._child.pid) > most:
                reason = f"needed more than {most} bytes of memory (server.query.max.memory.bytes)"
                self._refuse("query-too-large", reason, text)

    def _refuse(self, error: str, reason: str, text: str) -> NoReturn:
        """End the process, and tell why."""
        self.end()
        log.warning("a query %s: %r", reason, text[:_SHOWN])
        message = f"The query {reason}"
        raise QueryRefusedError(error, message, 503)


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# In the process


@dataclass(frozen=True, slots=True)
class _Mistake:
    error: str
    message: str
    status: int


@dataclass(frozen=True, slots=True)
class Following:
    """A push query: its text, where topics begin, and the greatest size of its rows."""

    text: str
    start: str
    most_bytes: int


def compute_queries(line: Connection, config: AppConfig, version: str, kafka: Mapping[str, str]) -> None:
    """Plan and compute queries, one at a time, until the instance closes the line.

    Args:
        line: Brings questions, and takes answers.
        config: The application.
        version: Its version.
        kafka: Client properties, for push queries.
    """
    os.nice(10)  # records come first
    catalog, stores = _application(config, version)
    computer, follower = _Computer(catalog, stores), _Follower(catalog, config.schema_registry, kafka)
    line.send_bytes(b"ready")
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):
            return
        seconds, question = pickle.loads(data)  # noqa: S301 - of the instance that has started this process
        signal.setitimer(signal.ITIMER_REAL, seconds + _LATER_SECONDS)  # its signal ends the process, whatever it does
        answer = follower.follow(question, line) if isinstance(question, Following) else computer.answer(question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        line.send_bytes(pickle.dumps(answer))


def _application(config: AppConfig, version: str) -> tuple[Catalog, Mapping[str, StoreBuilder]]:
    """Return the sources of an application's statements, and the stores of its topology."""
    from riverrun.sql.commands import Statements  # noqa: PLC0415 - its parser is an extra

    path = str(config.topology_of(version))
    builder = StreamsBuilder(config.streams.topology_config)
    catalog = Statements.of(read_text(Path(path)), path, builder).catalog
    topology = with_places(builder.build(), config.application_id(version), config.schema_registry)
    stores = {store.name: store for sub in topology.sub_topologies() for store in sub.stores}
    return catalog, stores | {declared.store.name: declared.store for declared in topology.global_stores}


class _Follower:
    """Computes push queries from the records of topics."""

    def __init__(self, catalog: Catalog, schema_registry: Mapping[str, Any], kafka: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._schema_registry = schema_registry
        self._kafka = kafka

    def follow(self, asked: Following, line: Connection) -> _Mistake | None:
        """Send columns and rows as they come. Returns None at the end, or what is wrong."""
        from riverrun.sql.statements import SqlError  # noqa: PLC0415 - its parser is an extra
        from riverrun.transfers.selecting import Selecting  # noqa: PLC0415 - most processes answer no push query

        left = asked.most_bytes
        try:
            select = _selected(asked.text)
            if not select.follows:
                return _Mistake("bad-statement", "A push query has EMIT CHANGES", 400)
            selecting = Selecting(lambda: Admin(self._kafka), self._schema_registry, self._catalog)
            found = selecting.selected(select, asked.start)
            line.send_bytes(pickle.dumps(found.columns))
            for row in found.rows:
                data = _encode(row)
                left -= len(data)
                if left < 0:
                    message = f"The rows have more than {asked.most_bytes} bytes (server.query.max.bytes)"
                    return _Mistake("answer-too-large", message, 413)
                line.send_bytes(pickle.dumps(data))
        except SqlError as error:
            error.place(asked.text, "query")
            return _Mistake("bad-statement", str(error), 400)
        except StreamsError as error:
            return _Mistake("query-failed", str(error)[:_SHOWN], 503)
        except Exception as error:  # noqa: BLE001 - of a record, or a mistake of ours: only this answer is lost
            return _Mistake("query-failed", f"{type(error).__name__}: {str(error)[:_SHOWN]}", 503)
        return None


class _Computer:
    """Plans a query, then makes its rows."""

    def __init__(self, catalog: Catalog, stores: Mapping[str, StoreBuilder]) -> None:
        self._catalog = catalog
        self._stores = stores
        self._row: Callable[[Any], Any]

    def answer(self, question: Any) -> Any:
        """Return the answer to a question, or what is wrong with it."""
        try:
            return self._plan(question) if isinstance(question, str) else self._rows(*question)
        except StreamsError as error:
            return _Mistake("bad-statement", str(error), 400)
        except Exception as error:  # noqa: BLE001 - of a record, or a mistake of ours: only this answer is lost
            status = 400 if isinstance(question, str) else 503
            return _Mistake("query-failed", f"{type(error).__name__}: {str(error)[:_SHOWN]}", status)

    def _plan(self, text: str) -> Planned:
        pulled = _parsed(text, self._catalog)
        builder, sought = self._stores[pulled.table.store], pulled.sought
        self._row = _row_maker(pulled, builder)
        serialize = builder.key_serde.serialize
        is_windowed, keys = builder.key_serde.name.startswith("windowed"), sought.keys
        lower = upper = None
        if builder.kind is not StoreKind.SESSION and builder.key_serde.name == "string":
            lower, upper = (None if each is None else serialize((each,)) for each in (sought.lower, sought.upper))
        return Planned(
            columns=tuple((name, str(type_)) for name, type_ in pulled.columns),
            store=pulled.table.store,
            keys=None if keys is None or is_windowed else tuple(map(serialize, keys)),
            lower=lower,
            upper=upper,
            time_from=sought.time_from,
            time_to=sought.time_to,
            limit=pulled.limit,
        )

    def _rows(self, found: Sequence[Any], most: int | None, most_bytes: int) -> Any:
        made: list[bytes] = []
        size = 0
        for each in found:
            if most is not None and len(made) >= most:
                break
            row = self._row(each)
            if row is not None:
                made.append(_encode(row))
                size += len(made[-1])
            if size > most_bytes:
                message = (
                    f"The rows have more than {most_bytes} bytes (server.query.max.bytes): select less, or add LIMIT"
                )
                return _Mistake("answer-too-large", message, 413)
        return made


def _parsed(text: str, catalog: Catalog) -> PullQuery:
    """Parse a query.

    Raises:
        SqlError: If it has a mistake, or stores cannot answer it.
    """
    from riverrun.sql.answers import pull_query  # noqa: PLC0415 - its parser is an extra
    from riverrun.sql.statements import SqlError  # noqa: PLC0415 - as above

    try:
        return pull_query(_selected(text), catalog)
    except SqlError as error:
        error.place(text, "query")
        raise


def _selected(text: str) -> Select:
    """Parse a single SELECT.

    Raises:
        SqlError: If it has a mistake, or is none.
    """
    from riverrun.sql.commands import Select, parse_commands  # noqa: PLC0415 - as above
    from riverrun.sql.statements import SqlError  # noqa: PLC0415 - as above

    try:
        match parse_commands(text):
            case [Select() as select]:
                return select
    except RecursionError:
        message = "The query is nested too deeply"
        raise SqlError(message) from None
    message = "A query must be a single SELECT"
    raise SqlError(message)


def _row_maker(pulled: PullQuery, builder: StoreBuilder) -> Callable[[Any], Any]:
    """Return a function that makes a row of an entry of the store; None if the entry is not part of the result."""

    def row(found: Any) -> Any:
        key = builder.key_serde.deserialize(from_base64(found["key"]["base64"]))
        value = builder.value_serde.deserialize(from_base64(found["value"]["base64"]))
        times = found.get("window") or found.get("session")
        window = None if times is None else Window(times["start"], times["end"])
        return pulled.row(key, value, found.get("timestamp"), window)

    return row
