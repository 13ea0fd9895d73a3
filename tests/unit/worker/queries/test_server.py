"""A stream thread answers whatever it is at."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from riverrun.records import TaskId
from riverrun.worker.answers import QueryServer
from riverrun.worker.queries import Answered, AnswerPage, Ask, KeyQuery, RangeQuery, StoreQuery

QUESTION = StoreQuery("store", TaskId(0, 0), KeyQuery(b"k"))


def nothing(_question: StoreQuery) -> AnswerPage:
    return AnswerPage(())


def test_a_question_is_answered_by_the_thread_that_processes_when_it_attends() -> None:
    ours, theirs = multiprocessing.Pipe()
    threads: list[str] = []

    def answer(_question: StoreQuery) -> AnswerPage:
        threads.append(threading.current_thread().name)
        return AnswerPage(())

    server = QueryServer(theirs, answer)
    ours.send(Ask(1, QUESTION))
    server.attend()
    assert ours.recv() == Answered(1, AnswerPage(()))
    assert threads == [threading.current_thread().name]


def test_a_question_is_answered_at_once_while_brokers_are_waited_for() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    with server.away():
        ours.send(Ask(1, QUESTION))
        assert ours.poll(30)
        assert ours.recv() == Answered(1, AnswerPage(()))


def test_within_a_commit_only_keys_are_looked_up_and_the_rest_waits() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    server.pause()  # nobody has asked
    ours.send(Ask(1, StoreQuery("store", TaskId(0, 0), RangeQuery())))
    ours.send(Ask(2, QUESTION))
    server.pause()
    assert ours.recv() == Answered(2, AnswerPage(()))
    assert not ours.poll(0)
    server.attend()
    assert ours.recv() == Answered(1, AnswerPage(()))


def test_an_instance_that_is_gone_is_noticed_wherever_it_happens() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    with server.away():
        ours.close()
    server.pause()
    with pytest.raises(EOFError):
        server.attend()
