"""Shrinks a history that goes wrong to one that a person can read: fewer events, faults and records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from tests.histories.history import happen, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.histories.history import Event, History

Part = TypeVar("Part")
OTHER_SEEDS = (0, 1)
"""Other turns for a history without some part: the turns that went wrong are others without it."""


@dataclass(frozen=True)
class Failure:
    """A history that has gone wrong.

    Args:
        said: What happened, one sentence for each event.
        planned: The history with the faults that were drawn as events, so that each can be left out.
    """

    history: History
    error: Exception
    said: tuple[str, ...]
    planned: History


def failure(history: History) -> Failure | None:
    """Let a history happen. Returns how it has gone wrong, or None."""
    said: tuple[str, ...] = ()
    planned = history
    try:
        with TemporaryDirectory() as directory, opened(history, Path(directory)) as story:
            try:
                happen(history, story)
            finally:
                said, planned = tuple(story.said), with_planned_faults(history, story.faults.happened)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return Failure(history, error, said, planned)
    return None


def with_planned_faults(history: History, happened: Sequence[tuple[int, Event]]) -> History:
    """Return a history with the faults that were drawn before the events during which they happened."""
    events: list[Event] = []
    for number, each in enumerate(history.events, 1):
        events += [fault for during, fault in happened if during == number]
        if each.name != "change_faults":
            events.append(each)
    return replace(history, events=tuple(events))


class Shrinking:
    """Leaves parts of a history out, as long as it goes wrong with an error of one kind.

    Args:
        attempts: How many histories may happen meanwhile.
        note: Called after each part that was left out.
        fails: Lets a history happen, and returns how it has gone wrong.
    """

    def __init__(
        self,
        found: Failure,
        attempts: int,
        note: Callable[[str], None] = lambda _: None,
        fails: Callable[[History], Failure | None] = failure,
    ) -> None:
        self.found = found
        self._fails = fails
        self._kind = type(found.error)
        self._left = attempts
        self._note = note

    def shrink(self) -> Failure:
        """Return the smallest history that was found."""
        self._try(self.found.planned)
        size = None
        while self._left and size != self._size():
            size = self._size()
            self._keep_few(self.found.history.events, self._with_events)
            self._shrink_settings()
            for number in range(len(self.found.history.events)):
                self._shrink_event(number)
        return self.found

    def _size(self) -> str:
        return repr(replace(self.found.history, seed=0))

    def _with_events(self, events: tuple[Event, ...]) -> History:
        return replace(self.found.history, events=events)

    def _shrink_settings(self) -> None:
        if self.found.history.standbys:
            self._try(replace(self.found.history, standbys=0))
        if self.found.history.cache_bytes:
            self._try(replace(self.found.history, cache_bytes=0))
        if self.found.history.has_snapshots:
            self._try(replace(self.found.history, has_snapshots=False))
        if self.found.history.has_static_members:
            self._try(replace(self.found.history, has_static_members=False))

    def _shrink_event(self, number: int) -> None:
        each = self.found.history.events[number]

        def changed(argument: object) -> History:
            events = self.found.history.events
            event = replace(each, arguments=(argument,))
            return self._with_events((*events[:number], event, *events[number + 1 :]))

        if each.name == "produce":
            self._keep_few(each.arguments[0], changed, least=1)
        if each.name == "pass_time":
            for seconds in (0.1, 1.0, 10.0, 60.0):
                if seconds < each.arguments[0] and self._try(changed(seconds)):
                    break

    def _keep_few(
        self, parts: tuple[Part, ...], changed: Callable[[tuple[Part, ...]], History], *, least: int = 0
    ) -> None:
        """Leave out halves, then quarters, and so on down to single parts."""
        size = max(1, len(parts) // 2)
        while size and self._left:
            start = 0
            while start < len(parts):
                fewer = parts[:start] + parts[start + size :]
                if len(fewer) >= least and self._try(changed(fewer)):
                    parts = fewer
                else:
                    start += size
            size //= 2

    def _try(self, candidate: History) -> bool:
        """Return whether a history goes wrong as well, perhaps with other turns, and keep it if so."""
        for seed in dict.fromkeys([candidate.seed, *OTHER_SEEDS]):
            if not self._left:
                return False
            self._left -= 1
            found = self._fails(replace(candidate, seed=seed))
            if found is not None and type(found.error) is self._kind:
                self.found = found
                events = candidate.events
                self._note(f"{len(events)} events, {self._left} attempts left")
                return True
        return False


def numbered(found: Failure) -> str:
    """Return what happened as numbered sentences, and how it ended."""
    sentences = [f"{number:3}. {said.strip()}" for number, said in enumerate(found.said, 1)]
    return "\n".join([*sentences, f"Then: {type(found.error).__name__}: {found.error}"])


def as_test(history: History) -> str:
    """Return a test that lets a history happen again."""
    events = "".join(f"            {each!r},\n" for each in history.events)
    return f'''"""Run it with PYTHONHASHSEED=0."""

from riverrun.simulation.faults import Fault
from tests.histories.history import History, event, tell


def test_every_record_is_counted_once(tmp_path):
    history = History(
        seed={history.seed},
        cache_bytes={history.cache_bytes},
        standbys={history.standbys},
        has_snapshots={history.has_snapshots},
        purge_ms={history.purge_ms},
        most_fetched={history.most_fetched},
        by_workers={history.by_workers},
        events=(
{events}        ),
        handler={history.handler!r},
        has_static_members={history.has_static_members},
    )
    tell(history, tmp_path)
'''
