"""Mistakes in imports and exports that are reported before Spark starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import ConfigError
from riverrun.spark.formats import check_format
from riverrun.spark.session import lazily, spark_session
from riverrun.transfers.spec_checks import check_import, check_schema
from riverrun.transfers.specs import ImportSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "complaint", "hint"),
    [
        ({"source": "nope.json"}, "File or directory nope.json does not exist", ""),
        ({"source": "file:/nope.json"}, "File or directory file:/nope.json does not exist", ""),
        ({"format": "jsn"}, "There is no format 'jsn'", "Did you mean 'json'"),
        ({"schema": "user strng"}, "'user strng', which is not a column with a Spark type", "Did you mean 'string'"),
        ({"schema": "user"}, "'user', which is not a column", "at timestamp"),
        ({"schema": "user string", "key": ("usr",)}, "The schema has no column usr", "user string"),
        ({"schema": "user string", "timestamp": "at"}, "The schema has no column at", "user string"),
    ],
)
def test_a_mistake_in_an_import_is_reported(tmp_path: Path, given: dict[str, Any], complaint: str, hint: str) -> None:
    (tmp_path / "a.json").write_text("{}")
    spec = ImportSpec(**{"topic": "t", "source": str(tmp_path / "a.json"), "format": "json", **given})
    with pytest.raises(ConfigError, match=re.escape(complaint)) as refused:
        check_import(spec, {}, None, ())
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("spec", "settings", "master"),
    [
        (ImportSpec("t", "in/*.json", "json"), {}, None),
        (ImportSpec("t", "s3://bucket/in", "json"), {}, None),
        (ImportSpec("t", "on/hdfs", "json"), {}, "yarn"),
        (ImportSpec("t", "on/hdfs", "json"), {"spark.hadoop.fs.defaultFS": "hdfs://h"}, None),
        (ImportSpec("t", "on/hdfs", "json"), {"spark.remote": "sc://h:15002"}, None),
        (ImportSpec("t", "clicks", "jdbc"), {}, None),
    ],
)
def test_what_only_spark_can_see_is_left_to_it(spec: ImportSpec, settings: dict[str, str], master: str | None) -> None:
    check_import(spec, settings, master, ())


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "user string, page string, at string",
        "`a b` INT NOT NULL, c: map<string, decimal(3, 1)> COMMENT 'x, y', d struct<e: int, f: array<long>>",
        "at:timestamp_ntz",
        "struct<a: int>",
        "period interval day to second",
    ],
)
def test_schemas_that_spark_reads_pass(schema: str | None) -> None:
    check_schema(schema)


def test_a_format_may_be_a_librarys() -> None:
    check_format("delta", {}, ())
    check_format("xmll", {}, ("org.example:xmll:1",))
    check_format("xmll", {"spark.jars": "xmll.jar"}, ())


@pytest.mark.parametrize("master", ["foo://x", "localhost", ""])
def test_a_master_that_is_none_is_reported_without_java(master: str) -> None:
    settings = {} if master else {"spark.master": "7077"}
    with pytest.raises(ConfigError, match="is not a Spark master"):
        spark_session(master or None, settings)


def test_a_session_is_made_once_and_only_when_it_is_needed() -> None:
    sessions: list[object] = []

    def make() -> object:
        sessions.append(object())
        return sessions[-1]

    session = lazily(make)
    assert sessions == []
    assert session() is session() is sessions[0]
    given = object()
    assert lazily(given)() is given
