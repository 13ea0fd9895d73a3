"""Run cases of statements, inputs and outputs on a test driver: `python -m tests.conformance.run_case FILE...`."""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import ConfigError, StreamsError
from riverrun.serde.api import SerdePlace, placed
from riverrun.serde.serdes import BYTES
from riverrun.serde.windowed import session_windowed, windowed
from riverrun.sql.durations import key_serde_of_windows
from riverrun.sql.formats import Form, key_serde, value_serde
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Primitive
from riverrun.testing import KeyBytesWarning, TopologyTestDriver
from riverrun.windows import Window, Windowed
from tests.conformance.case_schemas import CaseSchemas, decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from riverrun.serde.api import Serde
    from riverrun.sql.catalog import RecordLayout
    from riverrun.sql.types import Columns

_REGISTRY = {"url": "mock://cases"}
_ANY_SIZE = timedelta(milliseconds=1)


def cases(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and cases of a file, one for each format.

    Raises:
        ConfigError: If it is not a file of cases.
    """
    try:
        text = re.sub(r"^\s*(//|/\*|\*).*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
        found = json.loads(text, strict=False)["tests"]
        if not all(each["name"] and isinstance(each["statements"], list) for each in found):
            raise ValueError("a case has no name, or no list of statements")  # noqa: TRY301 - reported below
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = f"{path} is not a file of cases: {type(error).__name__}: {error}"
        hint = 'It is JSON: {"tests": [{"name": ..., "statements": [...], "inputs": [...], "outputs": [...]}]}.'
        raise ConfigError(message, hint=hint) from error
    for case in found:
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
    except SqlError as error:
        verdict = _verdict(error.message)
        return "passed" if _is_refused(verdict, error.message, expected) else f"{verdict}: {error.message}"
    except StreamsError as error:
        return "passed" if expected is not None else f"failed: {error.message.splitlines()[0]}"
    except Exception as error:  # noqa: BLE001 - a bug here is a failed case
        return f"failed: {type(error).__name__}: {error}"
    if expected is not None:
        return f"failed: no error, but expected {expected.get('message', expected)}"
    return f"failed: {difference}" if difference else "passed"


def _is_refused(verdict: str, message: str, expected: dict[str, Any] | None) -> bool:
    """Return whether statements are refused as expected, and not because a property or function is missing here."""
    if expected is None:
        return False
    wanted = str(expected.get("message", "")).replace("`", "")
    is_said = message.replace("`", "").splitlines()[0] in wanted
    return verdict == "failed" or is_said or not any(each in message for each in _MISSING)


_MISSING = ("There is no function", "has no property")


def _verdict(message: str) -> str:
    return "unsupported" if any(each in message for each in ("supported", *_MISSING)) else "failed"


def _difference(case: dict[str, Any]) -> str | None:
    builder = StreamsBuilder()
    schemas = CaseSchemas(case.get("topics") or ())
    properties = {name: str(value) for name, value in case.get("properties", {}).items()}
    plan = StatementPlan(builder, properties=properties, columns=schemas)
    plan.add_all(parse("\n".join(case["statements"])))
    topology = builder.build()
    layouts = {source.topic: source.layout for source in plan.catalog.sources.values()}
    handlers = {"deserialization.exception.handler": "continue"}
    # Cases have keys of other writers, whose schemas may differ; what is compared are the outputs.
    with warnings.catch_warnings(), TopologyTestDriver(topology, handlers, schema_registry=_REGISTRY) as driver:
        warnings.simplefilter("ignore", KeyBytesWarning)
        for record in case.get("inputs", []):
            _pipe(driver, layouts, schemas, record)
        return _compared(driver, layouts, schemas, case.get("outputs", []))


def _pipe(
    driver: TopologyTestDriver, layouts: dict[str, RecordLayout], schemas: CaseSchemas, record: dict[str, Any]
) -> None:
    topic = record["topic"]
    if topic not in layouts:
        return
    form = _Form(topic, layouts[topic], schemas)
    key = _key_bytes(form, record.get("key"), record.get("window"))
    value = None if record.get("value") is None else form.encoded(record["value"], is_key=False)
    try:
        inputs = driver.input_topic(topic, BYTES, BYTES)
    except StreamsError:  # a source that no query reads
        return
    headers = tuple((each["KEY"], _header(each["VALUE"])) for each in record.get("headers") or ())
    inputs.pipe_input(key, value, timestamp=record.get("timestamp", 0), headers=headers)


def _header(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a topic's records, in a case and in the topic."""

    topic: str
    layout: RecordLayout
    schemas: CaseSchemas

    def encoded(self, value: Any, *, is_key: bool) -> bytes:
        """Return the bytes of a value of a case."""
        if (self.topic, is_key) in self.schemas.known:
            subject = f"{self.topic}-{'key' if is_key else 'value'}"
            return encoded(value, *self.schemas.known[self.topic, is_key], subject, _REGISTRY)
        format_, columns = self._format(is_key=is_key)
        if format_ == "KAFKA" and columns:
            is_bytes = columns[0][1] is Primitive.BYTES
            return key_serde(columns, Form("KAFKA")).serialize((base64.b64decode(value) if is_bytes else value,))
        if format_ in {"DELIMITED", "KAFKA", "NONE"}:
            return str(value).encode()
        text = json.dumps(value).encode()
        if format_ in {"JSON", "DEBEZIUM_JSON"} or not columns:
            return text
        row = self._json(is_key=is_key).deserialize(text)
        return self._serde(is_key=is_key).serialize(row)

    def decoded(self, data: bytes, *, is_key: bool) -> Any:
        """Return the value of a case for bytes."""
        if (self.layout.key_form if is_key else self.layout.value_form).schema is not None:
            return decoded(data, *self.schemas.known[self.topic, is_key])
        format_, columns = self._format(is_key=is_key)
        if format_ == "KAFKA" and columns:
            value = key_serde(columns, Form("KAFKA")).deserialize(data)[0]
            return base64.b64encode(value).decode() if isinstance(value, bytes) else value
        if format_ in {"DELIMITED", "KAFKA", "NONE"}:
            return data.decode()
        if format_ == "JSON" or not columns:
            return json.loads(data)
        row = self._serde(is_key=is_key).deserialize(data)
        return json.loads(self._json(is_key=is_key).serialize(row))

    def _format(self, *, is_key: bool) -> tuple[str, Columns]:
        layout = self.layout
        return (layout.key_form.name, layout.key) if is_key else (layout.value_form.name, layout.value)

    def _json(self, *, is_key: bool) -> Serde[Any]:
        layout = self.layout
        if is_key:
            return value_serde(layout.key, Form("JSON"), wrapped=layout.key_form.name.startswith("PROTOBUF"))
        return value_serde(layout.value, Form("JSON"), wrapped=layout.wrapped)

    def _serde(self, *, is_key: bool) -> Serde[Any]:
        keys, values = self.layout.serdes()
        return placed(keys if is_key else values, SerdePlace(self.topic, is_key, _REGISTRY))


def _key_bytes(form: _Form, key: Any, window: dict[str, Any] | None) -> bytes | None:
    if key is None:
        return None
    inner = form.encoded(key, is_key=True)
    if window is None:
        return inner
    serde = session_windowed(BYTES) if window["type"].lower() == "session" else windowed(BYTES, _ANY_SIZE)
    return serde.serialize(Windowed(inner, Window(window["start"], window["end"])))


def _compared(
    driver: TopologyTestDriver,
    layouts: dict[str, RecordLayout],
    schemas: CaseSchemas,
    outputs: Sequence[dict[str, Any]],
) -> str | None:
    for topic in dict.fromkeys(record["topic"] for record in outputs):
        wanted = [record for record in outputs if record["topic"] == topic]
        found = driver.read_raw(topic)
        if topic not in layouts:
            return f"nothing is known of topic {topic}"
        form = _Form(topic, layouts[topic], schemas)
        rows = [_shown(form, record) for record in found]
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
        if part in wanted and not _is_alike(wanted[part], found[part]):
            return f"{part} is {found[part]!r}, not {wanted[part]!r}"
    return None


def _is_alike(wanted: Any, found: Any) -> bool:
    """Return whether two values are equal, with names in any case, and decimals of some formats possibly as texts."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        one, other = ({name.upper(): value for name, value in each.items()} for each in (wanted, found))
        return all(_is_alike(one.get(name), other.get(name)) for name in one.keys() | other.keys())  # NULL if absent
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_is_alike, wanted, found))
    if isinstance(wanted, str) and isinstance(found, int | float) and not isinstance(found, bool):
        return _number(wanted) == found
    return bool(wanted == found)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(form: _Form, record: Any) -> dict[str, Any]:
    key, window, layout = record.key, None, form.layout
    if layout.window is not None and key is not None:
        read = key_serde_of_windows(BYTES, layout.window, layout.window_size or 0).deserialize(key)
        key = read.key
        kind = "session" if layout.window == "SESSION" else "time"
        window = {"start": read.window.start, "end": read.window.end, "type": kind}
    return {
        "key": None if key is None else form.decoded(key, is_key=True),
        "value": None if record.value is None else form.decoded(record.value, is_key=False),
        "timestamp": record.timestamp,
        "window": window,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the cases of files.

    Returns:
        1 if a case failed, 2 if a file has none, otherwise 0.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run_case", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--name", help="only the cases whose names hold this")
    parser.add_argument("--quiet", action="store_true", help="only what is not passed, and totals")
    options = parser.parse_args(arguments)
    totals: Counter[str] = Counter()
    try:
        named = [(path.stem, *each) for path in options.files for each in cases(path)]
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for stem, name, case in named:
        if options.name and options.name not in name:
            continue
        verdict = run(case)
        totals[verdict.partition(":")[0]] += 1
        if not (options.quiet and verdict == "passed"):
            sys.stdout.write(f"{stem}: {name}: {verdict}\n")
    sys.stdout.write(", ".join(f"{totals[each]} {each}" for each in ("passed", "failed", "unsupported")) + "\n")
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
