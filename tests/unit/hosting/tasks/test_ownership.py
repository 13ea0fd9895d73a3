"""Tasks change hands between threads and bounded runs: each record is written once, whatever comes in between."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverrun.errors import ForgottenOffsetsError
from riverrun.hosting import claim, ownership
from tests.depth import depth
from tests.unit.hosting.tasks.ownership import (
    END,
    TASKS,
    Actor,
    BoundedRun,
    Brokers,
    Connected,
    Mutex,
    Producer,
    StreamThread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

FAULTS = st.sampled_from(["", *[""] * 12, "lose", "kill"])
MOVES = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12), FAULTS), max_size=60)
"""Which process takes how many turns, and what happens to it then."""
THREADS = st.lists(
    st.tuples(st.sets(st.sampled_from(TASKS), min_size=1), st.integers(1, 6), st.integers(0, 8)), min_size=1, max_size=3
)
"""The tasks of each stream thread, how many rounds it takes, and after which it lets them go."""
RUNS = st.lists(st.tuples(st.sampled_from(TASKS), st.integers(1, 4)), max_size=3)


@settings(
    max_examples=depth(300, 5000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(threads=THREADS, runs=RUNS, moves=MOVES)
def test_each_record_is_written_once_by_the_owner_that_claimed_its_task_last(
    threads: list[tuple[set[Any], int, int]],
    runs: list[tuple[Any, int]],
    moves: list[tuple[int, int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers()
    _connect(brokers, monkeypatch)
    connected = Connected(brokers)
    actors = _begun(connected, threads, runs, moves)
    _finish(actors)
    _finish_all(connected, actors, brokers)


@settings(
    max_examples=depth(300, 5000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(threads=THREADS, runs=RUNS, moves=MOVES, forgotten=st.sets(st.sampled_from(TASKS), min_size=1))
def test_offsets_that_brokers_have_forgotten_neither_repeat_nor_skip_a_record(
    threads: list[tuple[set[Any], int, int]],
    runs: list[tuple[Any, int]],
    moves: list[tuple[int, int, str]],
    forgotten: set[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All processes have ended somehow, and brokers delete committed offsets of some tasks."""
    brokers = Brokers()
    _connect(brokers, monkeypatch)
    connected = Connected(brokers)
    for actor in _begun(connected, threads, runs, moves):
        actor.kill()
    unknown = brokers.forget(forgotten)
    before = {task: list(brokers.written[task]) for task in unknown}
    actors: list[Actor] = []
    Actor("last", StreamThread(connected, TASKS, 4 * END, 4 * END).run, actors)
    _finish(actors)
    assert brokers.written == {task: list(range(END)) for task in TASKS} | before


def _begun(
    connected: Connected,
    threads: list[tuple[set[Any], int, int]],
    runs: list[tuple[Any, int]],
    moves: list[tuple[int, int, str]],
) -> list[Actor]:
    actors: list[Actor] = []
    for each in threads:
        Actor("thread", StreamThread(connected, *each).run, actors)
    for run in runs:
        Actor("run", BoundedRun(connected, *run).run, actors)
    for number, turns, fault in moves:
        actor = actors[number % len(actors)]
        for _ in range(turns):
            if not actor.is_done:
                actor.turn()
        if fault == "kill":
            actor.kill()
        actor.loses_answer = fault == "lose"
    return actors


def test_a_commit_between_the_read_of_one_thread_and_the_fence_of_another_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads of a process take over tasks of one owner, which commits once more before the first one fences it."""
    for turns_of_reader in range(1, 12):
        for turns_of_owner in range(8):
            brokers, actors = Brokers(), list[Actor]()
            _connect(brokers, monkeypatch)
            connected = Connected(brokers)
            owner = Actor("owner", StreamThread(connected, TASKS[:2], 9, 9).run, actors)
            while not brokers.written[TASKS[1]]:
                owner.turn()
                _finish(actors[1:])
            Actor("successor", StreamThread(connected, TASKS[:2], 2, 9).run, actors).turn()
            fencing, reading = actors[-2:]
            for actor, turns in ((reading, turns_of_reader), (owner, turns_of_owner)):
                for _ in range(turns):
                    actor.turn()
            for _ in range(30):  # it waits for the other thread if that one fences
                if not fencing.is_done:
                    fencing.turn()
            _finish(actors)
            _finish_all(connected, actors, brokers)


def _begin(brokers: Brokers, _connected: Any, tps: Iterable[Any], _now_ms: int) -> dict[Any, int]:
    """Return where new inputs begin (`reset_offsets`)."""
    new = list(tps)
    if brokers.kept.keys() & set(new):
        message = "forgotten"
        raise ForgottenOffsetsError(message)
    return dict.fromkeys(new, 0)


def _finish_all(connected: Connected, actors: list[Actor], brokers: Brokers) -> None:
    """Let one thread process what is left, and look at everything that was written."""
    Actor("last", StreamThread(connected, TASKS, 4 * END, 4 * END).run, actors)
    _finish(actors)
    assert brokers.written == {task: list(range(END)) for task in TASKS}


def _finish(actors: list[Actor]) -> None:
    while left := [actor for actor in actors if not actor.is_done]:
        for actor in left:
            if not actor.is_done:
                actor.turn()


def _connect(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    def producer(_kafka: Any, transactional_id: str, **_options: Any) -> Producer:
        return Producer(brokers, transactional_id)

    monkeypatch.setattr(ownership, "TransactionalProducer", producer)
    monkeypatch.setattr(ownership, "threading", SimpleNamespace(Lock=Mutex))
    monkeypatch.setattr(claim, "committed_point", lambda *given: SimpleNamespace(commits=given[2], topics={}))
    monkeypatch.setattr(ownership, "commit_and_keep", lambda given, _id, offsets, kept: given.commit(offsets, kept))
    monkeypatch.setattr(claim, "note_begun", lambda _connected: None)
    monkeypatch.setattr(claim, "reset_offsets", partial(_begin, brokers))
    monkeypatch.setattr(claim, "time_limits", lambda _admin, _topics: {})
    monkeypatch.setattr(claim, "open_task", lambda *_: None)
    monkeypatch.setattr(claim, "TableInputs", SimpleNamespace(begun=lambda *_: None))
    monkeypatch.setattr(claim.Claim, "_written", lambda _self: ())
