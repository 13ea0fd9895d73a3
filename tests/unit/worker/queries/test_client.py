"""Questions to stream threads get an answer, whatever becomes of the process."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.records import TaskId
from riverrun.worker.queries import (
    Answered,
    AnswerPage,
    KeyQuery,
    QueryClient,
    Refusal,
    RefusalReason,
    StoreQuery,
    StoreRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

LONG_S = 60.0


def question(key: bytes = b"k") -> StoreQuery:
    return StoreQuery("store", TaskId(0, 0), KeyQuery(key))


class Caller:
    """Asks in threads."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        ours, self.pipe = multiprocessing.Pipe()
        self.client = QueryClient(ours, "Stream thread 1")
        self._threads = threads

    def ask(self, key: bytes = b"k") -> Future[Any]:
        return self._threads.submit(self.client.ask, question(key), LONG_S)


@pytest.fixture
def caller() -> Iterator[Caller]:
    with ThreadPoolExecutor() as threads:
        caller = Caller(threads)
        yield caller
        caller.pipe.close()


def echo(pipe: Connection, count: int) -> None:
    for _ in range(count):
        ask = pipe.recv()
        pipe.send(Answered(ask.number, AnswerPage((StoreRow(ask.question.query.key, b""),))))


def test_answers_reach_their_callers_in_any_order(caller: Caller) -> None:
    first = caller.ask()
    asked = caller.pipe.recv()
    second = caller.ask()
    later = caller.pipe.recv()
    caller.pipe.send(Answered(later.number, AnswerPage((), is_standby=True)))
    assert second.result(LONG_S) == AnswerPage((), is_standby=True)
    assert not first.done()
    caller.pipe.send(Answered(asked.number, AnswerPage(())))
    assert first.result(LONG_S) == AnswerPage(())


def test_when_one_has_its_answer_another_listens(caller: Caller) -> None:
    answers = [caller.ask(), caller.ask()]
    numbers = [caller.pipe.recv().number, caller.pipe.recv().number]
    for number in numbers:
        caller.pipe.send(Answered(number, AnswerPage(())))
    assert [answer.result(LONG_S) for answer in answers] == [AnswerPage(()), AnswerPage(())]


def test_many_ask_at_the_same_time(caller: Caller) -> None:
    keys = [str(number).encode() for number in range(500)]
    process = threading.Thread(target=echo, args=(caller.pipe, len(keys)))
    process.start()
    asked = [caller.ask(key) for key in keys]
    assert [answer.result(LONG_S).rows[0].key for answer in asked] == keys
    process.join()


def test_a_process_that_dies_refuses_what_it_was_asked_before_and_after(caller: Caller) -> None:
    before = [caller.ask(), caller.ask()]
    caller.pipe.recv()
    caller.pipe.recv()
    caller.pipe.close()
    during = caller.ask()
    refused = [answer.result(LONG_S) for answer in (*before, during)]
    caller.client.gone()
    caller.client.gone()
    refused.append(caller.ask().result(LONG_S))
    assert refused == [Refusal(RefusalReason.FAILED, "Stream thread 1 ended before it answered")] * 4


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(caller: Caller) -> None:
    late = caller.client.ask(question(), 0.01)
    assert late == Refusal(RefusalReason.FAILED, "Stream thread 1 did not answer within 0.01 s")
    caller.pipe.send(Answered(caller.pipe.recv().number, AnswerPage((), is_standby=True)))
    answer = caller.ask()
    caller.pipe.send(Answered(caller.pipe.recv().number, AnswerPage(())))
    assert answer.result(LONG_S) == AnswerPage(())


def test_who_waits_for_another_to_listen_gives_up_in_time(caller: Caller) -> None:
    listening = caller.ask()
    number = caller.pipe.recv().number
    assert caller.client.ask(question(), 0.01) == Refusal(
        RefusalReason.FAILED, "Stream thread 1 did not answer within 0.01 s"
    )
    caller.pipe.send(Answered(number, AnswerPage(())))
    assert listening.result(LONG_S) == AnswerPage(())
