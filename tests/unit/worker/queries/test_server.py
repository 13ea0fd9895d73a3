"""A stream thread answers whatever it is at."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from riverrun.records import TaskId
from riverrun.worker.answers import QueryServer
from riverrun.worker.queries import Answered, Ask, KeyQuery, Page, Question, RangeQuery

QUESTION = Question("store", TaskId(0, 0), KeyQuery(b"k"))


def nothing(_question: Question) -> Page:
    return Page(())


def test_a_question_is_answered_by_the_thread_that_processes_when_it_attends() -> None:
    ours, theirs = multiprocessing.Pipe()
    threads: list[str] = []

    def answer(_question: Question) -> Page:
        threads.append(threading.current_thread().name)
        return Page(())

    server = QueryServer(theirs, answer)
    ours.send(Ask(1, QUESTION))
    server.attend()
    assert ours.recv() == Answered(1, Page(()))
    assert threads == [threading.current_thread().name]


def test_a_question_is_answered_at_once_while_brokers_are_waited_for() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    with server.away():
        ours.send(Ask(1, QUESTION))
        assert ours.poll(30)
        assert ours.recv() == Answered(1, Page(()))


def test_within_a_commit_only_keys_are_looked_up_and_the_rest_waits() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    server.pause()  # nobody has asked
    ours.send(Ask(1, Question("store", TaskId(0, 0), RangeQuery())))
    ours.send(Ask(2, QUESTION))
    server.pause()
    assert ours.recv() == Answered(2, Page(()))
    assert not ours.poll(0)
    server.attend()
    assert ours.recv() == Answered(1, Page(()))


def test_an_instance_that_is_gone_is_noticed_wherever_it_happens() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = QueryServer(theirs, nothing)
    with server.away():
        ours.close()
    server.pause()
    with pytest.raises(EOFError):
        server.attend()
