"""Look-ups: order, limits, failures, repeated attempts, restarts, and the cache of answers."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    STRING,
    CachedLookup,
    Consumed,
    Produced,
    Response,
    Retry,
    StreamsBuilder,
)
from riverrun.errors import ProcessingError, SerializationError, TopologyError
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.event_loop import EventLoopThread
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from tests.unit.operators.looking import LETTERS, TEXTS, TO_TEXTS, piped, running
from tests.unit.operators.restarting import INPUT, Restartable
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

FORKED_AND_FINISHED = 7
SECOND = timedelta(seconds=1)


def looking(fetch: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).map_values_async(fetch, **options).to("out", TO_TEXTS)
    return builder.build()


async def shouted(value: str | None) -> str | None:
    await asyncio.sleep(0.01)
    return value and value.upper()


class TooManyRequestsError(Exception):
    """A service's answer 429, with its header Retry-After."""

    def __init__(self, retry_after: object) -> None:
        super().__init__("429 Too Many Requests")
        self.retry_after = retry_after


# Results.


def test_an_answer_goes_on_with_the_record_that_asked_for_it() -> None:
    async def with_key(key: str, value: str) -> str:
        return f"{key}={value}"

    builder = StreamsBuilder()
    builder.stream("in", TEXTS).map_values_async(with_key).to("out", TO_TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "b", timestamp=7, headers=(("h", b"1"),))
        (found,) = driver.output_topic("out", STRING, STRING).read_records_to_list()
    assert (found.key, found.value, found.timestamp, found.headers) == ("a", "a=b", 7, (("h", b"1"),))


@pytest.mark.parametrize(
    "fetch",
    [
        shouted,
        partial(shouted),
        CachedLookup(shouted),
        lambda value: value and value.upper(),
        lambda value: asyncio.sleep(0, value and value.upper()),
        lambda _key, value: value and value.upper(),
    ],
    ids=["coroutine", "partial", "cached", "blocking", "blocking that returns a coroutine", "blocking with key"],
)
def test_functions_of_any_kind_look_up(fetch: Callable[..., Any]) -> None:
    assert piped(looking(fetch), "a", None, "b") == ["A", None, "B"]


@pytest.mark.parametrize("is_blocking", [False, True])
def test_a_look_up_may_answer_several_values_or_none(is_blocking: bool) -> None:
    async def words(value: str) -> list[str]:
        return value.split()

    builder = StreamsBuilder()
    fetch: Any = (lambda value: value.split()) if is_blocking else words
    builder.stream("in", TEXTS).flat_map_values_async(fetch).to("out", TO_TEXTS)
    assert piped(builder.build(), "a b", "", "c") == ["a", "b", "c"]


def test_the_driver_can_be_used_within_an_event_loop() -> None:
    async def test() -> list[Any]:
        return piped(looking(shouted), "a")

    assert asyncio.run(test()) == ["A"]


def test_time_in_the_driver_is_virtual() -> None:
    times: list[float] = []

    async def wait_a_day(value: str) -> str:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(30)
        times.append(asyncio.get_running_loop().time())
        return value

    assert piped(looking(wait_a_day, timeout=timedelta(seconds=40)), "a") == ["a"]
    assert times == [0, 30]


# The plain model.

