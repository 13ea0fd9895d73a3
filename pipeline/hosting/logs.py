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
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if style.as_json else text)
    logging.basicConfig(level=style.level, handlers=[handler])


def current_style() -> LogStyle:
    """How this process logs, for those that it starts."""
    root = logging.getLogger()
    return LogStyle(root.level, any(isinstance(handler.formatter, JsonLines) for handler in root.handlers))
