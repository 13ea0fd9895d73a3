"""Archived records are processed in memory, without a broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from riverrun.archive.manifest import ArchiveStore, TopicManifest
from riverrun.archive.parquet import FileWriter
from riverrun.cli.main import app as commands
from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from riverrun.records import RawFields

CODE = """
from datetime import timedelta
from riverrun import JSON, LONG, STRING, Consumed, Grouped, Produced, TimeWindows, windowed

def build(builder):
    names = builder.table("names", Consumed(STRING, STRING))
    rates = builder.global_table("rates", Consumed(STRING, JSON))
    orders = builder.stream("orders", Consumed(STRING, JSON)).left_join(names, lambda order, name: {**order, "name": name})
    known = orders.join(rates, lambda order, rate: {**order, "rate": rate}, key_selector=lambda key, order: order["currency"])
    known.to("known", Produced(STRING, JSON))
    minutes = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    known.group_by_key(Grouped(STRING, JSON)).windowed_by(minutes).count().to_stream().to(
        "counts", Produced(windowed(STRING, timedelta(minutes=1)), LONG)
    )
    return builder.build()
"""
DAY_MS = 86_400_000


def archived(url: Path, topic: str, *parts: Sequence[tuple[str, object, int]]) -> None:
    """Archive records of partitions: keys, values and times."""
    store, manifest = ArchiveStore(str(url)), TopicManifest(topic, "id", len(parts))
    for partition, found in enumerate(parts):
        texts = (
            (key, value if isinstance(value, str) else json.dumps(value), time_ms) for key, value, time_ms in found
        )
        records: list[RawFields] = [(k.encode(), v.encode(), at, n, ()) for n, (k, v, at) in enumerate(texts)]
        with FileWriter(store, topic, partition, 0) as writer:
            writer.write(records)
            manifest = manifest.with_files(writer.files(len(records)))
    store.commit(manifest)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trials")
    (directory / "trial_code.py").write_text(CODE)
    file, url = directory / "streams.toml", directory / "archive"
    file.write_text(
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[apps.orders]\ntopology = "trial_code:build"\n'
        f'[apps.orders.config]\n"archive.url" = "{url}"\n'
    )
    order = {"currency": "eur"}
    first = [
        ("ann", order, DAY_MS - 1),
        ("ann", order, DAY_MS),
        ("ann", order, DAY_MS + 90_000),
        ("ann", order, DAY_MS + 5),
    ]
    archived(url, "orders", first, [("bob", order, DAY_MS + 40_000), ("bob", order, 2 * DAY_MS)])
    archived(url, "names", [("ann", "Ann", 5)])
    archived(url, "rates", [("eur", 2, 5)])
    return file


def tried(config: Path, *words: str) -> tuple[int, list[str], str]:
    done = CliRunner().invoke(commands, ["--config", str(config), "try", "orders", *words])
    error = str(done.exception) if isinstance(done.exception, StreamsError) else ""
    return done.exit_code, done.stdout.splitlines(), error + done.stderr


def test_a_day_is_processed_in_the_order_of_time(config: Path) -> None:
    code, lines, told = tried(config, "--day", "1970-01-02", "--whole", "names", "--json")
    assert code == 0, told
    rows = [json.loads(line) for line in lines]
    known = [(row["key"], row["timestamp"] - DAY_MS, row["value"]) for row in rows if row["topic"] == "known"]
    ann = {"currency": "eur", "name": "Ann", "rate": 2}
    assert known == [("ann", 0, ann), ("bob", 40_000, {**ann, "name": None}), ("ann", 90_000, ann), ("ann", 5, ann)]
    counts = [(row["key"]["key"], row["value"]) for row in rows if row["topic"] == "counts"]
    assert counts == [("ann", 1), ("bob", 1), ("ann", 1)]
    assert "read names: 1 record, orders: 4 records, rates: 1 record, 1 dropped (late)" in told


ASKING = """
from riverrun import JSON, STRING, Consumed, Named, Produced

def tax(order):
    raise OSError("no service here")

def build(builder):
    orders = builder.stream("orders", Consumed(STRING, JSON))
    orders.map_values_async(tax, named=Named("taxed")).to("taxed", Produced(STRING, JSON))
    return builder.build()
"""


def test_look_ups_of_a_trial_get_recorded_answers(config: Path, tmp_path: Path) -> None:
    (config.parent / "asking_code.py").write_text(ASKING)
    file, answers = config.parent / "asking.toml", tmp_path / "answers.jsonl"
    file.write_text(config.read_text().replace("trial_code", "asking_code"))
    settings = '"processing.exception.handler" = "continue"\n'
    handled = config.parent / "handled.toml"
    handled.write_text(file.read_text() + settings)
    bounds = ("--from", "1970-01-02T00:00:30", "--to", "1970-01-02T00:01:00")
    _, _, told = tried(file, *bounds)
    assert "no service here" in told
    tried(handled, *bounds, "--record-answers", str(answers))
    (line,) = answers.read_text().splitlines()
    asked = {"node": "taxed", "argument": {"currency": "eur"}}
    assert json.loads(line) == {**asked, "error": "OSError: no service here"}
    answers.write_text(json.dumps({**asked, "answer": {"tax": 7}}))
    code, lines, told = tried(file, *bounds, "--answers", str(answers), "--json")
    assert (code, [json.loads(line)["value"] for line in lines]) == (0, [{"tax": 7}]), told
    answers.write_text("")
    for each in (file, handled):
        code, _, told = tried(each, *bounds, "--answers", str(answers))
        assert code != 0
        assert "No answer is recorded for node taxed and the argument {'currency': 'eur'}" in told


def test_bounds_outputs_and_a_limit_choose_records(config: Path) -> None:
    bounds = ("--from", "1970-01-02T00:00:30", "--to", "1970-01-02T00:01:00")
    _, lines, told = tried(config, *bounds, "--output", "counts")
    assert len(lines) == 1
    assert lines[0].startswith("counts-0@0")
    assert "read orders: 1 record" in told
    assert len(tried(config, "--from", "1970-01-01", "--limit", "2")[1]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "try takes --day, or --from and --to"),
        (("--day", "1970-01-02", "--to", "1970-01-03"), "try takes --day, or --from and --to"),
        (("--day", "yesterday"), "'yesterday' is not a time"),
        (("--from", "1970-01-03", "--to", "1970-01-02"), "does not lie after"),
        (("--day", "1970-01-02", "--whole", "nmes"), "orders does not read nmes"),
        (("--day", "1970-01-02", "--output", "x"), "orders does not write x"),
        (("--day", "1970-01-02", "--url", "/nowhere/at/all"), "has none of names, orders, rates"),
        (("--day", "1970-01-02", "--version", "v9"), "has no version 'v9'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(config: Path, words: tuple[str, ...], message: str) -> None:
    code, lines, told = tried(config, *words)
    assert (code, lines) == (1, [])
    assert message in told
