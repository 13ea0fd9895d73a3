"""Records in the output of commands: what would control a terminal is shown instead."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from rich.console import Console

from riverrun import STRING, Consumed, StreamsBuilder
from riverrun.cli import letters, run, sql
from riverrun.cli.output import echo
from riverrun.cli.project import told
from riverrun.cli.release import CommandOutcome, report
from riverrun.cli.topic import shown_line
from riverrun.errors import StreamsError
from riverrun.hosting.process import JsonLines, TextLines
from riverrun.records import TopicPartition, visible
from riverrun.sql.commands import Statements
from riverrun.testing import TopologyTestDriver
from riverrun.topics.letters import DeadLetter
from riverrun.topics.records import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Callable

CODES = (*range(32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
CONTROLS = {*map(chr, CODES)} - {"\n", "\t"}
SEQUENCES = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202egpj.exe", "a\x00b", "a\rb", "\u2028", "\u200f"]
HOSTILE = [*SEQUENCES, "".join(sorted(CONTROLS))]
TP = TopicPartition("orders", 0)


def record(text: str) -> ReadRecord:
    return ReadRecord(TP, 3, 0, text, {text: [text]}, ((text, text.encode()),))


def letter(text: str) -> DeadLetter:
    return DeadLetter(
        place=TP, offset=3, origin=TP, origin_offset=1, timestamp=0, key=text.encode(), value=text.encode(),
        headers=((text, text.encode()),), error=text, message=text, trace=text, note=None,
    )  # fmt: skip


def print_records(text: str) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", Consumed(STRING, STRING)).print()
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("orders", STRING, STRING).pipe_input(text, text)


def print_rows(text: str, *, as_json: bool) -> None:
    shell = sql._Shell(Statements.of("", "a.sql"), SimpleNamespace(), None, as_json=as_json)  # type: ignore[arg-type]
    shell._print(("K", "V"), [(text, {"F": [text]}), (text, None)])


def print_dry_run(text: str) -> None:
    Console(file=sys.stdout).print(run._shown("out", [Row(key=text, value=text)]))


def raise_error(text: str) -> None:
    assert told(StreamsError(f"bad key {text}", hint=f"look at {text}")) == 1


def log(text: str, formatter: logging.Formatter) -> None:
    line = logging.LogRecord("riverrun", logging.WARNING, "", 0, "bad key %s", (text,), None)
    print(formatter.format(line))


def print_outcome(text: str, *, as_json: bool) -> None:
    report(lambda: CommandOutcome(text, {text: text}), as_json=as_json)


PRINTERS: dict[str, Callable[[str], None]] = {
    "topic read, try": lambda text: echo(shown_line(record(text), as_json=False)),
    "topic read --json, try --json": lambda text: echo(shown_line(record(text), as_json=True)),
    "letters list, replay, discard": lambda text: echo(letters._line(letter(text))),
    "letters list --json": lambda text: echo(letters._json(letter(text))),
    "sql": lambda text: print_rows(text, as_json=False),
    "sql --json": lambda text: print_rows(text, as_json=True),
    "run --dry-run": print_dry_run,
    "release diff, release repair, backfill": lambda text: print_outcome(text, as_json=False),
    "release diff --json": lambda text: print_outcome(text, as_json=True),
    "print() of a topology": print_records,
    "an error of any command": raise_error,
    "a log line": lambda text: log(text, TextLines("%(message)s")),
    "a log line as JSON": lambda text: log(text, JsonLines()),
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("command", PRINTERS)
def test_records_do_not_control_the_terminal(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    PRINTERS[command](text)
    printed = "".join(capsys.readouterr())
    assert {*printed} & CONTROLS == set()


@pytest.mark.parametrize("command", [name for name in PRINTERS if "JSON" in name or "--json" in name])
@pytest.mark.parametrize("text", HOSTILE)
def test_json_has_the_text_as_it_was(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    PRINTERS[command](text)
    first = capsys.readouterr().out.splitlines()[0]
    assert json.dumps(text)[1:-1] in json.dumps(json.loads(first))


def test_a_record_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    PRINTERS["topic read, try"]("ann\norders-0@4  forged")
    print_rows("ann\nforged", as_json=False)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3


@given(st.text(st.characters() | st.sampled_from(sorted(CONTROLS))))
def test_shown_text_has_no_controls_and_reads_back(text: str) -> None:
    shown = visible(text)
    assert {*shown} & CONTROLS == set()
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text
    assert visible("".join(each for each in text if each.isprintable())) == "".join(filter(str.isprintable, text))


def test_commands_print_in_one_place_only() -> None:
    modules = [each for each in Path(sql.__file__).parent.glob("*.py") if each.name != "output.py"]
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in {"print", "typer.echo", "typer.secho", "sys.stdout.write"}, module
