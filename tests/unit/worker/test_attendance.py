"""A stream process answers whatever it is at."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from typing import TYPE_CHECKING

import pytest

from pipeline.records import TaskId
from pipeline.worker.attendance import Attendance
from pipeline.worker.protocol import Answered, Ask, Pause, Stop
from pipeline.worker.queries import KeyQuery, Page, Question, RangeQuery

if TYPE_CHECKING:
    from pipeline.worker.protocol import Command

QUESTION = Question("store", TaskId(0, 0), KeyQuery(b"k"))


def nothing(_question: Question) -> Page:
    return Page(())


def nobody_minds(_command: Command) -> None:
    """A command is only kept."""


def test_a_question_is_answered_by_the_thread_that_processes_when_it_attends() -> None:
    ours, theirs = multiprocessing.Pipe()
    threads: list[str] = []

    def answer(_question: Question) -> Page:
        threads.append(threading.current_thread().name)
        return Page(())

    attendance = Attendance(theirs, answer, nobody_minds)
    ours.send(Ask(1, QUESTION))
    attendance.attend()
    assert ours.recv() == Answered(1, Page(()))
    assert threads == [threading.current_thread().name]


def test_a_question_is_answered_at_once_while_brokers_are_waited_for() -> None:
    ours, theirs = multiprocessing.Pipe()
    attendance = Attendance(theirs, nothing, nobody_minds)
    with attendance.away():
        ours.send(Ask(1, QUESTION))
        assert ours.poll(30)
        assert ours.recv() == Answered(1, Page(()))


def test_within_a_commit_only_keys_are_looked_up_and_the_rest_waits() -> None:
    ours, theirs = multiprocessing.Pipe()
    attendance = Attendance(theirs, nothing, nobody_minds)
    attendance.pause()  # nobody has asked
    ours.send(Ask(1, Question("store", TaskId(0, 0), RangeQuery())))
    ours.send(Ask(2, QUESTION))
    attendance.pause()
    assert ours.recv() == Answered(2, Page(()))
    assert not ours.poll(0)
    attendance.attend()
    assert ours.recv() == Answered(1, Page(()))


def test_commands_wait_for_the_thread_that_processes_and_keep_their_order() -> None:
    ours, theirs = multiprocessing.Pipe()
    attendance = Attendance(theirs, nothing, nobody_minds)
    with attendance.away():
        ours.send(Pause(paused=True))
        ours.send(Ask(1, QUESTION))
        assert ours.poll(30)
        ours.recv()
    ours.send(Pause(paused=False))
    assert [attendance.next_command(), attendance.next_command(30), attendance.next_command()] == [
        Pause(paused=True),
        Pause(paused=False),
        None,
    ]


def test_a_command_is_heard_of_while_brokers_are_waited_for() -> None:
    ours, theirs = multiprocessing.Pipe()
    heard: queue.SimpleQueue[Command] = queue.SimpleQueue()
    attendance = Attendance(theirs, nothing, heard.put)
    with attendance.away():
        ours.send(Stop())
        assert heard.get(timeout=30) == Stop()
    assert attendance.next_command() == Stop()


def test_a_supervisor_that_is_gone_is_noticed_wherever_it_happens() -> None:
    ours, theirs = multiprocessing.Pipe()
    attendance = Attendance(theirs, nothing, nobody_minds)
    with attendance.away():
        ours.close()
    with pytest.raises(EOFError):
        attendance.next_command(30)
