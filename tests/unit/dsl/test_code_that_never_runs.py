"""User code that would never run: every place that takes some, by every way in which it can be wrong."""

from __future__ import annotations

import functools
import gc
import sys
import warnings
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    STRING,
    Branched,
    ConfigError,
    Consumed,
    FixedKeyProcessor,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Printed,
    Processor,
    Produced,
    PunctuationType,
    Record,
    Repartitioned,
    Serde,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    Topology,
    TopologyError,
    ValueTransformerWithKey,
)
from riverrun.testing import MockProcessorContext, TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Use = Callable[[StreamsBuilder, Any], object]

READ: Consumed[str, Any] = Consumed(STRING, JSON)
WRITE: Produced[str, Any] = Produced(STRING, JSON)
SECOND = timedelta(seconds=1)
KEPT: Materialized[str, Any] = Materialized(STRING, JSON, name="kept")


def stream(builder: StreamsBuilder) -> Any:
    return builder.stream("in", READ)


def table(builder: StreamsBuilder) -> Any:
    return builder.table("in", READ)


def other(builder: StreamsBuilder) -> Any:
    return builder.table("other", READ)


def windowed(builder: StreamsBuilder, windows: Any) -> Any:
    return stream(builder).group_by_key().windowed_by(windows)


def to_out(made: Any) -> None:
    (made if hasattr(made, "to") else made.to_stream(lambda key, _value: str(key))).to("out", WRITE)


def globally(builder: StreamsBuilder, supplier: Any) -> None:
    builder.add_global_store(Stores.key_value_store("global", STRING, JSON), "in", READ, supplier)


FUNCTIONS: dict[str, tuple[int, Use]] = {
    "filter": (2, lambda b, f: to_out(stream(b).filter(f))),
    "filter_not": (2, lambda b, f: to_out(stream(b).filter_not(f))),
    "map": (2, lambda b, f: to_out(stream(b).map(f))),
    "map_values": (1, lambda b, f: to_out(stream(b).map_values(f))),
    "select_key": (2, lambda b, f: to_out(stream(b).select_key(f))),
    "peek": (2, lambda b, f: to_out(stream(b).peek(f))),
    "foreach": (2, lambda b, f: stream(b).foreach(f)),
    "branch": (
        2,
        lambda b, f: to_out(stream(b).split(named=Named("to")).branch(f, Branched("a")).default_branch()["toa"]),
    ),
    "branch with a function": (
        1,
        lambda b, f: stream(b).split().branch(lambda _k, _v: True, Branched("a", f)).default_branch(),
    ),
    "print": (2, lambda b, f: stream(b).print(Printed(mapper=f))),
    "group_by": (2, lambda b, f: to_out(stream(b).group_by(f, Grouped(STRING, JSON)).count(KEPT))),
    "aggregate: initializer": (
        0,
        lambda b, f: to_out(stream(b).group_by_key().aggregate(f, lambda _k, v, a: a + v, KEPT)),
    ),
    "aggregate: aggregator": (3, lambda b, f: to_out(stream(b).group_by_key().aggregate(lambda: 0, f, KEPT))),
    "reduce": (2, lambda b, f: to_out(stream(b).group_by_key().reduce(f, KEPT))),
    "windows: aggregator": (
        3,
        lambda b, f: to_out(windowed(b, TimeWindows.of(SECOND)).aggregate(lambda: 0, f, KEPT)),
    ),
    "sessions: merger": (
        3,
        lambda b, f: to_out(
            windowed(b, SessionWindows.of(SECOND)).aggregate(lambda: 0, lambda _k, v, a: a + v, f, KEPT)
        ),
    ),
    "cogroup": (
        3,
        lambda b, f: to_out(stream(b).group_by_key().cogroup(f).aggregate(lambda: 0, KEPT)),
    ),
    "join": (2, lambda b, f: to_out(stream(b).join(other(b), f, joined=Joined(STRING, JSON)))),
    "left_join of streams": (
        2,
        lambda b, f: to_out(stream(b).left_join(b.stream("other", READ), f, JoinWindows.of(SECOND))),
    ),
    "global join: key": (
        2,
        lambda b, f: to_out(stream(b).join(b.global_table("other", READ), lambda a, _b: a, key_selector=f)),
    ),
    "table: filter": (2, lambda b, f: to_out(table(b).filter(f))),
    "table: filter_not": (2, lambda b, f: to_out(table(b).filter_not(f, KEPT))),
    "table: map_values": (1, lambda b, f: to_out(table(b).map_values(f, KEPT))),
    "table: group_by": (2, lambda b, f: to_out(table(b).group_by(f, Grouped(STRING, JSON)).count(KEPT))),
    "table: adder": (
        2,
        lambda b, f: to_out(
            table(b).group_by(lambda k, v: (k, v), Grouped(STRING, JSON)).reduce(f, lambda a, _v: a, KEPT)
        ),
    ),
    "table: join": (2, lambda b, f: to_out(table(b).join(other(b), f))),
    "foreign key": (1, lambda b, f: to_out(table(b).join(other(b), lambda a, _b: a, foreign_key_extractor=f))),
    "to_stream": (2, lambda b, f: table(b).to_stream(f).to("out", WRITE)),
    "extractor": (2, lambda b, f: to_out(b.stream("in", Consumed(STRING, JSON, timestamp_extractor=f)))),
    "topic": (3, lambda b, f: stream(b).to(f, WRITE)),
    "partitioner": (4, lambda b, f: stream(b).to("out", Produced(STRING, JSON, partitioner=f))),
    "repartition": (4, lambda b, f: to_out(stream(b).repartition(Repartitioned(STRING, JSON, partitioner=f)))),
    "serializer": (1, lambda b, f: stream(b).to("out", Produced(STRING, Serde("own", f, bytes.decode)))),
    "deserializer": (1, lambda b, f: to_out(b.stream("in", Consumed(STRING, Serde("own", str.encode, f))))),
    "partition key": (1, lambda b, f: stream(b).to("out", Produced(Serde("own", str.encode, bytes.decode, f), JSON))),
    "supplier": (0, lambda b, f: to_out(stream(b).process(f))),
    "supplier of values": (0, lambda b, f: to_out(stream(b).process_values(f))),
    "supplier of transformers": (0, lambda b, f: to_out(table(b).transform_values(f))),
    "supplier of a global store": (0, globally),
}
"""Places that take a function, with its number of arguments."""


