"""Failures name the node that raised them, and the line of the user's code, on every way a record may take."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from riverrun import (
    JSON,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Named,
    Produced,
    PunctuationType,
    StreamsBuilder,
    Sum,
    Topology,
)
from riverrun.errors import RecordError
from riverrun.sql import build_sql
from riverrun.testing import Cluster, TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.kstream import KStream

WAYS: dict[str, dict[str, str]] = {
    "in loops": {},
    "record by record": {"processing.exception.handler": "fail", "errors.dead.letter.queue.topic.name": "letters"},
}


STATEMENTS = """
CREATE STREAM s (k STRING KEY, n INT) WITH (kafka_topic='in', value_format='JSON');
CREATE STREAM t AS SELECT * FROM s WHERE n > 1;
"""


def number(value: Any) -> Any:
    return value["n"]  # the line of `number`


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines(keepends=True)
    return next(number for number, line in enumerate(lines, 1) if text in line)


def failing(shape: Any, value: Any, settings: dict[str, str]) -> RecordError:
    builder = StreamsBuilder()
    shape(builder.stream("in", Consumed(STRING, JSON)).filter(lambda _key, _value: True))
    with TopologyTestDriver(builder.build(), settings) as driver, pytest.raises(RecordError) as raised:
        driver.input_topic("in", STRING, JSON).pipe_input("a", value)
    return raised.value


def mapped(stream: KStream[str, Any]) -> None:
    stream.map_values(number).to("out", Produced(STRING, JSON))


def grouped(stream: KStream[str, Any]) -> None:
    stream.group_by_key().aggregate(
        lambda: 0, lambda _key, value, total: total + number(value), Materialized(value_serde=JSON)
    )


def exiting(stream: KStream[str, Any]) -> None:
    stream.filter(lambda _key, _value: sys.exit("enough")).to("out")  # the line of `exiting`


def chained(stream: KStream[str, Any]) -> None:
    def replaced(value: Any) -> Any:
        try:
            return number(value)
        except KeyError as error:
            raise ValueError("no number") from error

    stream.map_values(replaced).to("out", Produced(STRING, JSON))


def chosen(stream: KStream[str, Any]) -> None:
    stream.to(lambda _key, value, _time: number(value), Produced(STRING, JSON))


class Own:
    def init(self, context: Any) -> None:
        pass

    def process(self, record: Any) -> None:
        number(record.value)

    def close(self) -> None:
        pass


def processed(stream: KStream[str, Any]) -> None:
    stream.process(Own)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("shape", "node", "line"),
    [
        (chained, "KSTREAM-MAPVALUES-0000000002", "# the line of `number`"),
        (chosen, "KSTREAM-SINK-0000000002", "# the line of `number`"),
        (exiting, "KSTREAM-FILTER-0000000002", "# the line of `exiting`"),
        (grouped, "KSTREAM-AGGREGATE-0000000003", "# the line of `number`"),
        (mapped, "KSTREAM-MAPVALUES-0000000002", "# the line of `number`"),
        (processed, "KSTREAM-PROCESSOR-0000000002", "# the line of `number`"),
    ],
)
def test_a_failure_names_its_node_and_the_line_of_the_users_code(
    shape: Any, node: str, line: str, settings: dict[str, str]
) -> None:
    failed = failing(shape, {}, settings)
    assert failed.coordinates["node"] == node
    assert f"node {node}" in failed.message
    assert f"Look at {__file__}, line {line_of(line)}, in " in str(failed.hint)
    assert "riverrun skip APP in-0@0" in str(failed.hint)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_failure_outside_of_the_users_code_names_the_line_that_makes_the_node(settings: dict[str, str]) -> None:
    def summed(stream: KStream[str, Any]) -> None:
        stream.group_by_key().aggregate(n=Sum("n"))  # the line of `summed`

    failed = failing(summed, {"n": "many"}, settings)
    assert failed.coordinates["node"] == "KSTREAM-AGGREGATE-0000000003"
    made_at = f"test_places_of_failures.py:{line_of('# the line of `summed`')}."
    assert f"KSTREAM-AGGREGATE-0000000003 is made at tests/unit/runtime/{made_at}" in str(failed.hint)


def test_a_sink_is_named_once() -> None:
    def written(stream: KStream[str, Any]) -> None:
        stream.map_values(lambda _value: object()).to("out", Produced(STRING, JSON))  # the line of `written`

    failed = failing(written, {}, {})
    assert failed.message.count("KSTREAM-SINK-0000000003") == 1
    assert failed.coordinates["node"] == "KSTREAM-SINK-0000000003"
    assert f"test_places_of_failures.py:{line_of('# the line of `written`')}." in str(failed.hint)


@pytest.mark.parametrize("name", ["a", "out", "failed"])
def test_nodes_are_named_whatever_their_names_are(name: str) -> None:
    def own(stream: KStream[str, Any]) -> None:
        stream.map_values(number, named=Named(name)).to("out", Produced(STRING, JSON))

    failed = failing(own, {}, {})
    assert failed.coordinates["node"] == name
    assert f"offset 0, node {name})" in failed.message


def test_a_failure_in_a_library_names_the_users_line_that_calls_it() -> None:
    def validated(stream: KStream[str, Any]) -> None:
        stream.peek(lambda _key, value: jsonschema.validate(value, {"type": "string"})).to("out")  # calls a library

    hint = str(failing(validated, {}, {}).hint)
    assert f"Look at {__file__}, line {line_of('# calls a library')}, in <lambda>: stream.peek(" in hint


def test_a_failure_in_a_library_of_an_installed_application_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for package, code in {
        "their_app": "import a_library\ndef f(v): return a_library.g(v)",
        "a_library": "def g(v): 1 / 0",
    }.items():
        (installed / package).mkdir(parents=True)
        (installed / package / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(installed)
    function = importlib.import_module("their_app").f
    failed = failing(lambda stream: stream.map_values(function).to("out", Produced(STRING, JSON)), {}, {})
    assert f"Look at {installed / 'their_app' / '__init__.py'}, line 2, in f: def f(v):" in str(failed.hint)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_record_that_cannot_be_decoded_names_its_source(settings: dict[str, str]) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JSON)).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build(), settings) as driver, pytest.raises(RecordError) as raised:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "{")
    assert raised.value.coordinates["node"] == "KSTREAM-SOURCE-0000000000"
    assert raised.value.message.endswith("offset 0, node KSTREAM-SOURCE-0000000000)")


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_failed_timestamp_extractor_names_its_line(settings: dict[str, str]) -> None:
    builder = StreamsBuilder()
    extractor = Consumed(STRING, JSON, timestamp_extractor=lambda record, _time: number(record.value))
    builder.stream("in", extractor).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build(), settings) as driver, pytest.raises(RecordError) as raised:
        driver.input_topic("in", STRING, JSON).pipe_input("a", {})
    assert "Timestamp extractor of KSTREAM-SOURCE-0000000000 failed: KeyError" in raised.value.message
    assert raised.value.message.count("KSTREAM-SOURCE-0000000000") == 1
    assert f"Look at {__file__}, line {line_of('# the line of `number`')}" in str(raised.value.hint)


class Alarm:
    def init(self, context: Any) -> None:
        context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, lambda _time: number({}))

    def process(self, record: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_failure_of_a_punctuation_names_its_node(settings: dict[str, str]) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JSON)).process(Alarm)
    with TopologyTestDriver(builder.build(), settings) as driver, pytest.raises(RecordError) as raised:
        driver.advance_wall_clock_time(timedelta(seconds=2))
    assert raised.value.message.count("KSTREAM-PROCESSOR-0000000001") == 1
    assert raised.value.coordinates["node"] == "KSTREAM-PROCESSOR-0000000001"
    assert f"Look at {__file__}, line {line_of('# the line of `number`')}" in str(raised.value.hint)


def build(builder: StreamsBuilder) -> Topology:
    builder.stream("in", Consumed(STRING, JSON)).map_values(number).to("out", Produced(STRING, JSON))
    return builder.build()


@pytest.mark.parametrize("host", ["run", "worker"])
def test_hosts_on_brokers_name_node_and_line_as_well(host: str) -> None:
    with Cluster() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=1)
        app = cluster.project().app("failing", build)
        cluster.input_topic("in", STRING, JSON).pipe_input("a", {})
        hosts: dict[str, Callable[[], object]] = {
            "run": app.run,
            "worker": lambda: cluster.start_worker(app, "first").join(timedelta(minutes=5)),
        }
        with pytest.raises(RecordError) as raised:
            hosts[host]()
    assert "offset 0, node KSTREAM-MAPVALUES-0000000001" in raised.value.message
    assert f"Look at {__file__}, line {line_of('# the line of `number`')}, in number" in str(raised.value.hint)


def test_a_description_shows_the_lines_that_make_nodes_if_asked() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))  # the line of the source
    stream.filter(lambda _key, _value: True).to("out")  # the line of the filter
    topology = builder.build()
    here = "tests/unit/runtime/test_places_of_failures.py"
    source, filtered = (f"{here}:{line_of(f'# the line of the {what}')}" for what in ("source\n", "filter\n"))
    assert topology.lines == {
        "KSTREAM-SOURCE-0000000000": source,
        "KSTREAM-FILTER-0000000001": filtered,
        "KSTREAM-SINK-0000000002": filtered,
    }
    shown = topology.describe(lines=True)
    assert f"Processor: KSTREAM-FILTER-0000000001 (stores: [])  # {filtered}\n" in shown
    assert ".py" not in topology.describe()


def test_a_topic_that_replaces_others_is_made_where_the_first_of_them_was() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).select_key(lambda _key, value: value)
    stream.group_by_key(Grouped(STRING, STRING)).count()  # the line of the first
    stream.group_by_key(Grouped(STRING, STRING)).reduce(lambda first, _second: first)
    topology = builder.build(optimization="all")
    assert set(topology.lines) == set(topology.nodes)
    merged = [line for name, line in topology.lines.items() if "-repartition-" in name]
    assert (
        merged == [f"tests/unit/runtime/test_places_of_failures.py:{line_of('# the line of the first' + chr(10))}"] * 3
    )


def test_nodes_of_statements_have_no_line_of_python() -> None:
    topology = build_sql(STATEMENTS, StreamsBuilder())
    assert len(topology.nodes) > 2
    assert topology.lines == {}


def test_nodes_of_the_processor_api_have_lines_as_well() -> None:
    topology = Topology().add_source("words", "in", key_serde=STRING, value_serde=JSON)  # the line of `words`
    topology.add_processor("own", Own, "words")  # the line of `own`
    numbers = {name: int(line.rpartition(":")[2]) for name, line in topology.lines.items()}
    assert numbers == {"words": line_of("# the line of `words`\n"), "own": line_of("# the line of `own`\n")}
    assert topology.fingerprint() == topology.resolved(()).fingerprint()
