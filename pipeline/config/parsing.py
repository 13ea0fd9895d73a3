"""Kafka Streams' settings from their dotted names: whatever is unknown or impossible is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.app import EXACTLY_ONCE
from pipeline.config.checks import check_type, nearest
from pipeline.config.streams import BOUNDED_WALL_CLOCK, PREFIXES, StreamsConfig, dotted, underscored
from pipeline.config.topology import parse_optimization
from pipeline.errors import ConfigError
from pipeline.records import AutoOffsetReset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EOS_COMMIT_INTERVAL_MS = 100


def streams_config(path: Path | str, where: str, table: Mapping[str, Any], guarantee: str) -> StreamsConfig:
    """Kafka Streams' settings from their dotted names.

    Args:
        path: What they were read from, for messages.
        where: Where in it.
        table: The settings.
        guarantee: `exactly_once` or `at_least_once`.

    Raises:
        ConfigError: If one is unknown, or its value impossible.
    """
    known = {dotted(f.name): f.name for f in fields(StreamsConfig) if f"{dotted(f.name)}." not in PREFIXES}
    given: dict[str, Any] = {}
    if guarantee == EXACTLY_ONCE:
        given["commit_interval_ms"] = _EOS_COMMIT_INTERVAL_MS
    for key, value in table.items():
        prefix = next((p for p in PREFIXES if key.startswith(p)), None)
        if prefix is not None:
            if key == "consumer.auto.offset.reset":
                message = f"{path}: {where}.{key} is not a consumer's"
                raise ConfigError(message, hint="Write auto.offset.reset.")
            given.setdefault(underscored(prefix[:-1]), {})[key[len(prefix) :]] = (
                value if prefix == "user." else str(value)
            )
            continue
        if key not in known:
            message = f"{path}: unknown setting {where}.{key}"
            raise ConfigError(message, hint=nearest(key, known))
        given[known[key]] = _checked(path, f"{where}.{key}", key, value)
    return StreamsConfig(**given)


_HANDLERS = {
    "fail": "fail",
    "continue": "continue",
    "LogAndFailExceptionHandler": "fail",
    "LogAndContinueExceptionHandler": "continue",
    "LogAndFailProcessingExceptionHandler": "fail",
    "LogAndContinueProcessingExceptionHandler": "continue",
    "DefaultProductionExceptionHandler": "fail",
}

_TIMESTAMP_EXTRACTORS = (
    "FailOnInvalidTimestamp",
    "LogAndSkipOnInvalidTimestamp",
    "UsePartitionTimeOnInvalidTimestamp",
    "WallclockTimestampExtractor",
)
_ATTRIBUTE = re.compile(r"[\w.]+:\w+")

_LOWEST = {
    "acceptable.recovery.lag": 0,
    "commit.interval.ms": 0,
    "log.summary.interval.ms": 0,
    "max.task.idle.ms": -1,
    "num.standby.replicas": 0,
    "replication.factor": -1,
    "snapshot.interval.ms": 0,
    "statestore.cache.max.bytes": 0,
}


def _names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_CHOICES: Mapping[str, Mapping[str, str]] = {
    "bounded.wall.clock.punctuation": _names(*BOUNDED_WALL_CLOCK),
    "default.dsl.store": _names("rocksDB", "in_memory"),
    "default.timestamp.extractor": _names(*_TIMESTAMP_EXTRACTORS),
    "deserialization.exception.handler": _HANDLERS,
    "metrics.recording.level": _names("INFO", "DEBUG", "TRACE"),
    "processing.exception.handler": _HANDLERS,
    "production.exception.handler": _HANDLERS,
    "uncaught.exception.handler": _names("shutdown_client", "replace_thread", "shutdown_application"),
}
_TAKES_CODE = frozenset(key for key, allowed in _CHOICES.items() if allowed is _HANDLERS) | {
    "default.timestamp.extractor"
}
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "auto.offset.reset": AutoOffsetReset.parse,
    "topology.optimization": parse_optimization,
}
_TEXTS = frozenset({"state.dir", "errors.dead.letter.queue.topic.name", "server.token"})


def _chosen(path: Path | str, where: str, key: str, value: Any) -> str:
    allowed, takes_code = _CHOICES[key], key in _TAKES_CODE
    if takes_code and isinstance(value, str) and _ATTRIBUTE.fullmatch(value):
        return value
    if value not in allowed:
        message = f"{path}: {where} is {value!r}"
        also = " - or module:attribute" if takes_code else ""
        raise ConfigError(message, hint=f"Allowed: {', '.join(allowed)}{also}")
    return allowed[value]


def _checked(path: Path | str, where: str, key: str, value: Any) -> Any:
    if key in _CHOICES:
        return _chosen(path, where, key, value)
    if key in _TEXTS:
        return _text(path, where, value)
    match key:
        case "application.server":
            return _server(path, where, value)
        case "ensure.explicit.internal.resource.naming" | "processing.exception.handler.global.enabled":
            check_type(path, where, value, bool)
            return value
        case "rack.aware.assignment.tags":
            check_type(path, where, value, list)
            return tuple(map(str, value))
        case "snapshot.url":
            return _absolute(path, _text(path, where, value))
        case "auto.offset.reset" | "topology.optimization":
            _PARSERS[key](_text(path, where, value))
            return value
        case _:
            return _number(path, where, key, value)


def _text(path: Path | str, where: str, value: Any) -> str:
    check_type(path, where, value, str)
    return str(value)


def _number(path: Path | str, where: str, key: str, value: Any) -> int:
    check_type(path, where, value, int)
    lowest = _LOWEST.get(key, 1)
    if isinstance(value, bool) or value < lowest:
        message = f"{path}: {where} is {value!r}, and must be at least {lowest}"
        raise ConfigError(message)
    return int(value)


def _server(path: Path | str, where: str, value: Any) -> str:
    check_type(path, where, value, str)
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal()):
        message = f"{path}: {where} is {value!r}, not host:port"
        raise ConfigError(message)
    return str(value)


def _absolute(path: Path | str, url: str) -> str:
    """A URL as it is; a path as seen from the directory of `streams.toml`."""
    return url if not url or "://" in url else str((Path(path).parent / url).resolve())
