"""Backfills: an interval is computed again where it is processed, and for the first time where it is not."""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    TimeWindows,
    Window,
    Windowed,
    windowed,
)
from riverrun.cli.main import main
from riverrun.errors import ApprovalNeededError, GateFailedError, RangeError, ReleaseError
from riverrun.partitioning import partition_for
from riverrun.project.app import App
from riverrun.project.archives import Archives
from riverrun.records import TopicPartition
from tests.depth import depth
from tests.system.crashes import CrashError, crashing, writes_of

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.backfill import Backfill
    from tests.brokers import Broker

PARTITIONS = 2
MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000
KEYS = windowed(STRING, MINUTE)
TABLES = "minutes", "latest", "sums"
PEOPLE = "ann", "bob", "dan"
CRASHES = depth(4, 30)


def builder_of(name: str, factor: int, without: range = range(0)) -> Any:
    """A log, a table without state, windows behind a repartition topic, and sums, which depend on all records.

    Args:
        name: Begins the names of topics.
        factor: What the code multiplies with; another one is other code.
        without: Values that are left out.
    """

    def build(builder: StreamsBuilder) -> Topology:
        paid = builder.stream(f"{name}.in", Consumed(STRING, LONG))
        paid = paid.filter(lambda _key, value: value not in without) if without else paid
        taken = paid.map_values(lambda value: value * factor)
        taken.to(f"{name}.log", Produced(STRING, LONG))
        taken.to(f"{name}.latest", Produced(STRING, LONG))
        grouped = taken.group_by(lambda key, _value: key, Grouped(STRING, LONG, name="by-key"))
        spent = grouped.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).reduce(
            lambda a, b: a + b, Materialized(name="minutes")
        )
        spent.to_stream().to(f"{name}.minutes", Produced(KEYS, LONG))
        sums = grouped.reduce(lambda a, b: a + b, Materialized(name="sums"))
        sums.to_stream().to(f"{name}.sums", Produced(STRING, LONG))
        return builder.build()

    return build


@dataclass
class Shop:
    """An application, and a file with the highest values that its expectations allow."""

    broker: Broker
    app: App
    limits: Path

    @property
    def name(self) -> str:
        return self.app.name

    def pay(self, minutes: range) -> None:
        """Write payments of all people in each minute, and one of another person in every third."""
        for minute in minutes:
            people = [*PEOPLE, *([f"guest{minute}"] if minute % 3 == 0 else [])]  # of both partitions
            for number, key in enumerate(people):
                record = key.encode(), LONG.serialize(minute + number), minute * MINUTE_MS + number
                self.broker.write(f"{self.name}.in", [record], partition_for(key.encode(), PARTITIONS))

    def allow(self, critical: int, warning: int) -> None:
        self.limits.write_text(f"{critical} {warning}")

    def run(self, minute: int | None = None) -> None:
        self.app.runs.bounded(to="latest" if minute is None else at(minute)).run()

    def backfill(self, first: int, last: int, version: str | None = None, **options: Any) -> Backfill:
        """A backfill of whole minutes."""
        chosen = App(self.app.cluster, self.app.project, self.name, version)
        return chosen.runs.backfill(at(first), at(last), **options)

    def table(self, topic: str) -> dict[bytes, int]:
        rows = {record.key or b"": record.value for record in self.broker.read(f"{self.name}.{topic}")}
        return {key: LONG.deserialize(value) for key, value in rows.items() if value is not None}

    def tables(self, *names: str) -> dict[str, dict[bytes, int]]:
        return {name: self.table(name) for name in names or TABLES}

    def log(self) -> list[tuple[bytes | None, bytes | None]]:
        return sorted((record.key, record.value) for record in self.broker.read(f"{self.name}.log"))

    def damage(self, minute: int) -> None:
        """Spoil rows of a minute in each public table: one is wrong, one is gone, one was never computed."""
        wrong, gone, extra = (windowed_key(key, minute) for key in ("ann", "bob", "eve"))
        self._write("minutes", "ann", wrong, 999, minute)
        self._write("minutes", "bob", gone, None, minute)
        self._write("minutes", "eve", extra, 1, minute)
        self._write("latest", "eve", b"eve", 1, minute)
        self._write("sums", "ann", b"ann", 999, minute)

    def _write(self, topic: str, person: str, key: bytes, value: int | None, minute: int) -> None:
        written = None if value is None else LONG.serialize(value)
        record = key, written, minute * MINUTE_MS
        self.broker.write(f"{self.name}.{topic}", [record], partition_for(person.encode(), PARTITIONS))