def functions(count: int) -> dict[str, Any]:
    """Functions of so many arguments that do nothing when they are called, and one of too many."""
    names = ", ".join(f"a{n}" for n in range(count))
    text = f"""
async def is_async({names}):
    return 1

def yields({names}):
    yield 1

async def yields_async({names}):
    yield 1

class Object:
    async def __call__(self{", " if names else ""}{names}):
        return 1

class Heir(Object):
    pass

def takes_more({", ".join(filter(None, (names, "b, c, d, e, f")))}):
    return 1

returns_async = lambda {names}: is_async({names})
returns_generator = lambda {names}: yields({names})
returns_async_generator = lambda {names}: yields_async({names})
"""
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 - signatures differ by place
    found["partial"] = functools.partial(found["is_async"])
    found["object"], found["heir"] = found["Object"](), found["Heir"]()
    names_of = ("is_async", "yields", "yields_async", "object", "heir", "partial", "takes_more")
    called = ("returns_async", "returns_generator", "returns_async_generator")
    return {name: found[name] for name in (*names_of, *called)}


RETURNING = {"returns_async", "returns_generator", "returns_async_generator"}
"""Ways that show only in what a function returns."""


@pytest.fixture(autouse=True, scope="module")
def nothing_of_earlier_tests_is_collected() -> None:
    """Each case ends with a complete collection, which takes long where tests before it have left much."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of coroutines
        yield
        gc.collect()


def run(topology: Topology, settings: dict[str, Any] | None = None) -> dict[str, int]:
    """Pipe some records; returns what was dropped."""
    with TopologyTestDriver(topology, settings or {}) as driver:
        for topic in sorted(topology.source_topics, reverse=True):
            if topic in {"in", "other"}:
                driver.input_topic(topic, STRING, JSON).pipe_input("k", 1, timestamp=0)
        known = driver.input_topic("in", STRING, JSON)
        for at in range(1, 3):
            known.pipe_input("k", at + 1, timestamp=at)
        return dict(driver.dropped())


@pytest.mark.parametrize("how", functions(0))
@pytest.mark.parametrize("place", FUNCTIONS)
def test_a_function_that_would_not_run_is_refused(place: str, how: str) -> None:
    count, use = FUNCTIONS[place]
    with pytest.raises(StreamsError if how in RETURNING else TopologyError):
        run(built(use, functions(count)[how]))


def built(use: Use, given: Any) -> Topology:
    builder = StreamsBuilder()
    use(builder, given)
    return builder.build()


def of_records(body: str, *, call: str = "process", arguments: str = "record", is_async: bool = False) -> str:
    define = "async def" if is_async else "def"
    return f"class Own(Base):\n def init(self, context): self.context = context\n {define} {call}(self, {arguments}): {body}"


PROCESSORS: dict[str, tuple[str, str]] = {
    "async": (of_records("self.context.forward(record)", is_async=True), "which is async"),
    "a generator": (of_records("yield record"), "is a generator function"),
    "an async generator": (of_records("yield record", is_async=True), "which is async"),
    "misspelt": (of_records("self.context.forward(record)", call="proces"), "Rename proces to process"),
    "of another interface": (
        of_records("return value", call="transform", arguments="key, value"),
        "does not define process",
    ),
    "nothing": ("class Own(Base): pass", "does not define process"),
    "of more arguments": (of_records("pass", arguments="key, value"), "must be a function of"),
    "of no arguments": ("class Own(Base):\n def process(self): pass", "must be a function of"),
    "an attribute": ("class Own(Base):\n process = 5", "must be a function of"),
    "async init": ("class Own(Base):\n async def init(self, context): pass\n def process(self, record): pass", "async"),
    "init of nothing": ("class Own(Base):\n def init(self): pass\n def process(self, record): pass", "init must be"),
    "async close": ("class Own(Base):\n async def close(self): pass\n def process(self, record): pass", "async"),
    "a static method": ("class Own(Base):\n @staticmethod\n async def process(record): pass", "async"),
    "inherited": ("class Mixin:\n async def process(self, record): pass\nclass Own(Mixin, Base): pass", "async"),
    "made in the constructor": (
        "class Own(Base):\n def __init__(self):\n  async def process(record): pass\n  self.process = process",
        "async",
    ),
    "abstract": (
        "import abc\nclass Own(Base, abc.ABC):\n @abc.abstractmethod\n def process(self, record): ...",
        "process",
    ),
}
"""Classes that process nothing, with a part of the message."""
RETURNED: dict[str, str] = {
    "the record": of_records("return record"),
    "records": of_records("return [record]"),
    "a pair": of_records("return (record.key, record.value)"),
    "a coroutine": of_records("return later()"),
    "a generator": of_records("return (n for n in 'ab')"),
}
USES: dict[str, tuple[Any, Use]] = {
    "process": (Processor, lambda b, s: to_out(stream(b).process(s))),
    "process_values": (FixedKeyProcessor, lambda b, s: to_out(stream(b).process_values(s))),
    "add_global_store": (Processor, globally),
    "duck-typed": (object, lambda b, s: to_out(stream(b).process(s))),
}


def own(text: str, base: Any) -> Any:
    found: dict[str, Any] = {"Base": base}
    exec(f"async def later(): pass\n{text}", found)  # noqa: S102 - methods differ by case
    return found["Own"]


@pytest.mark.parametrize("supplied", ["a class", "a function", "a partial"])
@pytest.mark.parametrize("how", PROCESSORS)
@pytest.mark.parametrize("use", USES)
def test_a_processor_that_would_not_run_is_refused_when_it_is_built(use: str, how: str, supplied: str) -> None:
    base, uses = USES[use]
    text, message = PROCESSORS[how]
    cls = own(text, Processor if how == "abstract" else base)
    suppliers = {"a class": cls, "a function": lambda: cls(), "a partial": functools.partial(cls)}  # noqa: PLW0108
    with pytest.raises((TopologyError, TypeError)) as failed:
        built(uses, suppliers[supplied])
    if how != "abstract":  # Python says so itself where it is called
        assert isinstance(failed.value, TopologyError)
    if use != "duck-typed":  # it may lack another method as well
        assert message in str(failed.value)


@pytest.mark.parametrize("how", PROCESSORS)
def test_a_processor_added_to_a_topology_is_examined(how: str) -> None:
    topology = Topology().add_source("source", "in", key_serde=STRING, value_serde=JSON)
    with pytest.raises((TopologyError, TypeError)):
        topology.add_processor("own", own(PROCESSORS[how][0], Processor), "source")


@pytest.mark.parametrize("handler", ["fail", "continue"])
@pytest.mark.parametrize("how", RETURNED)
@pytest.mark.parametrize("use", ["process", "process_values", "duck-typed"])
def test_records_that_are_returned_are_not_lost(use: str, how: str, handler: str) -> None:
    base, uses = USES[use]
    builder = StreamsBuilder()
    text = RETURNED[how] + "\n def close(self): pass"
    uses(builder, own(text, base))
    settings = {"processing.exception.handler": handler}
    if handler == "continue":
        assert run(builder.build(), settings) == {"processing-failed": 3}
        return
    with pytest.raises(StreamsError, match=r"Own.process returns"):
        run(builder.build(), settings)


TRANSFORMERS = {
    "async": ("async def transform(self, key, value): return value", "async"),
    "a generator": ("def transform(self, key, value): yield value", "generator"),
    "misspelt": ("def tranform(self, key, value): return value", "Rename tranform to transform"),
    "of a processor": ("def process(self, record): pass", "does not define transform"),
    "of the value alone": ("def transform(self, value): return value", "must be a function of"),
}


@pytest.mark.parametrize("how", TRANSFORMERS)
@pytest.mark.parametrize("is_class", [True, False])
def test_a_transformer_that_would_not_run_is_refused(how: str, is_class: bool) -> None:
    method, message = TRANSFORMERS[how]
    cls = own(f"class Own(Base):\n {method}", ValueTransformerWithKey)
    with pytest.raises(TopologyError, match=message):
        table(StreamsBuilder()).transform_values(cls if is_class else lambda: cls())  # noqa: PLW0108 - a function, not a class


def test_a_supplier_that_returns_something_else_in_a_task_is_refused_there() -> None:
    class Good(Processor[str, Any]):
        def process(self, record: Record[str, Any]) -> None: ...

    made = iter([Good(), Good()])
    builder = StreamsBuilder()
    to_out(stream(builder).process(lambda: next(made, object())))
    topology = builder.build()
    with pytest.raises(TopologyError, match="does not define"):
        TopologyTestDriver(topology)


def test_a_supplier_that_returns_a_class_is_refused() -> None:
    cls = own(of_records("pass"), Processor)
    builder = StreamsBuilder()
    to_out(stream(builder).process(lambda: cls))
    with pytest.raises(TopologyError, match="returns the class Own"):
        builder.build()


PUNCTUATORS = {how: f for how, f in functions(1).items() if how not in RETURNING}


@pytest.mark.parametrize("clock", list(PunctuationType))
@pytest.mark.parametrize("how", PUNCTUATORS)
def test_a_punctuator_that_would_not_run_is_refused(how: str, clock: PunctuationType) -> None:
    class Scheduling(Processor[str, Any]):
        def init(self, context: Any) -> None:
            context.schedule(SECOND, clock, PUNCTUATORS[how])

        def process(self, record: Record[str, Any]) -> None: ...

    builder = StreamsBuilder()
    to_out(stream(builder).process(Scheduling))
    topology = builder.build()
    with pytest.raises(TopologyError, match="the punctuator must"):
        TopologyTestDriver(topology)
    with pytest.raises(TopologyError, match="the punctuator must"):
        MockProcessorContext().schedule(SECOND, clock, PUNCTUATORS[how])


@pytest.mark.parametrize("how", sorted(RETURNING))
def test_a_punctuator_that_starts_nothing_fails(how: str) -> None:
    class Scheduling(Processor[str, Any]):
        def init(self, context: Any) -> None:
            context.schedule(SECOND, PunctuationType.STREAM_TIME, functions(1)[how])

        def process(self, record: Record[str, Any]) -> None: ...

    builder = StreamsBuilder()
    to_out(stream(builder).process(Scheduling))
    with pytest.raises(StreamsError, match=r"The punctuator of .* never runs"):
        run(builder.build())


SETTINGS = {
    "deserialization.exception.handler": 3,
    "processing.exception.handler": 3,
    "production.exception.handler": 3,
    "default.timestamp.extractor": 2,
}


@pytest.mark.parametrize("how", sorted(functions(0).keys() - RETURNING))
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_names_a_function_that_would_not_run_is_refused(
    setting: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("own_handlers")
    module.__dict__.update(functions(SETTINGS[setting]))
    monkeypatch.setitem(sys.modules, "own_handlers", module)
    builder = StreamsBuilder()
    to_out(stream(builder).map_values(lambda v: v))
    with pytest.raises(ConfigError, match="cannot be called as"):
        run(builder.build(), {setting: f"own_handlers:{how}"})


def test_predicates_may_return_what_counts_as_true() -> None:
    builder = StreamsBuilder()
    kept = stream(builder).filter(lambda _k, v: v % 2).filter_not(lambda _k, v: [v] if v > 2 else "")
    to_out(kept.split(named=Named("to")).branch(lambda _k, v: v, Branched("a")).default_branch()["toa"])
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_value_list([0, 1, 2, 3])
        assert driver.output_topic("out", STRING, JSON).read_values_to_list() == [1]
