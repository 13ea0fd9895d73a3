"""Exports with the serdes of an application say what does not fit before Spark starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, JSON, LONG, STRING, ConfigError, Consumed, ExportSpec, StreamsBuilder, windowed
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from riverrun import Serde, Topology
    from riverrun.transfers.exports import ExportSummary


@dataclass(frozen=True)
class Order:
    item: str
    tags: list[str]


def exported(spec: ExportSpec, keys: Serde[Any], values: Serde[Any]) -> ExportSummary:
    """Export an empty topic, which needs no Spark."""

    def build(builder: StreamsBuilder) -> Topology:
        builder.stream("orders", Consumed(keys, values)).foreach(lambda _key, _value: None)
        return builder.build()

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        project = cluster.project()
        project.app("shop", build)
        return project.run_export(replace(spec, app="shop"))


def refused(spec: ExportSpec, keys: Serde[Any], values: Serde[Any]) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        exported(spec, keys, values)
    return raised.value


def test_windows_of_known_size_have_columns() -> None:
    keys = windowed(STRING, timedelta(minutes=5))
    assert exported(ExportSpec("orders", "out", "csv"), keys, LONG).batch is None


def test_windows_of_unknown_size_have_no_columns() -> None:
    error = refused(ExportSpec("orders", "out", "json"), windowed(STRING), LONG)
    assert "shop does not say when the windows of orders end" in error.message
    assert error.hint == "Give its serde of keys their size: windowed(STRING, timedelta(minutes=5))."


def test_the_hint_for_an_unknown_topic_names_only_what_exports_have() -> None:
    error = refused(ExportSpec("clicks", "out", "json"), STRING, LONG)
    assert "neither reads nor writes clicks" in error.message
    assert error.hint == "It has: orders."


@pytest.mark.parametrize(
    ("form", "fields", "complaint"),
    [
        ("jdbc", ("day(_timestamp)",), "Format jdbc has no directories"),
        ("json", ("_key",), "readers skip directories that begin with _"),
        ("json", ("day(_timestamp)", "DAY"), "Two levels of directories have the name day"),
    ],
)
def test_directories_that_readers_would_not_find_are_refused(
    form: str, fields: tuple[str, ...], complaint: str
) -> None:
    options = {"url": "jdbc:postgresql://db/shop"} if form == "jdbc" else {}
    error = refused(ExportSpec("orders", "out", form, options=options, partition_by=fields), STRING, LONG)
    assert complaint in error.message


@pytest.mark.parametrize(
    ("values", "complaint", "hint"),
    [
        (BYTES, "csv cannot hold bytes", "Leave out --app, whose value would be bytes, or "),
        (JSON(Order), "csv cannot hold lists and objects, as column tags", "Leave out --app, or "),
    ],
)
def test_csv_has_no_columns_of_bytes_or_of_parts(values: Serde[Any], complaint: str, hint: str) -> None:
    error = refused(ExportSpec("orders", "out", "csv"), STRING, values)
    assert complaint in error.message
    assert (error.hint or "").startswith(hint)
