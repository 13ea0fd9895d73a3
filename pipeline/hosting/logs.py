"""How processes log to their standard error output: lines for people, or JSON for machines."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

_FIELDS = ("application", "task", "topic", "partition", "offset", "offsets")
"""What a message may say apart (`extra`)."""
_TALKATIVE = {
    "great_expectations": logging.WARNING,  # directories that it makes, and each function that it registers
    "httpx": logging.WARNING,  # a line for every question that is passed on
    "kafka": logging.CRITICAL,  # tracebacks of lost connections, which it opens again by itself
    "py4j": logging.CRITICAL,  # each connection to Java, and errors that it raises as well
}
"""Loggers of other libraries, and from which level on they are heard."""


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How to log.

    Args:
        level: From which level on.
        as_json: Whether each message is a JSON object on a line of its own.
    """

    level: int
    as_json: bool


class JsonLines(logging.Formatter):
    """One JSON object per message: time, level, logger, process, message, and task and offsets where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        shown: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.processName,
            "message": record.getMessage(),
        }
        shown |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(shown, enc_hook=str).decode()


def start_logging(style: LogStyle) -> None:
    """Log in this process as it is said."""
    quiet_libraries()
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if style.as_json else text)
    logging.basicConfig(level=style.level, handlers=[handler])


def quiet_libraries() -> None:
    """Keep other libraries from what they log of things that are in order, or that they raise as well.

    For processes that are ours: commands, stream threads, tasks of Airflow. What a program logs that uses Millrace is its
    own affair.
    """
    for name, level in _TALKATIVE.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addFilter(_is_no_trace_of_an_interrupt)


def _is_no_trace_of_an_interrupt(record: logging.LogRecord) -> bool:
    """Whether a line of the root logger says something else than Spark's bridge to Java does at Ctrl-C, with a trace."""
    return record.msg not in {"KeyboardInterrupt while sending command.", "Exception while sending command."}


def current_style() -> LogStyle:
    """Return how this process logs, for those that it starts."""
    root = logging.getLogger()
    return LogStyle(root.level, any(isinstance(handler.formatter, JsonLines) for handler in root.handlers))
