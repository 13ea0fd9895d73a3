"""The twins of `java/Windows.java` with suppression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun import BufferConfig, Materialized, SessionWindows, StreamsBuilder, Suppressed, TimeWindows
from tests.oracle.topologies import TEXTS, concatenate, ms, texts

if TYPE_CHECKING:
    from tests.oracle.topologies import Say


def suppress_until_window_closes(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(50))).count()
    counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream().to("out")


def suppress_named(builder: StreamsBuilder, _say: Say) -> None:
    windows = TimeWindows.of(ms(100), grace=ms(20)).advance_by(ms(50))
    table = texts(builder).group_by_key().windowed_by(windows).reduce(concatenate, Materialized(name="texts"))
    final = Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final")
    table.suppress(final).to_stream().to("out")


def suppress_sessions(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(SessionWindows.of(ms(40), grace=ms(30)))
    table = windowed.count(Materialized(name="visits"))
    final = Suppressed.until_window_closes(BufferConfig.unbounded().with_logging_disabled())
    table.suppress(final).to_stream().to("out")


def suppress_table_until_time_limit(builder: StreamsBuilder, _say: Say) -> None:
    limit = Suppressed.until_time_limit(ms(60), BufferConfig.unbounded())
    builder.table("in", TEXTS).suppress(limit).to_stream().to("out")


def suppress_counts_until_full(builder: StreamsBuilder, _say: Say) -> None:
    limit = Suppressed.until_time_limit(ms(500), BufferConfig.max_records(2).emit_early_when_full())
    texts(builder).group_by_key().count().suppress(limit).to_stream().to("out")
