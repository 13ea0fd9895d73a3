"""Cases of SQL (`sql/*.json`): statements, inputs and outputs, each on the driver, and some of them on every host."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.sql import build_sql
from tests.conformance.run_case import cases, run

if TYPE_CHECKING:
    from riverrun import StreamsBuilder, Topology
    from tests.conformance.hosts import Host

CASES = Path(__file__).parent / "sql"
ALL = [(f"{path.stem}: {name}", case) for path in sorted(CASES.glob("*.json")) for name, case in cases(path)]


@pytest.mark.driver
@pytest.mark.parametrize("case", [case for _, case in ALL], ids=[name for name, _ in ALL])
def test_statements_make_the_outputs_of_their_case(case: dict[str, Any]) -> None:
    assert run(case) == "passed"


def test_statements_have_one_result_on_every_host(host: Host) -> None:
    ((_, case),) = cases(CASES / "everywhere.json")
    text = re.sub(
        r"KAFKA_TOPIC = '(\w+)'", lambda found: f"KAFKA_TOPIC = '{host.topic(found[1])}'", "\n".join(case["statements"])
    )

    def build(builder: StreamsBuilder) -> Topology:
        return build_sql(text, builder)

    inputs: dict[str, list[tuple[bytes, bytes | None, int]]] = {}
    for record in case["inputs"]:
        key = record["key"] if isinstance(record["key"], str) else json.dumps(record["key"])
        value = None if record["value"] is None else json.dumps(record["value"]).encode()
        inputs.setdefault(record["topic"], []).append((key.encode(), value, record["timestamp"]))
    wanted: dict[str, list[dict[str, Any]]] = {}
    for record in case["outputs"]:
        wanted.setdefault(record["topic"], []).append(record)
    found = host.run(build, inputs, *wanted)
    for topic, records in wanted.items():
        shown = [shown_record(record, is_windowed="window" in records[0]) for record in found[topic]]
        assert sorted(shown, key=repr) == sorted(map(expected, records), key=repr), topic


def shown_record(record: Any, *, is_windowed: bool) -> tuple[str, int | None, Any, int]:
    """Key, start of the window, value and time of a record."""
    key, start = (record.key[:-8], int.from_bytes(record.key[-8:])) if is_windowed else (record.key, None)
    return key.decode(), start, json.loads(record.value or b"null"), record.timestamp


def expected(record: dict[str, Any]) -> tuple[str, int | None, Any, int]:
    start = record["window"]["start"] if "window" in record else None
    return record["key"], start, record["value"], record["timestamp"]
