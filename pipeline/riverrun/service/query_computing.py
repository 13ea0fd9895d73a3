"""Plans and computes the queries of an SQL application, in a separate process (`service.processes`)."""

from __future__ import annotations

import os
import pickle
import signal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.config.checks import read_text
from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import USER_ERRORS, BrokerError, StreamsError, as_exception
from riverrun.kafka.admin import Admin
from riverrun.runtime.serde_places import with_places
from riverrun.service.processes import Mistake, Planned, PushQuery
from riverrun.service.rendering import from_base64
from riverrun.state.api import StoreKind
from riverrun.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from riverrun.config import AppConfig
    from riverrun.kafka.door import Kafka
    from riverrun.sql.answers import PullQuery
    from riverrun.sql.catalog import Catalog
    from riverrun.sql.commands import Select
    from riverrun.sql.gathering import Gathered
    from riverrun.state.api import StoreBuilder

# The instance normally kills a process that computes too long. If the instance was killed itself, nobody would:
# the process ends itself so many seconds later.
_LATER_SECONDS = 2
_SHOWN = 200
"""Greatest number of characters of an unexpected error in an answer."""
# As numbers, like the JSON that statements write to topics.
_encode = msgspec.json.Encoder(decimal_format="number").encode


def compute_queries(line: Connection, config: AppConfig, version: str, kafka: Kafka) -> None:
    """Plan and compute queries, one at a time, until the instance closes the line."""
    # Processing of records comes first.
    os.nice(10)
    catalog, stores = _application(config, version)
    computer, follower = _Computer(catalog, stores), _Follower(catalog, config.schema_registry, kafka)
    line.send_bytes(b"ready")
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):
            return
        seconds, question = pickle.loads(data)  # noqa: S301 - of the instance that has started this process
        # SIGALRM without a handler ends the process even in C code that never returns to the interpreter.
        signal.setitimer(signal.ITIMER_REAL, seconds + _LATER_SECONDS)
        answer = follower.follow(question, line) if isinstance(question, PushQuery) else computer.answer(question)
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

    def __init__(self, catalog: Catalog, schema_registry: Mapping[str, Any], kafka: Kafka) -> None:
        self._catalog = catalog
        self._schema_registry = schema_registry
        self._kafka = kafka

    def follow(self, asked: PushQuery, line: Connection) -> Mistake | None:
        """Send columns and rows as they come. Returns None at the end, or what is wrong."""
        from riverrun.service.selecting import Selecting  # noqa: PLC0415 - most processes answer no push query
        from riverrun.sql.statements import SqlError  # noqa: PLC0415 - its parser is an extra

        left = asked.most_bytes
        try:
            select = _selected(asked.text)
            if not select.follows:
                return Mistake("bad-statement", "A push query has EMIT CHANGES", 400)
            selecting = Selecting(lambda: Admin(self._kafka), self._schema_registry, self._catalog)
            found = selecting.selected(select, asked.start)
            line.send_bytes(pickle.dumps(found.columns))
            for row in found.rows:
                data = _encode(row)
                left -= len(data)
                if left < 0:
                    message = f"The rows have more than {asked.most_bytes} bytes (server.query.max.bytes)"
                    return Mistake("answer-too-large", message, 413)
                line.send_bytes(pickle.dumps(data))
        except SqlError as error:
            error.place(asked.text, "query")
            return Mistake("bad-statement", str(error), 400)
        except StreamsError as error:
            return Mistake("query-failed", str(error)[:_SHOWN], 503)
        except USER_ERRORS as error:  # of a record, or a mistake of ours: only this answer is lost
            return Mistake("query-failed", f"{type(error).__name__}: {str(as_exception(error))[:_SHOWN]}", 503)
        return None


