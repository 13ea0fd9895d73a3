"""The topologies that run the tables of Kafka Streams' own tests: one for each kind that joins nothing (`test_tables.py`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    EmitStrategy,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_TEXTS, both, flat, ms, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun import Topology, Windowed

    Options = Mapping[str, str]
    Watched = dict[str, KTable[Any, Any]]

FOREVER = timedelta(days=10_000)
EMIT = {"update": EmitStrategy.on_window_update(), "close": EmitStrategy.on_window_close()}


class Watch(Processor[str, Any]):
    """Writes the changes of a table as texts: the new value, then the old one."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, Any]) -> None:
        change = record.value
        self._context.forward(Record(record.key, f"{text(change.new)}<{text(change.old)}", record.timestamp))


def watch(topology: Topology, watched: Watched) -> None:
    """Write the changes of tables to topics of their names."""
    for topic, table in watched.items():
        topology.add_processor(f"watch-{topic}", Watch, table._node.name)
        topology.add_sink(topic, topic, f"watch-{topic}", key_serde=STRING, value_serde=STRING)


def stored(options: Options, name: str) -> Materialized[str, str] | None:
    """How the table of that name is stored: not at all if there is no such option."""
    if options.get(name) == "versioned":
        return Materialized(STRING, STRING, name=name, history_retention=timedelta(minutes=5))
    return Materialized(STRING, STRING, name=name, caching=options.get("cache") == "on") if name in options else None


def sending_old_values(table: KTable[Any, Any], options: Options) -> None:
    if "old" in options:
        table._node.enable_sending_old_values(force=options["old"] == "forced")


