"""Schemas and values of Avro without end: records for the handler, in little time and memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import uuid
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from riverrun import BYTES, STRING, Avro, Consumed, DeserializationError, Produced, StreamsBuilder
from riverrun.schemas.registry import registry_of
from riverrun.testing import TopologyTestDriver

MEMORY = 2 << 30
"""Bytes that a process may take; a count of 2**33 would take more."""


def number(value: int) -> bytes:
    rest, found = (value << 1) ^ (value >> 64), b""
    while rest > 127:
        found += bytes([rest & 127 | 128])
        rest >>= 7
    return found + bytes([rest])


def record(name: str, *types: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]}


def nested(levels: int, make: Any, inner: Any = "int") -> Any:
    """A schema as text: making one of Python's values would be too deep for `json`."""
    text = json.dumps(inner)
    for level in range(levels):
        text = json.dumps(make("INNER", level)).replace('"INNER"', text)
    return text


def laughing(levels: int) -> Any:
    schema: Any = record("R0", "null")
    for level in range(1, levels):
        schema = record(f"R{level}", schema, f"R{level - 1}")
    return schema


LIST = record("List", "string", ["null", "List"])
TREE = record("Tree", {"type": "array", "items": "Tree"})
MAPS = record("Maps", {"type": "map", "values": "Maps"})
TAGGED = record("A", ["null", "A", record("B", ["null", "A", "B"])])
EMPTY = record("Empty")
HUGE = number(2**33)
ATTACKS: dict[str, tuple[Any, bytes]] = {
    "a long list": (LIST, b"\0\2" * 5000 + b"\0\0"),
    "a very long list": (LIST, b"\0\2" * 200_000 + b"\0\0"),
    "a deep tree": (TREE, b"\2" * 100_000 + b"\0" * 100_000),
    "deep maps": (MAPS, b"\2\0" * 100_000 + b"\0" * 100_000),
    "a deep union of records": (TAGGED, b"\2" * 100_000 + b"\0"),
    "a record that needs itself": (record("R", "R"), b""),
    "nulls without end": ({"type": "array", "items": "null"}, HUGE + b"\0"),
    "nulls in many blocks": ({"type": "array", "items": "null"}, number(9_000) * 100_000 + b"\0"),
    "nulls that are skipped": (
        record("W", {"type": "array", "items": "null"}, "int"),
        number(9_000) * 100_000 + b"\0\2",
    ),
    "empty records without end": ({"type": "array", "items": EMPTY}, HUGE + b"\0"),
    "empty texts without end": ({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, HUGE + b"\0"),
    "entries without end": ({"type": "map", "values": "null"}, HUGE + b"\0"),
    "numbers without end": ({"type": "array", "items": "long"}, HUGE + b"\2\0"),
    "a block with a size": ({"type": "array", "items": "null"}, number(-(2**33)) + number(0) + b"\0"),
    "many wide records": (
        {"type": "array", "items": record("Wide", "int", *["null"] * 3000)},
        number(9000) + b"\2" * 9000,
    ),
    "records that double": (laughing(40), b""),
    "records that double, behind a byte": (record("W", "int", laughing(40)), b"\2"),
    "a long text": ("string", HUGE),
    "long bytes": (record("R", "bytes"), HUGE),
    "a long fixed": ({"type": "fixed", "name": "F", "size": 2**31 - 1}, b""),
    "a negative length": ("string", b"\1"),
    "a number without end": ("long", b"\xff" * 1_000_000),
    "a number of 64 bits as an int": ("int", b"\xff" * 9 + b"\1"),
    "a branch that is none": (["null", "int"], number(2**40)),
    "a symbol that is none": ({"type": "enum", "name": "E", "symbols": ["A"]}, number(2**40)),
    "5,000 digits": ({"type": "bytes", "logicalType": "decimal", "precision": 4}, number(2500) + b"\x7f" * 2500),
    "a decimal of many digits": ({"type": "bytes", "logicalType": "decimal", "precision": 10**9}, b"\0"),
    "a year after 9999": ({"type": "long", "logicalType": "timestamp-micros"}, number(2**62)),
    "a time after the day": ({"type": "int", "logicalType": "time-millis"}, number(86_400_000)),
    "a day after 9999": ({"type": "int", "logicalType": "date"}, number(2**30)),
    "no uuid": ({"type": "string", "logicalType": "uuid"}, b"\2x"),
    "a size that is code": ({"type": "fixed", "name": "F", "size": "__import__('os')._exit(1)"}, b""),
    "nested arrays": (nested(3000, lambda inner, _: {"type": "array", "items": inner}), b"\0"),
    "nested records": (nested(900, lambda inner, n: record(f"R{n}", inner)), b"\2"),
    "nested unions": (nested(900, lambda inner, n: ["null", record(f"R{n}", inner)]), b"\0"),
    "no schema": ('{"type":"record"}', b""),
    "a number": ("1", b""),
    "a list of lists": ("[[]]", b"\0"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return the outcome of each attack in a process with little memory, which may die of it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.schemas.test_avro_attacks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    found = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    return found | {"exit": f"{done.returncode} {done.stderr[-500:]}"}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_records_that_cannot_be_decoded(outcomes: dict[str, str], name: str) -> None:
    assert name in outcomes, outcomes["exit"]
    assert outcomes[name].startswith("Record cannot be decoded with key serde string and value serde avro: ")
    assert "RecursionError" not in outcomes[name]


def attacked(schema: Any, payload: bytes) -> str:
    """Return the error for a value, after the handler has skipped it once."""
    url = f"mock://{uuid.uuid4()}"
    text = schema if isinstance(schema, str) and schema[:1] in {"{", "[", "1"} else json.dumps(schema)
    known = registry_of({"url": url}).registered("in-value", Schema(text, "AVRO"), normalize=False).schema_id
    data = b"\0" + known.to_bytes(4) + payload
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, Avro())).map_values(lambda _: "read").to("out", Produced(STRING, STRING))
    topology = builder.build()
    with TopologyTestDriver(
        topology, {"deserialization.exception.handler": "continue"}, schema_registry={"url": url}
    ) as driver:
        driver.input_topic("in", STRING, BYTES).pipe_input("k", data)
        if driver.dropped() != {"undecodable": 1}:
            return "read"
    with TopologyTestDriver(topology, schema_registry={"url": url}) as driver:
        try:
            driver.input_topic("in", STRING, BYTES).pipe_input("k", data)
        except DeserializationError as error:
            return error.message.replace("\n", " ")
    return "read"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for attack, (its_schema, its_payload) in ATTACKS.items():
        print(attack, attacked(its_schema, its_payload), sep="\t", flush=True)