class _Computer:
    """Plans a query, then makes its rows."""

    def __init__(self, catalog: Catalog, stores: Mapping[str, StoreBuilder]) -> None:
        self._catalog = catalog
        self._stores = stores
        self._pulled: PullQuery
        self._gathered: Gathered | None = None
        self._entry: Callable[[Any], Any]

    def answer(self, question: Any) -> Any:
        """Return the plan of a text, the rows of entries (a tuple with limits), or with None as entries those of all before."""
        from riverrun.sql.gathering import TooManyRowsError  # noqa: PLC0415 - its parser is an extra

        try:
            return self._plan(question) if isinstance(question, str) else self._rows(*question)
        except TooManyRowsError as error:
            return Mistake("answer-too-large", str(error), 413)
        except StreamsError as error:
            # No statement is to blame for a row that cannot be read, or a schema registry that does not answer.
            if not isinstance(question, str) or isinstance(error, BrokerError):
                return Mistake("query-failed", str(error)[:_SHOWN], 503)
            return Mistake("bad-statement", str(error), 400)
        except USER_ERRORS as error:  # of a record, or a mistake of ours: only this answer is lost
            status = 400 if isinstance(question, str) else 503
            return Mistake("query-failed", f"{type(error).__name__}: {str(as_exception(error))[:_SHOWN]}", status)

    def _plan(self, text: str) -> Planned:
        from riverrun.sql.gathering import Gathered  # noqa: PLC0415 - its parser is an extra

        pulled = _parsed(text, self._catalog)
        assert pulled.table is not None  # noqa: S101 - a pull query reads a store
        builder, sought = self._stores[pulled.table.store], pulled.sought
        self._pulled, self._entry = pulled, _entry_reader(pulled, builder)
        self._gathered = None if pulled.gathering is None else Gathered(pulled.gathering)
        serialize = builder.key_serde.serialize
        is_windowed, keys = builder.key_serde.name.startswith("windowed"), sought.keys
        lower = upper = None
        # Stores compare bytes. Only for strings is that the order of values; numbers, for instance, sort negatives last.
        if builder.kind is not StoreKind.SESSION and builder.key_serde.name == "string":
            lower, upper = (None if each is None else serialize((each,)) for each in (sought.lower, sought.upper))
        return Planned(
            columns=tuple((name, str(type_)) for name, type_ in pulled.columns),
            store=pulled.table.store,
            # The bytes of a windowed key contain its window, which a condition on the key does not name: all are read.
            keys=None if keys is None or is_windowed else tuple(map(serialize, keys)),
            lower=lower,
            upper=upper,
            time_from=sought.time_from,
            time_to=sought.time_to,
            limit=pulled.limit,
            is_gathered=pulled.gathering is not None,
        )

    def _rows(self, found: Sequence[Any] | None, most: int | None, most_bytes: int) -> Any:
        entries = (row for each in found or () if (row := self._entry(each)) is not None)
        if self._gathered is None:
            return _encoded(map(self._pulled.row, islice(entries, most)), most_bytes)
        for each in entries:
            self._gathered.add(each)
        if found is not None:
            return []
        # The process may wait long for its next query, and must not hold these rows meanwhile.
        gathered, self._gathered = self._gathered, None
        return _encoded(map(self._pulled.shown, gathered.results()), most_bytes)


def _encoded(rows: Iterable[tuple[Any, ...]], most_bytes: int) -> list[bytes] | Mistake:
    made: list[bytes] = []
    size = 0
    for row in rows:
        made.append(_encode(row))
        size += len(made[-1])
        if size > most_bytes:
            message = f"The rows have more than {most_bytes} bytes (server.query.max.bytes): select less, or add LIMIT"
            return Mistake("answer-too-large", message, 413)
    return made


def _parsed(text: str, catalog: Catalog) -> PullQuery:
    from riverrun.sql.answers import pull_query  # noqa: PLC0415 - its parser is an extra
    from riverrun.sql.statements import SqlError  # noqa: PLC0415 - as above

    try:
        return pull_query(_selected(text), catalog)
    except SqlError as error:
        error.place(text, "query")
        raise


def _selected(text: str) -> Select:
    from riverrun.sql.commands import Select, parse_commands  # noqa: PLC0415 - as above
    from riverrun.sql.statements import SqlError  # noqa: PLC0415 - as above

    try:
        match parse_commands(text):
            case [Select() as select]:
                return select
    # The parser descends recursively, and the text is the caller's.
    except RecursionError:
        raise SqlError("The query is nested too deeply") from None
    raise SqlError("A query must be a single SELECT")


def _entry_reader(pulled: PullQuery, builder: StoreBuilder) -> Callable[[Any], Any]:
    """Return a function that reads a row of the table from an entry of its store; None if the query leaves it out."""

    def entry(found: Any) -> Any:
        key = builder.key_serde.deserialize(from_base64(found["key"]["base64"]))
        value = builder.value_serde.deserialize(from_base64(found["value"]["base64"]))
        times = found.get("window") or found.get("session")
        window = None if times is None else Window(times["start"], times["end"])
        return pulled.entry(key, value, found.get("timestamp"), window)

    return entry
