"""Runs Spark drivers outside of tasks: a separate process runs a range on a cluster, and its task waits without a slot.

Driver and waiting task communicate through a topic. The driver records that it lives, and how it ended. Cancelling the task
records that the driver is to end. So a triggerer may wait anywhere, and may be restarted.
"""

from __future__ import annotations

import _thread
import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace_airflow.hooks import Location
from millrace_airflow.sessions import Look, Wish, bounded, notes_of_drivers, now_ms, run
from pipeline.decoders import json_decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.config import ProjectConfig
    from pipeline.hosting.control.control_topic import ControlTopic

log = logging.getLogger(__name__)

RUNNING, DONE, FAILED, DIED = "running", "done", "failed", "died"
_HEARTBEAT_SECONDS = 5.0
_SILENT_MS = 90_000
"""A driver that is silent for this long is dead. Machines' clocks differ by less, and Spark starts within it."""
_KEPT_MS = 30 * 86_400_000
_END = "/end"


@dataclass(frozen=True, slots=True)
class Order:
    """Complete instructions for a driver. They are passed through a pipe, since they may contain secrets.

    Args:
        id: Identifies the driver.
        path: Path of `streams.toml`.
        wish: The wishes for the run.
        range: The range, as text.
        kafka: Client properties of the connection.
        master: Spark's master of the connection.
    """

    id: str
    path: str
    wish: Wish
    range: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    master: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """The last message of a driver.

    Args:
        state: `running`, `done` or `failed`.
        at_ms: Time of the message, ms since the epoch.
        said: What the driver has done, or why it failed.
        may_help: Whether another attempt may help.
    """

    state: str
    at_ms: int
    said: str = ""
    may_help: bool = True


def is_local(project: ProjectConfig, master: str) -> bool:
    """Return whether Spark runs on this machine alone: then a separate driver has no advantage."""
    chosen = master or project.spark.get("spark.remote") or project.spark.get("spark.master") or "local"
    return chosen.startswith("local")


def start(location: Location, wish: Wish, run_range: str, project: ProjectConfig) -> str:
    """Start a driver, which outlives this process.

    Args:
        location: Where the project is.
        wish: The wishes for the run.
        run_range: The range, as text.
        project: The project.

    Returns:
        The driver's id.
    """
    order = Order(uuid.uuid4().hex, str(location.path), wish, run_range, dict(location.kafka), location.master)
    directory = project.state_directory(project.app(wish.app)) / "drivers"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{order.id}.log").open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    assert process.stdin is not None  # noqa: S101 - as asked for
    process.stdin.write(msgspec.json.encode(asdict(order)))
    process.stdin.close()
    log.info("the driver %s of process %d runs %s; it writes to %s", order.id, process.pid, run_range, written.name)
    return order.id


def end(project: ProjectConfig, driver: str) -> None:
    """Ask a driver to end, wherever it runs. Its commits stay.

    Raises:
        BrokerError: If brokers do not answer.
    """
    notes_of_drivers(project).put({f"{driver}{_END}": b"{}"})


def look_at(project: ProjectConfig, driver: str, since_ms: int) -> Look:
    """Look once at a driver's state.

    Args:
        project: The project.
        driver: Its id.
        since_ms: When it was started, ms since the epoch.

    Returns:
        The look. If the driver has ended, its text is the last note, as JSON.

    Raises:
        BrokerError: If brokers do not answer.
    """
    value = notes_of_drivers(project).read().get(driver)
    note = Note(RUNNING, since_ms) if value is None else json_decoder(Note).decode(value)
    if note.state == RUNNING and now_ms() - note.at_ms > _SILENT_MS:
        note = Note(DIED, note.at_ms, "the driver was not heard of any more")
    is_over = note.state != RUNNING
    found = msgspec.json.encode(asdict(note)).decode() if is_over else ""
    return Look(f"driver {driver}: {note.state} {note.said}".rstrip(), is_over, found)


def drive(order: Order) -> None:
    """Run a range, and record how it ended."""
    from pipeline.errors import StreamsError
    from pipeline.hosting.logs import quiet_libraries

    quiet_libraries()
    project = Location(Path(order.path), order.kafka, order.master).project()
    topic, ended = notes_of_drivers(project), threading.Event()
    watch = threading.Thread(target=_watch, args=(topic, order.id, ended), daemon=True)
    watch.start()
    try:
        summary = run(
            bounded(project, order.wish, order.range), lambda done, of: log.info("%d of %d offsets", done, of)
        )
        note = Note(DONE, now_ms(), f"{summary.processed} records processed, dropped: {dict(summary.dropped)}")
    except KeyboardInterrupt:
        note = Note(FAILED, now_ms(), "It was told to end. What is committed stays; another attempt does the rest.")
    except StreamsError as error:
        note = Note(FAILED, now_ms(), str(error), _may_help(error))
    except Exception as error:
        log.exception("the driver fails")
        note = Note(FAILED, now_ms(), f"{type(error).__name__}: {error}")
    ended.set()
    watch.join()
    topic.put({**_forgotten(topic), order.id: msgspec.json.encode(asdict(note))})
    log.info("%s: %s", note.state, note.said)


def _forgotten(topic: ControlTopic) -> dict[str, None]:
    """Return notes that no task waits for any more."""
    notes = {name: value for name, value in topic.read().items() if not name.endswith(_END)}
    old = [name for name, value in notes.items() if now_ms() - json_decoder(Note).decode(value).at_ms > _KEPT_MS]
    return dict.fromkeys(each for name in old for each in (name, f"{name}{_END}"))


def _may_help(error: Exception) -> bool:
    from millrace_airflow.acting import is_worth_another_attempt

    return is_worth_another_attempt(error)


def _watch(topic: ControlTopic, driver: str, ended: threading.Event) -> None:
    """Record that the driver lives, and interrupt it when it is told to end."""
    from pipeline.errors import BrokerError

    while True:
        try:
            topic.put({driver: msgspec.json.encode(asdict(Note(RUNNING, now_ms())))})
            if f"{driver}{_END}" in topic.read():
                _thread.interrupt_main()
        except BrokerError as error:
            log.warning("the driver cannot report that it is alive: %s", error.message)
        if ended.wait(_HEARTBEAT_SECONDS):
            return


def read(text: bytes) -> Order:
    """Parse an order."""
    found: dict[str, Any] = json.loads(text)
    return Order(**{**found, "wish": Wish(**found["wish"])})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = sys.stdin.buffer.read()
    os.close(sys.stdin.fileno())
    drive(read(given))
