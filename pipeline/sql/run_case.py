"""Run cases of statements, inputs and outputs on a test driver: `python -m pipeline.sql.run_case FILE...`."""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.dsl.builder import StreamsBuilder
from pipeline.errors import StreamsError
from pipeline.serde.primitives import BYTES
from pipeline.serde.windowed import session_windowed, windowed
from pipeline.sql.dialect import parse
from pipeline.sql.errors import SqlError
from pipeline.sql.formats import key_serde
from pipeline.sql.planner import Plan
from pipeline.sql.types import Primitive
from pipeline.testing import TopologyTestDriver
from pipeline.windows import Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipeline.sql.catalog import Layout

_STANDING_IN = {"AVRO": "JSON", "JSON_SR": "JSON"}
"""Formats of a registry, which cases write as JSON."""
_ANY_SIZE = timedelta(milliseconds=1)
_KNOWN = {"JSON", "KAFKA", "DELIMITED", "NONE", *_STANDING_IN}


class Unsupported(Exception):  # noqa: N818 - no mistake
    """A case that needs what there is not."""


def cases(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and cases of a file, one for each format."""
    text = re.sub(r"^\s*(//|/\*|\*).*$", "", path.read_text(), flags=re.MULTILINE)
    for case in json.loads(text, strict=False)["tests"]:
        for format_ in case.get("format") or [""]:
            made = json.loads(json.dumps(case).replace("{FORMAT}", format_))
            yield (f"{case['name']} - {format_}" if format_ else str(case["name"])), made


def run(case: dict[str, Any]) -> str:
    """Run a case and return `passed`, `failed: why` or `unsupported: what`."""
    if not case.get("enabled", True):
        return "unsupported: switched off"
    expected = case.get("expectedException")
    try:
        difference = _difference(case)
    except Unsupported as error:
        return f"unsupported: {error}"
    except SqlError as error:
        verdict = "failed" if _is_expected(error.message, expected) else _verdict(error.message)
        return "passed" if expected is not None and verdict == "failed" else f"{verdict}: {error.message}"
    except StreamsError as error:
        return "passed" if expected is not None else f"failed: {error.message.splitlines()[0]}"
    except Exception as error:  # noqa: BLE001 - a fault of ours is a failed case
        return f"failed: {type(error).__name__}: {error}"
    if expected is not None:
        return f"failed: no error, but expected {expected.get('message', expected)}"
    return f"failed: {difference}" if difference else "passed"


def _is_expected(message: str, expected: dict[str, Any] | None) -> bool:
    wanted = str((expected or {}).get("message", "")).replace("`", "")
    return message.replace("`", "").splitlines()[0] in wanted


def _verdict(message: str) -> str:
    missing = "supported" in message or "There is no function" in message or "has no property" in message
    return "unsupported" if missing else "failed"


def _difference(case: dict[str, Any]) -> str | None:
    builder = StreamsBuilder()
    plan = Plan(builder, _STANDING_IN)
    plan.add_all(parse("\n".join(case["statements"])))
    topology = builder.build()
    layouts = {source.topic: source.layout for source in plan.catalog.sources.values()}
    for layout in layouts.values():
        if missing := {layout.key_format, layout.value_format} - _KNOWN:
            message = f"format {missing.pop()}"
            raise Unsupported(message)
    handlers = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(topology, handlers) as driver:
        for record in case.get("inputs", []):
            _pipe(driver, layouts, record)
        return _compared(driver, layouts, case.get("outputs", []))


def _pipe(driver: TopologyTestDriver, layouts: dict[str, Layout], record: dict[str, Any]) -> None:
    topic = record["topic"]
    if topic not in layouts:
        return
    layout = layouts[topic]
    key = _key_bytes(layout, record.get("key"), record.get("window"))
    value = None if record.get("value") is None else _value_bytes(layout, record["value"])
    try:
        inputs = driver.input_topic(topic, BYTES, BYTES)
    except StreamsError:  # a source that no query reads
        return
    headers = tuple((each["KEY"], _header(each["VALUE"])) for each in record.get("headers") or ())
    inputs.pipe_input(key, value, timestamp=record.get("timestamp", 0), headers=headers)


def _header(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _value_bytes(layout: Layout, value: Any) -> bytes:
    return _encoded(layout.value_format, layout.value, value)


def _encoded(format_: str, columns: Any, value: Any) -> bytes:
    if format_ == "KAFKA" and columns:
        is_bytes = columns[0][1] is Primitive.BYTES
        return key_serde(columns, "KAFKA").serialize((base64.b64decode(value) if is_bytes else value,))
    if format_ in {"DELIMITED", "KAFKA", "NONE"}:
        return str(value).encode()
    return json.dumps(value).encode()


def _key_bytes(layout: Layout, key: Any, window: dict[str, Any] | None) -> bytes | None:
    if key is None:
        return None
    inner = _encoded(layout.key_format, layout.key, key)
    if window is None:
        return inner
    serde = session_windowed(BYTES) if window["type"].lower() == "session" else windowed(BYTES, _ANY_SIZE)
    return serde.serialize(Windowed(inner, Window(window["start"], window["end"])))


def _compared(driver: TopologyTestDriver, layouts: dict[str, Layout], outputs: Sequence[dict[str, Any]]) -> str | None:
    for topic in dict.fromkeys(record["topic"] for record in outputs):
        wanted = [record for record in outputs if record["topic"] == topic]
        found = driver.read_raw(topic)
        layout = layouts.get(topic)
        if layout is None:
            return f"nothing is known of topic {topic}"
        rows = [_shown(layout, record) for record in found]
        for number, record in enumerate(wanted):
            if number >= len(rows):
                return f"{topic} has {len(rows)} records, not {len(wanted)}"
            if (why := _unlike(record, rows[number])) is not None:
                return f"{topic}, record {number}: {why}"
        if len(rows) > len(wanted):
            return f"{topic} has {len(rows)} records, not {len(wanted)}: {rows[len(wanted)]}"
    return None


def _unlike(wanted: dict[str, Any], found: dict[str, Any]) -> str | None:
    for part in ("key", "value", "timestamp", "window"):
        if part in wanted and _plain(wanted[part]) != _plain(found[part]):
            return f"{part} is {found[part]!r}, not {wanted[part]!r}"
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.upper(): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _shown(layout: Layout, record: Any) -> dict[str, Any]:
    key, window = record.key, None
    if layout.window is not None and key is not None:
        serde = session_windowed(BYTES) if layout.window == "SESSION" else windowed(BYTES, _ANY_SIZE)
        read = serde.deserialize(key)
        key = read.key
        end = read.window.end if layout.window == "SESSION" else read.window.start + (layout.window_ms or 0)
        kind = "session" if layout.window == "SESSION" else "time"
        window = {"start": read.window.start, "end": end, "type": kind}
    return {
        "key": None if key is None else _decoded(layout.key_format, layout.key, key),
        "value": None if record.value is None else _decoded(layout.value_format, layout.value, record.value),
        "timestamp": record.timestamp,
        "window": window,
    }


def _decoded(format_: str, columns: Any, data: bytes) -> Any:
    if format_ == "KAFKA" and columns:
        value = key_serde(columns, "KAFKA").deserialize(data)[0]
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return data.decode() if format_ in {"DELIMITED", "KAFKA", "NONE"} else json.loads(data)


def main(arguments: Sequence[str]) -> int:
    """Run the cases of files; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.sql.run_case", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--name", help="only the cases whose names hold this")
    parser.add_argument("--quiet", action="store_true", help="only what is not passed, and totals")
    options = parser.parse_args(arguments)
    totals: Counter[str] = Counter()
    for path in options.files:
        for name, case in cases(path):
            if options.name and options.name not in name:
                continue
            verdict = run(case)
            totals[verdict.partition(":")[0]] += 1
            if not (options.quiet and verdict == "passed"):
                sys.stdout.write(f"{path.stem}: {name}: {verdict}\n")
    sys.stdout.write(", ".join(f"{totals[each]} {each}" for each in ("passed", "failed", "unsupported")) + "\n")
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