def of_a_table(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """A table and, as `out` and `others`, two that are made of it."""

    def passes(_key: str, value: str) -> bool:
        return value == "accept" or (value.isdigit() and int(value) % 2 == 0)

    source = builder.table("in", TEXTS, stored(options, "source"))
    made, others = source, source
    if operator == "filter":
        made, others = (
            source.filter(passes, stored(options, "kept")),
            source.filter_not(passes, stored(options, "refused")),
        )
    if operator == "map_values":
        made = source.map_values(lambda v: str(int(v)), stored(options, "kept"))
        others = source.map_values(lambda v: str(-int(v)), stored(options, "refused"))
    sending_old_values(made, options)
    if "grouped" in options:
        made.group_by(lambda k, v: (k, v), BY_TEXT).reduce(both, both)
    else:
        made.to_stream().to("out", TO_TEXTS)
        others.to_stream().to("others", TO_TEXTS)
    return {"changes": made, "changes-of-source": source}


GROUPS: dict[str, Callable[[str, str], Any]] = {
    "key": lambda k, v: (k, v),
    "value": lambda _k, v: (v, v),
    "value-unless-nil": lambda k, v: {"nil": (None, v), "NIL": None}.get(k, (v, v)),
    "letters": lambda k, _v: (k[0], k[1]),
    "whole": lambda k, v: (k, str(int(float(v)))),
}


def of_a_grouped_table(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """A table, grouped and aggregated."""
    grouped = builder.table("in", TEXTS, stored(options, "source")).group_by(GROUPS[options["by"]], BY_TEXT)
    if operator == "count":
        grouped.count(Materialized(STRING, name="kept")).to_stream().map_values(str).to("out", TO_TEXTS)
        return {}
    texts: Materialized[str, str] = Materialized(STRING, STRING, name="kept")
    table = {
        "aggregate": lambda: grouped.aggregate(
            lambda: "0", lambda _k, v, a: f"{a}+{v}", lambda _k, v, a: f"{a}-{v}", texts
        ),
        "collect": lambda: grouped.aggregate(
            lambda: "", lambda _k, v, a: a + v, lambda _k, v, a: a.replace(v, ""), texts
        ),
        "sum": lambda: grouped.reduce(lambda a, b: str(int(a) + int(b)), lambda a, b: str(int(a) - int(b)), texts),
        "unite": lambda: grouped.reduce(
            lambda a, b: "{" + "".join(sorted(set(a + b) - {*"{}"})) + "}",
            lambda a, b: "{" + "".join(sorted(set(a) - set(b))) + "}",
            texts,
        ),
    }[operator]()
    table.to_stream().to("out", TO_TEXTS)
    return {}


def windows_of(options: Options) -> Any:
    """The windows that the options say, or None."""
    grace = ms(int(options.get("grace", 0)))
    if "gap" in options:
        return SessionWindows.of(ms(int(options["gap"])), grace=grace)
    if "difference" in options:
        return SlidingWindows.of(ms(int(options["difference"])), grace=grace)
    if "start" in options:
        return UnlimitedWindows.of(start=datetime.fromtimestamp(0, UTC) + ms(int(options["start"])))
    if "size" in options:
        windows = TimeWindows.of(ms(int(options["size"])), grace=grace)
        return windows.advance_by(ms(int(options["advance"]))) if "advance" in options else windows
    return None


def flattened(key: str | Windowed[str]) -> str:
    return key if isinstance(key, str) else flat(key)


def counted(value: Any) -> str | None:
    return None if value is None else str(value)


def of_a_grouped_stream(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """A stream, grouped by its keys, perhaps windowed, and aggregated."""
    table = aggregated(builder, operator, options, "in")
    table.to_stream().map(lambda k, v: (flattened(k), counted(v))).to("out", TO_TEXTS)
    return {}


def aggregated(builder: StreamsBuilder, operator: str, options: Options, topic: str) -> Any:
    grouped: Any = builder.stream(topic, TEXTS).group_by_key()
    windows = windows_of(options)
    if windows is not None:
        grouped = grouped.windowed_by(windows).emit_strategy(EMIT[options.get("emit", "update")])
    retention = ms(int(options["retention"])) if "retention" in options else None
    caching = options.get("cache", "on") == "on"
    if operator == "count":
        return grouped.count(Materialized(STRING, name="kept-" + topic, caching=caching, retention=retention))
    between = options.get("between", "+")
    kept: Materialized[str, str] = Materialized(
        STRING, STRING, name="kept-" + topic, caching=caching, retention=retention
    )
    if operator == "reduce":
        return grouped.reduce(lambda a, b: f"{a}{between}{b}", kept)
    init, merger = options.get("init", "0"), [lambda _k, a, b: f"{a}{between}{b}"] if "gap" in options else []
    return grouped.aggregate(
        lambda: init, lambda _k, v, a: None if v == "delete" else f"{a}{between}{v}", *merger, kept
    )


def of_joined_windows(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """Windows of two streams, and their join."""
    tables = [aggregated(builder, operator, options, topic) for topic in ("left", "right")]
    joined = tables[0].join(tables[1], lambda a, b: f"{a}%{b}")
    for topic, table in zip(("of-left", "of-right", "out"), [*tables, joined], strict=True):
        table.to_stream().select_key(lambda key, _v: flat(key)).to(topic, TO_TEXTS)
    return {}


AGGREGATORS: dict[str, Callable[[str, str, str], str]] = {
    "plus": lambda _k, v, a: f"{a}+{v}",
    "minus": lambda _k, v, a: f"{a}-{v}",
    "text": lambda _k, v, a: a + v,
    "sum": lambda _k, v, a: str(int(a) + int(v)),
}


def of_cogrouped_streams(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """Streams `one`, `two` and so on, each with its aggregator; keys are written without their windows."""
    topics, names = ("one", "two", "three"), options["with"].split("|")
    cogrouped: Any = None
    for topic, name in zip(topics, names, strict=False):
        grouped = builder.stream(topic, TEXTS).group_by_key()
        cogrouped = cogrouped.cogroup(grouped, AGGREGATORS[name]) if cogrouped else grouped.cogroup(AGGREGATORS[name])
    windows, merger = windows_of(options), [lambda _k, a, b: f"{a}+{b}"] if "gap" in options else []
    if windows is not None:
        cogrouped = cogrouped.windowed_by(windows)
    init = options.get("init", "0")
    table = cogrouped.aggregate(lambda: init, *merger, Materialized(STRING, STRING))
    if operator == "join":
        table = table.join(builder.table("three", TEXTS), both, Materialized(STRING, STRING))
    key = flattened if options.get("keys") == "windowed" else lambda k: k if isinstance(k, str) else k.key
    table.to_stream().select_key(lambda k, _v: key(k)).to("out", TO_TEXTS)
    return {}


def of_suppressed_tables(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """Counts as `raw`, and suppressed as `out`; or what comes after a suppressed table."""
    buffer = BufferConfig.unbounded()
    if "records" in options:
        buffer = BufferConfig.max_records(int(options["records"]))
    if "bytes" in options:
        buffer = BufferConfig.max_bytes(int(options["bytes"]))
    limit = options.get("limit", "forever")
    suppressed = Suppressed.until_time_limit(FOREVER if limit == "forever" else ms(int(limit)), buffer)
    if operator == "windows":
        counts = aggregated(builder, options.get("of", "count"), options, "in")
        suppressed = suppressed if "limit" in options else Suppressed.until_window_closes(buffer)
    elif operator == "counts":
        rows: Materialized[str, str] = Materialized(STRING, STRING, caching=False, logging=False)
        counts = builder.table("in", TEXTS, rows).group_by(lambda k, v: (v, k), BY_TEXT).count()
    else:
        of_a_suppressed_table(builder, operator, suppressed)
        return {}
    for topic, table in (("out", counts.suppress(suppressed)), ("raw", counts)):
        table.to_stream().map(lambda k, v: (flattened(k), counted(v))).to(topic, TO_TEXTS)
    return {}


def of_a_suppressed_table(builder: StreamsBuilder, operator: str, suppressed: Suppressed) -> None:
    def pair(left: str | None, right: str | None) -> str:
        return f"({text(left)},{text(right)})"

    if operator == "table":
        builder.table("in", TEXTS).suppress(suppressed).to_stream().to("out", TO_TEXTS)
    elif operator == "then_count":
        table = builder.table("in", TEXTS).suppress(suppressed).group_by(lambda k, v: (k, v), BY_TEXT)
        table.count(Materialized(STRING, LONG)).to_stream().map_values(str).to("out", TO_TEXTS)
    else:
        left, right = builder.table("left", TEXTS), builder.table("right", TEXTS)
        left, right = (
            (left.suppress(suppressed), right) if operator == "then_join" else (left, right.suppress(suppressed))
        )
        left.outer_join(right, pair).to_stream().to("out", Produced(STRING, STRING))


FOREIGN_KEYS: dict[str, Callable[[str, str], str | None]] = {
    "end": lambda _k, v: v.partition("|")[2] or None,
    "beginning": lambda _k, v: v.partition("|")[0],
    "key": lambda k, _v: k.partition(":")[0],
}


def of_foreign_tables(builder: StreamsBuilder, operator: str, options: Options) -> Watched:
    """A join by foreign key and, as `again`, that joined by key with the left table."""
    left, right = (builder.table(topic, TEXTS, versions(options, topic)) for topic in ("left", "right"))
    caching = options.get("cache") == "on"
    names = {"yes": "kept", "unnamed": None}
    kept: Materialized[str, str] | None = None
    if options["stored"] in names:
        kept = Materialized(STRING, STRING, name=names[options["stored"]], caching=caching)
    joined: KTable[str, str] = getattr(left, operator)(
        right,
        lambda a, b: f"({text(a)},{text(b)})",
        kept,
        foreign_key_extractor=FOREIGN_KEYS[options.get("by", "end")],
    )
    joined.to_stream().to("out", TO_TEXTS)
    if "again" in options:
        again = getattr(joined, operator)(left, lambda a, b: f"rejoin({text(a)},{text(b)})")
        again.to_stream().to("again", TO_TEXTS)
    return {}


def versions(options: Options, side: str) -> Materialized[str, str] | None:
    """How a side of a join is stored: as it must be, or with versions."""
    if options.get(side) != "versioned":
        return None
    return Materialized(STRING, STRING, name=side, history_retention=timedelta(minutes=5))
