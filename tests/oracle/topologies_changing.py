"""The twins of `java/Changing.java`: functions that change values in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import STRING, Grouped, Materialized, Processor, Produced, Serde, Stores, TimeWindows
from tests.oracle.topologies import TEXTS, ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KGroupedStream, KStream, ProcessorContext, Record, StreamsBuilder

    Say = Callable[[str], None]

LISTS: Serde[list[str]] = Serde("lists", lambda texts: "|".join(texts).encode(), lambda data: data.decode().split("|"))
TO_LISTS = Produced(STRING, LISTS)


def lists(builder: StreamsBuilder, topic: str) -> KStream[str, list[str]]:
    texts: KStream[str, str] = builder.stream(topic, TEXTS)
    return texts.filter(lambda key, value: key is not None and value is not None).map_values(
        lambda value: added(empty(), value)
    )


def grouped(builder: StreamsBuilder) -> KGroupedStream[str, list[str]]:
    return lists(builder, "in").group_by_key(Grouped(STRING, LISTS))


def kept(name: str) -> Materialized[str, list[str]]:
    return Materialized(STRING, LISTS, name=name)


def empty() -> list[str]:
    return ["-"]


def added(texts: Any, text: str) -> Any:
    if texts is not None:
        texts.append(text)
    return texts


def append(_key: str, value: list[str], texts: list[str]) -> list[str]:
    return added(texts, value[1])  # type: ignore[no-any-return]


def changed_rows(builder: StreamsBuilder, _say: Say) -> None:
    rows = lists(builder, "table").to_table(kept("rows"))
    joined = lists(builder, "in").join(rows, lambda value, row: added(added(row, "joined"), value[1]))
    joined.to("out", TO_LISTS)
    rows.to_stream().map_values(lambda row: added(row, "streamed")).to("second", TO_LISTS)
    rows.map_values(lambda row: added(row, "mapped"), kept("mapped")).to_stream().to("third", TO_LISTS)


def changed_aggregates(builder: StreamsBuilder, _say: Say) -> None:
    table = grouped(builder).aggregate(empty, append, kept("lists"))
    table.to_stream().map_values(lambda texts: added(texts, "streamed")).to("out", TO_LISTS)
    table.to_stream().to("second", TO_LISTS)


def changed_windows(builder: StreamsBuilder, _say: Say) -> None:
    windows = TimeWindows.of_size_and_grace(ms(100), ms(30)).advance_by(ms(40))
    table = grouped(builder).windowed_by(windows).aggregate(empty, append, Materialized(STRING, LISTS))
    stream = table.to_stream(lambda key, _texts: f"{key.key}@{key.window.start}")
    stream.map_values(lambda texts: added(texts, "streamed")).to("out", TO_LISTS)


class Keeping(Processor[str, list[str]]):
    """Changes what it has read, what it has put, and what it has forwarded."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")

    def process(self, record: Record[str, list[str]]) -> None:
        known = self.store.get(record.key) or empty()
        added(known, record.value[1])
        self.store.put(record.key, known)
        added(known, "after put")
        added(self.store.get(record.key), "after get")
        self.context.forward(record.with_value(self.store.get(record.key)))
        self.context.forward(record.with_value(known))


def changed_by_a_processor(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("kept", STRING, LISTS, persistent=False, caching=True))
    lists(builder, "in").process(Keeping, "kept").to("out", TO_LISTS)
