"""Runs commands of `riverrun` in forks of one process that has loaded it: a start of Python takes longer than most commands.

Reads lines of JSON from the standard input, with a list of commands each: their arguments, directories and environments, the
files for their output, and the seconds they may take. Runs some at a time, as most wait: for brokers that are none, say.
Answers with a line of JSON for each, in their order: its exit code, or none if it had to be killed, and its output.

With a file as its argument, it runs the commands in this process itself, one after the other. They share a Spark session. All
that they and Java print goes to that file.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import signal
import sys
import time
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun import cli
from riverrun.cli.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Iterator

_AT_ONCE = 4
_PAUSE_SECONDS = 0.02
_JAVA_SECONDS = 60
"""For what Java has printed to arrive: a thread passes it on."""
_MARK = re.compile(r"^mark of tests \d+\n", re.MULTILINE)
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


def share(job: dict[str, Any]) -> int:
    """Run a command in this process, and return its exit code."""
    os.chdir(job["directory"])
    os.environ.update(job["environment"])
    sys.argv = ["riverrun", *job["arguments"]]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as above
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def wait_for_java(output: Path) -> None:
    """Wait until all that Java has printed so far has arrived: it prints a mark after it."""
    context = sys.modules.get("pyspark.core.context")
    java = None if context is None else context.SparkContext._jvm
    if java is None:
        return
    mark, deadline = f"mark of tests {time.monotonic_ns()}\n", time.monotonic() + _JAVA_SECONDS
    java.java.lang.System.err.print(mark)
    while mark.encode() not in output.read_bytes():
        assert time.monotonic() < deadline, "Java's output does not arrive"
        time.sleep(_PAUSE_SECONDS)


def serve_shared(output: Path) -> None:
    """Run all commands in this process."""
    answers = os.fdopen(os.dup(1), "w")
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in (1, 2):
        os.dup2(file, target)
    with output.open("rb") as printed:
        for line in sys.stdin:
            for job in json.loads(line):
                code = share(job)
                wait_for_java(output)
                # With what came too late for the answer before.
                shown = _MARK.sub("", printed.read().decode(errors="replace"))
                print(json.dumps({"code": code, "output": shown}), file=answers, flush=True)


class Fork:
    """A command in a fork, which is killed if it takes too long."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._ends = job, time.monotonic() + job["seconds"]
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            become(job)

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() > self._ends:
                os.killpg(self._pid, signal.SIGKILL)
                _, self._status = os.waitpid(self._pid, 0)
        return self._status is not None

    def answer(self) -> dict[str, Any]:
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return {
            "code": None if code == -signal.SIGKILL else code,
            "output": Path(self._job["output"]).read_text(errors="replace"),
        }


def answers(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run commands, some at a time, and return their answers in order."""
    left, forks = iter(jobs), list[Fork]()
    while True:
        running = [fork for fork in forks if not fork.has_ended()]
        forks += map(Fork, islice(left, _AT_ONCE - len(running)))
        if not forks:
            return
        if forks[0].has_ended():
            yield forks.pop(0).answer()
        else:
            time.sleep(_PAUSE_SECONDS)


def serve() -> None:
    for name in _LOADED_ONCE:
        import_module(name)
    for line in sys.stdin:
        for answer in answers(json.loads(line)):
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve_shared(Path(sys.argv[1])) if sys.argv[1:] else serve()
