"""Generated loops read values with schemas as the serde's function does, whatever stands before the payload."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import JSON, STRING, Avro, Consumed, JsonSchema, Produced, Protobuf, StreamsBuilder, TopicPartition
from riverrun.errors import StreamsError
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.serde_places import with_places
from riverrun.runtime.task import Task
from riverrun.serde.api import SerdePlace, frame_of, placed
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from tests.unit.schemas.flights import Airport
from tests.unit.schemas.tickets import Passenger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun import Serde

URL = f"mock://test-{uuid.uuid4()}"


class Gate(msgspec.Struct):
    code: str = ""
    delay: int = 0


LATER: Any = msgspec.defstruct("Gate", [("delay", int, 0), ("reason", str, ""), ("code", str, "")])
"""A later version of `Gate`."""


def place(topic: str) -> SerdePlace:
    return SerdePlace(topic, is_key=False, registry={"url": URL})


READERS: dict[str, Serde[Any]] = {
    "Avro": Avro(Gate),
    "Avro, plain": Avro(),
    "JSON Schema": JsonSchema(Gate),
    "JSON Schema, plain": JsonSchema(),
    "Protobuf": Protobuf(Airport),
    "Protobuf, plain": Protobuf(),
}


def written(reader: str) -> list[bytes]:
    """Values of some schemas, and bytes that look like such values."""
    serde_type: Any = {"Avro": Avro, "JSON Schema": JsonSchema}.get(reader.partition(",")[0])
    if serde_type is None:
        messages = (Airport(code="JFK"), Passenger(name="Ada"))  # which have fields alike
        values = [placed(Protobuf(type(each)), place(each.DESCRIPTOR.name)).serialize(each) for each in messages]
        values += [values[0][:5] + b"\x02\x00" + values[0][6:]]  # the indexes of the first message, written in full
    else:
        types: tuple[Any, Any] = (Gate("JFK", 3), LATER(5, "snow", "LGA"))
        values = [
            placed(serde_type(type(each)), place(f"{reader}-{n}")).serialize(each) for n, each in enumerate(types)
        ]
    first = values[0]
    broken = [
        b"",
        first[:3],
        first[:5],
        first[:-1],
        b"\x01" + first[1:],
        first[5:],
        first[6:],
        b'{"code": "x", "delay": 1}',
    ]
    unknown = first[:1] + (99_999).to_bytes(4, "big") + first[5:]
    return [*values, *values, *broken, unknown]


def skipping(*_failure: Any) -> Response:
    return Response.resume()


def failing(*_failure: Any) -> Response:
    """A handler; to ask it, a task takes record by record."""
    return Response.fail()


class Sent(list[tuple[Any, ...]]):
    """Keeps what a task sends."""

    def send(self, *record: Any) -> None:
        self.append(record)

    def partitions(self, _topic: str) -> int:
        return 3


def outcome(serde: Serde[Any], values: Sequence[bytes | None], batch: int, *, fused: bool, as_keys: bool) -> list[Any]:
    """The records, drops and errors of a task that reads values, or keys."""
    builder = StreamsBuilder()
    consumed: Any = Consumed(serde, STRING) if as_keys else Consumed(STRING, serde)
    stream = builder.stream("in", consumed).map(lambda key, value: (repr(key), repr(value)))
    stream.to("out", Produced(STRING, STRING))
    (sub,) = with_places(builder.build(), "app", {"url": URL}).sub_topologies()
    handlers = ErrorHandlers(deserialization=skipping, processing=None if fused else failing)
    sent, tp = Sent(), TopicPartition("in", 0)
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (tp,), handlers), Ports(sent, MemoryBackend(), MockClock()))
    task.start({})
    pairs = ((each, b"v") if as_keys else (b"k", each) for each in values)
    records = [RawRecord(key, value, n, n) for n, (key, value) in enumerate(pairs)]
    found: list[Any] = [sent]
    try:
        for begin in range(0, len(records), batch):
            task.add_records(tp, records[begin : begin + batch])
            task.process_all()
    except StreamsError as error:
        found.append((type(error), str(error)))
    return [*found, task.dropped]


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=60)
@given(data=st.data(), batch=st.integers(1, 40), as_keys=st.booleans())
def test_a_loop_reads_what_the_function_reads(reader: str, data: Any, batch: int, as_keys: bool) -> None:
    known = [None, *written(reader)]
    values = data.draw(st.lists(st.sampled_from(known) | st.sampled_from(known[1:3]), max_size=40))
    run = {"serde": READERS[reader], "values": values, "batch": batch, "as_keys": as_keys}
    fused = outcome(**run, fused=True)
    assert fused == outcome(**run, fused=False)


@pytest.mark.parametrize("reader", READERS)
def test_a_payload_without_its_head_is_refused_after_others_too(reader: str) -> None:
    known = written(reader)
    for headless in (known[0][5:], known[0][6:], b'{"code": "x", "delay": 1}', b"\x01" + known[0][1:], b""):
        sent, dropped = outcome(READERS[reader], [known[0], headless, known[0]], 1, fused=True, as_keys=False)
        assert len(sent) == 2
        assert dropped.total() == 1


@pytest.mark.parametrize("reader", ["Avro", "JSON Schema", "Protobuf"])
def test_the_latest_schema_is_read_directly_until_there_are_too_many(reader: str) -> None:
    serde = placed(READERS[reader], place("read"))
    frame, (one, other, *_) = frame_of(serde.deserialize), written(reader)
    assert frame is not None
    none, _ = frame.known
    for value in (one, one, other, other, one):
        read = serde.deserialize(value)
        head, body = frame.known
        assert value.startswith(head)
        assert body(value if frame.compared_bytes else value.removeprefix(head)) == read
    for value in (other, one) * 5:
        serde.deserialize(value)
    assert frame.known[0] == none
    assert frame.known[1](one) == serde.deserialize(one)


@pytest.mark.parametrize("serde", [STRING, JSON(Gate)])
def test_other_serdes_have_no_head(serde: Serde[Any]) -> None:
    assert frame_of(serde.deserialize) is None