def at(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).isoformat()


def windowed_key(key: str, minute: int) -> bytes:
    return KEYS.serialize(Windowed(key, Window(minute * MINUTE_MS, (minute + 1) * MINUTE_MS)))


def minute_of(key: bytes) -> int:
    return KEYS.deserialize(key).window.start // MINUTE_MS


def open_shop(broker: Broker, name: str, directory: Path, factor: int = 1, archive: str = "") -> Shop:
    broker.create(PARTITIONS, *(f"{name}.{topic}" for topic in ("in", "log", *TABLES)))
    directory.mkdir(exist_ok=True)
    limits = directory / "limits"
    limits.write_text("1000 1000")

    def demands() -> dict[str, list[Any]]:
        critical, warning = map(int, limits.read_text().split())
        return {
            f"{name}.minutes": [
                gxe.ExpectColumnValuesToBeBetween(column="value", max_value=critical, severity="critical"),
                gxe.ExpectColumnValuesToBeBetween(column="value", max_value=warning, severity="warning"),
            ]
        }

    project = broker.project(directory=directory, by="ann@desk")
    app = project.app(
        name,
        builder_of(name, factor),
        versions={"v2": builder_of(name, 10), "without-3": builder_of(name, 1, without=range(3, 7))},
        quality=demands,
        outputs={f"{name}.log": "log", f"{name}.latest": "table"},
        config={"bounded.engine": "local", "archive.url": archive},
    )
    return Shop(broker, app, limits)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def shop(broker: Broker, unique: str, tmp_path: Path) -> Shop:
    return open_shop(broker, unique, tmp_path)


@pytest.fixture
def twin(broker: Broker, unique: str, tmp_path: Path) -> Shop:
    """An equal application, which processes everything once."""
    return open_shop(broker, f"{unique}b", tmp_path / "twin")


