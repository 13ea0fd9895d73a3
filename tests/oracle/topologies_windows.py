"""The twins of `java/Windows.java` without suppression."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from riverrun import (
    LONG,
    STRING,
    EmitStrategy,
    Grouped,
    Materialized,
    Named,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
)
from tests.oracle.topologies import (
    BY_TEXT,
    TO_COUNTS,
    append_first,
    concatenate,
    first_of_value,
    flat,
    ms,
    nothing,
    text,
    texts,
)

if TYPE_CHECKING:
    from tests.oracle.topologies import Say

START = datetime.fromtimestamp(1.05, UTC)


def joined_by_bar(_key: str, left: str | None, right: str | None) -> str:
    return f"{text(left)}|{text(right)}"


def kept(name: str | None, **options: Any) -> Materialized[str, Any]:
    return Materialized(name=name, retention=timedelta(minutes=10), **options)


def hopping_group_by_count(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, BY_TEXT)
    windowed = grouped.windowed_by(TimeWindows.of(ms(90), grace=ms(500)).advance_by(ms(30)))
    windowed.count(Materialized(STRING, LONG)).to_stream().to("out")


def unlimited_count(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(UnlimitedWindows.of(start=START))
    windowed.count(Materialized(name="ever")).to_stream().select_key(lambda k, _v: flat(k)).to("out", TO_COUNTS)


def session_count(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(40), grace=ms(37))).count().to_stream().to("out")


def session_count_with_serdes(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(30), grace=ms(60)))
    windowed.count(Materialized(STRING, LONG)).to_stream().to("out")


def session_reduce(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(50), grace=ms(100)))
    windowed.reduce(concatenate).to_stream().to("out")


def session_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by_key(Grouped(name="ignored"))
    windowed = grouped.windowed_by(SessionWindows.of(ms(20), grace=ms(200)))
    options = kept("visits", value_serde=STRING)
    table = windowed.aggregate(nothing, append_first, joined_by_bar, options, named=Named("sessions"))
    table.to_stream(named=Named("stream")).to("out")


def session_group_by_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    def add(_key: str, value: str | None, known: str | None) -> str | None:
        return None if len(known or "") > 4 else text(known) + text(value)

    grouped = texts(builder).group_by(first_of_value, Grouped(STRING, STRING, name="grouped"))
    windowed = grouped.windowed_by(SessionWindows.of(ms(25), grace=ms(1_000)))
    options = kept(None, key_serde=STRING, value_serde=STRING)
    windowed.aggregate(lambda: ".", add, joined_by_bar, options).to_stream().to("out")


def sliding_count(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().windowed_by(SlidingWindows.of(ms(50))).count().to_stream().to("out")


def sliding_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SlidingWindows.of(ms(60), grace=ms(80)))
    options: Materialized[str, str] = Materialized(name="slid", value_serde=STRING)
    windowed.aggregate(nothing, append_first, options, named=Named("slides")).to_stream().to("out")


def sliding_group_by_reduce(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, BY_TEXT)
    grouped.windowed_by(SlidingWindows.of(ms(30), grace=ms(3_000))).reduce(concatenate).to_stream().to("out")


def emit_on_close_tumbling(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(50)))
    windowed.emit_strategy(EmitStrategy.on_window_close()).count(kept("counts")).to_stream().to("out")


def emit_on_close_hopping(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, BY_TEXT)
    windowed = grouped.windowed_by(TimeWindows.of(ms(100)).advance_by(ms(40)))
    windowed = windowed.emit_strategy(EmitStrategy.on_window_close())
    windowed.aggregate(nothing, append_first, kept("texts", value_serde=STRING)).to_stream().to("out")


def emit_on_close_sliding(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SlidingWindows.of(ms(50), grace=ms(30)))
    windowed.emit_strategy(EmitStrategy.on_window_close()).count(kept("counts")).to_stream().to("out")


def emit_on_close_session(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(40), grace=ms(60)))
    windowed.emit_strategy(EmitStrategy.on_window_close()).count(kept("counts")).to_stream().to("out")
