"""However user code ends outside of tasks, it is a failure of the record or of the rule, and never the end of the program."""

from __future__ import annotations

import ast
import re
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import riverrun
from riverrun import JSON, STRING, Consumed, Produced, Serde, StreamsBuilder
from riverrun.cli import main as cli
from riverrun.cli.project import Settings
from riverrun.errors import RecordError, RegistryError, ReleaseError, StateError, StreamsError, TopicError
from riverrun.hosting.state_schemas import _why_unreadable
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.processor.handlers import LogAndContinue, context_of, decision_of
from riverrun.project.imported_rows import RowsOfFile, _Reader
from riverrun.records import TaskId, TopicPartition
from riverrun.releases.difference import Pair, TableRow
from riverrun.releases.migrating import Migration
from riverrun.releases.rows import difference_rows, log_rows, table_rows
from riverrun.service.query_computing import _Computer
from riverrun.service.rendering import key_bytes
from riverrun.service.routing import StorePlace
from riverrun.simulation.cluster import Cluster
from riverrun.spark.columns import Columns
from riverrun.sql.commands import Statements
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.testing import TopologyTestDriver
from riverrun.topics.letters import _decoded as decoded_letter
from riverrun.topics.pages import _decoded as decoded_page
from riverrun.topics.records import LineFormat, TopicReader, write_lines
from riverrun.topology.nodes import SinkNode
from riverrun.transfers.import_rows import RowForm, SourceRow
from tests.unit.ends import ENDS, OwnError, own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.processor.handlers import ProcessingExceptionHandler

TP = TopicPartition("out", 0)
ROW = TableRow(b"1", 5)
RECORD = (b"k", b"1", 5, 7, ())
KEYS = StoreBuilder("rows", StoreKind.KEY_VALUE, STRING, STRING)
PLACE = StorePlace(KEYS, (TaskId(0, 0), TaskId(0, 1)), "out")


def sink(serde: Serde[Any]) -> SinkNode:
    return SinkNode("out", (), "out", STRING, serde)


def side_by_side(serde: Serde[Any], old: TableRow | None, new: TableRow | None) -> list[str]:
    unread: list[str] = []
    rows = difference_rows([Pair(0, b"k", old, new)], sink(serde), sink(serde), "out", lambda: unread.append("unread"))
    return [*map(str, rows), *unread]


def kept(_key: Any, value: Any) -> Any:
    return value


def migrated(before: Serde[Any], after: Serde[Any]) -> Any:
    return migration(before, after)(TP, RECORD)


def migration(before: Serde[Any], after: Serde[Any], handler: ProcessingExceptionHandler | None = None) -> Migration:
    old, new = (StoreBuilder("rows", StoreKind.KEY_VALUE, STRING, each) for each in (before, after))
    return Migration(old, new, f"{__name__}:kept", 0, handler)


CALLS: dict[str, Callable[[Serde[Any]], Any]] = {
    "rows of tables": lambda serde: list(table_rows([Pair(0, b"k", None, ROW)], sink(serde), "out")),
    "records of logs": lambda serde: list(log_rows([(TP, [RECORD])], sink(serde))),
    "new rows of differences": lambda serde: side_by_side(serde, None, ROW),
    "old rows of differences": lambda serde: side_by_side(serde, ROW, None),
    "records of topics": lambda serde: TopicReader._of(serde, "Value", b"1", TP, 7),
    "pages of topics": lambda serde: decoded_page(serde, b"1"),
    "letters": lambda serde: decoded_letter(serde, b"1"),
    "keys of queries": lambda serde: key_bytes("MQ", serde, is_base64=True),
    "keys of queries as text": lambda serde: key_bytes("1", replace(serde, name="json"), is_base64=False),
    "partitions of keys": lambda serde: PLACE._chosen(lambda *_: serde.deserialize(b"1"), "k"),
    "columns of frames": lambda serde: Columns((), serde.deserialize, "value").arrays([b"1"], lambda _n: {}),
    "rows that are imported": lambda serde: RowForm(value="v", value_serde=serde).record(SourceRow({"v": 1}, "x"), 5),
    "rows of stores that are imported": lambda serde: RowsOfFile(
        pa.RecordBatch.from_pydict({"k": [b"1"]}),
        [_Reader(("k",), lambda parts: serde.serialize(parts[0]))],
        Path("f"),
        0,
    ).bytes_at(0),
    "rows that are migrated": lambda serde: migrated(serde, STRING),
    "values that a migration makes": lambda serde: migrated(STRING, serde),
    "decisions of handlers": lambda serde: decision_of(
        lambda *_: serde.deserialize(b"1"), "processing", context_of(TP, RECORD, "n", TaskId(0, 0)), None, ValueError()
    ),
    "rows of state": lambda serde: _why_unreadable(STRING, serde, b"k", b"1"),
}


