"""Each key of `streams.toml` with a value of each type of TOML: it is read, or refused with a clear error."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from riverrun.config import ProjectConfig
from riverrun.config.archives import FOLLOWING
from riverrun.config.exports import METRICS, NUMBERS, UNREADABLE
from riverrun.config.imports import CHOICES, POLLING
from riverrun.config.sections import CLIENT_SETTINGS, CONSOLE_KEYS, LOGGING_KEYS, SERDE_SETTINGS
from riverrun.config.streams import PREFIXED, SETTINGS
from riverrun.errors import ConfigError

VALUES = tomllib.loads("""
values = [
    [], ["text"], [["text"]], [{a = 1}], {}, {a = 1}, {a = {b = ["text"]}}, "text", "", 5, -1, 1.5, inf, nan, true, false,
    2026-01-01, 2026-01-01T00:00:00Z, 2026-01-01T00:00:00, 12:00:00,
]
""")["values"]
BASE: dict[str, Any] = {
    "kafka": {"bootstrap.servers": "127.0.0.1:1"},
    "apps.clicks": {"topology": "m:f"},
    "apps.clicks.config": {},
    "schema_registry": {"url": "http://127.0.0.1:1"},
    "exports.totals": {"topic": "t", "target": "rows", "format": "json"},
    "imports.orders": {"topic": "t", "source": "rows", "format": "json"},
    "archives.all": {"topics": ["t"], "url": "kept"},
    "neighbours.billing": {"reads": ["t"]},
}
KEYS: dict[str, tuple[str, ...]] = {
    "": (
        "kafka",
        "spark",
        "schema_registry",
        "console",
        "logging",
        "apps",
        "exports",
        "imports",
        "archives",
        "neighbours",
    ),
    "kafka": ("bootstrap.servers", "unsafe.properties", "sasl.mechanism", "oauth_cb", "client.id"),
    "spark": ("spark.executor.memory",),
    "schema_registry": (*CLIENT_SETTINGS, *SERDE_SETTINGS),
    "console": CONSOLE_KEYS,
    "logging": LOGGING_KEYS,
    "apps": ("clicks",),
    "apps.clicks": (
        *("topology", "version", "versions", "outputs", "carry", "config", "quality", "gate", "data_docs"),
        *("schedule", "schedule_timezone", "quality_schedule", "catchup_from", "max_inputs_since_gate"),
        *("unexpected_rows", "unexpected_rows_limit", "unexpected_rows_checks"),
    ),
    "apps.clicks.versions": ("v2",),
    "apps.clicks.outputs": ("t",),
    "apps.clicks.carry": ("v1", "v2"),
    "apps.clicks.config": (*(SETTINGS.keys() - PREFIXED), *(f"{prefix}.x" for prefix in PREFIXED), *PREFIXED),
    "exports": ("totals",),
    "exports.totals": (
        *("topic", "target", "table", "catalog", "format", "sink", "app", "key_serde", "value_serde", "window", "mode"),
        *("key", "columns", "new_columns", "lost_deletions", "absent_fields", "continues", "consumer.client.id"),
        *(*NUMBERS, *UNREADABLE, *METRICS),
    ),
    "exports.totals.columns": ("c",),
    "exports.totals.catalog": ("uri",),
    "imports": ("orders",),
    "imports.orders": (
        *("topic", "source", "table", "query", "pattern", "app", "key_serde", "value_serde", "value", "timestamp"),
        *("incremental", "key", "options", "errors_dead_letter_queue_topic_name", *CHOICES, *POLLING, *METRICS),
    ),
    "imports.orders.options": ("encoding", "multiLine"),
    "archives": ("all",),
    "archives.all": (
        *("topics", "skip_lost", "catalog", "url", "engine", "schedule", "schedule_timezone", "namespace"),
        *("consumer.client.id", *FOLLOWING, *METRICS),
    ),
    "archives.all.catalog": ("uri",),
    "neighbours": ("billing",),
    "neighbours.billing": ("reads", "writes"),
}


def project(section: str, key: str, value: Any) -> ProjectConfig:
    """The project in which a key has a value."""
    content: dict[str, Any] = {}
    for name, given in (*BASE.items(), (section, {key: value})):
        table = content
        for part in filter(None, name.split(".")):
            table = table.setdefault(part, {})
        table |= given
    return ProjectConfig.read(Path("/project/streams.toml"), content, {})


@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in KEYS.items() for key in sorted(keys)])
def test_a_value_of_any_type_is_read_or_refused(section: str, key: str) -> None:
    for value in VALUES:
        try:
            project(section, key, value)
        except ConfigError as error:
            assert str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("value", [["exactly_once_v2"], {"a": 1}])
def test_a_word_in_an_array_or_table_is_no_word(value: Any) -> None:
    for section, key in ("apps.clicks.config", "processing.guarantee"), ("apps.clicks.outputs", "letters"):
        with pytest.raises(ConfigError, match=f"{key} is "):
            project(section, key, value).app("clicks")
