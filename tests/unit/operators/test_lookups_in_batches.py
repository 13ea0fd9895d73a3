"""Look-ups of many records in one call: what a batch holds, when it is called for, and which record fails."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import STRING, Named, Response, Retry, StreamsBuilder
from riverrun.errors import ProcessingError, RegistryError, TopologyError
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.recorded_answers import AnsweredLookups
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import LookupAnswer, TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from tests.unit.operators.looking import TEXTS, TO_TEXTS, piped, running
from tests.unit.operators.restarting import INPUT, Restartable
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)


def looking(fetch: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", TEXTS).map_values_in_batches(fetch, named=Named("asked"), **options)
    stream.to("out", TO_TEXTS)
    return builder.build()


def written(topics: MemoryTopics) -> list[bytes | None]:
    return [record.value for record in topics.logs.get("out", [])]


class Asked:
    """A model that notes its calls, and fails if a value is in `refuses`."""

    def __init__(self, *refuses: str) -> None:
        self.calls: list[list[str]] = []
        self.refuses = refuses

    def __call__(self, values: list[str]) -> list[str]:
        self.calls.append(values)
        if not set(values).isdisjoint(self.refuses):
            message = "not this one"
            raise ValueError(message)
        return [value.upper() for value in values]


# Batches.


@settings(deadline=None)
@given(
    count=st.integers(0, 40),
    most=st.sampled_from([1, 2, 5, 100]),
    cuts=st.sets(st.integers(0, 40), max_size=3),
    waits_ms=st.sampled_from([0, 5_000]),
    blocks=st.booleans(),
)
def test_full_batches_have_the_results_of_a_plain_function_whatever_restarts(
    count: int, most: int, cuts: set[int], waits_ms: int, blocks: bool
) -> None:
    sizes: list[int] = []

    def fetch(keys: list[str], values: list[str]) -> list[str]:
        sizes.append(len(values))
        return [f"{key} {value}" for key, value in zip(keys, values, strict=True)]

    async def fetch_later(keys: list[str], values: list[str]) -> list[str]:
        await asyncio.sleep(0)
        return fetch(keys, values)

    topology = looking(fetch if blocks else fetch_later, max_records=most, max_wait=waits_ms * MILLISECOND)
    task = Restartable(topology)
    places = [0, *sorted(cut for cut in cuts if 0 < cut < count), count]
    for start, end in pairwise(places):
        task.run(*(("ab"[n % 2], n, b"%d" % n) for n in range(start, end)))
    assert [record.value for record in task.written()] == [f"{'ab'[n % 2]} {n}".encode() for n in range(count)]
    assert sizes == [
        size
        for start, end in pairwise(places)
        for size in [most] * ((end - start) // most) + [(end - start) % most]
        if size
    ]


@pytest.mark.parametrize(
    "fetch",
    [
        lambda values: [value and value.upper() for value in values],
        lambda values: tuple(value and value.upper() for value in values),
        lambda _keys, values: [value and value.upper() for value in values],
        lambda values: asyncio.sleep(0, [value and value.upper() for value in values]),
        partial(lambda suffix, values: [value and value.upper() + suffix for value in values], ""),
    ],
    ids=["list", "tuple", "keys too", "returns a coroutine", "partial"],
)
def test_functions_of_any_kind_take_batches(fetch: Callable[..., Any]) -> None:
    assert piped(looking(fetch), "a", None, "b") == ["A", None, "B"]


def test_a_call_takes_what_has_come_during_the_call_before() -> None:
    asked = Asked()
    task, topics = running(looking(asked, max_records=5), "k a")
    task.process(10)
    for number, value in enumerate("bcd", 1):
        task.add_records(INPUT, [RawRecord(b"k", value.encode(), number, number)])
        task.process(10)
    task.finish_lookups()
    assert asked.calls == [["a"], ["b", "c", "d"]]
    assert written(topics) == [b"A", b"B", b"C", b"D"]


def test_a_task_takes_two_batches_of_records_and_no_more() -> None:
    asked = Asked()
    task, _ = running(looking(asked, max_records=2), *(f"k {value}" for value in "abcdefg"))
    assert task.process(10) == 4
    assert (task.process(10), task.buffered(INPUT), task.awaits_lookups) == (0, 3, True)
    task.process_all()
    assert asked.calls == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]


def test_many_values_of_one_record_go_in_several_batches() -> None:
    asked = Asked()
    builder = StreamsBuilder()
    letters = builder.stream("in", TEXTS).flat_map_values(list)
    letters.map_values_in_batches(asked, max_records=3).to("out", TO_TEXTS)
    assert piped(builder.build(), "abcdefgh", "i") == list("ABCDEFGHI")
    assert ["".join(call) for call in asked.calls] == ["abc", "def", "gh", "i"]


def waiting(*values: str, max_wait: timedelta, **options: Any) -> tuple[Task, MemoryTopics, MockClock]:
    """A task with these records, whose look-ups are answered at once, but not before they are called for."""
    (sub,) = looking(Asked(), max_wait=max_wait, **options).sub_topologies()
    topics, clock = MemoryTopics(), MockClock()
    answers = AnsweredLookups([LookupAnswer("asked", value, value.upper()) for value in "abcde"])
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), Ports(topics, MemoryBackend(), clock, lookups=answers))
    task.start({})
    task.add_records(INPUT, [RawRecord(b"k", value.encode(), n, n) for n, value in enumerate(values)])
    return task, topics, clock


def test_a_record_waits_for_others_only_so_long() -> None:
    task, topics, clock = waiting("a", max_wait=5 * MILLISECOND)
    task.process(10)
    clock.time_ms += 4
    task.add_records(INPUT, [RawRecord(b"k", b"b", 1, 1)])
    for _ in range(2):
        task.process(10)
    assert (written(topics), task.awaits_lookups) == ([], True)
    clock.time_ms += 1
    for _ in range(2):
        task.process(10)
    assert (written(topics), task.awaits_lookups) == ([b"A", b"B"], False)


@pytest.mark.parametrize("moved_ms", [-1, 6 * 3_600_000])
def test_a_clock_that_is_set_never_keeps_records_waiting(moved_ms: int) -> None:
    task, topics, clock = waiting("a", max_wait=5 * MILLISECOND)
    task.process(10)
    clock.time_ms += moved_ms
    for _ in range(2):
        task.process(10)
    assert written(topics) == [b"A"]


def test_a_full_batch_does_not_wait() -> None:
    task, topics, _ = waiting("a", "b", "c", max_wait=SECOND, max_records=2)
    for _ in range(2):
        task.process(10)
    assert written(topics) == [b"A", b"B"]


def test_a_commit_does_not_wait_for_others_to_fill_a_batch() -> None:
    task, topics, _ = waiting("a", max_wait=SECOND)
    task.process(10)
    assert task.settle()
    assert dict(task.prepare_commit().offsets)[INPUT][0] == 1
    assert written(topics) == [b"A"]


def test_a_batch_is_called_for_when_no_other_record_can_come_before() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", TEXTS)
    stream.merge(stream.map_values_in_batches(Asked(), max_wait=SECOND)).to("out", TO_TEXTS)
    task, topics = running(builder.build(), "k a", "k b")
    task.process(10)
    task.wait_for_lookups(0)
    task.process(10)
    assert written(topics) == [b"a", b"A", b"b"]


def test_a_worker_thread_wakes_up_when_a_batch_is_due() -> None:
    """Within the test's deadline rather than after the wait that it asks for."""
    waited = timedelta(milliseconds=20)
    (sub,) = looking(Asked(), max_wait=waited).sub_topologies()
    clock = MockClock()
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), Ports(MemoryTopics(), MemoryBackend(), clock))
    task.start({})
    task.add_records(INPUT, [RawRecord(b"k", b"a", 0, 0)])
    task.process(10)
    woken = threading.Thread(target=task.wait_for_lookups, args=(10 * DEADLINE_S,))
    woken.start()
    woken.join(DEADLINE_S)
    assert not woken.is_alive()