Rows = list[tuple[str, int]]
Outcomes = dict[tuple[str, int], int]


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), max_size=30),
    attempts=st.integers(1, 3),
    most=st.sampled_from([1, 2, 5, 100]),
    cuts=st.sets(st.integers(0, 30), max_size=3),
    ordered=st.booleans(),
    blocks=st.booleans(),
)
@example(rows=[("a", 6), ("a", 0), ("b", 0)], attempts=1, most=100, cuts=set(), ordered=False, blocks=False)
def test_answers_are_those_of_a_plain_model_whatever_restarts(
    rows: Rows, attempts: int, most: int, cuts: set[int], ordered: bool, blocks: bool
) -> None:
    """The value of a row is the number of ms until the answer; each row fails until its last attempt."""
    failures: dict[int, int] = {}
    flying = [0, 0]
    lock = threading.Lock()

    async def fetch(key: str, value: str) -> str:
        number, wait_ms = map(int, value.split(" ", 1))
        with lock:
            flying[0] += 1
            flying[1] = max(flying)
        try:
            if not blocks:
                await asyncio.sleep(wait_ms / 1000)
            failures[number] = failures.get(number, 0) + 1
            if failures[number] < attempts:
                raise TooManyRequestsError(0.0)
            return f"{key} {number}"
        finally:
            with lock:
                flying[0] -= 1

    chosen = (lambda key, value: asyncio.run(fetch(key, value))) if blocks else fetch
    retry = Retry(attempts=attempts, backoff=timedelta(0))
    task = Restartable(looking(chosen, max_in_flight=most, retry=retry, ordered=ordered))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        numbered = [(rows[n][0], n, b"%d %d" % (n, rows[n][1])) for n in range(start, end)]
        task.run(*numbered)
    found = [(record.key or b"", record.value or b"") for record in task.written()]
    expected = [(key.encode(), f"{key} {n}".encode()) for n, (key, _) in enumerate(rows)]
    if not ordered:  # only records of one key keep their order
        found, expected = (sorted(each, key=lambda row: row[0]) for each in (found, expected))
    assert found == expected
    assert flying[1] <= most


def test_without_order_a_slow_answer_holds_up_its_own_key_only() -> None:
    waits = {"slow": 5, "quick": 0, "other": 1}

    async def fetch(value: str) -> str:
        await asyncio.sleep(waits[value.partition(" ")[0]])
        return value

    task, topics = running(looking(fetch, ordered=False), "a slow", "a quick", "b other", "c quick")
    task.process_all()
    assert [record.value for record in topics.logs["out"]] == [b"quick", b"other", b"slow", b"quick"]


def test_keys_without_a_hash_keep_their_order() -> None:
    async def fetch(value: int) -> int:
        await asyncio.sleep(value)
        return value

    builder = StreamsBuilder()
    numbers = builder.stream("in", Consumed(JSON, JSON)).map_values_async(fetch, ordered=False)
    numbers.to("out", Produced(JSON, JSON))
    task, topics = running(builder.build(), '{"a":1} 3', '{"b":1} 2', '{"a":1} 1')
    task.process_all()
    assert [record.value for record in topics.logs["out"]] == [b"3", b"2", b"1"]


# Limits.


def test_a_task_takes_no_more_records_than_it_may_look_up() -> None:
    task, topics = running(looking(shouted, max_in_flight=2), "k a", "k b", "k c")
    assert task.process(10) == 2
    assert (task.process(10), task.buffered(INPUT), task.awaits_lookups) == (0, 1, True)
    task.finish_lookups()
    assert task.process(10) == 1
    assert [record.value for record in topics.logs["out"]] == [b"A", b"B"]


def test_a_task_that_is_to_commit_takes_no_more_records_until_it_has() -> None:
    task, topics = running(looking(shouted, max_in_flight=2), "k a", "k b", "k c")
    task.process(1)
    assert not task.settle()
    assert task.process(10) == 0
    task.finish_lookups()
    assert task.settle()
    assert task.process(10) == 0
    assert dict(task.prepare_commit().offsets)[INPUT][0] == 1
    assert task.process(10) == 2
    assert len(topics.logs["out"]) == 1


def test_a_commit_waits_for_the_look_ups_before_it() -> None:
    task, topics = running(looking(shouted), "k a", "k b")
    task.process(10)
    assert dict(task.prepare_commit().offsets)[INPUT][0] == 2
    assert [record.value for record in topics.logs["out"]] == [b"A", b"B"]


