"""Random topologies of all that the DSL offers, built by its own calls. One seed stands for one topology."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from riverrun import (
    JSON,
    LONG,
    STRING,
    Branched,
    BufferConfig,
    CollectList,
    Consumed,
    Count,
    CountWindows,
    Earliest,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    KeyTimers,
    KStream,
    KTable,
    Latest,
    Materialized,
    Max,
    Mean,
    Pattern,
    Printed,
    Produced,
    Quantile,
    Repartitioned,
    RollingWindows,
    Serde,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Sum,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    col,
    session_windowed,
    windowed,
)
from tests.unit.runtime.drawn_functions import (
    Failing,
    Fill,
    Keep,
    Look,
    Remember,
    Remind,
    Scan,
    Tick,
    appended,
    both,
    counted,
    flat,
    grown,
    ms,
    reduced,
    short,
    time_in_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import GlobalKTable, Topology

TOPICS = ("in", "other", "third")
TEXTS = Consumed(STRING, STRING)
TO_TEXTS = Produced(STRING, STRING)
BY_TEXT = Grouped(STRING, STRING)
LOWER = Serde("lower", str.encode, lambda data: data.decode().lower())
"""Keys that may be written in several ways."""
LIST = JSON(list[str])
BY_LIST = Grouped(LIST, STRING)
TEXT_VALUES: Materialized[Any, Any] = Materialized(None, STRING)


@dataclass
class Drawing:
    """A topology that grows by random steps.

    Args:
        source: Draws.
        fails: Whether users' functions may fail.
        files: Where `print` writes.
    """

    source: Random
    fails: bool
    files: Path
    steps: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """The text of side effects."""
    streams: list[KStream[Any, Any]] = field(default_factory=list)
    tables: list[KTable[Any, Any]] = field(default_factory=list)
    versioned: list[KTable[Any, Any]] = field(default_factory=list)
    windows: list[KTable[Any, Any]] = field(default_factory=list)
    """Windowed tables whose windows close."""
    globals: list[GlobalKTable[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder, self.numbers = StreamsBuilder(), count()
        self.failing = Failing(None, ValueError())
        if self.fails:
            at = self.source.choice(["five", "never", "b", "+", "lo"])
            self.failing = Failing(at, self.source.choice([ValueError("it fails"), SystemExit(3)]))

    def chance(self, share: float) -> bool:
        return self.source.random() < share

    def pick(self, *choices: Any) -> Any:
        return self.source.choice(choices)

    def stream(self) -> KStream[Any, Any]:
        return self.source.choice(self.streams[-5:])

    def table(self) -> KTable[Any, Any]:
        return self.source.choice(self.tables[-4:] or [self.to_table()])

    def name(self, prefix: str) -> str:
        return f"{prefix}-{next(self.numbers)}"

    def stored(self, serde: Serde[Any] = STRING, **options: Any) -> Materialized[Any, Any]:
        """Options of a store: cached or not, logged or not, in memory, with few entries."""
        if options.pop("is_plain", False) and self.chance(0.1):
            options["max_entries"] = 2
        return Materialized(
            options.pop("key_serde", STRING),
            serde,
            name=self.name("store") if self.chance(0.5) else None,
            caching=self.chance(0.7),
            logging=self.chance(0.8),
            **options,
        )

    def aggregate_of(self) -> tuple[Serde[Any], Callable[[], Any], Callable[..., Any], Callable[..., Any]]:
        """A serde, an initializer, an aggregator, and a merger of two aggregates: immutable or changed in place."""
        return self.pick(  # type: ignore[no-any-return]
            (STRING, str, self.grown(grown), lambda _k, one, two: short(f"{one}{two}")),
            (LONG, int, self.grown(counted), lambda _k, one, two: one + two),
            (LIST, list, self.grown(appended), lambda _k, one, two: (one + two)[-3:]),
        )

    def grown(self, aggregator: Callable[..., Any]) -> Callable[..., Any]:
        """The aggregator, told apart from others of this topology, and failing where functions do."""
        mark = next(self.numbers)
        return lambda k, v, known: aggregator(k, f"{mark}{self.failing(v)}" if v is not None else v, known)

    def add_table(self, table: KTable[Any, Any]) -> None:
        self.tables.append(table)

    def maybe_stored(self) -> Materialized[Any, Any]:
        """Options of a table that needs no store: most have none."""
        return self.stored() if self.chance(0.5) else Materialized(STRING, STRING)

    def as_texts(self, table: KTable[Any, Any]) -> KTable[Any, Any]:
        """A table of texts, computed or stored."""
        if self.chance(0.5):
            return table.map_values(lambda value: short(self.failing(value)), TEXT_VALUES)
        return table.map_values(lambda key, value: short(f"{flat(key)}:{value}"), TEXT_VALUES)

    # Sources.

    def add_source(self, topic: str) -> None:
        kind = self.pick("stream", "stream", "table", "versioned", "global table", "global store")
        if not self.streams:
            kind = self.pick("stream", "stream", "lower")
        self.steps.append(f"{kind} of {topic}")
        extractor = time_in_value if self.chance(0.1) else None
        consumed: Consumed[str, str] = Consumed(STRING, STRING, extractor)
        if kind == "stream":
            self.streams.append(self.builder.stream([topic, "fourth"] if topic == "in" else topic, consumed))
        elif kind == "lower":
            self.streams.append(self.builder.stream(topic, Consumed(LOWER, STRING, extractor)))
        elif kind == "table":
            self.add_table(self.builder.table(topic, consumed, self.stored(is_plain=True)))
        elif kind == "versioned":
            kept: Materialized[str, str] = Materialized(
                STRING,
                STRING,
                name=self.name("versions"),
                history_retention=ms(self.pick(50, 1000)),
                logging=self.chance(0.8),
            )
            self.versioned.append(self.builder.table(topic, TEXTS, kept))
            self.tables.append(self.versioned[-1])
        elif kind == "global table":
            self.globals.append(self.builder.global_table(topic, TEXTS))
        else:
            name = self.name("global")
            filled = Stores.key_value_store(name, STRING, STRING, persistent=False, logging=False)
            self.builder.add_global_store(filled, topic, TEXTS, lambda: Fill(name))
            self.streams.append(self.stream().process_values(lambda: Look(name)))

    # Streams without state.

    def filter(self) -> None:
        even, fail = self.chance(0.5), self.failing
        keep = (lambda k, _v: k != "no") if even else (lambda _k, v: fail(v) is not None and len(v) % 3 != 1)
        self.streams.append(self.stream().filter(keep))

    def filter_not(self) -> None:
        self.streams.append(self.stream().filter_not(lambda _k, v: v == "never"))

    def columns(self) -> None:
        """Expressions of columns: of dicts in which a column may be null, and of null values."""
        rows = self.stream().map_values(
            lambda v: {"text": v and short(v), "size": None if v == "never" else len(v or "")}
        )
        test = (col("size") > self.pick(1, 2)) | col("text").isin("five", "b")
        kept = rows.filter(test) if self.chance(0.5) else rows.filter_not(test)
        made = kept.map_values(text=col("text"), more=col("size") * 2 + 1).select_key(col("text").if_null("none"))
        self.streams.append(made.map_values(lambda row: short(f"{row}")))

    def map(self) -> None:
        self.streams.append(self.stream().map(lambda k, v: (v and v[:1], short(f"{k}{v}"))))

    def map_values(self) -> None:
        fail = self.failing
        mapped = (lambda v: fail(v) and v.upper()) if self.chance(0.5) else (lambda k, v: v and short(f"{k}={v}"))
        self.streams.append(self.stream().map_values(mapped))

    def select_key(self) -> None:
        self.streams.append(self.stream().select_key(lambda k, v: v[:1] if v else k))

    def flat_map(self) -> None:
        self.streams.append(self.stream().flat_map(lambda k, v: [(k, v), (v and v[:2], k)]))

    def flat_map_values(self) -> None:
        self.streams.append(self.stream().flat_map_values(lambda v: [v] * (len(v or "") % 3)))

    def look_up_outside(self) -> None:
        fail, ordered = self.failing, self.chance(0.7)

        async def fetch(key: Any, value: Any) -> Any:
            await asyncio.sleep(len(value or "") % 3)
            return value and short(f"{key}~{fail(value)}")

        self.streams.append(self.stream().map_values_async(fetch, ordered=ordered, max_in_flight=self.pick(1, 3, 100)))

    def look_up_many_outside(self) -> None:
        async def fetch(value: Any) -> list[Any]:
            await asyncio.sleep(len(value or "") % 2)
            return [value, value and value.upper()]

        self.streams.append(self.stream().flat_map_values_async(fetch))

    def look_up_in_batches(self) -> None:
        fail = self.failing

        async def fetch(keys: list[Any], values: list[Any]) -> list[Any]:
            await asyncio.sleep(len(values) % 3)
            return [value and short(f"{key}={fail(value)}") for key, value in zip(keys, values, strict=True)]

        self.streams.append(self.stream().map_values_in_batches(fetch, max_records=self.pick(1, 3, 100)))

    def peek(self) -> None:
        seen, fail = self.seen, self.failing
        self.streams.append(self.stream().peek(lambda k, v: seen.append(f"{k} {fail(v)}")))

    def foreach(self) -> None:
        seen = self.seen
        self.stream().foreach(lambda k, v: seen.append(f"each {k} {v}"))

    def print(self) -> None:
        self.stream().print(Printed(self.files / self.name("printed"), self.name("label")))

    def merge(self) -> None:
        self.streams.append(self.stream().merge(self.stream()))

    def split(self) -> None:
        fail = self.failing
        split = self.stream().split()
        split = split.branch(lambda k, _v: k == "a", Branched(self.name("-a")))
        split = split.branch(lambda _k, v: fail(v) is not None and len(v) > 2, Branched(self.name("-long")))
        if self.chance(0.7):
            self.streams += split.default_branch(Branched(self.name("-rest"))).values()
        else:
            self.streams += split.no_default_branch().values()

    def repartition(self) -> None:
        self.streams.append(self.stream().repartition(Repartitioned(STRING, STRING)))

    def deduplicate(self) -> None:
        fail, name = self.failing, self.name("once") if self.chance(0.5) else None
        kept: Materialized[Any, Any] = Materialized(STRING, name=name, logging=self.chance(0.8))
        stream = self.stream().repartition(Repartitioned(STRING, STRING))
        identity = (lambda k, v: v and f"{k}{fail(v)}"[:3]) if self.chance(0.5) else None
        self.streams.append(stream.deduplicate(ms(self.pick(0, 20)), by=identity, materialized=kept))

    def process(self) -> None:
        self.streams.append(self.stream().process(Tick))

    def process_with_store(self) -> None:
        name, is_cached, is_logged = self.name("kept"), self.chance(0.5), self.chance(0.8)
        ttl = ms(self.pick(5, 40)) if self.chance(0.3) else None
        store = Stores.key_value_store(name, STRING, STRING, caching=is_cached, logging=is_logged, ttl=ttl)
        self.builder.add_state_store(store)
        self.streams.append(self.stream().process(lambda: Keep(name), name))

    def process_with_timers(self) -> None:
        name = self.name("timers")
        self.builder.add_state_store(KeyTimers.store(name))
        self.streams.append(self.stream().process(lambda: Remind(name), name))

    def process_with_windows(self) -> None:
        name, is_cached = self.name("seen"), self.chance(0.5)
        store = Stores.window_store(name, STRING, STRING, retention=ms(60), window_size=ms(10), caching=is_cached)
        self.builder.add_state_store(store)
        self.streams.append(self.stream().process(lambda: Scan(name), name))

    def to(self) -> None:
        stream = self.stream()
        kind = self.pick("plain", "topics", "partitions", "refusing")
        if kind == "plain":
            stream.to("out", TO_TEXTS)
        elif kind == "topics":
            stream.to(lambda key, _value, _time: f"to-{key}", TO_TEXTS)
        elif kind == "partitions":
            choose: Produced[Any, Any] = Produced(
                STRING, STRING, lambda _t, _k, v, n: None if v is None else len(v) % n
            )
            stream.to("out", choose)
        elif self.fails:
            not_texts: KStream[Any, Any] = stream.map_values(lambda v: 5 if v == "five" else v)
            not_texts.to("out", TO_TEXTS)

    # Streams to tables.

    def to_table(self) -> KTable[Any, Any]:
        self.add_table(self.stream().to_table(self.stored(is_plain=True)))
        return self.tables[-1]

    def expiring_rows(self) -> None:
        """A table whose rows expire; or counts that do."""
        ttl = ms(self.pick(5, 40))
        if self.chance(0.5):
            self.add_table(self.stream().to_table(self.stored(ttl=ttl)))
        else:
            self.add_table(self.as_texts(self.grouped().count(self.stored(LONG, ttl=ttl))))

    def in_count_windows(self) -> None:
        windows = self.grouped().windowed_by(CountWindows.of(3).advance_by(self.pick(1, 2, 3)))
        serde, initializer, aggregator, _ = self.aggregate_of()
        found = windows.aggregate(initializer, aggregator, self.stored(serde))
        self.streams.append(found.map_values(lambda value: short(f"{value}")))

    def match(self) -> None:
        fail = self.failing
        pattern = Pattern.begin("one", lambda v: len(fail(v)) < 3).times(1, self.pick(1, 2))
        pattern = self.pick(pattern.next, pattern.followed_by)("two", lambda k, v: v > k)
        if self.chance(0.3):
            pattern = pattern.not_followed_by(lambda v: v == "b")
        stream = self.stream().repartition(Repartitioned(STRING, STRING))
        stored: Materialized[Any, Any] = Materialized(caching=self.chance(0.5), logging=self.chance(0.8))
        found = stream.match(pattern, within=ms(self.pick(5, 30)), grace=ms(self.pick(0, 10)), materialized=stored)
        self.streams.append(found.map_values(lambda match: short(f"{match}")))

    def in_rolling_windows(self) -> None:
        most = self.pick(1, 3) if self.chance(0.5) else None
        windows = RollingWindows.of(ms(self.pick(0, 20)), records=most, grace=ms(self.pick(0, 20)))
        found = self.grouped().windowed_by(windows).reduce(reduced, Materialized(logging=self.chance(0.8)))
        self.streams.append(found)

    def grouped(self) -> Any:
        if self.chance(0.5):
            return self.stream().group_by_key(Grouped(STRING, STRING, name=self.name("by-key")))
        return self.stream().group_by(lambda k, v: v[:1] if v else k, Grouped(STRING, STRING, name=self.name("by")))

    def count(self) -> None:
        self.add_table(self.as_texts(self.grouped().count(self.stored(LONG, is_plain=True))))

    def reduce(self) -> None:
        self.add_table(self.grouped().reduce(reduced, self.stored(is_plain=True)))

    def aggregate(self) -> None:
        serde, initial, add, _ = self.aggregate_of()
        self.add_table(self.as_texts(self.grouped().aggregate(initial, add, self.stored(serde, is_plain=True))))

    def aggregates(self, *, subtracts: bool = False) -> dict[str, Any]:
        """Named aggregates: all immutable, or some that are not."""
        fail = self.failing
        length = self.pick(len, lambda value: len(fail(value)))
        found = {"n": Count(), "total": Sum(length), "mean": Mean(length), "half": Quantile(length, 0.5)}
        if not subtracts and self.chance(0.5):
            found |= {"last": Latest(), "first": Earliest()}
        if not subtracts and self.chance(0.5):
            found |= {"most": Max(), "all": CollectList(limit=3)}
        return found

    def aggregate_by_name(self) -> None:
        grouped, kind, stored = self.grouped(), self.pick("plain", "windows", "sessions"), self.stored(JSON)
        if kind == "plain":
            self.add_table(self.as_texts(grouped.aggregate(materialized=stored, **self.aggregates())))
            return
        windows = self.windows_of() if kind == "windows" else SessionWindows.of(ms(20), grace=ms(20))
        table = grouped.windowed_by(windows).aggregate(materialized=stored, **self.aggregates())
        self.add_windows(table, windows, JSON)

    def top(self) -> None:
        grouped, fail = self.grouped(), self.failing
        by, count, stored = self.pick(None, len, lambda value: fail(value)[-1:]), self.pick(1, 2), self.stored(LIST)
        kind = self.pick("plain", "windows", "sessions")
        if kind == "plain":
            self.add_table(self.as_texts(grouped.top(count, by, largest=self.chance(0.5), materialized=stored)))
            return
        windows = self.windows_of() if kind == "windows" else SessionWindows.of(ms(20), grace=ms(20))
        self.add_windows(grouped.windowed_by(windows).top(count, by, materialized=stored), windows, LIST)

    def count_lists(self) -> None:
        """Counts by keys that may be changed in place."""
        lists = self.stream().filter(lambda k, _v: k is not None).group_by(lambda k, v: [k, str(v)[:1]], BY_LIST)
        counts: KTable[Any, Any]
        if self.chance(0.5):
            counts = lists.count(self.stored(LONG, key_serde=LIST))
        else:
            windows = TimeWindows.of(ms(20), grace=ms(20))
            counts = lists.windowed_by(windows).count(self.stored(LONG, key_serde=LIST))
        self.streams.append(counts.to_stream(lambda key, _v: flat(key)).map_values(lambda v: v and str(v)))

    def aggregate_versions(self) -> None:
        kept = Materialized(STRING, LONG, name=self.name("versions"), history_retention=ms(100))
        self.add_table(self.as_texts(self.grouped().count(kept)))

    def windows_of(self) -> Any:
        size, grace = ms(self.pick(20, 35)), ms(self.pick(0, 30))
        return self.pick(
            TimeWindows.of(size, grace=grace),
            TimeWindows.of(size, grace=grace).advance_by(ms(self.pick(7, 10))),
            SlidingWindows.of(size, grace=grace),
            UnlimitedWindows.of(),
        )

    def kept_windows(self, windows: Any, serde: Serde[Any], **options: Any) -> Materialized[Any, Any]:
        if self.chance(0.3) and not isinstance(windows, UnlimitedWindows):
            options["retention"] = ms(110)
        return self.stored(serde, **options)

    def add_windows(self, table: KTable[Any, Any], windows: Any, serde: Serde[Any]) -> None:
        """A windowed table, suppressed or not, goes on as a stream or as a table of its keys."""
        if self.chance(0.4):
            keys = session_windowed(STRING) if isinstance(windows, SessionWindows) else windowed(STRING)
            table.to_stream().to("windows", Produced(keys, serde))
        closes = not isinstance(windows, UnlimitedWindows)
        if closes and self.chance(0.3):
            buffer = self.pick(BufferConfig.unbounded(), BufferConfig.max_records(3).shut_down_when_full())
            table = table.suppress(
                Suppressed.until_window_closes(BufferConfig.unbounded() if not self.fails else buffer)
            )
        if self.chance(0.4):
            self.windows.append(self.as_texts(table))
        self.streams.append(
            table.to_stream(lambda key, _v: flat(key)).map_values(lambda v: None if v is None else short(v))
        )

    def late(self, in_windows: Any) -> Any:
        """Windows whose late records go on, as they are or in another sub-topology."""
        return in_windows.late(self.streams.append) if self.chance(0.3) else in_windows

    def in_windows(self) -> None:
        windows, grouped = self.windows_of(), self.grouped()
        in_windows = grouped.windowed_by(windows)
        if not isinstance(windows, UnlimitedWindows):
            in_windows = self.late(in_windows)
            if self.chance(0.2):
                in_windows = in_windows.emit_strategy(EmitStrategy.on_window_close())
        serde, initial, add, _ = self.aggregate_of()
        kind = self.pick("count", "reduce", "aggregate")
        if kind == "count":
            serde, table = LONG, in_windows.count(self.kept_windows(windows, LONG))
        elif kind == "reduce":
            serde, table = STRING, in_windows.reduce(reduced, self.kept_windows(windows, STRING))
        else:
            table = in_windows.aggregate(initial, add, self.kept_windows(windows, serde))
        self.add_windows(table, windows, serde)

    def in_sessions(self) -> None:
        windows = SessionWindows.of(ms(self.pick(10, 25)), grace=ms(self.pick(0, 30)))
        in_windows = self.late(self.grouped().windowed_by(windows))
        if self.chance(0.2):
            in_windows = in_windows.emit_strategy(EmitStrategy.on_window_close())
        serde, initial, add, merge = self.aggregate_of()
        kind = self.pick("count", "reduce", "aggregate")
        if kind == "count":
            serde, table = LONG, in_windows.count(self.stored(LONG))
        elif kind == "reduce":
            serde, table = STRING, in_windows.reduce(reduced, self.stored())
        else:
            table = in_windows.aggregate(initial, add, merge, self.stored(serde))
        self.add_windows(table, windows, serde)

    def cogroup(self) -> None:
        serde, initial, add, merge = self.aggregate_of()
        grouped = self.grouped()
        cogrouped = grouped.cogroup(add)
        for number in range(self.source.randint(1, 2)):
            aggregators: dict[Any, Callable[..., Any]] = {STRING: grown, LONG: counted, LIST: appended}
            other = self.grown(aggregators[serde])
            mark = f"co{number}"
            cogrouped = cogrouped.cogroup(
                self.grouped(), lambda k, v, known, other=other, mark=mark: other(k, f"{mark}{v}", known)
            )
        kind = self.pick("plain", "windows", "sessions")
        if kind == "plain":
            self.add_table(self.as_texts(cogrouped.aggregate(initial, self.stored(serde))))
        elif kind == "windows":
            windows = self.windows_of()
            table = cogrouped.windowed_by(windows).aggregate(initial, self.kept_windows(windows, serde))
            self.add_windows(table, windows, serde)
        else:
            sessions = SessionWindows.of(ms(20), grace=ms(20))
            table = cogrouped.windowed_by(sessions).aggregate(initial, merge, self.stored(serde))
            self.add_windows(table, sessions, serde)

    # Joins.

    def join_streams(self) -> None:
        left, right = self.stream(), self.stream()
        windows = JoinWindows.of(ms(self.pick(0, 10, 25)), grace=ms(self.pick(0, 30)))
        joined = StreamJoined(STRING, STRING, STRING)
        name = self.pick("join", "left_join", "outer_join")
        self.streams.append(getattr(left, name)(right, both, windows, joined=joined))

    def join_stream_to_itself(self) -> None:
        stream = self.stream()
        windows = JoinWindows.of(ms(10), grace=ms(10))
        self.streams.append(stream.join(stream, both, windows, joined=StreamJoined(STRING, STRING, STRING)))

    def look_up(self) -> None:
        table = self.table()
        joiner = both if self.chance(0.5) else (lambda key, value, row: short(f"{key}:{value}:{row}"))
        stream = self.stream()
        join = self.pick(stream.join, stream.left_join)
        self.streams.append(join(table, joiner, joined=Joined(STRING, STRING)))

    def look_up_versions(self) -> None:
        if self.versioned:
            stream = self.stream().filter(lambda key, _v: key is not None)
            join = self.pick(stream.join, stream.left_join)
            joined: Joined[Any, Any, Any] = Joined(STRING, STRING, grace_period=self.pick(None, ms(0), ms(30)))
            self.streams.append(join(self.pick(*self.versioned), both, joined=joined))

    def look_up_global(self) -> None:
        if self.globals:
            stream = self.stream()
            join = self.pick(stream.join, stream.left_join)
            fail = self.failing
            self.streams.append(join(self.pick(*self.globals), both, key_selector=lambda k, v: fail(v)[:1] if v else k))

    # Tables.

    def table_filter(self) -> None:
        table = self.table()
        keep = self.pick(table.filter, table.filter_not)
        stored = self.maybe_stored()
        fail = self.failing
        self.add_table(keep(lambda _k, v: len(fail(v)) % 2 == 0, stored))

    def table_map_values(self) -> None:
        fail = self.failing
        stored = self.maybe_stored()
        self.add_table(self.table().map_values(lambda v: None if v == "never" else short(f"{fail(v)}."), stored))

    def transform_values(self) -> None:
        name = self.name("before")
        self.builder.add_state_store(Stores.key_value_store(name, STRING, STRING))
        stored = self.maybe_stored()
        self.add_table(self.table().transform_values(lambda: Remember(name), name, materialized=stored))

    def table_to_stream(self) -> None:
        self.streams.append(self.table().to_stream())

    def group_table(self) -> None:
        fail = self.failing
        is_windowed = bool(self.windows) and self.chance(0.4)
        table = self.pick(*self.windows) if is_windowed else self.table()
        grouped = table.group_by(lambda k, v: (fail(v)[-1:], f"{flat(k)}{v}"[-9:]), BY_TEXT)
        kind = self.pick("count", "reduce", "aggregate", "named", "top")
        if kind == "top":
            found = self.as_texts(grouped.top(2, self.pick(None, len), materialized=self.stored(LIST)))
        elif kind == "count":
            found = self.as_texts(grouped.count(self.stored(LONG)))
        elif kind == "named":
            rows = grouped.aggregate(materialized=self.stored(JSON), **self.aggregates(subtracts=True))
            found = self.as_texts(rows)
        elif kind == "reduce":
            found = grouped.reduce(reduced, lambda one, two: short(f"{one}-{two}"), self.stored())
        else:
            serde, initial, add, _ = self.aggregate_of()
            remove = {STRING: lambda _k, v, known: short(f"{known}-{v}"), LONG: lambda _k, _v, n: n - 1}
            found = grouped.aggregate(
                initial, add, remove.get(serde, lambda _k, _v, known: known[1:]), self.stored(serde)
            )
            found = self.as_texts(found)
        self.add_table(found)

    def join_tables(self) -> None:
        left, right = self.table(), self.table()
        stored = self.maybe_stored()
        join = self.pick(left.join, left.left_join, left.outer_join)
        self.add_table(join(right, both, stored))

    def join_by_foreign_key(self) -> None:
        left, right = self.table(), self.table()
        join = self.pick(left.join, left.left_join)
        stored = self.maybe_stored()
        self.add_table(join(right, both, stored, foreign_key_extractor=lambda v: v[:1] if v != "never" else None))

    def suppress(self) -> None:
        table = self.table()
        if table not in self.versioned:
            buffer = self.pick(BufferConfig.unbounded(), BufferConfig.max_records(2).emit_early_when_full())
            self.add_table(table.suppress(Suppressed.until_time_limit(ms(self.pick(0, 30)), buffer)))


STEPS = [
    *("filter", "filter_not", "map", "map_values", "select_key", "flat_map", "flat_map_values"),
    *["peek", "foreach", "print", "merge", "split", "repartition", "to", "to_table", "process"],
    *[
        "process_with_store",
        "process_with_windows",
        "count",
        "reduce",
        "aggregate",
        "aggregate_versions",
        "count_lists",
    ],
    *["in_windows"] * 3,
    *["in_sessions", "cogroup", "cogroup", "join_streams", "columns", "join_streams", "join_stream_to_itself"],
    *["look_up", "look_up", "look_up_versions", "look_up_global", "table_filter", "table_map_values"],
    *["transform_values", "table_to_stream", "table_to_stream", "group_table", "join_tables", "join_by_foreign_key"],
    *(
        "suppress",
        "deduplicate",
        "look_up_outside",
        "look_up_many_outside",
        "look_up_in_batches",
        "aggregate_by_name",
        "top",
        "top",
    ),
    "process_with_timers",
    "expiring_rows",
    "in_count_windows",
    "in_rolling_windows",
    "match",
]


@dataclass(frozen=True)
class Drawn:
    """A topology, with what its side effects say."""

    topology: Topology
    steps: tuple[str, ...]
    seen: list[str]


def drawn(seed: int, files: Path) -> Drawn:
    """The topology of a seed; a third of them have functions that fail at some values.

    Args:
        seed: The seed.
        files: Where `print` writes.
    """
    source = Random(seed)
    drawing = Drawing(source, fails=seed % 3 == 0, files=files)
    for topic in TOPICS[: source.randint(1, 3)]:
        drawing.add_source(topic)
    for _ in range(source.randint(2, 9)):
        step = source.choice(STEPS)
        drawing.steps.append(step)
        getattr(drawing, step)()
    for number, stream in enumerate(drawing.streams[-3:]):
        stream.to(f"out-{number}", TO_TEXTS)
    for number, table in enumerate(drawing.tables[-2:]):
        table.to_stream().to(f"table-{number}", TO_TEXTS)
    optimization = source.choice(["none", "none", "all"])
    return Drawn(drawing.builder.build(optimization=optimization), tuple(drawing.steps), drawing.seen)
