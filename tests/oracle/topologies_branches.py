"""The twins of `java/Joins.java` that are no joins: branches, processors of values, streams made into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun import (
    STRING,
    Branched,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Grouped,
    Materialized,
    Named,
    Stores,
    StreamsBuilder,
)
from tests.oracle.topologies import BY_TEXT, TO_TEXTS, first, first_of_value, text, texts

if TYPE_CHECKING:
    from tests.oracle.topologies import Say


class Numbering:
    """Numbers the values of a key."""

    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("numbers")

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        if record.key is None:
            self.context.forward(record.with_value("no key").with_timestamp(record.timestamp + 3))
            return
        number = str(int(self.store.get(record.key) or "0") + 1)
        self.store.put(record.key, number)
        self.context.forward(record.with_value(number + first(record.value)))

    def close(self) -> None:
        pass


def branches(builder: StreamsBuilder, _say: Say) -> None:
    split = texts(builder).split().branch(lambda k, _v: k == "a").branch(lambda _k, v: v is not None)
    streams = split.default_branch()
    streams["KSTREAM-BRANCH-00000000011"].to("out")
    streams["KSTREAM-BRANCH-00000000012"].to("second")
    streams["KSTREAM-BRANCH-00000000010"].to("third")


def branches_named(builder: StreamsBuilder, _say: Say) -> None:
    split = texts(builder).split(named=Named("by-")).branch(lambda k, _v: k == "a", Branched("a"))
    marked: Branched[str, str] = Branched("b", function=lambda stream: stream.map_values(lambda v: "b" + text(v)))
    written: Branched[str, str] = Branched("c", consumer=lambda stream: stream.to("third"))
    split = split.branch(lambda k, _v: k == "b", marked).branch(lambda k, _v: k == "c", written)
    streams = split.no_default_branch()
    streams["by-a"].merge(streams["by-b"]).to("out", TO_TEXTS)


def branches_with_default(builder: StreamsBuilder, _say: Say) -> None:
    split = texts(builder).select_key(first_of_value).split(named=Named("part-"))
    streams = split.branch(lambda k, _v: k == "a", Branched("first")).default_branch(Branched("rest"))
    streams["part-first"].group_by_key(BY_TEXT).count().to_stream().to("out")
    streams["part-rest"].to("second", TO_TEXTS)


def process_values(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("numbers", STRING, STRING))
    stream = texts(builder).process_values(Numbering, "numbers")
    stream.group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out")


def process_values_named(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("numbers", STRING, STRING))
    texts(builder).process_values(Numbering, "numbers", named=Named("numbering")).to("out", TO_TEXTS)


def to_table(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).to_table().to_stream().to("out")


def to_table_named(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).to_table(Materialized(name="stored"), named=Named("latest")).to_stream().to("out")


def to_table_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(first_of_value)
    stream.to_table(Materialized(STRING, STRING, name="stored")).to_stream().to("out")