def test_records_made_of_one_record_wait_beyond_the_limit() -> None:
    flying = [0, 0]

    async def fetch(value: str) -> str:
        flying[0] += 1
        flying[1] = max(flying)
        await asyncio.sleep(1)
        flying[0] -= 1
        return value

    builder = StreamsBuilder()
    letters = builder.stream("in", TEXTS).flat_map_values(list)
    letters.map_values_async(fetch, max_in_flight=3).to("out", TO_TEXTS)
    assert piped(builder.build(), "abcdefgh") == list("abcdefgh")
    assert flying[1] == 3


def test_a_closed_task_cancels_its_look_ups() -> None:
    ends: list[str] = []

    async def fetch(value: str) -> str:
        try:
            return str(await asyncio.Event().wait())
        except asyncio.CancelledError:
            ends.append(value)
            raise

    topics, asked = MemoryTopics(), threading.Event()

    async def told(value: str) -> str:
        asked.set()
        return await fetch(value)

    (sub,) = looking(told).sub_topologies()
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), Ports(topics, MemoryBackend(), MockClock()))
    task.start({})
    task.add_records(INPUT, [RawRecord(b"k", b"a", 0, 0)])
    task.process(1)
    assert asked.wait(DEADLINE_S)
    task.close()
    assert ends == ["a"]


def test_a_function_that_blocks_the_loop_does_not_keep_tasks_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.runtime.event_loop._GOODBYE_SECONDS", 0.01)
    asked, ended = threading.Event(), threading.Event()

    async def block(value: str) -> str:
        asked.set()
        ended.wait()
        return value

    (sub,) = looking(block).sub_topologies()
    lookups = EventLoopThread()
    tasks = []
    for _ in range(2):
        ports = Ports(MemoryTopics(), MemoryBackend(), MockClock(), lookups=lookups)
        tasks.append(Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), ports))
        tasks[-1].start({})
        tasks[-1].add_records(INPUT, [RawRecord(b"k", b"a", 0, 0)])
        tasks[-1].process(1)
    assert asked.wait(DEADLINE_S)
    for task in tasks:
        task.close()
    assert lookups.finished == 0
    ended.set()


def test_a_process_that_was_forked_while_look_ups_began_and_ended_looks_up() -> None:
    async def answer(value: str) -> str:
        return value

    (sub,) = looking(answer).sub_topologies()
    lookups = EventLoopThread()

    def look_up() -> int:
        ports = Ports(MemoryTopics(), MemoryBackend(), MockClock(), lookups=lookups)
        task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), ports)
        task.start({})
        task.add_records(INPUT, [RawRecord(b"k", b"a", 0, 0)])
        task.process(1)
        task.finish_lookups()
        return lookups.finished

    assert look_up() == 1
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with lookups._starting, lookups._news:
            held.set()
            forked.wait()

    threading.Thread(target=hold).start()
    held.wait()
    if (child := os.fork()) == 0:
        try:
            signal.alarm(30)
            os._exit(FORKED_AND_FINISHED if look_up() == 2 else 1)
        finally:
            os._exit(1)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == FORKED_AND_FINISHED
    assert look_up() == 2, "the parent looks up as before"


# Failures.


async def hang(_value: str) -> str:
    return str(await asyncio.Event().wait())


async def garbage(_value: str) -> Any:
    return json.loads("<html>")


async def die(_value: str) -> Any:
    message = "Connection reset by peer"
    raise ConnectionResetError(message)


async def leave(_value: str) -> Any:
    sys.exit(3)


async def cancel(_value: str) -> Any:
    raise asyncio.CancelledError


async def own_timeout(_value: str) -> Any:
    message = "of the client"
    raise TimeoutError(message)


def generator(value: str) -> Any:
    message = f"no {value}"
    raise StopIteration(message)


def leave_in_thread(_value: str) -> Any:
    sys.exit(3)


ENOUGH = "enough"


class OwnError(BaseException):
    """An end that is no exception of Python's."""


