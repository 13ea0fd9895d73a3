"""Airflow's command line in one process: commands share its imports, its database and its Spark session."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ENDING_SECONDS = 60
_HANGING_SECONDS = 240
"""A command that takes longer prints where each of its threads is, and ends."""


@dataclass(frozen=True)
class Done:
    """A command that has ended.

    Args:
        code: Its exit code.
        shown: All that it has printed.
        asked: What persons were shown before they answered.
        states: The state of each task of the last run of the DAG that it ran, with the number of its attempts.
    """

    code: int
    shown: str
    asked: tuple[str, ...]
    states: Mapping[str, tuple[str, int]]


class CommandLine:
    """A process that runs commands of Airflow, one after the other.

    Args:
        process: It.
        answers: What it says of each.
        log: The file that all of them print to.
    """

    def __init__(self, process: subprocess.Popen[str], answers: Any, log: Path) -> None:
        self._process, self._answers, self._log = process, answers, log

    def __call__(self, *arguments: str, answering: Sequence[str] = (), code: int = 0) -> Done:
        """Run a command.

        Args:
            arguments: The command.
            answering: What a person answers, one option for each question in turn.
            code: The exit code that is expected.
        """
        before = self._log.stat().st_size
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([arguments, answering]) + "\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        shown = self._log.read_bytes()[before:].decode(errors="replace")
        assert answer, shown[-6000:]
        found = json.loads(answer)
        states = {task: (state, tries) for task, state, tries in found["states"]}
        assert found["code"] == code, f"{shown[-6000:]}\n{states}"
        return Done(found["code"], shown, tuple(found["asked"]), states)


@contextmanager
def running_command_line(environ: Mapping[str, str], log: Path) -> Iterator[CommandLine]:
    """Run a process for commands.

    Args:
        environ: Its environment.
        log: The file that all commands print to.
    """
    reading, writing = os.pipe()
    command = [sys.executable, __file__, str(writing)]
    paths = (str(Path(__file__).parents[2]), environ.get("PYTHONPATH"))
    environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with (
        log.open("wb") as shown,
        subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=shown, stderr=shown, text=True, pass_fds=[writing]
        ) as process,
        os.fdopen(reading) as answers,
    ):
        os.close(writing)
        yield CommandLine(process, answers, log)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_ENDING_SECONDS)
        finally:
            process.kill()


class _Person(threading.Thread):
    """Answers questions of tasks in turn, as Airflow's interface does.

    `airflow dags test` writes a task's state once more after its process has ended. An answer between both writes is lost, so
    a task that waits although it was answered is given its answer again.
    """

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.asked: list[str] = []
        self._left = list(options)
        self._given: dict[Any, str] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            self._answer()

    def end(self) -> None:
        """Answer nothing any more."""
        self._ended.set()
        self.join()

    def _answer(self) -> None:
        from airflow import settings  # noqa: PLC0415 - of the other process
        from airflow.models import TaskInstance  # noqa: PLC0415
        from airflow.models.hitl import HITLDetail  # noqa: PLC0415
        from airflow.models.trigger import handle_event_submit  # noqa: PLC0415
        from airflow.sdk import timezone  # noqa: PLC0415
        from airflow.triggers.base import TriggerEvent  # noqa: PLC0415
        from sqlalchemy import select  # noqa: PLC0415

        with present(settings.NonScopedSession)() as session:
            waiting = session.scalar(select(TaskInstance).where(TaskInstance.state == "awaiting_input"))
            if waiting is None or not (waiting.id in self._given or self._left):
                return
            detail = session.get(HITLDetail, waiting.id)
            if waiting.id not in self._given:
                self._given[waiting.id] = self._left.pop(0)
                self.asked.append(f"{detail.subject}\n{detail.body}")
            detail.responded_by, detail.responded_at = {"id": "1", "name": "ann"}, timezone.utcnow()
            detail.chosen_options, detail.params_input = [self._given[waiting.id]], {}
            event = TriggerEvent(detail.as_resume_event_payload())
            handle_event_submit(event, task_instance=waiting, session=session)
            session.commit()


def _states(dag_id: str) -> list[tuple[str, str, int]]:
    from airflow import settings  # noqa: PLC0415
    from airflow.models import DagRun, TaskInstance  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    last = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1).scalar_subquery()
    with present(settings.NonScopedSession)() as session:
        tasks = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == last))
        return [(task.task_id, str(task.state), task.try_number) for task in tasks]


def _serve(answers: int) -> None:
    """Run each command that is read, and tell how it ended."""
    from airflow.__main__ import main  # noqa: PLC0415
    from airflow.cli.commands import dag_command  # noqa: F401, PLC0415 - two threads that import it wait for each other
    from airflow.providers.openlineage.plugins import listener  # noqa: PLC0415
    from sqlalchemy.orm import configure_mappers  # noqa: PLC0415

    from riverrun_airflow import triggers  # noqa: PLC0415

    configure_mappers()
    # Threads for OpenLineage's events of DAG runs: it would start a process after each task, which imports all of Airflow.
    listener.ProcessPoolExecutor = lambda max_workers, **_: ThreadPoolExecutor(max_workers)  # type: ignore[attr-defined,assignment]
    triggers._DEFERRED_S = 0.1  # only a scheduler takes tasks that are resumed soon for failed ones
    with os.fdopen(answers, "w") as output:
        for line in sys.stdin:
            arguments, answering = json.loads(line)
            sys.argv[:] = ["airflow", *arguments]
            person, code = _Person(answering), 0
            if answering:
                person.start()
            faulthandler.dump_traceback_later(_HANGING_SECONDS, exit=True)
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            faulthandler.cancel_dump_traceback_later()
            if answering:
                person.end()
            sys.stdout.flush()
            sys.stderr.flush()
            states = _states(arguments[2]) if arguments[:2] == ["dags", "test"] else []
            output.write(json.dumps({"code": code, "asked": person.asked, "states": states}) + "\n")
            output.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
