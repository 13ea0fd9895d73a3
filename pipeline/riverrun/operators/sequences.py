"""Finds a pattern in the records of a key: the definition of a match, without state, stores and time.

A match begins with the first record that can begin one. From there, a record is taken by the first of these that it satisfies:
one more of the element that is being repeated, then the elements that may follow, in their order. A record that satisfies
none of them is skipped, unless an element requires neighbours. If what follows fails, the next choice is tried, as by regular
expressions; no record is skipped that could be taken. So repetitions are as long as possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Element:
    """A part of a pattern.

    Args:
        name: The name of its records in results.
        satisfies: The bit of its predicate.
        forbids: The bit of a predicate that no record satisfies between the one before and the first of these; 0 for none.
        is_next: Whether no record may be skipped before it.
        is_consecutive: Whether no record may be skipped between its repetitions.
        least: The fewest records.
        most: The most records; None for any number.
        is_optional: Whether it may be missing.
    """

    name: str
    satisfies: int
    forbids: int = 0
    is_next: bool = False
    is_consecutive: bool = False
    least: int = 1
    most: int | None = 1
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Sequel:
    """The elements of a pattern, one after the other.

    Args:
        forbids_at_end: The bit of a predicate that no record satisfies after the last element; 0 for none.
    """

    elements: tuple[Element, ...]
    forbids_at_end: int = 0

    @property
    def has_neighbours(self) -> bool:
        """True if records that satisfy no predicate may matter, since they come between others."""
        return any(each.is_next or each.is_consecutive for each in self.elements)


class Unfinished(Enum):
    """Why a search has found no match."""

    OPEN = "later records decide"
    NONE = "no match begins here"


Taken: TypeAlias = "tuple[tuple[int, int], ...]"
"""The place of each record of a match, with that of its element."""


class SearchState(NamedTuple):
    """A place in a pattern, before a record.

    Args:
        element: The last element with records; -1 before the first one.
        times: How many it has, up to the fewest if there is no limit.
        at: The place of the next record.
        has_gap: Whether a record was skipped since the last one that was taken.
        is_barred: Whether a record since then was forbidden before what follows.
    """

    element: int
    times: int
    at: int
    has_gap: bool = False
    is_barred: bool = False


_Path: TypeAlias = "tuple[_Path, tuple[int, int]] | None"


def search(
    sequel: Sequel, records: Sequence[int], *, is_over: bool, first: int = 0, seen: set[SearchState] | None = None
) -> Taken | Unfinished:
    """Return the match that begins with the record at `first`; a record is the bits of the predicates that it satisfies.

    `is_over` says that no more records can belong to it. `seen` are states that led to no match from earlier records, in equal
    searches; those of this one are added.
    """
    at_end = sequel.forbids_at_end
    later = range(len(records) - 1, first, -1) if at_end else ()
    last_forbidden = next((at for at in later if records[at] & at_end), -1)
    waiting: list[tuple[SearchState, _Path, bool]] = [(SearchState(-1, 0, first), None, False)]
    seen = set[SearchState]() if seen is None else seen
    while waiting:
        state, path, ends = waiting.pop()
        if ends:
            if last_forbidden >= state.at:
                continue
            return _taken(path) if is_over or not at_end else Unfinished.OPEN
        if state in seen:
            continue
        seen.add(state)
        if not state.has_gap and _is_complete(sequel, state):
            waiting.append((state, path, True))
        if state.at == len(records):
            if not is_over and _choices(sequel, state):
                return Unfinished.OPEN
            continue
        bits = records[state.at]
        state = state._replace(is_barred=state.is_barred or bool(bits & _forbidden(sequel, state)))
        taken = [each for each in _choices(sequel, state) if bits & sequel.elements[each.element].satisfies]
        waiting += [(each, (path, (state.at, each.element)), False) for each in reversed(taken)]
        skipped = state._replace(at=state.at + 1, has_gap=True)
        # The first record of a match is one of its records.
        if not taken and state.element >= 0 and _choices(sequel, skipped):
            waiting.append((skipped, path, False))
    return Unfinished.NONE


def _choices(sequel: Sequel, state: SearchState) -> list[SearchState]:
    """Return the states after the next record, by preference, of which it decides."""
    found, elements = list[SearchState](), sequel.elements
    if state.element >= 0:
        current = elements[state.element]
        if (current.most is None or state.times < current.most) and not (current.is_consecutive and state.has_gap):
            times = state.times + 1 if current.most is not None else min(state.times + 1, current.least)
            found.append(SearchState(state.element, times, state.at + 1))
    for place in _following(sequel, state):
        if place == len(elements) or (elements[place].forbids and state.is_barred):
            break
        if not (elements[place].is_next and state.has_gap):
            found.append(SearchState(place, 1, state.at + 1))
    return found


def _following(sequel: Sequel, state: SearchState) -> Iterator[int]:
    """Yield the places of the elements that may come next; the number of elements if that may be the end."""
    elements = sequel.elements
    if state.element >= 0 and state.times < elements[state.element].least:
        return
    for place in range(state.element + 1, len(elements)):
        yield place
        if not elements[place].is_optional:
            return
    yield len(elements)


def _forbidden(sequel: Sequel, state: SearchState) -> int:
    """Return the bits that no record may have before what follows; before the first record, anything may be."""
    if state.element < 0:
        return 0
    # Only an element that is not optional forbids, so it is the last one that may follow.
    *_, last = (-1, *_following(sequel, state))
    return sequel.elements[last].forbids if 0 <= last < len(sequel.elements) else 0


def _is_complete(sequel: Sequel, state: SearchState) -> bool:
    return state.element >= 0 and len(sequel.elements) in _following(sequel, state)


def _taken(path: _Path) -> Taken:
    found = list[tuple[int, int]]()
    while path is not None:
        path, last = path
        found.append(last)
    return tuple(reversed(found))