def ending(end: Callable[[], Any]) -> Serde[Any]:
    return Serde("ending", lambda _value: end(), lambda _data: end())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_serde_that_ends_the_program_has_failed_at_its_record(call: str, end: Callable[[], Any]) -> None:
    try:
        said = str(CALLS[call](ending(end)))
    except (StreamsError, ValueError) as error:
        said = str(error)
    shown_otherwise = {"letters": "1", "old rows of differences": "unread"}
    message = ENDS[end].replace("StopIteration", "enough")
    assert re.search(shown_otherwise.get(call, message), said, re.DOTALL)


# A page shows what it has.
SHOWN = {"pages of topics", "letters"}


def away(*_arguments: Any) -> Any:
    raise RegistryError("The registry is away", retriable=True)


@pytest.mark.parametrize("call", sorted(CALLS.keys() - SHOWN))
def test_no_record_is_to_blame_for_a_registry_that_does_not_answer(call: str) -> None:
    with pytest.raises(RegistryError, match="The registry is away"):
        CALLS[call](ending(away))


def refused(*_arguments: Any) -> Any:
    raise TopicError("The topic is missing")


@pytest.mark.parametrize("call", sorted(CALLS.keys() - SHOWN))
def test_a_record_is_to_blame_for_other_errors_of_brokers_that_its_code_raises(call: str) -> None:
    try:
        said = str(CALLS[call](ending(refused)))
    except (RecordError, ReleaseError, StateError, ValueError) as error:
        said = str(error)
    assert re.search("unread" if call == "old rows of differences" else "The topic is missing", said)


def test_no_handler_leaves_out_a_row_of_a_migration_because_of_a_registry() -> None:
    migrate = migration(STRING, ending(away), LogAndContinue("dead"))
    with pytest.raises(RegistryError):
        migrate(TP, RECORD)
    assert migrate.left_out == 0


def test_a_line_is_not_to_blame_for_a_registry_and_the_written_ones_are_counted() -> None:
    serde: Serde[Any] = Serde("registered", lambda value: b"1" if value < 3 else away(), JSON.deserialize)
    with Cluster() as cluster:
        admin = Admin(cluster.kafka)
        admin.create_topics([TopicSpec("in", 1)])
        with pytest.raises(RegistryError, match="The registry is away") as failed:
            write_lines(admin, "in", [b"1", b"2", b"3"], LineFormat(STRING, serde))
    assert failed.value.hint == "2 records before line 3 were written. Continue from there."
    assert failed.value.retriable


def test_a_query_is_not_to_blame_for_a_registry_or_an_unreadable_row() -> None:
    builder = StreamsBuilder()
    table = "CREATE TABLE counts (k STRING PRIMARY KEY, n INT) WITH (KAFKA_TOPIC='counts', VALUE_FORMAT='JSON');"
    catalog = Statements.of(table + "CREATE TABLE kept AS SELECT * FROM counts;", "a.sql", builder).catalog  # noqa: S608 - no text of others
    found = {store.name: store for sub in builder.build().sub_topologies() for store in sub.stores}
    for fails in (away, lambda *_: JSON.deserialize(b"{")):
        failing = Serde("failing", fails, fails)
        stores = {name: replace(each, key_serde=STRING, value_serde=failing) for name, each in found.items()}
        computer = _Computer(catalog, stores)
        assert computer.answer("SELECT * FROM kept;").keys is None
        row = {"key": {"base64": ""}, "value": {"base64": ""}}
        refused = computer.answer(([row], None, 1000))
        assert (refused.error, refused.status) == ("query-failed", 503)
    stores = {name: replace(each, key_serde=ending(away)) for name, each in found.items()}
    assert _Computer(catalog, stores).answer("SELECT * FROM kept WHERE k = 'a';").status == 503


@pytest.mark.parametrize("end", [away, refused])
def test_queries_ask_all_partitions_if_a_partitioner_fails(end: Callable[..., Any]) -> None:
    assert replace(PLACE, partitioner=end).partitions_of(b"k") == [0, 1]