def test_an_interval_that_is_half_processed_is_as_after_one_run_over_it(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.pay(range(10))
    shop.run(6)
    shop.damage(3)
    with pytest.raises(ReleaseError, match="depends on sums, a timestamped-key-value store") as refused:
        shop.backfill(2, 8).plan()
    assert "--from-beginning" in (refused.value.hint or "")

    wanted = shop.backfill(2, 8, from_beginning=True)
    plan, before = wanted.plan(), (shop.tables(), shop.log())
    again, text = plan.recomputed, str(plan)
    assert again is not None
    assert (again.code, {tp.topic for tp in again.range.ranges}) == ("v1", {f"{shop.name}.in"})
    assert (plan.unprocessed.size, again.range.size) == (7, 20)
    assert f"{shop.name}.log: a log, of which each record counts: its records stay" in text
    assert f"{shop.name}.sums: a table: recomputed into staging; rows that differ are judged" in text
    assert (shop.tables(), shop.log()) == before, "a plan changes nothing"

    done = wanted.run()
    assert (done.corrections, done.run is not None) == (5, True)
    twin.run(8)
    assert (shop.tables(), shop.log()) == (twin.tables(), twin.log())
    assert shop.backfill(2, 5, from_beginning=True).run().corrections == 0
    for each in (shop, twin):
        each.run()
    assert (shop.tables(), shop.log()) == (twin.tables(), twin.log()), "the live version goes on"
    assert not [name for name in shop.broker.admin().list_topics() if name.startswith(f"{shop.name}-repair-")]


def test_days_that_only_the_archive_has_are_computed_again(
    broker: Broker, unique: str, tmp_path: Path, twin: Shop
) -> None:
    archive = str(tmp_path / "archive")
    shop = open_shop(broker, unique, tmp_path, archive=archive)
    for each in (shop, twin):
        each.pay(range(10))
        each.run()
    topic, admin = f"{shop.name}.in", broker.admin()
    Archives(shop.app.cluster, archive).write([topic])
    admin.delete_records(admin.end_offsets(TopicPartition(topic, number) for number in range(PARTITIONS)))
    shop.damage(3)
    assert shop.backfill(2, 5, from_beginning=True).run().corrections == 5
    assert (shop.tables(), shop.log()) == (twin.tables(), twin.log())


def test_rows_of_an_interval_are_corrected_by_the_code_of_another_version(
    shop: Shop, twin: Shop, broker: Broker, unique: str, tmp_path: Path
) -> None:
    corrected = open_shop(broker, f"{unique}c", tmp_path / "corrected", factor=10)
    for each in (shop, twin, corrected):
        each.pay(range(10))
        each.run()
    with pytest.raises(ReleaseError, match="v1 may change any row of"):
        shop.backfill(2, 6, "v2", from_beginning=True).plan()
    chosen = [f"{shop.name}.minutes", f"{shop.name}.latest"]
    log = shop.log()
    assert "on stay, as their windows are open" in str(shop.backfill(2, 10, "v2", topics=chosen).plan())
    plan = shop.backfill(2, 6, "v2", topics=chosen).plan()
    assert f"{shop.name}.sums: a table that stays as it is" in str(plan)
    assert shop.backfill(2, 6, "v2", topics=chosen).run().corrections > 0
    old, new = twin.table("minutes"), corrected.table("minutes")
    assert shop.table("minutes") == {key: (new if 2 <= minute_of(key) < 6 else old)[key] for key in old}
    assert shop.table("latest") == {**twin.table("latest"), b"guest3": corrected.table("latest")[b"guest3"]}
    assert (shop.log(), shop.table("sums")) == (log, twin.table("sums"))
    shop.backfill(0, 9, "v2", topics=chosen[:1]).run()
    assert {key: value for key, value in shop.table("minutes").items() if minute_of(key) < 9} == {
        key: value for key, value in new.items() if minute_of(key) < 9
    }


def test_an_interval_of_which_nothing_is_processed_is_a_bounded_run(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.pay(range(6))
    plan = shop.backfill(1, 4).plan()
    assert (plan.recomputed, plan.unprocessed.size) == (None, 14), "records before it are processed with it"
    assert shop.backfill(1, 4).run().corrections == 0
    shop.backfill(4, 6).run()
    twin.run()
    assert (shop.tables(), shop.log()) == (twin.tables(), twin.log())
    assert shop.backfill(4, 5, topics=[f"{shop.name}.minutes"]).run().run is None
    assert shop.backfill(100, 101).plan().is_empty
    with pytest.raises(RangeError, match="the interval to backfill is empty"):
        shop.backfill(4, 4)


def test_recomputed_rows_that_fail_the_gate_are_not_published(shop: Shop) -> None:
    shop.pay(range(8))
    shop.run()
    right = shop.table("minutes")
    shop.damage(3)
    chosen, damaged = [f"{shop.name}.minutes"], shop.tables()
    shop.allow(1, 1)
    with pytest.raises(GateFailedError, match="does not pass"):
        shop.backfill(2, 5, topics=chosen).run()
    shop.allow(1_000, 1)
    with pytest.raises(ApprovalNeededError) as asked:
        shop.backfill(2, 5, topics=chosen).run()
    assert shop.tables() == damaged
    verdict = str(asked.value.hint).rpartition(" ")[2]
    assert shop.backfill(2, 5, topics=chosen, approve=verdict).run().corrections == 3
    assert shop.table("minutes") == right
    again = shop.backfill(2, 5, topics=chosen).run()
    assert (again.corrections, again.compared) == (0, 10)


def test_rows_that_vanish_from_a_whole_interval_are_deleted_with_approval_only(shop: Shop) -> None:
    shop.pay(range(8))
    shop.run()
    chosen, before = [f"{shop.name}.minutes"], shop.table("minutes")
    with pytest.raises(ApprovalNeededError, match="minutes: it has rows") as asked:
        shop.backfill(3, 4, "without-3", topics=chosen).run()
    assert shop.table("minutes") == before
    verdict = str(asked.value.hint).rpartition(" ")[2]
    assert shop.backfill(3, 4, "without-3", topics=chosen, approve=verdict).run().corrections == 4
    assert shop.table("minutes") == {key: value for key, value in before.items() if minute_of(key) != 3}
    again = shop.backfill(3, 4, "without-3", topics=chosen).run()
    assert (again.corrections, again.compared) == (0, 0)


@pytest.mark.deep
def test_whatever_write_a_backfill_dies_at_the_next_one_completes_it(shop: Shop, twin: Shop) -> None:
    chosen = random.Random(5)

    def fill(first: int) -> None:
        shop.backfill(first, first + 7, from_beginning=True).run()

    def prepare(first: int) -> None:
        for each in (shop, twin):
            each.pay(range(first, first + 8))
        shop.run(first + 5)
        shop.damage(first + 2)
        twin.run(first + 7)

    prepare(0)
    count, crashes = writes_of(lambda: fill(0)), 0
    assert (shop.tables(), shop.log()) == (twin.tables(), twin.log())
    for number in range(1, CRASHES + 1):
        prepare(10 * number)
        write, after = chosen.randrange(count), bool(number % 2)
        with crashing(write, after=after) as seen, suppress(CrashError):
            fill(10 * number)
        crashes += len(seen) > write
        fill(10 * number)
        found = f"{'after' if after else 'before'} write {write}: {seen}"
        assert (shop.tables(), shop.log()) == (twin.tables(), twin.log()), found
    assert crashes > CRASHES / 2


CODE = """
from tests.system.test_backfills import builder_of

build = builder_of("{name}", 1)
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "fill_code:build"

[apps."{name}".outputs]
"{name}.log" = "log"
"{name}.latest" = "table"

[apps."{name}".config]
"bounded.engine" = "local"
"""


@pytest.mark.broker
def test_the_command_says_what_it_will_do_and_asks(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application is one of a file, as for users."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fill_code.py").write_text(CODE.format(name=shop.name))
    (tmp_path / "streams.toml").write_text(FILE.format(name=shop.name, servers=shop.broker.bootstrap_servers))
    interval = ["--from", at(1), "--to", at(3), "--topic", f"{shop.name}.minutes"]

    def riverrun(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["riverrun", "backfill", shop.name, *interval, *arguments])
        try:
            main()
        except SystemExit as ended:
            output = capsys.readouterr()
            return int(ended.code or 0), output.out
        raise AssertionError

    shop.pay(range(6))
    assert "14 offsets" not in riverrun("--plan")[1]
    shop.run()
    right = shop.table("minutes")
    shop.damage(2)
    code, text = riverrun("--plan")
    assert (code, "recompute with v1" in text, "sums: a table that stays" in text) == (0, True, True), text
    assert riverrun()[0] == 1, "there is no terminal to answer at"
    assert shop.table("minutes") != right
    code, text = riverrun("--yes", "--json")
    assert (code, json.loads(text)["corrections"]) == (0, 3), text
    assert shop.table("minutes") == right
    code, text = riverrun("--yes")
    assert (code, "no row differs" in text) == (0, True), text
