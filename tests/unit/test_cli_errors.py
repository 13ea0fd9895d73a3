"""What a failure looks like in a shell: a sentence and a hint, exit code 1, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.cli import main as cli
from pipeline.errors import BrokerError, EngineError
from pipeline.spark.failures import ExecutorError, translated
from pipeline.spark.work import describe_error, rebuilt_error


def test_a_full_disk_is_said_and_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "app", lambda: Path("/dev/full").write_text("x"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "There is no space left on the disk" in said
    assert "Hint:" in said
    assert "Traceback" not in said


def test_other_errors_of_the_system_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "app", lambda: Path("/nowhere/at/all").read_text())
    with pytest.raises(FileNotFoundError):
        cli.main()


@pytest.mark.parametrize("may_help", [True, False])
def test_an_executors_error_keeps_its_type_hint_and_whether_waiting_helps(may_help: bool) -> None:
    error = BrokerError("no [answer]\nat all", retriable=may_help, hint="wait")
    for found in (
        rebuilt_error(describe_error(error)),
        translated(f"Traceback ...\nExecutorError: {ExecutorError(error)}\n\tat org.apache.spark", "run"),
    ):
        assert isinstance(found, BrokerError)
        assert (found.message, found.hint, found.retriable) == (error.message, "wait", may_help)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("o1.collect\n: org.X: failed\nCaused by: a.B: first\n\tat x\nCaused by: c.D: last\n", "c.D: last"),
        (
            "An error occurred\n: java.sql.SQLException: No suitable driver\n\tat x",
            "java.sql.SQLException: No suitable driver",
        ),
        ("Traceback:\nValueError: odd\n", "ValueError: odd"),
        ("one line", "one line"),
    ],
)
def test_of_sparks_own_errors_the_cause_is_told(text: str, told: str) -> None:
    found = translated(text, "write batch 3")
    assert isinstance(found, EngineError)
    assert found.message == f"Spark cannot write batch 3: {told}"
