"""However user code ends outside of tasks, it is a failure of the record or of the rule, and never the end of the program."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

import riverrun
from riverrun import STRING, Serde
from riverrun.cli import main as cli
from riverrun.errors import RegistryError, StreamsError
from riverrun.hosting.state_schemas import _why_unreadable
from riverrun.records import TaskId, TopicPartition
from riverrun.releases.difference import Pair, TableRow
from riverrun.releases.rows import difference_rows, log_rows, table_rows
from riverrun.service.rendering import key_bytes
from riverrun.service.routing import StorePlace
from riverrun.spark.columns import Columns
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topics.letters import _decoded as decoded_letter
from riverrun.topics.pages import _decoded as decoded_page
from riverrun.topics.records import TopicReader
from riverrun.topology.nodes import SinkNode
from riverrun.transfers.import_rows import RowForm, SourceRow
from tests.unit.ends import ENDS, OwnError, own

if TYPE_CHECKING:
    from collections.abc import Callable

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


CALLS: dict[str, Callable[[Serde[Any]], Any]] = {
    "rows of tables": lambda serde: list(table_rows([Pair(0, b"k", None, ROW)], sink(serde), "out")),
    "records of logs": lambda serde: list(log_rows([(TP, [RECORD])], sink(serde))),
    "new rows of differences": lambda serde: side_by_side(serde, None, ROW),
    "old rows of differences": lambda serde: side_by_side(serde, ROW, None),
    "records of topics": lambda serde: TopicReader._of(serde, "Value", b"1", TP, 7),
    "pages of topics": lambda serde: decoded_page(serde, b"1"),
    "letters": lambda serde: decoded_letter(serde, b"1"),
    "keys of queries": lambda serde: key_bytes("MQ", serde, is_base64=True),
    "partitions of keys": lambda serde: PLACE._chosen(lambda *_: serde.deserialize(b"1"), "k"),
    "columns of frames": lambda serde: Columns((), serde.deserialize, "value").arrays([b"1"], lambda _n: {}),
    "rows that are imported": lambda serde: RowForm(value="v", value_serde=serde).record(SourceRow({"v": 1}, "x"), 5),
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


# A page shows what it has. A key of a query is refused with the reason.
SHOWN = {"pages of topics", "letters", "keys of queries", "partitions of keys"}


@pytest.mark.parametrize("call", sorted(CALLS.keys() - SHOWN))
def test_no_record_is_to_blame_for_a_registry_that_does_not_answer(call: str) -> None:
    def away() -> Any:
        raise RegistryError("The registry is away", retriable=True)

    with pytest.raises(RegistryError, match="The registry is away"):
        CALLS[call](ending(away))


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


@pytest.mark.parametrize("code", [0, 3, None])
def test_an_exit_of_user_code_is_no_end_of_its_command(
    code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()
    app.command()(lambda: sys.exit(code))
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["riverrun"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"Error: sys.exit({code}) was called" in said
    assert f"Hint: Look at {__file__}" in said.replace("\n", "")
