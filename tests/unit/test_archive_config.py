"""`[archives.NAME]`: its defaults, and a clear error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from riverrun.cli.main import app
from riverrun.config import ProjectConfig
from riverrun.config.archives import ArchiveConfig
from riverrun.errors import ArchiveError, ConfigError

PATH = Path("/project/streams.toml")
TABLE = {"topics": ["orders", "customers"], "url": "kept"}


def archive(table: Any, **environ: str) -> ArchiveConfig:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "archives": {"shop": table}}
    found: ArchiveConfig = ProjectConfig.read(PATH, content, environ).declared("archives", "shop")
    return found


def test_an_archive_has_defaults_and_lies_beside_streams_toml() -> None:
    assert archive(TABLE) == ArchiveConfig("shop", ("orders", "customers"), "/project/kept")
    assert archive(TABLE | {"url": "s3://${BUCKET}/kafka"}, BUCKET="b").url == "s3://b/kafka"


def test_followers_have_numbers_and_properties_of_their_own() -> None:
    found = archive(TABLE | {"commit_seconds": 60, "consumer.group.instance.id": "${POD}"}, POD="p-1")
    assert (found.commit_seconds, found.commit_bytes, found.consumer) == (60, 64_000_000, {"group.instance.id": "p-1"})


def test_tables_of_iceberg_have_a_namespace_and_a_catalogue() -> None:
    catalog = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "lake", "s3.secret-access-key": "${SECRET}"}
    found = archive(TABLE | {"namespace": "raw.kafka", "catalog": catalog}, SECRET="s")  # noqa: S106
    assert found.namespace == "raw.kafka"
    assert found.catalog == {
        "type": "sql",
        "uri": "sqlite:////project/lake.db",
        "warehouse": "file:///project/lake",
        "s3.secret-access-key": "s",
    }
    assert "s3" not in repr(found)


def test_a_topic_that_is_named_twice_is_archived_once() -> None:
    assert archive(TABLE | {"topics": ["b", "a", "b"]}).topics == ("b", "a")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("kept", "archives.shop is 'kept', not a table"),
        ({"url": "kept"}, r"\[archives.shop\] needs topics"),
        (TABLE | {"topics": []}, r"\[archives.shop\] needs topics"),
        (TABLE | {"topics": "orders"}, "archives.shop.topics is 'orders', not an array"),
        (TABLE | {"topics": [3]}, "archives.shop.topics is 3, not a string"),
        (TABLE | {"topics": ["a/b"]}, "archives.shop.topics has 'a/b', which is not the name of a topic"),
        ({"topics": ["orders"]}, r"\[archives.shop\] needs url"),
        (TABLE | {"url": "${NO_SUCH}"}, "archives.shop.url"),
        (TABLE | {"url": "a\0b"}, "archives.shop.url"),
        (TABLE | {"engine": "flink"}, "archives.shop.engine is 'flink'"),
        (TABLE | {"skip_lost": "yes"}, "archives.shop.skip_lost is 'yes', not true or false"),
        (TABLE | {"schedule": "every day"}, "archives.shop.schedule is 'every day', not a cron expression"),
        (TABLE | {"schedule_timezone": "Mars"}, "archives.shop.schedule_timezone is 'Mars', and this machine knows no"),
        (TABLE | {"commit_seconds": 0}, "archives.shop.commit_seconds is 0, and must be a whole number of at least 1"),
        (TABLE | {"consumer.isolation.level": "read_uncommitted"}, "isolation.level cannot be set"),
        (TABLE | {"metrics_server": "0.0.0.0:9101"}, "is 0.0.0.0:9101, which other machines reach, without a token"),
        (TABLE | {"namespace": "kafka"}, r"\[archives.shop\] has namespace, and needs catalog"),
        (TABLE | {"catalog": {"type": "sql"}}, r"\[archives.shop\] has catalog, and needs namespace"),
        (TABLE | {"namespace": "a..b", "catalog": {}}, "archives.shop.namespace is 'a..b'"),
        (TABLE | {"namespace": "a", "catalog": {"s3": {}}}, "archives.shop.catalog.s3 is not one value"),
        (TABLE | {"topic": "orders"}, "unknown key archives.shop.topic"),
    ],
)
def test_a_mistake_in_an_archive_has_a_clear_error(table: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        archive(table)


def test_a_mistake_stops_only_what_asks_for_the_archive() -> None:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "archives": {"good": TABLE, "bad": {}, "a b": TABLE}}
    project = ProjectConfig.read(PATH, content, {})
    assert project.declared("archives", "good").topics == ("orders", "customers")
    with pytest.raises(ConfigError, match=r"has no archive 'goood'"):
        project.declared("archives", "goood")
    with pytest.raises(ConfigError, match="the name of archive 'a b' has characters other than"):
        project.declared("archives", "a b")


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "list"),
        ("archive", "verify", "orders"),
        ("archive", "compact", "orders"),
        ("archive", "drop", "orders", "--yes"),
        ("archive", "write", "orders"),
        ("archive", "write", "shop"),
    ],
)
@pytest.mark.parametrize("wrong", ['schedule = "every day"', 'engine = "flink"', "skip_lost = 1", "shelf = 1"])
def test_a_command_reports_the_mistake_of_an_archive(command: tuple[str, ...], wrong: str, tmp_path: Path) -> None:
    key = wrong.partition(" ")[0]
    text = (
        f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[archives.shop]\ntopics = ["orders"]\nurl = "kept"\n{wrong}\n'
    )
    (tmp_path / "streams.toml").write_text(text)
    found = CliRunner().invoke(app, ["--config", str(tmp_path / "streams.toml"), *command])
    assert isinstance(found.exception, ConfigError)
    assert f"archives.shop.{key}" in str(found.exception)


@pytest.mark.parametrize("url", ["", " "])
@pytest.mark.parametrize("command", [("list",), ("verify", "orders"), ("write", "orders"), ("compact", "orders")])
def test_an_archive_without_a_place_is_refused(command: tuple[str, ...], url: str, tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    found = CliRunner().invoke(app, ["--config", str(tmp_path / "streams.toml"), "archive", *command, "--url", url])
    assert isinstance(found.exception, ArchiveError)
    assert "its URL is empty" in str(found.exception)
