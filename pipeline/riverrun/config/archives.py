"""`[archives.NAME]` of `streams.toml`: topics, and the place where `riverrun archive write` keeps them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import (
    check_keys,
    check_name,
    check_schedule,
    check_type,
    check_values,
    check_zone,
)
from riverrun.config.exports import METRICS, NUMBERS, catalog_of, metrics_of, properties_of_consumer
from riverrun.config.links import Links
from riverrun.config.secrets import expanded
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENGINES = ("local", "spark")
"""Engines that write archives."""
FOLLOWING = frozenset({"commit_seconds", "commit_bytes", "retry_seconds"})
"""Numbers of followers, with the bounds that those of exports have."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAMESPACE = re.compile(r"\w+(\.\w+)*")
_TEXTS = ("url", "schedule", "schedule_timezone", "namespace")


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """One archive.

    Args:
        name: NAME of `[archives.NAME]`, by which commands address it.
        topics: The topics to archive, at least one.
        url: Place of the archive: a path, or any URL of fsspec.
        engine: `local` for one process, `spark` for executors.
        skip_lost: Whether to go on behind records that were deleted before they were archived; otherwise that is an error.
        commit_seconds: Time after which a follower completes files.
        commit_bytes: Size of keys and values after which it completes them.
        retry_seconds: How long a follower waits for an archive that does not answer.
        metrics_server: Address at which a follower serves metrics to Prometheus, `host:port`; none if left out.
        metrics_token: The token that readers of metrics send; needed unless only this machine reaches the address.
        consumer: Properties of a follower's consumer by librdkafka's names.
        schedule: Cron expression of its DAG in Airflow; none if it is triggered by hand.
        schedule_timezone: The time zone of the schedule, by its name in the IANA database.
        namespace: Namespace of tables of Iceberg that show the archive, one for each topic; none if left out.
        catalog: Properties of their catalogue, as pyiceberg takes them. Never printed: it may hold secrets.
    """

    name: str
    topics: tuple[str, ...]
    url: str
    engine: str = "local"
    skip_lost: bool = False
    commit_seconds: int = 600
    commit_bytes: int = 64_000_000
    retry_seconds: int = 300
    metrics_server: str = ""
    metrics_token: str = field(default="", repr=False)
    consumer: Mapping[str, str] = field(default_factory=dict, repr=False)
    schedule: str | None = None
    schedule_timezone: str = "UTC"
    namespace: str = ""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def links(self) -> Links:
        """Its place in the graph of the project."""
        return Links(self.topics)


def archive_config(path: Path, name: str, table: Any, environ: Mapping[str, str]) -> ArchiveConfig:
    """Check `[archives.NAME]`; `environ` replaces `${NAME}` in the URL, and paths are relative to the file."""
    where = f"archives.{name}"
    check_type(path, where, table, dict, hint="Write [archives.NAME], a table for each archive.")
    check_name(path, "archive", name)
    consumer, table = properties_of_consumer(path, where, table, environ)
    check_keys(path, where, table, ("topics", "engine", "skip_lost", "catalog", *_TEXTS, *FOLLOWING, *METRICS))
    numbers = {key: NUMBERS[key] for key in FOLLOWING}
    check_values(path, where, table, texts=_TEXTS, choices={"engine": ENGINES}, numbers=numbers, lists=("topics",))
    check_type(path, f"{where}.skip_lost", table.get("skip_lost", False), bool)
    if "schedule" in table:
        check_schedule(f"{path}: {where}.schedule", table["schedule"])
    if "schedule_timezone" in table:
        check_zone(f"{path}: {where}.schedule_timezone", table["schedule_timezone"])
    url = expanded(f"{path}: {where}.url", table.get("url", ""), environ)
    if not url.strip():
        message = f"{path}: [{where}] needs url"
        raise ConfigError(message, hint='For example url = "s3://company-archive/kafka", or a directory.')
    metrics = metrics_of(path, where, table, environ)
    located = url if "://" in url else str((path.parent / url).resolve())
    own = {**table, "topics": _topics(path, where, table), "url": located} | _tables(path, where, table, environ)
    return ArchiveConfig(name, **own | metrics, consumer=consumer)


def _tables(path: Path, where: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that locate tables of Iceberg."""
    if ("catalog" in table) != ("namespace" in table):
        has, lacks = ("catalog", "namespace") if "catalog" in table else ("namespace", "catalog")
        message = f"{path}: [{where}] has {has}, and needs {lacks}"
        hint = f'Tables of Iceberg need both: namespace = "kafka", and the catalogue in [{where}.catalog].'
        raise ConfigError(message, hint=hint)
    if "namespace" not in table:
        return {}
    if not _NAMESPACE.fullmatch(table["namespace"]):
        message = f"{path}: {where}.namespace is {table['namespace']!r}"
        raise ConfigError(message, hint='Letters, digits and underscores, with dots between parts: "kafka".')
    return {"catalog": catalog_of(path, f"{where}.catalog", table["catalog"], environ)}


def _topics(path: Path, where: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    topics = table.get("topics", [])
    if not topics:
        raise ConfigError(f"{path}: [{where}] needs topics", hint='For example topics = ["orders", "customers"].')
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            message = f"{path}: {where}.topics has {topic!r}, which is not the name of a topic"
            raise ConfigError(message, hint="Names have the characters a-z A-Z 0-9 . _ -, at most 249 of them.")
    return tuple(dict.fromkeys(topics))