def test_a_closed_task_cancels_its_batches() -> None:
    asked, ends = threading.Event(), list[list[str]]()

    async def fetch(values: list[str]) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(values)
            raise

    (sub,) = looking(fetch, max_records=2).sub_topologies()
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), Ports(MemoryTopics(), MemoryBackend(), MockClock()))
    task.start({})
    task.add_records(INPUT, [RawRecord(b"k", value.encode(), n, n) for n, value in enumerate("abc")])
    task.process(3)
    assert asked.wait(DEADLINE_S)
    task.close()
    assert ends == [["a", "b"]]


# Failures.


@dataclass
class Noting:
    """A handler that continues, and notes which records have failed, and how."""

    failed: list[tuple[int, str, str]] = field(default_factory=list)

    def __call__(self, context: Any, record: Any, exception: Exception) -> Response:
        self.failed.append((context.offset, record.value, str(exception).partition("\nHint")[0]))
        return Response.resume()


def failing(fetch: Callable[..., Any], values: str, **options: Any) -> tuple[str, list[tuple[int, str, str]]]:
    """The results for letters that share a batch, and what the handler has seen."""
    noting = Noting()
    rows = (f"k {value}" for value in values)
    task, topics = running(looking(fetch, **options), *rows, handlers=ErrorHandlers(processing=noting))
    task.process_all()
    return b"".join(value or b"" for value in written(topics)).decode(), noting.failed


