"""Arguments of the wrong kind: what the message at the call says, and that it has the line of the call."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import riverrun
from riverrun import (
    JSON,
    LONG,
    STRING,
    Branched,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Processor,
    Produced,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    session_windowed,
    windowed,
)
from riverrun.arguments import function
from riverrun.dsl.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
SECOND = timedelta(seconds=1)


class Forward(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


async def awaited(_key: str, _value: str) -> bool:
    return True


async def streamed(_key: str, _value: str) -> AsyncIterator[int]:
    yield 1


def yielding(_key: str, value: str) -> Iterator[str]:
    yield value


class AwaitedObject:
    async def __call__(self, _key: str, _value: str) -> bool:
        return True


# mypy knows all of these; they are called as by those who do not use it.
def stream() -> Any:
    return StreamsBuilder().stream("in", TEXTS)


def table() -> Any:
    return StreamsBuilder().table("in", TEXTS)


def grouped() -> Any:
    return stream().group_by_key()


any_windows: Any = TimeWindows
any_windowed: Any = windowed
any_session_windowed: Any = session_windowed
any_builder: Any = StreamsBuilder
any_consumed: Any = Consumed
any_stores: Any = Stores
any_topology: Any = Topology
any_suppressed: Any = Suppressed
any_named: Any = Named
any_branched: Any = Branched

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a topic that is a number": (
        lambda: any_builder().stream(5, TEXTS),
        "StreamsBuilder.stream: topics must be a topic, several, or a compiled pattern, not 5 (int)",
    ),
    "the options of writing for reading": (
        lambda: any_builder().stream("in", Produced(STRING, STRING)),
        "StreamsBuilder.stream: consumed must be Consumed, not Produced(",
    ),
    "the options of reading for writing": (
        lambda: stream().to("o", TEXTS),
        "KStream.to: produced must be Produced, not",
    ),
    "types as serdes": (lambda: any_consumed(str, dict), "Consumed: key_serde must be a Serde, not the class str"),
    "the name of a store alone": (
        lambda: grouped().count("s"),
        "KGroupedStream.count: materialized must be Materialized, not 's' (str)",
    ),
    "a node's name as a store": (lambda: grouped().count(Named("x")), "Hint: Pass it as named=."),
    "a window of a number": (
        lambda: any_windows.of(60000),
        "TimeWindows.of: size must be a timedelta, not 60000 (int)",
    ),
    "a serde of windows of a number": (
        lambda: any_windowed(STRING, 60000),
        "windowed: size must be a timedelta, not 60000 (int)",
    ),
    "a serde of windows of no serde": (lambda: any_windowed(str), "windowed: inner must be a Serde, not the class str"),
    "a serde of sessions of no serde": (lambda: any_session_windowed(str), "session_windowed: inner must be a Serde"),
    "grace of a number": (lambda: any_windows.of(SECOND, grace=1), "grace must be a timedelta, not 1 (int)"),
    "windows of joins for an aggregation": (
        lambda: grouped().windowed_by(JoinWindows.of(SECOND)),
        "UnlimitedWindows, CountWindows, RollingWindows or your own Windows, not JoinWindows(",
    ),
    "the name of a strategy": (
        lambda: grouped().windowed_by(TimeWindows.of(SECOND)).emit_strategy("on-window-close"),
        "emit_strategy must be an EmitStrategy, not 'on-window-close' (str)",
    ),
    "windows for a join of tables": (
        lambda: table().join(table(), operator.add, JoinWindows.of(SECOND)),
        "KTable.join: materialized must be Materialized, not JoinWindows(",
    ),
    "a topic's name to join": (lambda: stream().join("topic", operator.add), "Read the topic first"),
    "an outer join with a table": (
        lambda: stream().outer_join(table(), operator.add, JoinWindows.of(SECOND)),
        "KStream.outer_join: other must be a KStream, not",
    ),
    "a processor for a supplier": (
        lambda: stream().process(Forward()),
        "Hint: Pass the class, or a function that creates a new one.",
    ),
    "a value for an initializer": (
        lambda: grouped().aggregate(0, lambda _k, _v, a: a),
        "initializer must be a function of no arguments, not 0 (int)",
    ),
    "sessions without a merger": (
        lambda: grouped().windowed_by(SessionWindows.of(SECOND)).aggregate(str, lambda _k, _v, a: a, Materialized()),
        "merger must be a function of (key, aggregate, other_aggregate), not Materialized(",
    ),
    "a predicate of no arguments": (
        lambda: stream().filter(lambda: True),
        "predicate must be a function of (key, value), but <lambda> takes no arguments",
    ),
    "a mapper of three arguments": (
        lambda: stream().map_values(lambda _a, _b, _c: 1),
        "mapper must be a function of (value) or (key, value), but <lambda> takes (_a, _b, _c)",
    ),
    "an async predicate": (lambda: stream().filter(awaited), "must be a plain function, not awaited, which is async"),
    "an async object": (lambda: stream().filter(AwaitedObject()), "must be a plain function, not AwaitedObject"),
    "an async partial": (lambda: stream().peek(functools.partial(awaited)), "not awaited, which is async"),
    "an async generator": (lambda: stream().flat_map(streamed), "not streamed, which is async"),
    "a generator that maps one to one": (
        lambda: stream().map_values(yielding),
        "mapper must return its result, but yielding is a generator function",
    ),
    "a store's name that is not text": (
        lambda: stream().process(Forward, Stores),
        "state_stores must be a str, not the class Stores",
    ),
    "a time limit in ms": (lambda: any_suppressed.until_time_limit(5, None), "time_to_wait must be a timedelta"),
    "a name that is a number": (lambda: any_named(5), "Named: name must be a str, not 5 (int)"),
    "a branch's action of two arguments": (
        lambda: any_branched("b", consumer=lambda _k, _v: None),
        "consumer must be a function of (stream)",
    ),
    "types as serdes of a store": (lambda: any_stores.key_value_store("s", str, int), "must be a Serde, not the class"),
    "a source without serdes": (
        lambda: any_topology().add_source("s", "t", key_serde=str, value_serde=str),
        "Topology.add_source: key_serde must be a Serde",
    ),
    "what lacks a serde": (lambda: stream().map_values(len).to("o"), "needs a serde for its values"),
    "a partitioner of two arguments": (
        lambda: stream().to("o", Produced(partitioner=lambda _k, _v: 0)),  # type: ignore[misc,arg-type]
        "partitioner must be a function of (topic, key, value, number_of_partitions)",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_call_says_what_it_takes_and_where_it_is(wrong: str) -> None:
    call, message = WRONG[wrong]
    with pytest.raises(TopologyError) as caught:
        call()
    assert message in str(caught.value)
    lines, first = inspect.getsourcelines(call)
    line = caught.value.line
    assert line is not None
    file, _, number = line.rpartition(":")
    assert Path(file).resolve() == Path(__file__).resolve()
    assert first <= int(number) < first + len(lines)


def test_what_fails_at_build_has_the_line_of_its_operator() -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).group_by_key().count(Materialized(name="same"))
    builder.stream("in.*", TEXTS).filter(lambda _k, _v: True)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(TopologyError, match=rf"test_arguments.py:{line}\)\nHint: re.compile\('in\.\*'\)"):
        builder.build()


def test_what_takes_the_arguments_passes_whatever_it_is() -> None:
    class Lengths:
        def __call__(self, value: str) -> int:
            return len(value)

        def of(self, _key: str, value: str) -> int:
            return len(value)

    texts: Any = stream()
    for mapper in (
        len,
        str,
        str.upper,
        Lengths(),
        Lengths().of,
        functools.partial(int, base=10),
        operator.itemgetter(0),
    ):
        texts.map_values(mapper)
    texts.flat_map_values(yielding).filter(dict.get).filter(lambda *_given: True).group_by(max)
    texts.process(functools.partial(Forward)).foreach(print)


@pytest.mark.parametrize(
    ("operator_of", "option"),
    [
        (lambda s: s.group_by(lambda _k, v: v).count(), "group_by or group_by_key: Grouped"),
        (
            lambda s: s.group_by(lambda _k, v: v).count(Materialized(STRING, name="s")),
            "group_by or group_by_key: Grouped",
        ),
        (lambda s: s.group_by_key().aggregate(dict, lambda _k, _v, a: a, Materialized(name="s")), "Materialized"),
        (lambda s: s.select_key(lambda _k, v: v).to("o"), "Produced"),
        (lambda s: s.select_key(lambda _k, v: v).repartition(), "Repartitioned"),
        (
            lambda s: (
                s.to_table()
                .map_values(len)
                .suppress(Suppressed.until_time_limit(SECOND, riverrun.BufferConfig.unbounded()))
            ),
            r"Materialized\(key_serde, value_serde\) of the operator that creates the table",
        ),
    ],
)
def test_a_missing_serde_is_asked_for_in_the_option_that_takes_it(operator_of: Any, option: str) -> None:
    with pytest.raises(TopologyError, match=f"Hint: Pass it in {option}"):
        operator_of(stream())


def test_every_class_that_parameters_take_exists() -> None:
    for name, kind in BY_NAME.items():
        for word in re.findall(r"\b[A-Z]\w+", kind.wanted):
            assert word in {"Path", "True", "False", "None"} or hasattr(riverrun, word), name


def test_the_options_of_an_operator_pass() -> None:
    counted = (
        stream().group_by_key(Grouped(STRING, JSON)).count(Materialized(STRING, LONG, name="s"), named=Named("count"))
    )
    assert counted.queryable_store_name == "s"


def signatures() -> Iterator[str]:
    """Parameters of all kinds: with and without defaults, by position only, by name only, and any number of them."""
    others = ("", "*rest", "*, named=1", "*, named", "*rest, named", "**names", "*rest, **names", "*, named, **names")
    for count, rest in itertools.product(range(4), others):
        for defaults, first in itertools.product(range(count + 1), ("", "/")):
            plain = [f"p{at}" + ("=1" if at >= count - defaults else "") for at in range(count)]
            plain[1:1] = [first] if first and plain else []
            yield ", ".join(filter(None, [*plain, rest]))


def test_a_function_passes_exactly_where_its_call_would() -> None:
    kinds = [function(", ".join("abcde"[:count])) for count in range(6)]
    for parameters in signatures():
        made = eval(f"lambda {parameters}: None")  # noqa: S307 - signatures differ by case
        for given, (count, kind) in itertools.product((made, functools.wraps(made)(lambda *_: None)), enumerate(kinds)):
            try:
                inspect.signature(given).bind(*range(count))
            except TypeError:
                assert kind.complaint(given), f"{count} arguments for ({parameters})"
            else:
                assert kind.complaint(given) is None, f"{count} arguments for ({parameters})"
