"""Runs Spark drivers outside of tasks: a separate process computes on a cluster, and its task waits without a slot.

A driver does one piece of work, which is a value: a run over a range, a step of a release, a check, an import or an export.

Driver and waiting task communicate through a topic. The driver records that it is alive, and how it ended. Cancelling the task
records that the driver is to end. So the triggerer may run on any machine, and may be restarted.

A driver imports no Airflow: what a task starts may not reach Airflow's database, and Airflow refuses to be imported there.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.config.secrets import redacted
from riverrun.decoders import Natural, UnreadableError, foreign_decoder, json_decoder
from riverrun.errors import EngineError, UnderWayError
from riverrun_airflow.location import Location
from riverrun_airflow.looks import Look
from riverrun_airflow.progress import LoggedProgress, following
from riverrun_airflow.sessions import (
    WorkOutcome,
    bounded,
    is_worth_another_attempt,
    judge_live,
    notes_of_drivers,
    now_ms,
    of_ended_java,
    recompute,
    run,
    take,
    transfer,
)
from riverrun_airflow.work_requests import CheckRequest, Request, StepRequest, TransferRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.config import ProjectConfig
    from riverrun.hosting.control_topic import ControlTopic

log = logging.getLogger(__name__)

RUNNING, DONE, FAILED, ENDED, DIED = "running", "done", "failed", "ended", "died"
_HEARTBEAT_SECONDS = 5.0
# A driver that is silent for this long is dead. Machines' clocks differ by less, and Spark starts within it.
_SILENT_MS = 90_000
# Time in which a driver that is interrupted ends by itself.
_ENDING_MS = 60_000
_KEPT_MS = 30 * 86_400_000
_END = "/end"


@dataclass(frozen=True, slots=True)
class Order:
    """Complete instructions for a driver.

    Args:
        path: Path of `streams.toml`.
        kafka: Client properties of the connection, which override those of the project.
        master: Spark's master of the connection; empty if it has none.
        until_ms: Time at which its task has to end, ms since the epoch; None without a limit.
    """

    id: str
    path: str
    request: Request
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    master: str = ""
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """The last message of a driver.

    Args:
        state: `running`, `done`, `failed`, or `ended` if it was asked to end.
        at_ms: Time of the message, ms since the epoch.
        said: What the driver has done, or why it failed.
        found: Facts for the task's result: see `sessions.WorkOutcome`.
        is_under_way: Whether it failed since another run has to end first.
        spark: Web address of its Spark; empty if there is none.
        ranges: The offsets that an import has written, or an export has exported, as text: one range for each finished batch.
    """

    state: str
    at_ms: Natural
    said: str = ""
    may_help: bool = True
    found: dict[str, Any] = field(default_factory=dict)
    is_under_way: bool = False
    spark: str = ""
    ranges: tuple[str, ...] = ()


_note = foreign_decoder(Note)


def is_local(project: ProjectConfig, master: str) -> bool:
    """Return whether Spark runs on this machine alone."""
    # As Spark itself: a Spark Connect server comes before a master, and without either, Spark is local.
    chosen = master or project.spark.get("spark.remote") or project.spark.get("spark.master") or "local"
    # Then the task's own process may as well compute: a driver would take the same CPUs.
    return chosen.startswith("local")


def start(location: Location, driver: str, request: Request, until_ms: int | None = None) -> None:
    """Start a driver, which outlives this process. Wait until it has read its instructions."""
    directory = _directory(location.project(), request)
    directory.mkdir(parents=True, exist_ok=True)
    log_file = directory / f"{driver}.log"
    reading, writing = os.pipe()
    with log_file.open("wb") as written:
        # A separate session: signals to this process's group must not end it.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(writing)],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,
            pass_fds=(writing,),
        )
    # Otherwise the read below would not end when the driver does.
    os.close(writing)
    order = Order(driver, str(location.path), request, dict(location.kafka), location.master, until_ms)
    assert process.stdin is not None  # noqa: S101 - as asked for
    # Through a pipe: instructions may contain secrets, which the command line would show to all users of the machine.
    # The pipe breaks if the driver has ended; then the read below finds out.
    with suppress(BrokenPipeError), process.stdin as instructions:
        instructions.write(msgspec.json.encode(order))
    with os.fdopen(reading, "rb") as answers:
        is_started = bool(answers.read(1))
    if not is_started:
        process.wait()
        last = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        message = f"the driver {driver} ended with code {process.returncode} before it began: {''.join(last)}"
        raise EngineError(message, hint=f"Its log is {log_file}.")
    log.info("the driver %s of process %d computes; it writes to %s", driver, process.pid, log_file)


def _directory(project: ProjectConfig, request: Request) -> Path:
    # Imports and exports belong to no application.
    if isinstance(request, TransferRequest):
        return project.path.resolve().parent / ".riverrun" / "drivers"
    return project.state_directory(project.app(request.app)) / "drivers"


def end(project: ProjectConfig, driver: str) -> None:
    """Ask a driver to end, on whatever machine it runs. Its commits stay."""
    notes_of_drivers(project).put({f"{driver}{_END}": b"{}"})


def look_at(project: ProjectConfig, driver: str, since_ms: int) -> Look:
    """Poll a driver's state; if it has ended, the finding is its last note as JSON."""
    value = notes_of_drivers(project).read().get(driver)
    known = None if value is None else _read(driver, value)
    # Before its first note, the time of its start stands in: one that dies at once is silent, too.
    note = Note(RUNNING, since_ms) if known is None else known
    if note.state == RUNNING and now_ms() - note.at_ms > _SILENT_MS:
        note = Note(DIED, note.at_ms, "the driver stopped reporting")
    is_over = note.state != RUNNING
    found = msgspec.json.encode(note).decode() if is_over else ""
    spark = f"; Spark: {note.spark}" if note.spark and not is_over else ""
    return Look(f"driver {driver}: {note.state} {note.said}".rstrip() + spark, is_over, found)


