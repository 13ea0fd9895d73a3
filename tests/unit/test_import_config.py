"""`[imports.NAME]`: its defaults, and a clear error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riverrun.config import ProjectConfig
from riverrun.config.imports import ImportConfig
from riverrun.errors import ConfigError

PATH = Path("/project/streams.toml")
TABLE = {"topic": "orders", "source": "sqlite:///shop.db", "table": "orders", "incremental": ["id"]}
LETTERS = "errors_dead_letter_queue_topic_name"
FILES = {"topic": "clicks", "source": "in", "format": "csv"}


def declared(table: Any, **environ: str) -> ImportConfig:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "imports": {"orders": table}}
    found: ImportConfig = ProjectConfig.read(PATH, content, environ).declared("imports", "orders")
    return found


def test_an_import_of_a_table_has_defaults() -> None:
    expected = ImportConfig("orders", "orders", "sqlite:////project/shop.db", "orders", incremental=("id",))
    assert declared(TABLE) == expected
    assert (expected.lag_seconds, expected.poll_seconds, expected.place) == (5, 5, "orders")
    assert declared(TABLE | {"incremental": ["at", "id"], "key": ["id"]}).incremental == ("at", "id")


def test_files_are_beside_streams_toml_and_have_options() -> None:
    found = declared(FILES | {"options": {"header": True, "sep": ";"}})
    assert (found.source, found.complete) == ("/project/in", "unchanged")
    assert found.options == {"header": "true", "sep": ";"}
    assert declared(FILES | {"source": "s3://bucket/in"}).source == "s3://bucket/in"


def test_secrets_of_the_source_are_looked_up_and_not_shown() -> None:
    found = declared(TABLE | {"source": "postgresql://u:${PW}@db/shop"}, PW="s")
    assert found.source == "postgresql://u:s@db/shop"
    assert "u:s" not in repr(found)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("orders", "imports.orders is 'orders', not a table"),
        ({}, r"\[imports.orders\] needs topic"),
        ({"topic": "t"}, r"\[imports.orders\] needs source"),
        ({"topic": "t", "source": "in"}, r"\[imports.orders\] has no kind of source"),
        (TABLE | {"query": "SELECT 1"}, r"\[imports.orders\] has table and query"),
        (TABLE | {"format": "json"}, r"\[imports.orders\] has table and format"),
        (TABLE | {"incremental": []}, r"\[imports.orders\] needs incremental, a column whose values only rise"),
        (TABLE | {"incremental": ["a", "b", "c"]}, "imports.orders.incremental has 3 columns"),
        (TABLE | {"incremental": ["a", "a"]}, "imports.orders.incremental names a column twice"),
        (TABLE | {"incremental": "id"}, "imports.orders.incremental is 'id', not an array"),
        (TABLE | {"pattern": "*.json"}, "imports.orders.pattern is of files, but the source is a database"),
        (FILES | {"incremental": ["id"]}, "imports.orders.incremental is of a database, but the source is files"),
        (FILES | {"lag_seconds": 3}, "imports.orders.lag_seconds is of a database"),
        (FILES | {"format": "orc"}, "imports.orders.format is 'orc'"),
        (FILES | {"complete": "soon"}, "imports.orders.complete is 'soon'"),
        (FILES | {"options": {"separator": ";"}}, "unknown key imports.orders.options.separator"),
        (FILES | {"format": "json", "options": {"header": True}}, "unknown key imports.orders.options.header"),
        (FILES | {"options": {"sep": ["x"]}}, "imports.orders.options.sep is not one value"),
        (TABLE | {"backwards": "go"}, "imports.orders.backwards is 'go'"),
        (TABLE | {"poll_seconds": 0}, "imports.orders.poll_seconds is 0"),
        (TABLE | {"lag_seconds": -1}, "imports.orders.lag_seconds is -1"),
        (TABLE | {"topic": 3}, "imports.orders.topic is 3, not a string"),
        (TABLE | {"tble": "x"}, "unknown key imports.orders.tble"),
        (TABLE | {"target": "x"}, "unknown key imports.orders.target"),
        (TABLE | {LETTERS: "orders"}, f"imports.orders.{LETTERS} is the topic of the records as well"),
        (TABLE | {LETTERS: "bad"}, f"imports.orders.{LETTERS} has no effect, as the import ends at such a row"),
        (TABLE | {"deserialization_exception_handler": "skip"}, "deserialization_exception_handler is 'skip'"),
        (TABLE | {"source": "${NO_SUCH}"}, "imports.orders.source"),
        (TABLE | {"metrics_server": "0.0.0.0:9101"}, "is 0.0.0.0:9101, which other machines reach, without a token"),
    ],
)
def test_a_mistake_in_an_import_has_a_clear_error(table: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(table)


def test_a_mistake_stops_only_what_asks_for_the_import() -> None:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "imports": {"good": TABLE, "bad": {}}}
    project = ProjectConfig.read(PATH, content, {})
    assert project.declared("imports", "good").topic == "orders"
    with pytest.raises(ConfigError, match=r"has no import 'goood'"):
        project.declared("imports", "goood")
