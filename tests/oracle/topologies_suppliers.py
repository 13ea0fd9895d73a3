"""The twins of `java/Suppliers.java`: stores that the user supplies."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun import (
    LONG,
    STRING,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Named,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from tests.oracle.topologies import (
    BY_TEXT,
    TEXTS,
    TO_TEXTS,
    both,
    concatenate,
    first,
    ms,
    nothing,
    text,
    texts,
)
from tests.oracle.topologies_tables import by_first

if TYPE_CHECKING:
    from riverrun import StoreSupplier
    from tests.oracle.topologies import Say

TEN_MINUTES = timedelta(minutes=10)


def rows(supplier: StoreSupplier) -> Materialized[str, str]:
    return Materialized(STRING, STRING, supplier=supplier)


def counts(supplier: StoreSupplier, **options: Any) -> Materialized[str, int]:
    return Materialized(STRING, LONG, supplier=supplier, **options)


def in_memory(name: str) -> Materialized[str, str]:
    return rows(Stores.in_memory_key_value_store(name))


def persistent(name: str) -> Materialized[str, str]:
    return rows(Stores.persistent_key_value_store(name))


def limited(_key: str, value: str | None, known: str) -> str | None:
    return None if len(known) > 10 else known + text(value)


def supplied_table_without_times(builder: StreamsBuilder, _say: Say) -> None:
    builder.table("in", TEXTS, persistent("kept")).to_stream().to("out")


def supplied_table_in_memory(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("in", TEXTS, in_memory("kept")).filter(lambda _k, v: len(v) > 2, persistent("long"))
    table.map_values(both, in_memory("pairs"), named=Named("mapped")).to_stream().to("out")


def supplied_table_least_recently_used(builder: StreamsBuilder, _say: Say) -> None:
    options: Materialized[str, str] = Materialized(caching=False, supplier=Stores.lru_map("kept", 2))
    builder.table("in", TEXTS, options).to_stream().to("out")


def supplied_versioned_table(builder: StreamsBuilder, _say: Say) -> None:
    supplier = Stores.persistent_versioned_key_value_store("versions", ms(300))
    table = builder.table("in", TEXTS, Materialized(supplier=supplier)).filter(lambda _k, v: len(v) > 1)
    grouped = table.group_by(lambda _k, v: (first(v), v), BY_TEXT)
    grouped.count(counts(Stores.in_memory_key_value_store("counts"))).to_stream().to("out")


def supplied_to_table_and_joined(builder: StreamsBuilder, _say: Say) -> None:
    left, right = texts(builder).to_table(in_memory("left")), texts(builder, "other").to_table(persistent("right"))
    left.outer_join(right, both, in_memory("pairs")).to_stream().to("out")


def supplied_foreign_key_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = builder.table("in", TEXTS, in_memory("left")), builder.table("other", TEXTS, persistent("right"))
    left.left_join(right, both, in_memory("links"), foreign_key_extractor=first).to_stream().to("out")


def supplied_count_least_recently_used(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().count(counts(Stores.lru_map("counts", 2), caching=False)).to_stream().to("out")


def supplied_table_aggregates(builder: StreamsBuilder, _say: Say) -> None:
    def subtract(_key: str, value: str, known: str) -> str | None:
        return None if len(known) > 20 else f"{known}-{value}"

    grouped = builder.table("in", TEXTS, in_memory("kept")).group_by(by_first, BY_TEXT)
    sums = grouped.aggregate(nothing, lambda _k, v, known: f"{known}+{v}", subtract, persistent("sums"))
    sums.to_stream().to("out")


def supplied_aggregate_without_times(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().aggregate(nothing, limited, persistent("sums")).to_stream().to("out")


def supplied_windows(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(50)))
    windowed.count(counts(Stores.persistent_window_store("counts", TEN_MINUTES, ms(100)))).to_stream().to("out")


def supplied_windows_in_memory(builder: StreamsBuilder, _say: Say) -> None:
    windows = TimeWindows.of(ms(90), grace=ms(500)).advance_by(ms(30))
    options = rows(Stores.in_memory_window_store("texts", ms(700), ms(90)))
    texts(builder).group_by_key().windowed_by(windows).reduce(concatenate, options).to_stream().to("out")


supplied_windows_without_times = supplied_windows


def supplied_sliding_windows(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SlidingWindows.of(ms(50), grace=ms(80)))
    windowed.count(counts(Stores.persistent_window_store("slid", TEN_MINUTES, ms(50)))).to_stream().to("out")


def supplied_windows_emit_on_close(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(50)))
    windowed = windowed.emit_strategy(EmitStrategy.on_window_close())
    windowed.count(counts(Stores.in_memory_window_store("counts", TEN_MINUTES, ms(100)))).to_stream().to("out")


def supplied_sessions(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(40), grace=ms(37)))
    windowed.count(counts(Stores.persistent_session_store("visits", TEN_MINUTES))).to_stream().to("out")


def supplied_sessions_in_memory(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(20), grace=ms(200)))
    windowed.reduce(concatenate, rows(Stores.in_memory_session_store("visits", ms(600)))).to_stream().to("out")


def supplied_cogroup_windowed(builder: StreamsBuilder, _say: Say) -> None:
    one, two = texts(builder).group_by_key(), texts(builder, "other").group_by_key()
    together = one.cogroup(lambda _k, v, known: f"{known}1{first(v)}")
    together = together.cogroup(two, lambda _k, v, known: f"{known}2{first(v)}")
    options = rows(Stores.in_memory_window_store("together", TEN_MINUTES, ms(100)))
    windowed = together.windowed_by(TimeWindows.of(ms(100), grace=ms(30)))
    windowed.aggregate(nothing, options).to_stream().to("out")


def joined(**options: Any) -> StreamJoined[str, str, str]:
    return StreamJoined(STRING, STRING, STRING, **options)


def supplied_stream_join(builder: StreamsBuilder, _say: Say) -> None:
    lefts = Stores.persistent_window_store("lefts", ms(180), ms(80), retain_duplicates=True)
    rights = Stores.in_memory_window_store("rights", ms(180), ms(80), retain_duplicates=True)
    options = joined(this_store_supplier=lefts, other_store_supplier=rights)
    windows = JoinWindows.of(ms(40), grace=ms(100))
    texts(builder).join(texts(builder, "other"), both, windows, joined=options).to("out", TO_TEXTS)


def supplied_stream_left_join(builder: StreamsBuilder, _say: Say) -> None:
    left = texts(builder).filter(lambda _k, v: v is not None)
    right = texts(builder, "other").filter(lambda _k, v: v is not None)
    lefts = Stores.in_memory_window_store("lefts", ms(120), ms(100), retain_duplicates=True)
    rights = Stores.in_memory_window_store("rights", ms(120), ms(100), retain_duplicates=True)
    options = joined(this_store_supplier=lefts, other_store_supplier=rights, name="meet")
    left.left_join(right, both, JoinWindows.of(ms(50), grace=ms(20)), joined=options).to("out", TO_TEXTS)


def supplied_stream_outer_join_on_one_side(builder: StreamsBuilder, _say: Say) -> None:
    rights = Stores.persistent_window_store("rights", ms(110), ms(80), retain_duplicates=True)
    windows = JoinWindows.of(ms(40), grace=ms(30)).before(ms(0)).after(ms(80))
    options = joined(other_store_supplier=rights, store_name="kept")
    texts(builder).outer_join(texts(builder, "other"), both, windows, joined=options).to("out", TO_TEXTS)
