"""`[exports.NAME]`: its defaults, and a clear error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riverrun.config import ProjectConfig
from riverrun.config.exports import ExportConfig
from riverrun.errors import ConfigError

PATH = Path("/project/streams.toml")
TABLE = {"topic": "totals", "target": "sqlite:///shop.db", "table": "totals"}
FILES = {"topic": "totals", "target": "out", "format": "parquet"}
ICEBERG = {
    "topic": "totals",
    "table": "lake.totals",
    "catalog": {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "lake", "s3.secret-access-key": "${KEY}"},
}


def export(table: Any, **environ: str) -> ExportConfig:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "exports": {"totals": table}}
    found: ExportConfig = ProjectConfig.read(PATH, content, environ).declared("exports", "totals")
    return found


def test_an_export_into_a_table_has_defaults() -> None:
    assert export(TABLE) == ExportConfig("totals", "totals", "sqlite:////project/shop.db", "totals")
    assert export(TABLE | {"target": "sqlite:////var/shop.db"}).target == "sqlite:////var/shop.db"
    assert export(TABLE | {"target": "sqlite://"}).target == "sqlite://"


def test_files_are_beside_streams_toml_and_cut_later() -> None:
    found = export(FILES)
    assert (found.target, found.commit_seconds, found.commit_bytes) == ("/project/out", 60, 64_000_000)
    assert export(FILES | {"target": "s3://bucket/out", "commit_seconds": 5}).target == "s3://bucket/out"
    assert export(FILES | {"commit_seconds": 5}).commit_seconds == 5


def test_secrets_and_properties_of_the_consumer_are_looked_up() -> None:
    table = TABLE | {"target": "postgresql://u:${PW}@db/shop", "consumer.group.instance.id": "${POD}"}
    found = export({**table, "consumer.session.timeout.ms": 6000, "consumer.check.crcs": True}, PW="s", POD="p-1")
    assert found.target == "postgresql://u:s@db/shop"
    assert found.consumer == {"group.instance.id": "p-1", "session.timeout.ms": "6000", "check.crcs": "true"}
    assert "u:s" not in repr(found)


def test_records_that_cannot_be_read_have_the_words_of_applications() -> None:
    assert export(TABLE).deserialization_exception_handler == "fail"
    for word, meant in (
        ("LogAndContinueExceptionHandler", "continue"),
        ("fail", "fail"),
        ("shop:decide", "shop:decide"),
    ):
        keys = {"deserialization_exception_handler": word, "errors_dead_letter_queue_topic_name": "letters"}
        found = export(TABLE | keys)
        assert found.deserialization_exception_handler == meant
        assert found.errors_dead_letter_queue_topic_name == "letters"


def test_a_table_of_iceberg_has_a_catalogue() -> None:
    found = export(ICEBERG, KEY="secret")
    assert (found.table, found.commit_seconds, found.commit_bytes) == ("lake.totals", 60, 64_000_000)
    assert found.catalog == {
        "type": "sql",
        "uri": "sqlite:////project/lake.db",
        "warehouse": "file:///project/lake",
        "s3.secret-access-key": "secret",
    }
    assert "secret" not in repr(found)
    for kind in (ICEBERG, FILES):
        levels = ["day(_timestamp)", "n"]
        assert export(kind | {"partition_by": levels}, KEY="secret").partition_by == tuple(levels)
    beside = export(ICEBERG | {"catalog": {"type": "sql", "warehouse": "a lake, ü"}}).catalog
    assert beside["warehouse"] == "file:///project/a lake, ü"
    remote = {"type": "rest", "uri": "https://catalog", "warehouse": "main"}
    assert export(ICEBERG | {"catalog": remote}).catalog == remote


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("totals", "exports.totals is 'totals', not a table"),
        ({}, r"\[exports.totals\] needs topic"),
        ({"topic": "t"}, r"\[exports.totals\] has no kind of target"),
        (TABLE | {"format": "json"}, r"\[exports.totals\] has table and format"),
        ({"topic": "t", "table": "t"}, r"\[exports.totals\] needs target"),
        (FILES | {"format": "csv"}, "exports.totals.format is 'csv'"),
        (FILES | {"mode": "upsert"}, 'exports.totals.mode is "upsert", but files only grow'),
        (TABLE | {"mode": "replace"}, "exports.totals.mode is 'replace'"),
        (TABLE | {"new_columns": "ignore"}, "exports.totals.new_columns is 'ignore'"),
        (TABLE | {"absent_fields": "skip"}, "exports.totals.absent_fields is 'skip'"),
        (TABLE | {"absent_fields": "keep"}, 'absent_fields is "keep", but the target keeps each record as a row'),
        (TABLE | {"topic": 3}, "exports.totals.topic is 3, not a string"),
        (TABLE | {"tble": "x"}, "unknown key exports.totals.tble"),
        (TABLE | {"commit_seconds": 0}, "exports.totals.commit_seconds is 0, and must be a whole number of at least 1"),
        (TABLE | {"commit_records": True}, "exports.totals.commit_records is True"),
        (TABLE | {"key": "id"}, "exports.totals.key is 'id', not an array"),
        (TABLE | {"key": [1]}, "exports.totals.key is 1, not a string"),
        (TABLE | {"deserialization_exception_handler": "skip"}, "deserialization_exception_handler is 'skip'"),
        (TABLE | {"errors_dead_letter_queue_topic_name": 3}, "topic_name is 3, not a string"),
        (TABLE | {"columns": ["n"]}, "exports.totals.columns is an array, not a table"),
        (TABLE | {"columns": {"n": "bignit"}}, "exports.totals.columns.n is 'bignit'"),
        (TABLE | {"target": "${NO_SUCH}"}, "exports.totals.target"),
        (TABLE | {"metrics_server": "9101"}, "exports.totals.metrics_server: '9101' is not host:port: it has no port"),
        (TABLE | {"metrics_server": "0.0.0.0:9101"}, "is 0.0.0.0:9101, which other machines reach, without a token"),
        (ICEBERG | {"table": "totals"}, r"\[exports.totals\] has a catalog, and needs table with a namespace"),
        (ICEBERG | {"target": "x"}, r"\[exports.totals\] has target and catalog"),
        (ICEBERG | {"mode": "upsert"}, 'exports.totals.mode is "upsert", but tables of Iceberg only grow here'),
        (
            TABLE | {"partition_by": ["day(_timestamp)"]},
            "exports.totals.partition_by is for files and tables of Iceberg",
        ),
        (ICEBERG | {"partition_by": "n"}, "exports.totals.partition_by is 'n', not an array"),
        (ICEBERG | {"catalog": "lake"}, "exports.totals.catalog is 'lake', not a table"),
        (TABLE | {"catalog": {"s3": {"endpoint": "x"}}, "table": "a.b"}, "target and catalog"),
        ({"topic": "t", "table": "a.b", "catalog": {"s3": {"x": 1}}}, "exports.totals.catalog.s3 is not one value"),
        (TABLE | {"consumer": {"x": {"y": 1}}}, "unknown key exports.totals.consumer"),
        (TABLE | {"consumer.enable.auto.commit": True}, "enable.auto.commit cannot be set"),
    ],
)
def test_a_mistake_in_an_export_has_a_clear_error(table: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export(table)


def test_a_mistake_stops_only_what_asks_for_the_export() -> None:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "exports": {"good": TABLE, "bad": {}, "a b": TABLE}}
    project = ProjectConfig.read(PATH, content, {})
    assert project.declared("exports", "good").topic == "totals"
    with pytest.raises(ConfigError, match=r"has no export 'goood'"):
        project.declared("exports", "goood")
    with pytest.raises(ConfigError, match="the name of export 'a b' has characters other than"):
        project.declared("exports", "a b")
