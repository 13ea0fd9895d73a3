"""Bounded runs with a gate: outputs are public once they have passed it, or held back until a person decides."""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    SessionWindows,
    StreamJoined,
    Suppressed,
    TimeWindows,
)
from riverrun.cli.main import main
from riverrun.errors import ApprovalNeededError, GateFailedError, ReleaseError, UnderWayError
from riverrun.kafka.producer import IdempotentProducer
from riverrun.quality import Checks, Expectations
from riverrun.records import TopicPartition
from riverrun.releases.check_log import CheckLog
from tests.depth import depth
from tests.system.crashes import CrashError, crashing, writes_of

if TYPE_CHECKING:
    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

PARTITIONS = 2
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
LIMIT = 1_000
"""Payments above it fail the gate."""
WARNED = 500
CRASHES = depth(6, 40)


@dataclass
class Shop:
    """An application with a log, two tables (one through a repartition topic), windows and dead letters."""

    broker: Broker
    app: App
    limits: Path
    """A file with what the expectations allow."""
    time_ms: int = 0

    @property
    def name(self) -> str:
        return self.app.name

    def pay(self, *payments: tuple[str, int]) -> None:
        records = []
        for key, value in payments:
            self.time_ms += 100
            records.append((key.encode(), LONG.serialize(value), self.time_ms))
        for number, record in enumerate(records):
            self.broker.write(f"{self.name}.in", [record], number % PARTITIONS)

    def allow(self, limit: int) -> None:
        """Change the expectations, as people do."""
        self.limits.write_text(f"{limit} {limit}")

    def run(self, **options: Any) -> Any:
        return self.app.runs.bounded(engine="local", **{"gate": True, **options}).run()

    def outputs(self) -> dict[str, Any]:
        """All records of logs, and the last one of each key of tables."""
        logs = {topic: self.records(topic) for topic in ("log", "letters")}
        tables = {topic: dict(self.records(topic)) for topic in ("sums", "digits")}
        for rows in tables.values():
            for key in [key for key, value in rows.items() if value is None]:
                del rows[key]
        return {**{topic: sorted(rows, key=repr) for topic, rows in logs.items()}, **tables}

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in self.broker.read(f"{self.name}.{topic}")]

    def public(self) -> int:
        return sum(len(self.records(topic)) for topic in ("log", "letters", "sums", "digits"))

    def state(self) -> dict[str, Any]:
        """The rows of its changelogs, and its committed offsets in external topics."""
        admin, application_id = self.broker.admin(), self.app.application_id
        rows: dict[str, Any] = {}
        for topic in admin.list_topics(f"{application_id}-"):
            if topic.endswith("-changelog"):
                found = {record.key: (record.value, record.timestamp) for record in self.broker.read(topic)}
                rows[topic] = {key: row for key, row in found.items() if row[0] is not None}
        tps = [TopicPartition(f"{self.name}.in", n) for n in range(PARTITIONS)]
        committed = admin.committed(application_id, tps)
        return {**rows, "offsets": {tp: found.offset for tp, found in committed.items() if found.offset}}


def build_shop(name: str) -> Any:
    def digit(_key: str, value: int) -> str:
        if value == 13:
            message = "thirteen"
            raise ValueError(message)
        return str(value % 10)

    def build(builder: StreamsBuilder) -> Topology:
        paid = builder.stream(f"{name}.in", Consumed(STRING, LONG))
        paid.to(f"{name}.log", Produced(STRING, LONG))
        by_key = paid.repartition(Repartitioned(STRING, LONG, name="by-key"))
        sums = by_key.group_by_key(Grouped(STRING, LONG)).reduce(
            lambda a, b: a + b, Materialized(STRING, LONG, name="sums")
        )
        positive = sums.filter(lambda _key, value: value > 0)
        positive.to_stream().to(f"{name}.sums", Produced(STRING, LONG))
        digits = paid.select_key(digit).group_by_key(Grouped(STRING, LONG))
        counts = digits.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=1))).count(
            Materialized(name="digits")
        )
        counts.to_stream().map(lambda key, value: (f"{key.key}@{key.window.start}", value)).to(
            f"{name}.digits", Produced(STRING, LONG)
        )
        return builder.build()

    return build