CONSUMED: dict[str, Callable[[Callable[..., Any]], Consumed[str, str]]] = {
    "an extractor": lambda end: Consumed(STRING, STRING, end),
    "a serde": lambda end: Consumed(STRING, ending(end)),
}


@pytest.mark.parametrize("consumed", CONSUMED.values(), ids=CONSUMED)
def test_a_handler_leaves_out_a_record_unless_a_registry_does_not_answer(consumed: Callable[..., Any]) -> None:
    for end in (away, refused):
        builder = StreamsBuilder()
        builder.stream("in", consumed(end)).to("out", Produced(STRING, STRING))
        config = {"deserialization.exception.handler": "continue"}
        with (
            TopologyTestDriver(builder.build(), config) as driver,
            pytest.raises(RegistryError) if end is away else nullcontext(),
        ):
            driver.input_topic("in", STRING, STRING).pipe_input("k", "v")


@pytest.mark.parametrize("call", CALLS)
def test_a_signal_interrupts_reading_as_ever(call: str) -> None:
    before = signal.signal(signal.SIGINT, lambda _number, _frame: own())
    try:
        with pytest.raises(OwnError):
            CALLS[call](ending(lambda: signal.raise_signal(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)


def test_wherever_serdes_are_called_all_their_ends_are_failures() -> None:
    # Tasks treat all ends alike, whatever their stores say of ordinary errors; the test driver belongs to a test.
    root, within_tasks = Path(riverrun.__file__).parent, {"state", "testing"}
    calls = re.compile(r"except Exception.*# .*(a serde|user's (code|class)) ")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] not in within_tasks
        for line in path.read_text().splitlines()
        if calls.search(line)
    ]
    assert not found


# Functions in which an outage is no failure of a record: what they say of it is shown, or they try again later.
OUTAGES_ELSEWHERE = {
    "codegen/function_writer.py:_place",  # the sink writes the key again, and raises
    "codegen/function_writer.py:places",  # as above
    "hosting/serde_changes.py:_compare_json",  # JSON has no registry
    "hosting/state_schemas.py:_key_text",  # shown
    "project/members.py:graph_of",  # shown as what is unknown
    "quality/gate.py:validated",  # an action that tells others of the result
    "runtime/context.py:_message",  # shown
    "runtime/event_loop.py:_failure",  # raised when the record is forwarded
    "runtime/event_loop.py:_fly",  # as above
    "runtime/event_loop.py:attempts",  # tried again
    "service/query_computing.py:answer",  # answered with 503
    "service/query_computing.py:follow",  # as above
    "spark/bounded_runs/attempts.py:_attempted",  # tried again
    "sql/gathering.py:add",  # aggregates ask no registry
    "sql/gathering.py:results",  # as above
    "topics/letters.py:_decoded",  # shown
    "topics/pages.py:_decoded",  # shown
    "topology/contents.py:imported",  # a module that cannot be imported
    "worker/answers.py:answer",  # answered with 503
}


def test_wherever_user_code_is_called_an_outage_passes() -> None:
    root, found = Path(riverrun.__file__).parent, set()
    for path in sorted(root.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not all(
                map(lets_outages_pass, own_tries(function))
            ):
                found.add(f"{path.relative_to(root)}:{function.name}")
    assert found == OUTAGES_ELSEWHERE


def own_tries(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Try]:
    """Yield the `try` statements of a function, without those of functions within it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Try):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def lets_outages_pass(tried: ast.Try) -> bool:
    """Return whether no handler takes a `RegistryError` for a failure of user code."""
    handlers = [("" if each.type is None else ast.unparse(each.type), each) for each in tried.handlers]
    if "USER_ERRORS" not in dict(handlers):
        return True
    for caught, handler in handlers:
        if re.search("BrokerError|RegistryError|StreamsError|NOT_THE_USERS", caught):
            return any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        if caught == "USER_ERRORS":
            return (
                re.search(r"isinstance\(\w+, RegistryError\)|fail_at\(|self\._fail\(", ast.unparse(handler)) is not None
            )
    return True


@pytest.mark.parametrize("code", [0, 3, None])
def test_an_exit_of_user_code_is_no_end_of_its_command(
    code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "project", lambda _self: sys.exit(code))
    monkeypatch.setattr(sys, "argv", ["riverrun", "runs", "counts"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"Error: sys.exit({code}) was called" in said
    assert f"Hint: Look at {__file__}" in said.replace("\n", "")
