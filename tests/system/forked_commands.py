"""Runs commands of `riverrun` in forks of one process that has loaded it: a start of Python takes longer than most commands.

Reads a line of JSON per command from the standard input: its arguments, directory and environment, the file for its output, and
the seconds it may take. Answers with a line of JSON: its exit code, or none if it had to be killed.

With a file as its argument, it runs the commands in this process itself, which then share a Spark session. All that they and
Java print goes to that file.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from riverrun import cli
from riverrun.cli.__main__ import main

_PAUSE_SECONDS = 0.02
_JAVA_SECONDS = 0.5
"""For what Java prints: a thread passes it on."""
_LOADED_ONCE = (
    "confluent_kafka.admin",
    "numpy",
    "rich.markdown",
    "rich.traceback",
    "riverrun.archive.manifest",
    "riverrun.kafka.admin",
    "riverrun.project.app",
    "typer._adapters",
    *(f"riverrun.cli.{each.name}" for each in pkgutil.iter_modules(cli.__path__)),
)
"""Commands import these when they are called. In each of hundreds of forks, that would take most of the time."""


def become(job: dict[str, Any]) -> None:
    """Turn a fork into the command. Does not return."""
    os.setsid()
    os.chdir(job["directory"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(job["environment"])
    sys.argv = ["riverrun", *job["arguments"]]
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - Python prints whatever a command lets through
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def share(job: dict[str, Any], output: Path) -> dict[str, Any]:
    """Run a command in this process, and return its exit code and its output."""
    os.chdir(job["directory"])
    os.environ.update(job["environment"])
    sys.argv = ["riverrun", *job["arguments"]]
    before, code = output.stat().st_size, 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as above
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(_JAVA_SECONDS)
    return {"code": code, "output": output.read_bytes()[before:].decode(errors="replace")}


def serve_shared(output: Path) -> None:
    """Run all commands in this process."""
    answers = os.fdopen(os.dup(1), "w")
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in (1, 2):
        os.dup2(file, target)
    for line in sys.stdin:
        print(json.dumps(share(json.loads(line), output)), file=answers, flush=True)


def waited(pid: int, seconds: float) -> int | None:
    """Return the exit code of a child; None if it is still running after this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_PAUSE_SECONDS)
    return None


def serve() -> None:
    for name in _LOADED_ONCE:
        import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(job)
        code = waited(pid, job["seconds"])
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(json.dumps({"code": code, "output": Path(job["output"]).read_text(errors="replace")}), flush=True)


if __name__ == "__main__":
    serve_shared(Path(sys.argv[1])) if sys.argv[1:] else serve()