def ending(end: type[BaseException], *, blocks: bool = False, creates: bool = False) -> Any:
    """A look-up function that raises something, itself or in a task that it creates."""

    async def ends(_value: str) -> Any:
        raise end(ENOUGH)

    async def creates_one(value: str) -> Any:
        await asyncio.get_running_loop().create_task(ends(value))

    def ends_in_thread(_value: str) -> Any:
        raise end(ENOUGH)

    function = ends_in_thread if blocks else creates_one if creates else ends
    function.__name__ = f"{end.__name__}_{function.__name__}"
    return function


ENDS = [KeyboardInterrupt, GeneratorExit, OwnError]
FAILURES = [
    *((ending(end), rf"{end.__name__}\(.*\) was raised") for end in ENDS),
    *((ending(end, blocks=True), rf"{end.__name__}\(.*\) was raised") for end in ENDS),
    *((ending(end, creates=True), rf"{end.__name__}\(.*\) was raised") for end in (GeneratorExit, OwnError)),
    (hang, "TimeoutError: no answer within 10 s"),
    (garbage, "JSONDecodeError: Expecting value"),
    (die, "ConnectionResetError: Connection reset by peer"),
    (leave, r"sys.exit\(3\) was called"),
    (cancel, "cancelled from within"),
    (own_timeout, "TimeoutError: of the client"),
    (generator, "the function raised StopIteration: no a"),
    (leave_in_thread, r"sys.exit\(3\) was called"),
]


@pytest.mark.parametrize(("fetch", "message"), FAILURES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_failed_look_up_stops_the_task_and_names_the_record(fetch: Callable[..., Any], message: str) -> None:
    with pytest.raises(ProcessingError, match=rf"(?s){message}.*topic in, partition 0, offset 0"):
        piped(looking(fetch), "a")


@pytest.mark.parametrize(("fetch", "message"), FAILURES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_failed_look_up_becomes_a_dead_letter(fetch: Callable[..., Any], message: str) -> None:
    del message
    with TopologyTestDriver(looking(fetch), LETTERS) as driver:
        for value in "ab":
            driver.input_topic("in", STRING, STRING).pipe_input("k", value, timestamp=5)
        assert driver.output_topic("out", STRING, STRING).read_records_to_list() == []
        assert [(letter.key, letter.value) for letter in driver.read_raw("letters")] == [(b"k", b"a"), (b"k", b"b")]
        assert driver.dropped() == {"processing-failed": 2}


SEEN: list[tuple[Any, ...]] = []


def noting(context: Any, record: Any, exception: Exception) -> Response:
    SEEN.append((context.processor_node_id, context.offset, context.source_raw_value, record.value, str(exception)))
    return Response.resume()


def test_the_handler_gets_the_record_that_asked_and_the_order_is_kept() -> None:
    async def fetch(value: str) -> str:
        await asyncio.sleep(9 - int(value))
        if value == "1":
            message = "not found"
            raise KeyError(message)
        return value

    SEEN.clear()
    builder = StreamsBuilder()
    looked_up = builder.stream("in", TEXTS).map_values(lambda v: str(int(v) + 1)).map_values_async(fetch)
    looked_up.to("out", TO_TEXTS)
    handler = {"processing.exception.handler": f"{__name__}:noting"}
    assert piped(builder.build(), "0", "1", "2", config=handler) == ["2", "3"]
    assert SEEN == [("KSTREAM-MAPVALUESASYNC-0000000002", 0, b"0", "1", "'not found'")]


def test_an_answer_that_cannot_be_written_is_a_failure_of_the_sink() -> None:
    async def fetch(_value: str) -> Any:
        return {"not": "a text"}

    with pytest.raises(SerializationError, match="offset 0"):
        piped(looking(fetch), "a")
    assert piped(looking(fetch), "a", config={"production.exception.handler": "continue"}) == []


def test_an_operator_below_that_fails_names_the_record_that_asked() -> None:
    def fail_at_c(value: str | None) -> str:
        if value == "C":
            message = "not C"
            raise ValueError(message)
        return str(value)

    builder = StreamsBuilder()
    builder.stream("in", TEXTS).map_values_async(shouted).map_values(fail_at_c).to("out", TO_TEXTS)
    task, topics = running(builder.build(), "k a", "k b", "k c", "k d")
    with pytest.raises(ProcessingError, match=r"(?s)not C.*offset 2"):
        task.process_all()
    assert [record.value for record in topics.logs["out"]] == [b"A", b"B"]


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (None, [1, 2, 4]),
        (3, [3, 3, 4]),
        (0.5, [1, 2, 4]),
        (3600, [5, 5, 5]),
        ("soon", [1, 2, 4]),
        (-1, [1, 2, 4]),
    ],
)
def test_a_look_up_is_tried_again_when_the_service_says(asked: object, waits: list[float]) -> None:
    times: list[float] = []

    async def fetch(value: str) -> str:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            raise TooManyRequestsError(asked)
        return value

    retry = Retry(attempts=4, backoff=SECOND, longest_wait=5 * SECOND)
    assert piped(looking(fetch, retry=retry, timeout=SECOND), "a") == ["a"]
    assert [later - sooner for sooner, later in pairwise(times)] == waits


