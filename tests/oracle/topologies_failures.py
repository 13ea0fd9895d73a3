"""The twins of `java/Failures.java`: records that cannot be read, processed or written."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun import (
    INTEGER,
    LONG,
    STRING,
    Consumed,
    LogAndSkipOnInvalidTimestamp,
    Materialized,
    Produced,
    PunctuationType,
    Record,
    Serde,
    UsePartitionTimeOnInvalidTimestamp,
)
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_COUNTS, TO_TEXTS, text, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ConsumerRecord, ProcessorContext, StreamsBuilder
    from tests.oracle.topologies import Say

SETTINGS = {
    "deserialization.exception.handler": "continue",
    "processing.exception.handler": "continue",
    "production.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": "letters",
}
"""`Failures.configure`."""


def refuse(value: Any, start: str) -> Any:
    if value is not None and value.startswith(start):
        message = f"cannot take {value}"
        raise ValueError(message)
    return value


def inverse(count: int) -> int:
    quotient = 6 // abs(count - 2)
    return quotient if count > 2 else -quotient


def processing_fails(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).map_values(lambda v: text(v) + "!")
    stream.map_values(lambda v: refuse(v, "b")).to("out", TO_TEXTS)
    stream.map_values(lambda v: v + "?").to("second", TO_TEXTS)


def processing_fails_after_a_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(lambda _k, v: refuse(v, "c"))
    counts = stream.group_by_key(BY_TEXT).count(Materialized(name="counts"))
    counts.to_stream().map_values(inverse).to("out", TO_COUNTS)


def processing_fails_behind_a_cache(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().count(Materialized(name="counts"))
    counts.to_stream().map_values(inverse).to("out", TO_COUNTS)


def a_processor_fails_at_other_times(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).process(Moving).map_values(lambda v: refuse(v, "b")).to("out", TO_TEXTS)


def a_punctuation_fails(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).process(Punctuated).map_values(lambda v: refuse(v, "bad")).to("out", TO_TEXTS)


def decoding_fails(builder: StreamsBuilder, _say: Say) -> None:
    numbers = builder.stream("in", Consumed(STRING, INTEGER)).map_values(text)
    counts = numbers.group_by_key(BY_TEXT).count(Materialized(name="counts"))
    counts.to_stream().to("out", Produced(STRING, LONG))


def decoding_fails_in_one_of_two(builder: StreamsBuilder, _say: Say) -> None:
    numbers = builder.stream("in", Consumed(STRING, INTEGER)).map_values(text)
    numbers.merge(builder.stream("other", TEXTS)).to("out", TO_TEXTS)


def writing_fails(builder: StreamsBuilder, _say: Say) -> None:
    picky = Serde("picky", lambda v: refuse(v, "b").encode(), bytes.decode)
    texts(builder).map_values(lambda v: "none" if v is None else v).to("out", Produced(STRING, picky))


def negative_times_are_skipped(builder: StreamsBuilder, _say: Say) -> None:
    count_by(builder, invalid(LogAndSkipOnInvalidTimestamp()))


def negative_times_become_partition_time(builder: StreamsBuilder, _say: Say) -> None:
    count_by(builder, invalid(UsePartitionTimeOnInvalidTimestamp()))


def count_by(builder: StreamsBuilder, extractor: Any) -> None:
    stream = builder.stream("in", Consumed(STRING, STRING, timestamp_extractor=extractor))
    counts = stream.group_by_key().count(Materialized(name="counts"))
    counts.to_stream().map_values(text).to("out", TO_TEXTS)


def invalid(
    extractor: Callable[[ConsumerRecord[Any, Any], int], int],
) -> Callable[[ConsumerRecord[Any, Any], int], int]:
    """Values that begin with a or b have no valid time, once the partition has one."""

    def extract(record: ConsumerRecord[Any, Any], partition_time: int) -> int:
        is_invalid = record.value is not None and record.value < "c" and partition_time >= 0
        return extractor(record._replace(timestamp=-1), partition_time) if is_invalid else record.timestamp

    return extract


class Moving:
    """Forwards at another time and with other headers."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        refuse(record.value, "d")
        moved = record.with_timestamp(record.timestamp + 3)
        self.context.forward(moved.with_headers((*record.headers, ("moved", b"1"))))

    def close(self) -> None:
        pass


class Punctuated:
    """Fails in every other punctuation, and forwards what fails below in the others."""

    calls = 0

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(timedelta(milliseconds=50), PunctuationType.STREAM_TIME, self.punctuate)

    def punctuate(self, time_ms: int) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            refuse("punctuation", "p")
        self.context.forward(Record("p", "bad" if self.calls % 3 == 0 else "good", time_ms))

    def process(self, record: Record[str, str]) -> None:
        pass

    def close(self) -> None:
        pass
