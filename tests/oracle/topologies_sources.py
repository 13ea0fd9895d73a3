"""The twins of `java/Sources.java`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from riverrun import (
    STRING,
    Grouped,
    Joined,
    Materialized,
    Named,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
)
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_COUNTS, TO_TEXTS, both, first, ms, text, texts

if TYPE_CHECKING:
    from riverrun import ProcessorContext
    from tests.oracle.topologies import Say


def history(name: str, count: int) -> Materialized[str, str]:
    return Materialized(STRING, STRING, name=name, history_retention=ms(count))


def versioned_table(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("in", TEXTS, history("versions", 200)).filter(lambda _k, v: len(v) > 1)
    table.map_values(lambda v: v + "!").to_stream().to("out", TO_TEXTS)


def versioned_table_joins(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS, history("versions", 300))
    texts(builder).join(table, both).to("out", TO_TEXTS)
    texts(builder, "other").left_join(table, both).to("second", TO_TEXTS)


def versioned_join_with_grace(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS, history("versions", 1_000_000))
    wait: Joined[str, str, str] = Joined(STRING, STRING, name="wait", grace_period=ms(40))
    texts(builder).join(table, both, joined=wait).to("out", TO_TEXTS)


def versioned_left_join_with_grace(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS, history("versions", 1_000_000))
    wait: Joined[str, str, str] = Joined(STRING, STRING, grace_period=ms(40))
    keyed = texts(builder).filter(lambda k, _v: k is not None)  # Kafka Streams fails on null keys
    keyed.left_join(table, both, joined=wait).to("out", TO_TEXTS)


def versioned_group_by_count(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("in", TEXTS, history("versions", 500))
    groups: Grouped[str, str] = BY_TEXT
    table.group_by(lambda _k, v: (first(v), v), groups).count().to_stream().to("out", TO_COUNTS)


def versioned_tables_joined(builder: StreamsBuilder, _say: Say) -> None:
    left = builder.table("in", TEXTS, history("lefts", 500))
    right = builder.table("other", TEXTS, history("rights", 500))
    left.outer_join(right, both).to_stream().to("out", TO_TEXTS)


class Keeping:
    """Puts what it gets."""

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None:
            self.store.put(record.key, record.value)

    def close(self) -> None:
        pass


class LookingUp:
    """Forwards what the store has."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None:
            self.context.forward(record.with_value(both(record.value, self.store.get(record.key))))

    def close(self) -> None:
        pass


class Swapping:
    """Forwards what the store had, and puts the value; a value that begins with "a" is only looked up."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None:
            found = both(self.store.get(record.key), self.store.approximate_num_entries())
            self.context.forward(record.with_value(found))
            if first(record.value) != "a":
                self.store.put(record.key, record.value)

    def close(self) -> None:
        pass


class Remembering:
    """Tells each value and the one before."""

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("before")

    def transform(self, key: str, value: str | None) -> str | None:
        before = self.store.get(key)
        self.store.put(key, value)
        return None if value is None else both(before, value)

    def close(self) -> None:
        pass


class Ticking:
    """Collects values, and forwards all that is held whenever 100 ms have passed on the wall clock."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("held")
        context.schedule(ms(100), PunctuationType.WALL_CLOCK_TIME, self.forward_all)

    def forward_all(self, time: int) -> None:
        for key, value in list(self.store.all()):
            self.context.forward(Record(key, value, time))
            self.store.delete(key)

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None and record.value is not None:
            self.store.put(record.key, text(self.store.get(record.key) or "") + record.value)

    def close(self) -> None:
        pass


def transform_values(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("before", STRING, STRING))
    builder.table("in", TEXTS).transform_values(Remembering, "before").to_stream().to("out", TO_TEXTS)


def transform_values_stored(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("before", STRING, STRING))
    kept: Materialized[str, str] = Materialized(STRING, STRING, name="kept")
    table = builder.table("in", TEXTS)
    remembered = table.transform_values(Remembering, "before", materialized=kept, named=Named("remember"))
    texts(builder, "table").join(remembered, both).to("out", TO_TEXTS)
    remembered.to_stream().to("second", TO_TEXTS)


def pattern_source(builder: StreamsBuilder, _say: Say) -> None:
    stream = builder.stream(re.compile("in|oth.*"), TEXTS)
    stream.group_by_key().count().to_stream().to("out", TO_COUNTS)


def global_store(builder: StreamsBuilder, _say: Say) -> None:
    kept = Stores.key_value_store("kept", STRING, STRING, persistent=False)
    builder.add_global_store(kept, "table", TEXTS, Keeping)
    texts(builder).process(LookingUp).to("out", TO_TEXTS)


def read_only_store(_builder: StreamsBuilder, _say: Say) -> None:
    """Leave all to `read_only_store_afterwards`: the builder makes no part of it."""


def read_only_store_afterwards(topology: Topology) -> Topology:
    topology.add_read_only_state_store(
        Stores.key_value_store("kept", STRING, STRING, persistent=False),
        "table",
        source_name="changes-source",
        processor_name="keep",
        supplier=Keeping,
        key_serde=STRING,
        value_serde=STRING,
    )
    topology.add_source("source", "in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("look-up", LookingUp, "source")
    topology.connect_processor_and_state_stores("look-up", "kept")
    return topology.add_sink("sink", "out", "look-up", key_serde=STRING, value_serde=STRING)


def punctuate_wall_clock(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("held", STRING, STRING))
    texts(builder).process(Ticking, "held").to("out", TO_TEXTS)


def least_recently_used(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store(Stores.lru_map("kept", 2), STRING, STRING))
    texts(builder).process(Swapping, "kept").to("out", TO_TEXTS)


AFTERWARDS = {"read_only_store": read_only_store_afterwards}
"""Additions to a topology after its builder is done."""