def test_only_failures_that_may_pass_are_tried_again() -> None:
    tried: list[str] = []

    async def fetch(value: str) -> str:
        tried.append(value)
        raise (KeyError if value == "a" else OSError)(value)

    topology = looking(fetch, retry=Retry(attempts=3, on=(OSError, TimeoutError)))
    assert piped(topology, "a", "b", config=LETTERS) == []
    assert tried == ["a", "b", "b", "b"]


def test_a_service_that_hangs_once_is_asked_again() -> None:
    tried: list[str] = []

    async def fetch(value: str) -> str:
        tried.append(value)
        return await hang(value) if len(tried) == 1 else value

    assert piped(looking(fetch, retry=Retry(attempts=2)), "a") == ["a"]


def test_a_blocking_function_that_hangs_is_given_up() -> None:
    ended = threading.Event()

    def fetch(value: str) -> str:
        return str(ended.wait()) if value == "a" else value

    topology = looking(fetch, timeout=timedelta(milliseconds=20), max_in_flight=2)
    assert piped(topology, "a", "b", config=LETTERS) == ["b"]
    ended.set()


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_in_flight": 0}, "max_in_flight must be from 1 to 10000, not 0"),
        ({"max_in_flight": 10_001}, "max_in_flight must be from 1 to 10000"),
        ({"max_in_flight": True}, "max_in_flight must be from 1 to 10000"),
        ({"max_in_flight": "5"}, "max_in_flight must be an int"),
        ({"timeout": timedelta(0)}, "timeout must be at least 1 ms"),
        ({"timeout": 5}, "timeout must be a timedelta"),
        ({"timeout": 46 * SECOND}, r"may take 46 s.*\nHint: A commit waits for it, so it may take 45 s at most"),
        ({"timeout": 10 * SECOND, "retry": Retry(attempts=5)}, "may take 70 s"),
        ({"retry": 3}, r"retry must be a Retry, not 3 \(int\).*\nHint: Retry\(attempts=3\)"),
        ({"ordered": "no"}, "ordered must be True or False"),
        ({"named": "name"}, "named must be Named"),
    ],
)
def test_limits_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        looking(shouted, **options)


@pytest.mark.parametrize("fetch", [lambda: 1, lambda _a, _b, _c: 1, "service", None])
def test_functions_that_do_not_fit_are_refused(fetch: Any) -> None:
    with pytest.raises(TopologyError, match="fetch must be a function of"):
        looking(fetch)


