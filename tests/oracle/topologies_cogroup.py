"""The twins of `java/Tables.java` with cogroup."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun import STRING, Grouped, Materialized, Named, StreamsBuilder, TimeWindows
from tests.oracle.topologies import BY_TEXT, first, first_of_value, ms, nothing, texts

if TYPE_CHECKING:
    from tests.oracle.topologies import Say


def cogroup(builder: StreamsBuilder, _say: Say) -> None:
    one = texts(builder).group_by_key()
    two = texts(builder, "other").group_by_key()
    both = one.cogroup(lambda _k, v, known: f"{known}1{v}").cogroup(two, lambda _k, v, known: f"{known}2{v}")
    both.aggregate(nothing, Materialized(STRING, STRING)).to_stream().to("out")


def cogroup_named_repartition(builder: StreamsBuilder, _say: Say) -> None:
    one = texts(builder).group_by(first_of_value, BY_TEXT)
    two = texts(builder, "other").group_by(first_of_value, Grouped(STRING, STRING, name="second"))
    both = one.cogroup(lambda _k, _v, known: known + "1")
    both = both.cogroup(two, lambda _k, _v, known: None if len(known) > 5 else known + "2")
    both.aggregate(nothing, Materialized(STRING, STRING, name="together"), named=Named("all")).to_stream().to("out")


def cogroup_windowed(builder: StreamsBuilder, _say: Say) -> None:
    one = texts(builder).group_by_key()
    two = texts(builder, "other").group_by_key()
    both = one.cogroup(lambda _k, v, known: f"{known}1{first(v)}")
    both = both.cogroup(two, lambda _k, v, known: f"{known}2{first(v)}")
    windowed = both.windowed_by(TimeWindows.of(ms(100), grace=ms(30)))
    options: Materialized[str, str] = Materialized(STRING, STRING, retention=timedelta(minutes=10))
    windowed.aggregate(nothing, options).to_stream().to("out")
