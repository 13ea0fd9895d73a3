"""The twins of the joins in `java/Joins.java`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import STRING, Joined, JoinWindows, KStream, Repartitioned, StreamJoined, StreamsBuilder
from tests.oracle.topologies import TEXTS, TO_TEXTS, all_three, both, first, first_of_value, ms, texts

if TYPE_CHECKING:
    from tests.oracle.topologies import Say


def joined(**options: Any) -> StreamJoined[str, str, str]:
    return StreamJoined(STRING, STRING, STRING, **options)


def inputs(builder: StreamsBuilder) -> tuple[KStream[str, str], KStream[str, str]]:
    return texts(builder), texts(builder, "other")


def stream_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    left.join(right, both, JoinWindows.of(ms(50)), joined=joined()).to("out", TO_TEXTS)


def stream_left_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    left.left_join(right, both, JoinWindows.of(ms(50), grace=ms(20)), joined=joined()).to("out", TO_TEXTS)


def stream_outer_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    left.outer_join(right, both, JoinWindows.of(ms(30), grace=ms(100)), joined=joined()).to("out", TO_TEXTS)


def stream_join_named(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    left.join(right, both, JoinWindows.of(ms(40), grace=ms(100)), joined=joined(name="meet")).to("out", TO_TEXTS)


def stream_left_join_named_stores(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    names = joined(name="meet", store_name="kept")
    left.left_join(right, both, JoinWindows.of(ms(40), grace=ms(10)), joined=names).to("out", TO_TEXTS)


def stream_outer_join_named(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    left.outer_join(right, all_three, JoinWindows.of(ms(25)), joined=joined(name="meet")).to("out", TO_TEXTS)


def stream_outer_join_asymmetric(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    windows = JoinWindows.of(ms(40), grace=ms(30)).before(ms(0)).after(ms(80))
    left.outer_join(right, both, windows, joined=joined()).to("out", TO_TEXTS)


def stream_left_join_only_before(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    windows = JoinWindows.of(ms(60), grace=ms(15)).after(ms(-10))
    left.left_join(right, both, windows, joined=joined()).to("out", TO_TEXTS)


def stream_join_repartition(builder: StreamsBuilder, _say: Say) -> None:
    left = texts(builder).select_key(first_of_value)
    windows = JoinWindows.of(ms(50), grace=ms(50))
    left.join(texts(builder, "other"), both, windows, joined=joined()).to("out", TO_TEXTS)


def stream_left_join_repartition_named(builder: StreamsBuilder, _say: Say) -> None:
    left: KStream[Any, str] = texts(builder).map(lambda k, v: (None if k == "a" else first(v), v))
    right = texts(builder, "other").select_key(lambda k, _v: k)
    windows = JoinWindows.of(ms(50), grace=ms(50))
    left.left_join(right, both, windows, joined=joined(name="meet")).to("out", TO_TEXTS)


def stream_self_join(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.join(stream, both, JoinWindows.of(ms(30), grace=ms(30)), joined=joined()).to("out", TO_TEXTS)


def stream_join_then_left_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = inputs(builder)
    pairs = left.join(right, both, JoinWindows.of(ms(30), grace=ms(50)), joined=joined())
    windows = JoinWindows.of(ms(20), grace=ms(50))
    pairs.left_join(texts(builder, "third"), both, windows, joined=joined()).to("out", TO_TEXTS)


def stream_outer_join_in_memory(builder: StreamsBuilder, _say: Say) -> None:
    left = texts(builder).filter(lambda _k, v: v is not None)
    right = texts(builder, "other").filter(lambda _k, v: v is not None)
    options = joined(logging=False, persistent=False)
    left.outer_join(right, both, JoinWindows.of(ms(40), grace=ms(20)), joined=options).to("out", TO_TEXTS)


def stream_joined_twice_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(first_of_value)
    table = builder.table("table", TEXTS)
    stream.join(table, both, joined=Joined(STRING, STRING)).to("out", TO_TEXTS)
    stream.left_join(table, both, joined=Joined(STRING, STRING)).to("second", TO_TEXTS)


def null_keys_for_a_later_left_join(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS)
    stream: KStream[Any, str] = texts(builder).map(lambda k, v: (None if k == "a" else first(v), v))
    stream = stream.repartition(Repartitioned(STRING, STRING)).filter(lambda _k, v: v is not None)
    stream.left_join(table, both, joined=Joined(name="lookup")).to("out", TO_TEXTS)
