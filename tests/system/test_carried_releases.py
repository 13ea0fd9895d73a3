"""Releases that take state over from the live version: the result is that of one run over everything."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    StreamJoined,
    Suppressed,
    TimeWindows,
)
from riverrun.archive.archiving import archive_topic, in_this_process
from riverrun.archive.manifest import ArchiveStore
from riverrun.errors import ConfigError, RangeError, ReleaseError, UnderWayError
from riverrun.records import TopicPartition
from riverrun.releases import corrections
from riverrun.releases.carry_plan import Fate
from tests.depth import depth
from tests.presence import present
from tests.system.crashes import CrashError, crashing, writes_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import KStream, StreamsBuilder, Topology
    from riverrun.project.app import App
    from riverrun.project.release import AppRelease
    from tests.brokers import Broker

PARTITIONS = 2
SECOND = timedelta(seconds=1)
EXAMPLES = depth(2, 20)
CRASHES = depth(4, 40)


@dataclass(frozen=True)
class Block:
    """A part of a topology: what it computes of its input, and into which topic.

    Args:
        kind: What it computes.
        name: Names its store, its nodes and its output.
        least: The smallest value that it takes.
        mapped: What its rows are multiplied by for an output of their own; 0 for none.
    """

    kind: str
    name: str
    least: int = 0
    mapped: int = 0


def at_least(least: int, _key: str, value: int) -> bool:
    return value >= least


def times(factor: int, value: int) -> int:
    return factor * value


def wrapped(value: int) -> dict[str, int]:
    return {"n": value}


def digit(_key: str, value: int) -> str:
    return str(value % 10)


def larger(one: int, other: int) -> int:
    return max(one, other)


def added(one: int, other: int) -> int:
    return one + other


def plain_key(key: Any, _value: int) -> str:
    return f"{key.key}@{key.window.start}"


def build(app: str, blocks: tuple[Block, ...], builder: StreamsBuilder) -> Topology:
    stream = builder.stream(f"{app}.in", Consumed(STRING, LONG, name="read"))
    for block in blocks:
        kept = stream.filter(partial(at_least, block.least), named=Named(f"keep-{block.name}"))
        KINDS[block.kind](app, block, kept, builder)
    return builder.build()


def _to(app: str, block: Block, results: KStream[Any, int], suffix: str = "") -> None:
    name = f"{block.name}{suffix}"
    results.to(f"{app}.{name}", Produced(STRING, LONG, name=f"to-{name}"))


def _kept(block: Block, **options: Any) -> Materialized[Any, Any]:
    return Materialized(STRING, LONG, name=block.name, **options)


def _table(app: str, block: Block, table: Any) -> None:
    _to(app, block, table.to_stream(named=Named(f"rows-{block.name}")))
    if block.mapped:
        high = table.filter(partial(at_least, 3), named=Named(f"high-{block.name}"))
        mapped = high.map_values(partial(times, block.mapped), named=Named(f"mapped-{block.name}"))
        _to(app, block, mapped.to_stream(named=Named(f"of-mapped-{block.name}")), "-mapped")


def _counted(app: str, block: Block, kept: KStream[str, int], _builder: StreamsBuilder) -> None:
    grouped = kept.group_by_key(Grouped(STRING, LONG))
    _table(app, block, grouped.count(_kept(block), named=Named(f"count-{block.name}")))


def _reduced(app: str, block: Block, kept: KStream[str, int], _builder: StreamsBuilder) -> None:
    grouped = kept.group_by(digit, Grouped(STRING, LONG, name=f"by-{block.name}"))
    _table(app, block, grouped.reduce(larger, _kept(block), named=Named(f"reduce-{block.name}")))


def _minutes(app: str, block: Block, kept: KStream[str, int], _builder: StreamsBuilder) -> None:
    windows = TimeWindows.of_size_and_grace(60 * SECOND, 30 * SECOND)
    grouped = kept.group_by_key(Grouped(STRING, LONG)).windowed_by(windows)
    table = grouped.count(_kept(block), named=Named(f"count-{block.name}"))
    rows = table.to_stream(named=Named(f"rows-{block.name}"))
    _to(app, block, rows.select_key(plain_key, named=Named(f"key-{block.name}")))


def _closed(app: str, block: Block, kept: KStream[str, int], _builder: StreamsBuilder) -> None:
    windows = TimeWindows.of_size_with_no_grace(20 * SECOND)
    grouped = kept.group_by_key(Grouped(STRING, LONG)).windowed_by(windows)
    table = grouped.count(_kept(block), named=Named(f"count-{block.name}"))
    closed = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name(f"wait-{block.name}"))
    rows = closed.to_stream(named=Named(f"rows-{block.name}"))
    _to(app, block, rows.select_key(plain_key, named=Named(f"key-{block.name}")))


def _sessions(app: str, block: Block, kept: KStream[str, int], _builder: StreamsBuilder) -> None:
    windows = SessionWindows.of_inactivity_gap_and_grace(15 * SECOND, 30 * SECOND)
    grouped = kept.group_by_key(Grouped(STRING, LONG)).windowed_by(windows)
    table = grouped.count(_kept(block), named=Named(f"count-{block.name}"))
    rows = table.to_stream(named=Named(f"rows-{block.name}"))
    _to(app, block, rows.select_key(plain_key, named=Named(f"key-{block.name}")))


def _joined(app: str, block: Block, kept: KStream[str, int], builder: StreamsBuilder) -> None:
    others = builder.stream(f"{app}.others", Consumed(STRING, LONG, name=f"read-{block.name}"))
    windows = JoinWindows.of_time_difference_and_grace(10 * SECOND, 30 * SECOND)
    joined = StreamJoined(STRING, LONG, LONG, name=f"join-{block.name}", store_name=block.name)
    _to(app, block, kept.join(others, added, windows, joined=joined))


def _enriched(app: str, block: Block, kept: KStream[str, int], builder: StreamsBuilder) -> None:
    table = builder.table(f"{app}.rows", Consumed(STRING, LONG, name=f"read-{block.name}"), _kept(block))
    _to(app, block, kept.join(table, added, joined=Joined(name=f"join-{block.name}")))


KINDS = {
    "counted": _counted,
    "reduced": _reduced,
    "minutes": _minutes,
    "closed": _closed,
    "sessions": _sessions,
    "joined": _joined,
    "enriched": _enriched,
}
LOGS = ("joined", "enriched")
"""Blocks whose outputs are logs: what comes before the mark is published by the live version."""


@dataclass
class Shop:
    """An application, its twin that processes everything once, and what both read."""

    broker: Broker
    directory: Path
    name: str
    random: random.Random
    written: list[tuple[str, bytes, bytes | None, int]] = field(default_factory=list)
    time_ms: int = 0
    expected: tuple[int, dict[str, Any]] | None = None
    """Number of records, and the rows that they make."""

    def app(self, name: str, before: tuple[Block, ...], after: tuple[Block, ...], version: str | None = None) -> App:
        project = self.broker.project(directory=self.directory / name, by="ann@desk")
        (self.directory / name).mkdir(exist_ok=True)
        outputs = {f"{name}.{block.name}": "log" if block.kind in LOGS else "table" for block in {*before, *after}}
        declared = project.app(
            name,
            partial(build, name, before),
            versions={"v2": partial(build, name, after)},
            outputs=outputs,
            config={"bounded.engine": "local", "archive.url": str(self.archive)},
        )
        return declared if version is None else project.app(name, version=version)

    def create(self, name: str, *blocks: Block) -> None:
        topics = {block.name for block in blocks} | {f"{block.name}-mapped" for block in blocks}
        self.broker.create(PARTITIONS, *(f"{name}.{topic}" for topic in ("in", "others", "rows", *sorted(topics))))

    def write(self, *names: str, records: int = 60) -> None:
        """Write some records, the same to the inputs of each application; all are later than those before."""
        self.time_ms += 60_000
        for _ in range(records):
            self.time_ms += self.random.randrange(1, 4_000)
            time_ms = max(0, self.time_ms - self.random.choice([0, 0, 0, 5_000, 40_000]))
            topic = self.random.choice(["in", "in", "in", "others", "rows"])
            value = None if topic == "rows" and self.random.random() < 0.2 else self.random.randrange(50)
            raw = None if value is None else LONG.serialize(value)
            self.written.append((topic, self.random.choice(b"abcdefgh".decode()).encode(), raw, time_ms))
        for name in names:
            self._send(name, self.written[-records:])

    @property
    def archive(self) -> Path:
        return self.directory / "archive"

    def keep_in_archive_alone(self) -> None:
        """Archive what has been written, and delete a part of it from the topics."""
        admin = self.broker.admin()
        for topic in (f"{self.name}.{each}" for each in ("in", "others", "rows")):
            archive_topic(ArchiveStore(str(self.archive)), admin, topic, in_this_process(str(self.archive), admin))
            ends = admin.end_offsets(TopicPartition(topic, number) for number in range(PARTITIONS))
            admin.delete_records({tp: self.random.randrange(end + 1) for tp, end in ends.items()})

    def send_all(self, name: str) -> None:
        self._send(name, self.written)

    def _send(self, name: str, records: list[tuple[str, bytes, bytes | None, int]]) -> None:
        parts: dict[tuple[str, int], list[tuple[bytes, bytes | None, int]]] = {}
        for topic, key, value, time_ms in records:
            parts.setdefault((topic, key[0] % PARTITIONS), []).append((key, value, time_ms))
        for (topic, partition), found in parts.items():
            self.broker.write(f"{name}.{topic}", found, partition)

    def rows(self, name: str, topic: str) -> dict[bytes | None, bytes | None]:
        found = {record.key: record.value for record in self.broker.read(f"{name}.{topic}")}
        return {key: value for key, value in found.items() if value is not None}

    def records(self, name: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return sorted(((r.key, r.value) for r in self.broker.read(f"{name}.{topic}")), key=repr)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def shop(broker: Broker, unique: str, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path, unique, random.Random(unique))


def any_blocks(rng: random.Random) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """Return a topology that has at least one count, and a changed one, which still has that count."""
    kinds = rng.sample(sorted(KINDS), 3)
    before = [Block("counted", "first"), *(Block(kind, f"b{n}", rng.randrange(20)) for n, kind in enumerate(kinds))]
    after = [before[0], *(each for each in before[1:] if rng.random() < 0.8)]
    for number, each in enumerate(after):
        change = rng.randrange(4)
        if change == 0 and number:
            after[number] = Block(each.kind, each.name, each.least + 1, each.mapped)
        elif change == 1 and each.kind in {"counted", "reduced"}:
            after[number] = Block(each.kind, each.name, each.least, rng.randrange(2, 5))
    if rng.random() < 0.6:
        after.append(Block(rng.choice(sorted(KINDS)), "new", rng.randrange(20)))
    return tuple(before), tuple(after)


def switch(release: AppRelease) -> None:
    """Take the steps behind the start, whatever the gate says of records that were dropped."""
    release.reprocess().gate()
    verdict = present(release.status.verdict)
    if verdict.needs_approval:
        release.approve(verdict.id)
    release.cut()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_any_release_that_carries_state_ends_where_one_run_over_everything_does(
    shop: Shop, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.random = rng = random.Random(seed)
    monkeypatch.setattr(corrections, "_TRANSACTION_RECORDS", rng.choice((3, 50_000)))
    before, after = any_blocks(rng)
    name, twin = shop.name, f"{shop.name}t"
    for each in (name, twin):
        shop.create(each, *before, *after)
    app, other = shop.app(name, before, after), shop.app(twin, after, after)
    shop.write(name, twin, records=120)
    app.run()
    if seed % 2:
        shop.keep_in_archive_alone()
    release = app.release("v2")
    plan = present(release.plan(carry=True).carry)
    release.start(carry=True)
    print(seed, before, after, *plan.lines, sep="\n")
    shop.write(name, twin)
    app.run()
    switch(release)
    shop.write(name, twin)
    app.run()
    other.run()
    for block in after:
        fate = plan.outputs[f"{name}.{block.name}"].fate
        if block.kind in LOGS:
            # The live version published what came before the cut, by its own code.
            assert fate in {Fate.CARRIED, Fate.COMPUTED}
            if fate is Fate.CARRIED:
                assert shop.records(name, block.name) == shop.records(twin, block.name), (block, plan.lines)
        else:
            assert shop.rows(name, block.name) == shop.rows(twin, block.name), (block, fate, plan.lines)
        if block.mapped:
            assert shop.rows(name, f"{block.name}-mapped") == shop.rows(twin, f"{block.name}-mapped"), plan.lines
    assert plan.stores["first"].fate is Fate.CARRIED


COUNTS = (Block("counted", "first"), Block("minutes", "minutes"))
MAPPED = (Block("counted", "first", mapped=3), Block("minutes", "minutes"), Block("reduced", "new"))


def opened(shop: Shop, after: tuple[Block, ...] = MAPPED) -> App:
    """Return an application that has processed some records, with a second version."""
    shop.create(shop.name, *COUNTS, *after)
    app = shop.app(shop.name, COUNTS, after)
    shop.write(shop.name)
    app.run()
    return app


def expected(shop: Shop, after: tuple[Block, ...]) -> dict[str, Any]:
    """Return the rows of an application that processes everything once, by the code of the second version."""
    twin = f"{shop.name}t{len(shop.written)}"
    shop.create(twin, *after)
    app = shop.app(twin, after, after)
    shop.send_all(twin)
    app.run()
    return found(shop, twin, after)


def found(shop: Shop, name: str, blocks: tuple[Block, ...]) -> dict[str, Any]:
    topics = [block.name for block in blocks] + [f"{block.name}-mapped" for block in blocks if block.mapped]
    return {topic: shop.rows(name, topic) for topic in topics}


@pytest.mark.broker
def test_state_is_carried_while_workers_of_both_versions_run(shop: Shop) -> None:
    app = opened(shop)
    with app.worker():
        release = app.release("v2").start(carry=True)
        assert release.status.barrier is None
        shop.write(shop.name)
        with shop.app(shop.name, COUNTS, MAPPED, version="v2").worker():
            until(release.releaser.is_followed, "joined its group")
            release.reprocess().wait_ready().gate().cut()
            shop.write(shop.name)
            assert release.status.live == "v2"
            until(lambda: found(shop, shop.name, MAPPED) == expected_once(shop), "published the rows of one run")
            release.rollback()
            assert release.status.live == "v1"


@pytest.mark.deep
def test_whatever_write_a_carrying_dies_at_the_next_call_completes_it(shop: Shop) -> None:
    app = opened(shop)
    settings = changelogs(shop)
    count = writes_of(lambda: app.release("v2").start(carry=True))
    assert changelogs(shop) == settings
    chosen = random.Random(shop.name)
    for number in range(CRASHES):
        app.release().abort()
        at, after = chosen.randrange(count), bool(number % 2)
        with crashing(at, after=after), suppress(CrashError):
            app.release("v2").start(carry=True)
        carry = app.release().status.carry
        if carry is not None and not carry.is_done:
            with pytest.raises(UnderWayError, match="does not have all state yet"):
                app.release().reprocess()
        if carry is not None and not number % 3:
            app.release().abort()
            assert changelogs(shop) == settings
        app.release("v2").start(carry=True)
        assert present(app.release().status.carry).is_done
        assert changelogs(shop) == settings, f"{'after' if after else 'before'} write {at}"
        app.release().reprocess()
        assert staged(shop) == expected_once(shop), f"{'after' if after else 'before'} write {at}"
    app.release().gate().cut()
    assert found(shop, shop.name, MAPPED) == expected_once(shop)


def changelogs(shop: Shop) -> dict[str, str]:
    admin = shop.broker.admin()
    topics = [topic for topic in admin.list_topics(f"{shop.name}-v1-") if topic.endswith("-changelog")]
    return {topic: config["min.compaction.lag.ms"] for topic, config in admin.topic_configs(topics).items()}


def staged(shop: Shop) -> dict[str, Any]:
    """Return the rows of the candidate's staging topics."""
    return found(shop, f"{shop.name}-v2-staging-{shop.name}", MAPPED)


