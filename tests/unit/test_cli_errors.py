"""A failure in a shell: a sentence and a hint, exit code 1, no traceback."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from riverrun.cli import main as cli
from riverrun.errors import BrokerError, EngineError
from riverrun.hosting.local_state import locked
from riverrun.spark.failures import ExecutorError, describe_error, rebuilt_error, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Riverrun = Callable[..., tuple[int, str]]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the command line, since that takes longer than most commands."""
    program = [sys.executable, str(ROOT / "tests/system/forked_commands.py")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def riverrun(forking: subprocess.Popen[str], tmp_path: Path) -> Riverrun:
    """Runs a command in this directory; returns its exit code, and what it has printed."""

    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        job = {"arguments": arguments, "environment": environment, "directory": os.getcwd()}  # noqa: PTH109 - as text
        assert forking.stdin is not None
        assert forking.stdout is not None
        forking.stdin.write(f"{json.dumps([job | {'output': str(tmp_path / 'output'), 'seconds': 300}])}\n")
        forking.stdin.flush()
        answer: dict[str, Any] = json.loads(forking.stdout.readline())
        return answer["code"], answer["output"]

    return run


def test_a_full_disk_is_said_and_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "app", lambda: Path("/dev/full").write_text("x"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output = capsys.readouterr().err
    assert ended.value.code == 1
    assert "There is no space left on the disk" in output
    assert "Hint:" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(("end", "prepares"), [(0, True), (1, False), (130, False), (KeyboardInterrupt, False)])
def test_only_a_command_that_ends_well_prepares_spark(
    end: int | type[BaseException], prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Any] = []
    monkeypatch.setattr(atexit, "unregister", forgotten.append)
    monkeypatch.setattr(sys, "path", list(sys.path))

    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise typer.Exit(end) if isinstance(end, int) else end

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["riverrun"])
    with pytest.raises(SystemExit):
        cli.main()
    assert bool(forgotten) is not prepares


def test_with_json_logs_the_last_word_is_json_as_well(riverrun: Riverrun, tmp_path: Path) -> None:
    code, output = riverrun("--log-json", "--config", str(tmp_path / "none.toml"), "worker", "delays")
    assert code == 1
    (line,) = map(json.loads, output.splitlines())
    assert line["level"] == "ERROR"
    assert "none.toml does not exist" in line["message"]
    assert "Hint: Name another file" in line["message"]


def test_the_version_of_no_application_is_refused_by_exports(riverrun: Riverrun) -> None:
    code, output = riverrun("export", "clicks", "out", "--version", "v2")
    assert code == 1
    assert "--version is of an application, and none is named" in output


@pytest.mark.parametrize("setting", ["", '"application.server" = "127.0.0.1:0"'])
def test_scaling_without_an_address_asks_for_one(riverrun: Riverrun, tmp_path: Path, setting: str) -> None:
    config = tmp_path / "streams.toml"
    config.write_text(f"""
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "clicks:build"
[apps.clicks.config]
{setting}
""")
    code, output = riverrun("--config", str(config), "scale", "clicks", "2")
    assert code == 1
    assert "No address of an instance of clicks is known" in output
    assert "--server host:port" in output


CLICKS = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "clicks:build"
"""


@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:8080", "127.0.0.1:8080/x"])
def test_where_an_instance_is_asked_is_a_host_and_a_port(riverrun: Riverrun, tmp_path: Path, server: str) -> None:
    config = tmp_path / "streams.toml"
    config.write_text(CLICKS)
    code, output = riverrun("--config", str(config), "scale", "clicks", "2", "--server", server)
    assert code == 1
    assert "not host:port" in output
    assert "For example 127.0.0.1:8080" in output


@pytest.mark.parametrize("token", ["s3cr\u00e9t", "s3c\nret", "s3cret-of-20-letters\n"])
def test_no_token_is_shown_in_an_error(riverrun: Riverrun, tmp_path: Path, token: str) -> None:
    config = tmp_path / "streams.toml"
    config.write_text(CLICKS)
    environ = {"RIVERRUN_TOKEN": token, "HTTP_PROXY": "http://127.0.0.1:1"}
    code, output = riverrun("--config", str(config), "scale", "clicks", "2", "--server", "127.0.0.1:9", **environ)
    assert code == 1
    expected = "does not answer" if token.endswith("\n") else "RIVERRUN_TOKEN has characters that a token cannot have"
    assert expected in output
    assert "s3c" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--instances", "3"], "--instances says how to run on Spark"),
        (["--master", "local[2]"], "--master says how to run on Spark"),
        (["--until-caught-up", "--on", "spark"], "--on cannot be combined with --until-caught-up"),
        (["--until-caught-up", "--threads", "2"], "--threads cannot be combined with --until-caught-up"),
        (["--until-caught-up", "--server", "127.0.0.1:0"], "--server cannot be combined with --until-caught-up"),
    ],
)
def test_options_of_a_worker_that_would_do_nothing_are_refused(
    riverrun: Riverrun, options: list[str], refused: str
) -> None:
    code, output = riverrun("worker", "clicks", *options)
    assert code == 1
    assert refused in output
    assert "Hint:" in output
    assert "Traceback" not in output


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
    ("text", "message"),
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
def test_of_sparks_own_errors_the_cause_is_reported(text: str, message: str) -> None:
    found = translated(text, "write batch 3")
    assert isinstance(found, EngineError)
    assert found.message == f"Spark cannot write batch 3: {message}"


def test_local_state_is_deleted_without_a_broker_unless_a_worker_uses_it(riverrun: Riverrun, tmp_path: Path) -> None:
    config = tmp_path / "streams.toml"
    config.write_text("""
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "clicks:build"
[apps.clicks.config]
"state.dir" = "kept"
""")
    state, on_spark = tmp_path / "kept" / "clicks-v1", tmp_path / "kept" / "instance-0" / "clicks-v1"
    (state / "0_0").mkdir(parents=True)
    (on_spark / "0_1").mkdir(parents=True)

    def clean_up(*arguments: str) -> tuple[int, str]:
        return riverrun("--config", str(config), "clean-up", "clicks", *arguments)

    with locked(state):
        refused, output = clean_up("--version", "v1", "--yes")
    assert refused == 1
    assert "Another worker uses the state directory" in output
    assert (state / "0_0").exists()
    unasked, output = clean_up("--version", "v1")
    assert unasked == 1
    assert "Hint: Confirm with --yes." in output
    assert state.exists()
    deleted = f"Deleted local state {state}\nDeleted local state {on_spark}\n"
    assert clean_up("--version", "v1", "--yes") == (0, deleted)
    assert not state.exists()
    assert not on_spark.exists()
    elsewhere = str(tmp_path / "other")
    none_there = f"There is no local state of clicks-v1 in {elsewhere}\n"
    assert clean_up("--version", "v1", "--state-dir", elsewhere) == (0, none_there)
    assert "has no version 'v3'" in clean_up("--version", "v3")[1]