def _read(driver: str, value: bytes) -> Note | None:
    """Decode the note of a driver; None if it cannot be read."""
    try:
        return _note(value)
    except UnreadableError as error:
        log.warning("skipping the note of driver %s, which cannot be read: %s", driver, error)
        return None


def drive(order: Order) -> None:
    """Do the work of an order, and record how it ended."""
    from riverrun.hosting.process import quiet_libraries

    quiet_libraries()
    project = Location(Path(order.path), order.kafka, order.master).project()
    topic, ended = notes_of_drivers(project), threading.Event()
    progress = LoggedProgress(log)
    watch = threading.Thread(target=_watch, args=(topic, order, ended, progress), daemon=True)
    with following(progress):
        note = replace(_noted(project, order.request, watch), spark=progress.page)
    # The watch must be over before the last note: a later note that it is running would make the task wait for ever.
    ended.set()
    watch.join()
    topic.put({**_forgotten(topic), order.id: msgspec.json.encode(note)})
    log.info("%s: %s", note.state, note.said)


def _noted(project: ProjectConfig, request: Request, watch: threading.Thread) -> Note:
    """Do a piece of work while it is being watched, and return how it ended."""
    from riverrun.errors import StreamsError, of_an_interrupt
    from riverrun.extras import missing_extra

    ranges: list[str] = []
    try:
        watch.start()
        done = _done(project, request, ranges.append)
        return Note(DONE, now_ms(), done.said, found=done.found, ranges=tuple(ranges))
    except (Exception, KeyboardInterrupt) as error:
        finished = tuple(ranges)
        # The bridge to Java answers an interrupt by failing, with an error of another class.
        if of_an_interrupt(error):
            said = "The driver was asked to end. What is committed stays; another attempt does the rest."
            return Note(ENDED, now_ms(), said, ranges=finished)
        error = missing_extra(error) or of_ended_java(error) or error
        if isinstance(error, StreamsError):
            may_help, is_under_way = is_worth_another_attempt(error), isinstance(error, UnderWayError)
            said = redacted(str(error))
            return Note(FAILED, now_ms(), said, may_help, is_under_way=is_under_way, ranges=finished)
        log.exception("the driver fails")
        return Note(FAILED, now_ms(), redacted(f"{type(error).__name__}: {error}"), ranges=finished)