def expected_once(shop: Shop) -> dict[str, Any]:
    if shop.expected is None or shop.expected[0] != len(shop.written):
        shop.expected = len(shop.written), expected(shop, MAPPED)
    return shop.expected[1]


def refusing(key: str, value: int) -> int:
    if key == "a":
        message = f"no key {key}"
        raise ValueError(message)
    return 100 * value


def hundreds(app: str, builder: StreamsBuilder) -> Topology:
    """Version 2 of a count: each record counts a hundred."""
    stream = builder.stream(f"{app}.in", Consumed(STRING, LONG, name="read"))
    kept = stream.filter(partial(at_least, 0), named=Named("keep-first"))
    grouped = kept.group_by_key(Grouped(STRING, LONG))
    options: Materialized[str, int] = Materialized(STRING, LONG, name="first")
    table = grouped.aggregate(lambda: 0, lambda _key, _value, count: count + 100, options, named=Named("count-first"))
    _table(app, Block("counted", "first"), table)
    return builder.build()


def test_a_store_is_migrated_by_a_function_and_its_output_with_it(shop: Shop) -> None:
    one = (Block("counted", "first"),)
    shop.create(shop.name, *one)
    shop.broker.create(1, f"{shop.name}.dead")
    project = shop.broker.project(directory=shop.directory, by="ann@desk")

    def app(function: Callable[[str, int], int], handler: str = "fail") -> App:
        letters = {"processing.exception.handler": handler, "errors.dead.letter.queue.topic.name": f"{shop.name}.dead"}
        return project.app(
            shop.name,
            partial(build, shop.name, one),
            versions={"v2": partial(hundreds, shop.name)},
            carry={"v2": {"first": function}},
            config={"bounded.engine": "local", **letters},
        )

    shop.random.seed(0)  # key `a` comes, which not every seed has
    shop.write(shop.name)
    app(refusing).run()
    before = shop.rows(shop.name, "first")
    with pytest.raises(
        ReleaseError, match=r"refusing cannot migrate .* of key b'a' of store first: ValueError: no key a"
    ):
        app(refusing).release("v2").start(carry=True)
    assert not present(app(refusing).release().status.carry).is_done
    release = app(refusing, "continue").release("v2").start(carry=True)
    assert "store first: migrated" in str(release.status)
    staged = [topic for topic in shop.broker.admin().list_topics() if topic.endswith(f"{shop.name}.dead")]
    (dead,) = (topic for topic in staged if topic != f"{shop.name}.dead")
    letters = list(app(refusing).letters(dead).list())
    assert {(letter.key, letter.message) for letter in letters} == {(b"a", "no key a")}
    assert letters[-1].origin.topic.endswith("-first-changelog")
    with pytest.raises(RangeError, match="a carried release could not migrate these rows"):
        app(refusing).letters(dead).replay(letters)
    first = Counter(key for topic, key, _, _ in shop.written if topic == "in")
    shop.write(shop.name)
    app(refusing, "continue").run()
    switch(release)
    counted = Counter(key for topic, key, _, _ in shop.written if topic == "in")
    counted[b"a"] -= first[b"a"]
    assert shop.rows(shop.name, "first") == {key: LONG.serialize(100 * count) for key, count in (+counted).items()}
    assert before.keys() > {b"a"}