def test_only_the_record_that_fails_alone_is_handled() -> None:
    asked = Asked("f")
    assert failing(asked, "abcdefgh") == ("ABCDEGH", [(5, "f", "not this one")])
    assert ["".join(call) for call in asked.calls] == ["abcdefgh", "abcd", "efgh", "ef", "e", "f", "gh"]


def test_values_that_fail_only_together_all_have_results() -> None:
    def fetch(values: list[str]) -> list[str]:
        if len(values) > 2:
            raise OSError(values)
        return [value.upper() for value in values]

    assert failing(fetch, "abcde") == ("ABCDE", [])


@pytest.mark.parametrize(("bad", "most"), [(range(57, 58), 14), (range(100), 198)], ids=["one", "all"])
def test_further_calls_for_bad_records_of_a_hundred_are_few(bad: range, most: int) -> None:
    calls: list[int] = []

    def fetch(values: list[str]) -> list[str]:
        calls.append(len(values))
        if any(ord(value) in bad for value in values):
            raise OSError
        return values

    _, failed = failing(fetch, "".join(map(chr, range(100))))
    assert [offset for offset, *_ in failed] == [*bad]
    assert len(calls) - 1 <= most


def test_without_a_handler_the_error_names_the_record_and_those_before_it_go_on() -> None:
    task, topics = running(looking(Asked("c", "e")), *(f"k {value}" for value in "abcde"))
    with pytest.raises(
        ProcessingError, match=r"(?s)ValueError: not this one.*partition 0, offset 2, node asked"
    ) as error:
        task.process_all()
    assert "riverrun skip APP in-0@2" in str(error.value)
    assert written(topics) == [b"A", b"B"]


def test_a_batch_is_tried_again_before_it_is_divided() -> None:
    calls: list[str] = []

    async def fetch(values: list[str]) -> list[str]:
        calls.append("".join(values))
        values.clear()  # the records keep theirs
        if len(calls) < 3:
            raise OSError(calls)
        return list(calls[-1].upper())

    assert failing(fetch, "abc", retry=Retry(attempts=3)) == ("ABC", [])
    assert calls == ["abc"] * 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["x"], "the function returned 1 results for 3 values"),
        (("x",) * 4, "the function returned 4 results for 3 values"),
        ("xyz", "the function returned str, not a list"),
        ({"a": "x", "b": "y", "c": "z"}, "the function returned dict, not a list"),
        (None, "the function returned NoneType, not a list"),
        ((value for value in "xyz"), "the function returned generator, not a list"),
    ],
    ids=["too few", "too many", "text", "dict", "none", "generator"],
)
def test_an_answer_that_is_no_result_for_each_value_fails_them_all(answer: Any, message: str) -> None:
    calls: list[int] = []

    def fetch(values: list[str]) -> Any:
        calls.append(len(values))
        return answer

    assert failing(fetch, "abc", retry=Retry(attempts=3)) == ("", [(n, v, message) for n, v in enumerate("abc")])
    assert calls == [3], "for fewer values the number may be right, and the order wrong"


def test_an_answer_that_is_no_list_says_what_to_return() -> None:
    with pytest.raises(ProcessingError, match=r"(?s)1 results for 2 values.*\nReturn a list: the result of each"):
        running_all(looking(lambda _values: ["x"]), "ab")


def running_all(topology: Topology, values: str) -> None:
    task, _ = running(topology, *(f"k {value}" for value in values))
    task.process_all()


def test_an_outage_is_no_failure_of_a_record() -> None:
    calls: list[int] = []

    def fetch(values: list[str]) -> Any:
        calls.append(len(values))
        message = "the registry does not answer"
        raise RegistryError(message)

    with pytest.raises(RegistryError, match="does not answer"):
        failing(fetch, "abc")
    assert calls == [3]


def test_a_record_that_makes_calls_hang_is_found() -> None:
    async def fetch(values: list[str]) -> list[str]:
        if "c" in values:
            await asyncio.Event().wait()
        return [value.upper() for value in values]

    assert failing(fetch, "abcdefgh", timeout=SECOND) == ("ABDEFGH", [(2, "c", "no answer within 1 s")])