def test_an_asynchronous_generator_is_refused() -> None:
    async def fetch(value: str) -> Any:
        yield value

    with pytest.raises(TopologyError, match=r"fetch must be a plain function, not .*fetch, which is async"):
        looking(fetch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "attempts must be from 1 to 100, not 0"),
        ({"attempts": 101}, "attempts must be from 1 to 100"),
        ({"attempts": 1.5}, "attempts must be an int"),
        ({"backoff": 1}, "backoff must be a timedelta"),
        ({"backoff": -SECOND}, "backoff must be a non-negative"),
        ({"longest_wait": -SECOND}, "longest_wait must be a non-negative"),
        ({"on": "ValueError"}, "on must be a class of exceptions"),
        ({"on": (ValueError, int)}, "on must be a class of exceptions"),
    ],
)
def test_attempts_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Retry(**options)


def test_what_is_asked_is_part_of_the_fingerprint_and_how_often_is_not() -> None:
    def other(value: str) -> str:
        return value.lower()

    prints = [
        looking(shouted).fingerprint(),
        looking(shouted, max_in_flight=5, timeout=SECOND, retry=Retry()).fingerprint(),
        looking(shouted, ordered=False).fingerprint(),
        looking(other).fingerprint(),
        looking(CachedLookup(shouted)).fingerprint(),
        looking(CachedLookup(other)).fingerprint(),
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 5


# The cache.


class Asked:
    """A service that counts what it is asked."""

    def __init__(self, pause_s: float = 1) -> None:
        self.keys: list[str] = []
        self.pause_s = pause_s
        self.fails = False

    async def __call__(self, key: str) -> str:
        self.keys.append(key)
        await asyncio.sleep(self.pause_s)
        if self.fails:
            raise ConnectionError(key)
        return f"{key}{len(self.keys)}"


def test_answers_are_kept_until_they_are_too_old() -> None:
    asked = Asked()
    with TopologyTestDriver(looking(CachedLookup(asked, ttl=timedelta(minutes=1)))) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        topic.pipe_value_list(["a", "a", "b"])
        driver.advance_wall_clock_time(timedelta(seconds=55))
        topic.pipe_input(None, "a")
        driver.advance_wall_clock_time(timedelta(seconds=6))
        topic.pipe_input(None, "a")
        found = [record.value for record in driver.output_topic("out", STRING, STRING).read_records_to_list()]
    assert asked.keys == ["a", "b", "a"]
    assert found == ["a1", "a1", "b2", "a1", "a3"]


@pytest.mark.parametrize("is_blocking", [True, False])
@pytest.mark.parametrize("absent", [None, "", 0, ()])
def test_without_a_ttl_what_is_not_found_is_asked_for_again(absent: Any, is_blocking: bool) -> None:
    answers: dict[str, Any] = {"a": absent}
    asked: list[str] = []

    def fetch(key: str) -> Any:
        asked.append(key)
        return answers.get(key)

    async def fetch_later(key: str) -> Any:
        return fetch(key)

    for ttl in (None, timedelta(hours=1)):
        answers["a"] = absent
        asked.clear()
        cached: CachedLookup[str, Any] = CachedLookup(fetch if is_blocking else fetch_later, ttl=ttl)

        async def thrice(cached: CachedLookup[str, Any] = cached) -> list[Any]:
            found = [*await asyncio.gather(cached("a"), cached("a")), await cached("a")]
            answers["a"] = "found"
            return [*found, await cached("a"), await cached("a")]

        again = absent is None and ttl is None
        assert asyncio.run(thrice()) == [absent, absent, absent, *(["found"] * 2 if again else [absent] * 2)]
        assert len(asked) == (3 if again else 1), "several look-ups at a time still ask once"


def test_answers_that_were_not_used_for_longest_make_room() -> None:
    asked = Asked()
    assert piped(looking(CachedLookup(asked, max_entries=2)), *"abacab") == ["a1", "b2", "a1", "c3", "a1", "b4"]
    assert asked.keys == ["a", "b", "c", "b"]


def test_look_ups_of_one_key_at_a_time_ask_once() -> None:
    asked = Asked()
    task, topics = running(looking(CachedLookup(asked)), "k a", "k a", "k b", "k a")
    task.process_all()
    assert [record.value for record in topics.logs["out"]] == [b"a2", b"a2", b"b2", b"a2"]
    assert asked.keys == ["a", "b"]


def test_failures_are_not_kept_and_reach_all_that_wait() -> None:
    asked = Asked(pause_s=0)
    asked.fails = True
    cached = CachedLookup(asked)

    async def twice() -> list[Any]:
        found = await asyncio.gather(cached("a"), cached("a"), return_exceptions=True)
        asked.fails = False
        return [*map(type, found), await cached("a")]

    assert asyncio.run(twice()) == [ConnectionError, ConnectionError, "a2"]


def test_a_look_up_that_nobody_waits_for_any_more_is_cancelled() -> None:
    ends: list[str] = []

    async def fetch(key: str) -> str:
        try:
            if not ends:
                await asyncio.Event().wait()
        finally:
            ends.append(key)
        return key

    assert piped(looking(CachedLookup(fetch), retry=Retry(attempts=2)), "a") == ["a"]
    assert ends == ["a", "a"]


def test_a_cache_of_a_blocking_function_asks_in_threads() -> None:
    names: set[str] = set()

    def fetch(key: str) -> str:
        names.add(threading.current_thread().name)
        return key.upper()

    assert piped(looking(CachedLookup(fetch)), "a", "a") == ["A", "A"]
    assert names == {"look-up"}


def test_what_look_ups_do_is_measured() -> None:
    asked: list[str] = []

    async def answer(value: str) -> str:
        asked.append(value)
        if value == "gone" or (value == "late" and asked.count("late") == 1):
            await asyncio.sleep(5 if value == "late" else 1)
            raise KeyError(value)
        await asyncio.sleep(3)
        return value.upper()

    cached = CachedLookup(answer)

    async def from_cache(value: str) -> str:
        return await cached(value)

    topology = looking(from_cache, timeout=4 * SECOND, retry=Retry(attempts=2, backoff=SECOND))
    with TopologyTestDriver(topology, {"processing.exception.handler": "continue"}) as driver:
        pipe = driver.input_topic("in", STRING, STRING).pipe_input
        for value in ("a", "a", "late", "gone"):
            pipe("k", value)
        found = {str(name).partition(":")[2].partition("{")[0]: value for name, value in driver.metrics().items()}
    assert {
        name: value
        for name, value in found.items()
        if name.endswith(("total", "flight", "waiting", "size", "avg", "max"))
    } == {
        "lookup-total": 4,
        "lookup-latency-avg": (3000 + 0 + (4000 + 1000 + 3000) + (1000 + 1000 + 1000)) / 4,
        "lookup-latency-max": 8000,
        "in-flight": 0,
        "waiting": 0,
        "call-total": 6,
        "failure-total": 1,
        "retry-total": 2,
        "timeout-total": 1,
        "cache-hit-total": 1,
        "cache-miss-total": 5,
        "cache-size": 2,
    }


def test_without_look_ups_nothing_is_measured() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        assert not [name for name in driver.metrics() if "lookup" in str(name)]


def test_a_pickled_cache_knows_nothing() -> None:
    cached = CachedLookup(shouted, SECOND, 5)
    asyncio.run(cached("a"))
    found = pickle.loads(pickle.dumps(cached))  # noqa: S301 - its own bytes
    assert (found, found.ttl) == (cached, SECOND)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_entries": 0}, "max_entries must be at least 1, not 0"),
        ({"max_entries": "5"}, "max_entries must be an int"),
        ({"ttl": 5}, "ttl must be a timedelta"),
        ({"ttl": -SECOND}, "ttl must be a non-negative"),
        ({"fetch": lambda _a, _b: 1}, "fetch must be a function of"),
    ],
)
def test_caches_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        CachedLookup(**{"fetch": shouted, **options})
