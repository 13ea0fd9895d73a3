"""A claim keeps the records that were set aside until a commit has passed them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.hosting.claim import Claim
from riverrun.records import TaskId, TopicPartition
from riverrun.testing.driver import MockClock

TP = TopicPartition("in", 0)
TASK = TaskId(0, 0)


@pytest.fixture
def claim() -> Claim:
    application: Any = SimpleNamespace(task_spec=lambda *_: None)
    connected: Any = SimpleNamespace(application=application, layout=SimpleNamespace(tasks={TASK: (TP,)}))
    made = Claim(connected, TASK, MockClock())
    read(made, 5)
    return made


def read(claim: Claim, offset: int) -> None:
    """Take the task over: the offset is committed."""
    claim._note(SimpleNamespace(commits={TP: (offset, "")}, topics={}))  # type: ignore[arg-type]


def aside(*names: str) -> Any:
    return names


def test_they_are_kept_until_a_commit_has_passed_them(claim: Claim) -> None:
    claim.aside = aside("a", "b")
    read(claim, 5)
    assert claim.aside == aside("a", "b"), "another attempt leaves them out"
    claim.begin_commit({TP: (7, "")}, aside("b"))
    assert claim.aside == aside("a", "b"), "the commit may fail"
    claim.end_commit()
    assert claim.aside == aside("b")
    claim.begin_commit({TP: (7, "owner")})
    claim.end_commit()
    assert claim.aside == aside("b"), "a commit of the owner alone passes nothing"


@pytest.mark.parametrize(("offset", "left"), [(5, aside("a", "b")), (7, aside("b"))])
def test_of_a_commit_without_an_answer_the_offsets_tell_whether_it_passed_them(
    claim: Claim, offset: int, left: Any
) -> None:
    claim.aside = aside("a", "b")
    claim.begin_commit({TP: (7, "")}, aside("b"))
    read(claim, offset)
    assert claim.aside == left
