"""This process: its user, wall clock, logging, and search for reference cycles."""

from __future__ import annotations

import gc
import getpass
import logging
import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from logging.config import dictConfig
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.config.secrets import redacted
from riverrun.errors import ConfigError
from riverrun.records import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def this_user() -> str:
    """Return the user of this process and the machine it runs on: `user@host`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the present time, in ms since the epoch."""
        return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the time of a clock that nobody sets, ms: intervals must not change because the machine's clock is corrected."""
    return time.monotonic_ns() // 1_000_000


_COLLECTED_AFTER = 50_000


@cache
def collect_rarely() -> None:
    """Look for cycles after 50,000 new objects, and never among the objects that exist at the first call."""
    # Records make no cycles; Python's default of 700 costs a quarter of the time for reading them.
    gc.set_threshold(_COLLECTED_AFTER)
    # Objects from before the first record, mainly modules, stay: Spark's Python processes look through everything after each
    # task.
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend the search for cycles while the body makes very many objects that stay and are in no cycle."""
    # Python would search them over and over as more are made, for a third of the time for reading records to be sorted.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_FIELDS = ("application", "task", "topic", "partition", "offset", "offsets")
"""Fields that a message may carry in addition (`extra`)."""
_TALKATIVE = {
    # Logs directories that it makes, and each function that it registers.
    "great_expectations": logging.WARNING,
    # Logs every query that is passed on to another instance.
    "httpx": logging.WARNING,
    # Logs every request to a schema registry.
    "httpx2": logging.WARNING,
    # Logs tracebacks of lost connections, which it opens again by itself.
    "kafka": logging.CRITICAL,
    # Logs each connection to Java, and errors that it raises as well.
    "py4j": logging.CRITICAL,
}
"""Other libraries' loggers, with the lowest level that is logged."""


@dataclass(frozen=True, slots=True)
class LogStyle:
    """The style of logging: the lowest level, and whether each message is a JSON object on its own line."""

    level: int
    as_json: bool


class TextLines(logging.Formatter):
    """Formats a message as a line of text, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(redacted(super().format(record)))


class JsonLines(logging.Formatter):
    """Formats a message as JSON: time, level, logger, process, message, and task and offsets where known."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.processName,
            "message": redacted(record.getMessage()),
        }
        shown |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            shown["exception"] = redacted(self.formatException(record.exc_info))
        return visible(msgspec.json.encode(shown, enc_hook=str).decode())


def start_logging(style: LogStyle, config: Mapping[str, Any] | None = None) -> None:
    quiet_libraries()
    handler = logging.StreamHandler(sys.stderr)
    text = TextLines("%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if style.as_json else text)
    logging.basicConfig(level=style.level, handlers=[handler])
    # Last, as the project's own settings take precedence over the style.
    configure_logging(config or {}, style.level)


def configure_logging(config: Mapping[str, Any], level: int) -> None:
    """Configure logging of this process as the project says."""
    if not config:
        return
    try:
        dictConfig(dict(config))
    except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
        why = f": {error.__cause__}" if error.__cause__ is not None else ""
        message = f"[logging] of streams.toml cannot be used: {error}{why}"
        raise ConfigError(message, hint="It is what logging.config.dictConfig of Python takes.") from error
    # A user who has asked for Riverrun's messages gets them, whatever the project's settings say.
    if level < logging.WARNING:
        logging.getLogger("riverrun").setLevel(level)


def quiet_libraries() -> None:
    """Silence messages of other libraries about normal events, or about errors that they raise as well.

    Only for Riverrun's own processes: commands, stream threads, tasks of Airflow. Other programs decide for themselves.
    """
    for name, level in _TALKATIVE.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addFilter(_is_no_trace_of_an_interrupt)


def _is_no_trace_of_an_interrupt(record: logging.LogRecord) -> bool:
    """Return False for the trace that Spark's bridge to Java logs at Ctrl-C through the root logger; True for other lines."""
    return record.msg not in {"KeyboardInterrupt while sending command.", "Exception while sending command."}


def current_style() -> LogStyle:
    """Return the logging style of this process, for child processes."""
    root = logging.getLogger()
    return LogStyle(root.level, any(isinstance(handler.formatter, JsonLines) for handler in root.handlers))