def _done(project: ProjectConfig, request: Request, keep: Callable[[str], None]) -> WorkOutcome:
    if isinstance(request, StepRequest):
        return WorkOutcome(take(project, request))
    if isinstance(request, CheckRequest):
        check = judge_live(project, request)
        return WorkOutcome(f"check {check.id}: judged up to {check.at}", {"check": check.id})
    if isinstance(request, TransferRequest):
        return transfer(project, request, keep)
    found = recompute(project, request) if request.recompute_from else {}
    summary = run(bounded(project, request))
    said = f"{summary.processed} records processed, dropped: {dict(summary.dropped)}"
    said = f"{found['compared']} rows compared, {found['corrections']} corrections, {said}" if found else said
    return WorkOutcome(said if summary.engine is None else f"{said}, engine: {summary.engine}", found)


def _forgotten(topic: ControlTopic) -> dict[str, None]:
    """Return tombstones for notes so old that no task waits for them any more."""
    notes = {name: value for name, value in topic.read().items() if not name.endswith(_END)}
    old = [
        name
        for name, value in notes.items()
        if (note := _read(name, value)) is None or now_ms() - note.at_ms > _KEPT_MS
    ]
    return dict.fromkeys(each for name in old for each in (name, f"{name}{_END}"))


def _watch(topic: ControlTopic, order: Order, ended: threading.Event, progress: LoggedProgress) -> None:
    """Record that the driver lives and how far it is, and interrupt it when it is asked to end, or its time is up."""
    told_ms: int | None = None
    while True:
        is_over = _is_late(order) or _is_to_end(topic, order, progress)
        if is_over and told_ms is None:
            told_ms = now_ms()
            # To the main thread: kill() may pick any thread, and only a signal to its own wakes one that waits for Spark.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # Users' code may swallow the interrupt. Its task has failed by now, or another attempt computes.
        if told_ms is not None and now_ms() - told_ms > _ENDING_MS:
            log.error("the driver does not end, and is killed")
            # Otherwise it would count as dead, which costs a retry. Whatever brokers do, it has to end.
            with suppress(Exception):
                note = Note(ENDED, now_ms(), "killed: it did not end within a minute")
                topic.put({order.id: msgspec.json.encode(note)})
            os._exit(1)
        left_s = _HEARTBEAT_SECONDS if order.until_ms is None else max(0.0, (order.until_ms - now_ms()) / 1000)
        if ended.wait(min(_HEARTBEAT_SECONDS, left_s or _HEARTBEAT_SECONDS)):
            return


def _is_late(order: Order) -> bool:
    return order.until_ms is not None and now_ms() >= order.until_ms


def _is_to_end(topic: ControlTopic, order: Order, progress: LoggedProgress) -> bool:
    """Report that the driver is alive, and return whether it was asked to end."""
    from riverrun.errors import BrokerError

    try:
        note = Note(RUNNING, now_ms(), progress.said, spark=progress.page)
        topic.put({order.id: msgspec.json.encode(note)})
        return f"{order.id}{_END}" in topic.read()
    except BrokerError as error:
        log.warning("the driver cannot report that it is alive: %s", error.message)
        return False


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = sys.stdin.buffer.read()
    os.close(sys.stdin.fileno())
    # `_watch` sends it, and the parent may have ignored it: a child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    instructions = json_decoder(Order).decode(given)
    with os.fdopen(int(sys.argv[1]), "wb") as answers:
        answers.write(b"\n")
    drive(instructions)