def test_a_service_that_always_hangs_is_given_up_in_time() -> None:
    times: list[float] = []

    async def hang(_values: list[str]) -> Any:
        times.append(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    results, failed = failing(hang, "abcd", timeout=timedelta(seconds=7))
    assert results == ""
    message = (
        "a call failed for several records, and there was no time to ask for each: TimeoutError: no answer within 7 s"
    )
    assert failed == [(0, "a", "no answer within 7 s"), *((n, "abcd"[n], message) for n in (1, 2, 3))]
    assert [time - times[0] for time in times] == [0, 7, 14]


class MuteError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError


def test_an_exception_without_a_text_keeps_no_record_waiting() -> None:
    async def fetch(_values: list[str]) -> Any:
        await asyncio.sleep(20)
        raise MuteError

    task, _ = running(looking(fetch, timeout=timedelta(seconds=21)), "k a", "k b")
    with pytest.raises(ProcessingError):
        task.process_all()


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_records": 0}, "max_records must be from 1 to 10000, not 0"),
        ({"max_records": 10_001}, "max_records must be from 1 to 10000"),
        ({"max_records": True}, "max_records must be from 1 to 10000"),
        ({"max_records": "5"}, "max_records must be an int"),
        ({"max_wait": 5}, r"max_wait must be a timedelta.*\nHint: timedelta\(milliseconds=5\)"),
        ({"max_wait": -SECOND}, "max_wait must be a non-negative"),
        (
            {"timeout": 23 * SECOND},
            r"may take 23 s.*\nHint: A commit waits for two batches, so it may take 22.5 s at most",
        ),
        ({"retry": 3}, "retry must be a Retry"),
    ],
)
def test_limits_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        looking(Asked(), **options)


async def generated(values: list[str]) -> Any:
    yield values


@pytest.mark.parametrize("fetch", [lambda: 1, lambda _a, _b, _c: 1, "service", None, generated])
def test_functions_that_do_not_fit_are_refused(fetch: Any) -> None:
    with pytest.raises(TopologyError, match="fetch must be a "):
        looking(fetch)


def test_what_is_asked_is_part_of_the_fingerprint_and_how_many_at_a_time_is_not() -> None:
    def other(values: list[str]) -> list[str]:
        return values

    same = [looking(other, **options).fingerprint() for options in ({}, {"max_records": 5, "max_wait": SECOND})]
    assert same[0] == same[1] != looking(lambda values: values[:]).fingerprint()


# Around it.


def test_calls_are_counted_and_so_are_records() -> None:
    builder = StreamsBuilder()
    letters = builder.stream("in", TEXTS).flat_map_values(list)
    letters.map_values_in_batches(Asked("e"), max_records=3).to("out", TO_TEXTS)
    with TopologyTestDriver(builder.build(), {"processing.exception.handler": "continue"}) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "abcde")
        found = {str(name).partition(":")[2].partition("{")[0]: value for name, value in driver.metrics().items()}
    wanted = {"call-total": 4, "lookup-total": 5, "failure-total": 1, "in-flight": 0, "waiting": 0}
    assert {name: found[name] for name in wanted} == wanted


@dataclass
class Price:
    product: str
    cents: int


def prices_of(products: list[str]) -> list[Price]:
    return [Price(product, len(product)) for product in products]


def test_answers_are_recorded_for_each_record_and_used_in_any_batch(tmp_path: Path) -> None:
    builder, file = StreamsBuilder(), tmp_path / "answers.jsonl"
    priced = (
        builder.stream("in", TEXTS).flat_map_values(str.split).map_values_in_batches(prices_of, named=Named("priced"))
    )
    priced.map_values(lambda price: f"{price.product} {price.cents}").to("out", TO_TEXTS)
    topology = builder.build()

    def run(texts: list[str], **options: Any) -> list[str | None]:
        with TopologyTestDriver(topology, **options) as driver:
            driver.input_topic("in", STRING, STRING).pipe_value_list(texts)
            return driver.output_topic("out", STRING, STRING).read_values_to_list()

    assert run(["fig pear"], record_answers=file) == ["fig 3", "pear 4"]
    assert [json.loads(line)["argument"] for line in file.read_text().splitlines()] == ["fig", "pear"]
    assert run(["pear", "fig"], answers=file) == ["pear 4", "fig 3"]
