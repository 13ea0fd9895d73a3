"""Questions to stream processes get an answer, whatever becomes of the process."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from pipeline.records import TaskId
from pipeline.worker.processes import StreamProcess
from pipeline.worker.protocol import Answered, Ask
from pipeline.worker.queries import KeyQuery, Page, Question, Reason, Refusal

QUESTION = Question("store", TaskId(0, 0), KeyQuery(b"k"))


@pytest.fixture
def pipes() -> tuple[Any, Any]:
    return multiprocessing.Pipe()


def stream(pipe: Any) -> StreamProcess:
    process: Any = None
    return StreamProcess(1, process, pipe)


def test_answers_come_back_to_whoever_asked_in_any_order(pipes: tuple[Any, Any]) -> None:
    ours, theirs = pipes
    asked = stream(ours)
    first, second = asked.ask(QUESTION), asked.ask(QUESTION)
    questions: list[Ask] = [theirs.recv(), theirs.recv()]
    asked.hear(Answered(questions[1].number, Page((), position={})))
    assert second.done()
    assert not first.done()
    asked.hear(Answered(questions[0].number, Page(())))
    assert first.result(0) == Page(())
    assert not asked.asked


def test_a_process_that_dies_refuses_what_it_was_asked_before_and_after(pipes: tuple[Any, Any]) -> None:
    ours, _theirs = pipes
    asked = stream(ours)
    before = asked.ask(QUESTION)
    ours.close()
    asked.leave_unanswered()
    after = asked.ask(QUESTION)
    for answer in (before.result(0), after.result(0)):
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.FAILED


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(pipes: tuple[Any, Any]) -> None:
    ours, theirs = pipes
    asked = stream(ours)
    asked.ask(QUESTION).cancel()
    asked.hear(Answered(theirs.recv().number, Page(())))
    assert not asked.asked