def test_a_release_that_would_compute_everything_is_refused_before_anything_changes(shop: Shop) -> None:
    app = opened(shop, (Block("counted", "first", 7), Block("minutes", "minutes", 7)))
    topics = shop.broker.admin().list_topics()
    with pytest.raises(ReleaseError, match="v2 can take no store over: first: keep-first has changed; minutes: keep-"):
        app.release("v2").start(carry=True)
    assert shop.broker.admin().list_topics() == topics
    assert app.release().status.candidate is None


def of_value_alone(value: int) -> int:
    return 100 * value


def test_a_migration_that_takes_other_arguments_is_refused_before_anything_changes(shop: Shop) -> None:
    one = (Block("counted", "first"),)
    shop.create(shop.name, *one)
    app = shop.broker.project(directory=shop.directory, by="ann@desk").app(
        shop.name,
        partial(build, shop.name, one),
        versions={"v2": partial(hundreds, shop.name)},
        carry={"v2": {"first": cast("Any", of_value_alone)}},
        config={"bounded.engine": "local"},
    )
    shop.write(shop.name)
    app.run()
    with pytest.raises(
        ConfigError, match=r"of_value_alone cannot migrate store first: it must be a function of \(key, value\)"
    ):
        app.release("v2").start(carry=True)
    assert app.release().status.candidate is None


def test_a_worker_of_the_candidate_keeps_state_from_being_carried(shop: Shop) -> None:
    app = opened(shop)
    app.release("v2").start()
    with shop.app(shop.name, COUNTS, MAPPED, version="v2").worker():
        until(app.release().releaser.is_followed, "joined its group")
        with pytest.raises(UnderWayError):
            app.release("v2").start(carry=True)
    app.release("v2").start(carry=True)
    assert present(app.release().status.carry).is_done
    forms = [shop.app(shop.name, COUNTS, MAPPED, version=version).state.schemas() for version in ("v1", "v2")]
    assert forms[0]["Store first"] == forms[1]["Store first"] != []
    app.release("v2").start()
    assert app.release().status.carry is None, "without --carry, it begins again, and computes everything"