def demands(name: str, limits: Path) -> Checks:
    critical, warning = map(int, limits.read_text().split())
    blocks = gxe.ExpectColumnValuesToBeBetween(column="value", max_value=critical, severity="critical")
    warns = gxe.ExpectColumnValuesToBeBetween(column="value", max_value=warning, severity="warning")
    grows = gxe.ExpectColumnValuesToBeBetween(column="new", max_value=critical * 10, severity="critical")
    return Checks(
        {f"{name}.log": [blocks, warns], f"{name}.sums": Expectations([], [grows])},
        runs=[gxe.ExpectColumnValuesToBeBetween(column="dropped_share", max_value=0.5, severity="critical")],
        inputs={f"{name}.in": [gxe.ExpectColumnValuesToNotBeNull(column="value", severity="critical")]},
    )


def open_shop(broker: Broker, name: str, directory: Path) -> Shop:
    broker.create(PARTITIONS, f"{name}.in", f"{name}.log", f"{name}.letters")
    broker.create(PARTITIONS, f"{name}.sums", f"{name}.digits", config={"cleanup.policy": "compact"})
    limits = directory / "limits"
    directory.mkdir(exist_ok=True)
    limits.write_text(f"{LIMIT} {WARNED}")
    project = broker.project(directory=directory, by="ann@desk")
    app = project.app(
        name,
        build_shop(name),
        quality=lambda: demands(name, limits),
        outputs={f"{name}.log": "log", f"{name}.sums": "table", f"{name}.digits": "table"},
        config={
            "errors.dead.letter.queue.topic.name": f"{name}.letters",
            "processing.exception.handler": "continue",
            "snapshot.url": (directory / "snapshots").as_uri(),
        },
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
    """An equal application without a gate."""
    return open_shop(broker, f"{unique}b", tmp_path / "twin")


def same(one: Shop, other: Shop) -> None:
    ours, theirs = one.outputs(), other.outputs()
    assert ours["letters"]
    assert [value for _, value in ours["letters"]] == [value for _, value in theirs["letters"]]
    for topic in ("log", "sums", "digits"):
        assert ours[topic] == theirs[topic], topic


def test_outputs_that_pass_are_published_as_they_would_be_without_a_gate(shop: Shop, twin: Shop) -> None:
    for payments in ([("ann", 5), ("bob", 13), ("cy", 7)], [("ann", -5), ("bob", 20), ("cy", 13)], []):
        for each in (shop, twin):
            each.pay(*payments)
        published = shop.run().published
        assert published is not None
        assert (published.records > 0, published.verdict.critical) == (bool(payments), ())
        assert twin.run(gate=False).published is None
    assert shop.app.runs.held.status() is None
    same(shop, twin)
    assert "ann" not in {key.decode() for key in shop.outputs()["sums"]}, "a row that is gone is deleted"
    first = shop.app.runs.history()[-1]
    assert (first.gate, sum(first.outputs_after.values()) > sum(first.outputs_before.values())) == ("published", True)


def test_outputs_that_fail_are_held_back_and_so_are_all_later_ones(shop: Shop) -> None:
    shop.pay(("ann", 5), ("bob", LIMIT + 1), ("ann", 13))
    with pytest.raises(GateFailedError, match="held back: its gate has failed") as failed:
        shop.run()
    assert "riverrun held discard" in (failed.value.hint or "")
    assert shop.public() == 0
    shop.pay(("cy", 1))
    with pytest.raises(GateFailedError, match="held back"):
        shop.run()
    with pytest.raises(UnderWayError, match="held back"):
        shop.run(gate=False)
    with pytest.raises(UnderWayError, match="held back"):
        shop.app.catch_up()
    with pytest.raises(UnderWayError, match="held back"):
        shop.app.state.plan_reset()
    with pytest.raises(GateFailedError):
        shop.app.runs.held.publish()
    verdict = shop.app.runs.held.status().verdict  # type: ignore[union-attr]
    with pytest.raises(ReleaseError, match="fails critically"):
        shop.app.runs.held.publish(verdict.id if verdict else "")
    assert shop.public() == 0
    shop.allow(2 * LIMIT)
    assert shop.app.runs.held.judge().critical == ()
    assert shop.app.runs.held.publish().records > 0
    shop.run()
    assert shop.outputs()["sums"].keys() == {b"ann", b"bob", b"cy"}
    with pytest.raises(ReleaseError, match="no run is held back"):
        shop.app.runs.held.publish()


def test_warnings_need_the_approval_of_their_verdict(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.pay(("ann", WARNED + 1), ("bob", 13))
    twin.run(gate=False)
    with pytest.raises(ApprovalNeededError, match="warnings without an approval"):
        shop.run()
    held = shop.app.runs.held
    with pytest.raises(ApprovalNeededError):
        held.publish()
    with pytest.raises(ReleaseError, match="cannot be approved"):
        held.publish("another")
    verdict = held.status().verdict  # type: ignore[union-attr]
    published = held.publish(verdict.id if verdict else "")
    assert published.verdict is not None
    assert published.verdict.approved_by == "ann@desk"
    same(shop, twin)


def test_a_run_that_is_discarded_leaves_nothing_and_its_records_are_processed_again(shop: Shop, twin: Shop) -> None:
    shop.pay(("ann", 5), ("bob", 13), ("cy", 7))
    shop.run()
    before, public = shop.state(), shop.public()
    shop.pay(("ann", LIMIT + 1), ("dan", 3), ("bob", 13), ("cy", -7), ("cy", 7), ("eve", 1))
    with pytest.raises(GateFailedError):
        shop.run()
    assert shop.state() != before
    shop.app.runs.held.discard()
    assert (shop.state(), shop.public()) == (before, public)
    assert [run.gate for run in shop.app.runs.history()] == ["discarded", "published"]
    gates = shop.app.checks.history()
    assert [(each.what.partition(" run")[0], each.result) for each in gates] == [
        ("gate of", "failed"),
        ("gate of", "passed"),
    ]
    log = f"{shop.name}.log"
    assert [each.statistics[log].rows for each in gates] == [6, 3], "a gate judges the records of its run"
    counted = CheckLog(shop.broker.admin()).earlier(shop.name, "run")
    assert [each.rows for each in counted[log]] == [3], "what failed is no measure for later runs"
    shop.allow(2 * LIMIT)
    shop.run()
    twin.pay(("ann", 5), ("bob", 13), ("cy", 7))
    twin.run(gate=False)
    twin.pay(("ann", LIMIT + 1), ("dan", 3), ("bob", 13), ("cy", -7), ("cy", 7), ("eve", 1))
    twin.run(gate=False)
    same(shop, twin)
    assert shop.app.catch_up().processed == 0, "workers may go on"


def test_windows_that_a_discarded_run_has_forgotten_are_there_again(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.pay(("ann", 5), ("bob", 4))
        each.run(gate=False)
    before = shop.state()
    hour_ms, shop.time_ms = shop.time_ms, shop.time_ms + 90_000_000
    shop.pay(("ann", LIMIT + 1), ("bob", LIMIT + 1))
    with pytest.raises(GateFailedError):
        shop.run()
    changelog = f"{shop.app.application_id}-digits-changelog"
    lag = "min.compaction.lag.ms"
    assert shop.broker.admin().topic_config(changelog)[lag] == str(2**63 - 1), (
        "brokers must not compact what was before"
    )
    shop.app.runs.held.discard()
    assert shop.state() == before
    assert shop.broker.admin().topic_config(changelog)[lag] == "0"
    shop.time_ms = hour_ms
    shop.broker.admin().delete_records({TopicPartition(f"{shop.name}.in", n): 2 for n in range(PARTITIONS)})
    for each in (shop, twin):
        each.pay(("ann", 15), ("bob", 14))
    first = ",".join(f"{shop.name}.in-{n}@2" for n in range(PARTITIONS))
    shop.app.runs.bounded(first, engine="local", gate=True).run()
    twin.run(gate=False)
    assert shop.outputs()["digits"] == twin.outputs()["digits"]
    assert LONG.serialize(2) in shop.outputs()["digits"].values(), "windows count on"


@pytest.mark.broker
@pytest.mark.spark
def test_a_gate_on_spark_and_releases_around_it_publish_every_record_once(
    shop: Shop, broker: Broker, tmp_path: Path
) -> None:
    name = shop.name
    project = broker.project(directory=tmp_path, by="ann@desk")
    app = project.app(
        name,
        build_shop(name),
        versions={"v2": build_shop(name)},
        quality=lambda: demands(name, tmp_path / "limits"),
        gate=True,
        outputs={f"{name}.log": "log", f"{name}.sums": "table", f"{name}.digits": "table"},
        config={"processing.exception.handler": "continue", "errors.dead.letter.queue.topic.name": f"{name}.letters"},
    )
    both = Shop(broker, app, tmp_path / "limits")
    both.pay(("ann", 5), ("bob", 13))
    assert app.runs.bounded().run().published is not None, "as the setting says"
    both.pay(("cy", LIMIT + 1))
    with pytest.raises(GateFailedError):
        app.runs.bounded(engine="spark").run()
    release = app.release("v2").start().reprocess()
    with pytest.raises(UnderWayError, match="held back"):
        release.gate()
    app.runs.held.discard()
    both.allow(2 * LIMIT)
    app.runs.bounded(engine="spark").run()
    app.release("v2").reprocess().gate().cut()
    both.pay(("dan", 3), ("ann", 4))
    assert app.runs.bounded().run().published is not None
    app.release().rollback()
    both.pay(("eve", 2))
    assert app.runs.bounded().run().published is not None
    paid = [("ann", 5), ("ann", 4), ("bob", 13), ("cy", LIMIT + 1), ("dan", 3), ("eve", 2)]
    assert sorted(both.records("log")) == sorted((key.encode(), LONG.serialize(value)) for key, value in paid)
    assert both.outputs()["sums"][b"ann"] == LONG.serialize(9)
    told = [str(change) for change in app.release().releaser.log()]
    assert sum("is discarded" in line for line in told) == 1


# The client library has to learn of the partitions.
@pytest.mark.broker
def test_outputs_that_get_more_partitions_get_more_staging_partitions(shop: Shop) -> None:
    shop.pay(("ann", 5), ("bob", 13))
    shop.run()
    log = f"{shop.name}.log"
    shop.broker.grow(log, PARTITIONS + 1)
    shop.pay(*((f"key{number}", number) for number in range(20)))
    shop.run()
    assert len(shop.records("log")) == 22
    tp = TopicPartition(log, PARTITIONS)
    assert shop.broker.admin().end_offsets([tp])[tp] > 0


@pytest.mark.broker
def test_commands_show_judge_publish_and_discard_what_is_held_back(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application is one of a file, as for users."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_code.py").write_text(CODE.format(name=shop.name, limits=str(tmp_path / "limits")))
    (tmp_path / "streams.toml").write_text(FILE.format(name=shop.name, servers=shop.broker.bootstrap_servers))

    def pages_in(text: str) -> list[str]:
        return [line.partition("page: ")[2] for line in text.splitlines() if "page: " in line]

    def riverrun(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["riverrun", *arguments])
        try:
            main()
        except SystemExit as ended:
            output = capsys.readouterr()
            return int(ended.code or 0), output.out + output.err
        raise AssertionError

    shop.pay(("ann", WARNED + 1))
    code, text = riverrun("run", shop.name, "--engine", "local")
    assert (code, "held back: its gate has warnings" in text) == (7, True), text
    code, text = riverrun("held", "show", shop.name)
    assert pages_in(text)
    assert (code, f"riverrun held publish {shop.name} --approve" in text) == (0, True), text
    verdict = json.loads(riverrun("held", "show", shop.name, "--json")[1])["held"]["verdict"]["id"]
    assert riverrun("held", "judge", shop.name)[0] == 7
    assert "cannot be approved" in riverrun("held", "publish", shop.name, "--approve", verdict)[1], (
        "of an older verdict"
    )
    verdict = json.loads(riverrun("held", "show", shop.name, "--json")[1])["held"]["verdict"]["id"]
    code, text = riverrun("held", "publish", shop.name, "--approve", verdict)
    assert (code, "published" in text) == (0, True), text
    shop.pay(("bob", LIMIT + 1))
    assert riverrun("run", shop.name, "--engine", "local")[0] == 6
    kept = {path.read_text() for path in (tmp_path / "kept" / shop.name).rglob("*.jsonl")}
    assert {json.loads(row)["value"] for row in kept} == {WARNED + 1, LIMIT + 1}, "rows of the gates of both runs"
    code, text = riverrun("held", "discard", shop.name)
    assert (code, "is discarded; its records are processed again" in text) == (0, True), text
    assert "no run is held back" in riverrun("held", "show", shop.name)[1]
    shown = pages_in(riverrun("runs", shop.name)[1])
    assert len(shown) == 2, "each run has the page of its last gate"
    assert all(Path(page).is_file() for page in shown)
    code, text = riverrun("run", shop.name, "--engine", "local", "--no-gate")
    assert code == 0, text
    assert len(shop.records("log")) == 2


CODE = """
from pathlib import Path
from riverrun import LONG, STRING, Consumed, Produced
from riverrun.quality import Checks
import great_expectations.expectations as gxe

def build(builder):
    builder.stream("{name}.in", Consumed(STRING, LONG)).to("{name}.log", Produced(STRING, LONG))
    return builder.build()

def expectations():
    critical, warning = map(int, Path("{limits}").read_text().split())
    return Checks({{"{name}.log": [
        gxe.ExpectColumnValuesToBeBetween(column="value", max_value=critical, severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="value", max_value=warning, severity="warning"),
    ]}})
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "shop_code:build"
quality = "shop_code:expectations"
gate = true
data_docs = "docs"
unexpected_rows = "kept"
"""


def test_records_that_a_worker_left_in_repartition_topics_survive_a_discarded_run(shop: Shop, twin: Shop) -> None:
    for each in (shop, twin):
        each.pay(("ann", 5), ("bob", 13), ("cy", 7))
        each.run(gate=False)
        leave_behind(each, ("ann", 3), ("bob", 4))
        each.pay(("ann", LIMIT + 1))
    with pytest.raises(GateFailedError):
        shop.run()
    shop.app.runs.held.discard()
    shop.allow(2 * LIMIT)
    shop.run()
    twin.run(gate=False)
    assert shop.outputs()["sums"] == twin.outputs()["sums"]
    assert shop.outputs()["sums"][b"ann"] == LONG.serialize(5 + 3 + LIMIT + 1)


def every_store(name: str) -> Any:
    """Stores of all kinds that keep times: joins of streams, sessions, versions, suppression; a table read from its topic."""
    strings = Consumed(STRING, LONG)

    def build(builder: StreamsBuilder) -> Topology:
        paid = builder.stream(f"{name}.in", strings)
        rates = builder.table(f"{name}.rates", strings, Materialized(STRING, LONG, name="rates"))
        versions = Materialized(STRING, LONG, name="history", history_retention=HOUR)
        history = builder.table(f"{name}.history", strings, versions)
        rated = paid.left_join(rates, lambda value, rate: value * (rate or 1))
        past = paid.left_join(history, lambda value, known: value + (known or 0))
        windows, serdes = JoinWindows.of(SECOND, grace=timedelta(0)), StreamJoined(STRING, LONG, LONG)
        pairs = paid.left_join(rated, lambda one, two: one + (two or 0), windows, joined=serdes)
        grouped = paid.group_by_key(Grouped(STRING, LONG))
        sessions = grouped.windowed_by(SessionWindows.of(SECOND, grace=SECOND)).count()
        final = grouped.windowed_by(TimeWindows.of(SECOND, grace=SECOND)).count()
        closed = final.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        for stream in (rated, past, pairs):
            stream.to(f"{name}.log", Produced(STRING, LONG))
        for table in (sessions, closed):
            told = table.to_stream().map(lambda key, value: (f"{key.key}@{key.window}", value or -1))
            told.to(f"{name}.log", Produced(STRING, LONG))
        return builder.build()

    return build


def test_stores_of_all_kinds_are_as_before_after_a_discarded_run(broker: Broker, unique: str, tmp_path: Path) -> None:
    limits = tmp_path / "limits"
    limits.write_text(f"{LIMIT} {LIMIT}")

    def demanded() -> list[Any]:
        return [gxe.ExpectColumnValuesToBeBetween(column="value", max_value=int(limits.read_text().split()[0]))]

    shops = []
    for name in (unique, f"{unique}b"):
        broker.create(PARTITIONS, *(f"{name}.{topic}" for topic in ("in", "log", "rates", "history")))
        project = broker.project(directory=tmp_path / name)
        snapshots = {"snapshot.url": (tmp_path / name / "snapshots").as_uri()}
        kinds = {f"{name}.log": "log"}
        app = project.app(name, every_store(name), quality=demanded, outputs=kinds, config=snapshots)
        shops.append(Shop(broker, app, limits))
    shop, twin = shops

    def write(each: Shop, base_ms: int, most: int) -> None:
        for number in range(6):
            key, at = f"k{number % 3}".encode(), base_ms + 150 * number
            for topic, value in (("rates", number), ("history", number), ("in", most if number == 3 else number)):
                broker.write(f"{each.name}.{topic}", [(key, LONG.serialize(value), at)], number % PARTITIONS)
            each.time_ms = at

    for each in shops:
        write(each, 1_000, 7)
        each.run(gate=each is shop)
    far_ms = 30_000_000
    write(shop, far_ms, LIMIT * 5)
    with pytest.raises(GateFailedError):
        shop.run()
    shop.app.runs.held.discard()
    shop.allow(LIMIT * 1_000)
    shop.run()
    write(twin, far_ms, LIMIT * 5)
    twin.run(gate=False)
    for each in shops:
        write(each, far_ms + 2_000, 5)
        each.run(gate=each is shop)
    assert sorted(shop.records("log"), key=repr) == sorted(twin.records("log"), key=repr)
    assert len(twin.records("log")) > 50


def leave_behind(shop: Shop, *payments: tuple[str, int]) -> None:
    """Write to a repartition topic, as tasks of a worker do that others have not followed yet."""
    producer = IdempotentProducer(shop.broker.door)
    for number, (key, value) in enumerate(payments):
        shop.time_ms += 100
        topic = f"{shop.app.application_id}-by-key-repartition"
        producer.send(topic, key.encode(), LONG.serialize(value), shop.time_ms, (), number % PARTITIONS)
    producer.flush()
    producer.close()


def test_whatever_write_a_run_dies_at_the_next_one_completes_it(shop: Shop, twin: Shop) -> None:
    every: list[tuple[str, int]] = []

    def pay(*payments: tuple[str, int]) -> None:
        for each in (shop, twin):
            each.pay(*payments)
        every.extend(payments)

    pay(("ann", 5), ("bob", 13), ("cy", 7))
    count = writes_of(shop.run)
    twin.run(gate=False)
    chosen, crashes = random.Random(7), 0
    for number in range(CRASHES):
        pay(("ann", number), ("bob", 13), (f"k{number}", 2), ("cy", -7 if number % 2 else 7))
        at, after = chosen.randrange(count), bool(number % 2)
        with crashing(at, after=after) as seen, suppress(CrashError):
            shop.run()
        crashes += len(seen) > at
        shop.run()
        twin.run(gate=False)
        assert shop.app.runs.held.status() is None
        assert outputs_of(shop) == outputs_of(twin), f"{'after' if after else 'before'} write {at}: {seen}"
    assert crashes > CRASHES / 2


def test_whatever_write_a_discard_dies_at_it_can_be_repeated(shop: Shop) -> None:
    shop.pay(("ann", 5), ("bob", 13), ("cy", 7), ("dan", 9))
    shop.run()
    before, public = shop.state(), shop.public()
    shop.pay(("ann", LIMIT + 1), ("dan", -9), ("bob", 13))
    with pytest.raises(GateFailedError):
        shop.run()
    count = writes_of(shop.app.runs.held.discard)
    assert (shop.state(), shop.public()) == (before, public)
    chosen = random.Random(11)
    for number in range(CRASHES // 2):
        with pytest.raises(GateFailedError):
            shop.run()
        at, after = chosen.randrange(count), bool(number % 2)
        with crashing(at, after=after) as seen, suppress(CrashError):
            shop.app.runs.held.discard()
        if shop.app.runs.held.status() is not None:
            shop.app.runs.held.discard()
        found = shop.state(), shop.public()
        assert found == (before, public), f"{'after' if after else 'before'} write {at}: {seen}"


def outputs_of(shop: Shop) -> dict[str, Any]:
    found = shop.outputs()
    return {**found, "letters": [value for _, value in found["letters"]]}
