"""Matches of patterns, compared with all choices of records that the rules allow."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun.operators.sequences import Element, SearchState, Sequel, Taken, Unfinished, search

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE = 0


@st.composite
def sequels(draw: st.DrawFn) -> Sequel:
    """Patterns of up to four elements, with predicates that overlap in the records of `streams`."""
    elements, bit, forbidden = list[Element](), 1, NONE
    for place in range(draw(st.integers(1, 4))):
        if place and draw(st.integers(0, 3)) == 0:
            forbidden, bit = bit, bit << 1
        least = draw(st.sampled_from([1, 1, 1, 2]))
        elements.append(
            Element(
                "abcd"[place],
                bit,
                forbidden,
                is_next=bool(place) and not forbidden and draw(st.booleans()),
                is_consecutive=draw(st.booleans()),
                least=least,
                most=draw(st.sampled_from([least, least, least + 1, None])),
                is_optional=not forbidden and draw(st.integers(0, 2)) == 0,
            )
        )
        bit, forbidden = bit << 1, NONE
    if all(each.is_optional for each in elements):
        elements[0] = Element("a", elements[0].satisfies)
    at_end = bit if draw(st.integers(0, 3)) == 0 else NONE
    return Sequel(tuple(elements), at_end)


def bits_of(sequel: Sequel) -> int:
    all_bits = [each.satisfies | each.forbids for each in sequel.elements]
    return max(*all_bits, sequel.forbids_at_end)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sequel, list[int]]:
    sequel = draw(sequels())
    one = st.integers(0, 2 * bits_of(sequel) - 1)
    few = st.sampled_from([0, *(1 << n for n in range(bits_of(sequel).bit_length()))])
    return sequel, draw(st.lists(st.one_of(few, few, one), min_size=1, max_size=7))


def assignments(sequel: Sequel, records: list[int]) -> Iterator[Taken]:
    """Every way to give records to elements in order, whatever the rules say."""
    places = range(len(sequel.elements))
    for chosen in range(1, 1 << len(records)):
        taken = [at for at in range(len(records)) if chosen >> at & 1]
        for given_to in combinations_with_replacement(places, len(taken)):
            yield tuple(zip(taken, given_to, strict=True))


def is_match(sequel: Sequel, records: list[int], taken: Taken) -> bool:
    """The rules, one after the other."""
    elements, used = sequel.elements, [element for _, element in taken]
    if taken[0][0] != 0 or not all(records[at] & elements[element].satisfies for at, element in taken):
        return False
    for place, each in enumerate(elements):
        times = used.count(place)
        if times == 0 and each.is_optional:
            continue
        if times < each.least or (each.most is not None and times > each.most):
            return False
    ends = [*taken, (len(records), len(elements))]
    for number, (at, element) in enumerate(taken):
        until, follows = ends[number + 1]
        skipped = records[at + 1 : until]
        if follows == len(elements):
            # Nothing follows: only what is forbidden until the end counts.
            return not any(bits & sequel.forbids_at_end for bits in skipped)
        is_neighbour = elements[follows].is_consecutive if follows == element else elements[follows].is_next
        if skipped and is_neighbour:
            return False
        if follows != element and any(bits & elements[follows].forbids for bits in records[at + 1 : until + 1]):
            return False
        times = used[: number + 1].count(element)
        if any(could_take(sequel, element, times, skipped[:place], bits) for place, bits in enumerate(skipped)):
            return False
    return True


def could_take(sequel: Sequel, element: int, times: int, before: list[int], bits: int) -> bool:
    """True if `times` records of an element and some skipped ones can be followed by one that is taken."""
    elements = sequel.elements
    current = elements[element]
    may_repeat = (current.most is None or times < current.most) and not (before and current.is_consecutive)
    if may_repeat and bits & current.satisfies:
        return True
    if times < current.least:
        return False
    for following in elements[element + 1 :]:
        forbidden = any(each & following.forbids for each in [*before, bits])
        if not forbidden and not (before and following.is_next) and bits & following.satisfies:
            return True
        if not following.is_optional:
            return False
    return False


def preferred(sequel: Sequel, records: list[int]) -> Taken | None:
    """Return the match that the rules prefer: at the first difference it takes the earliest element, or a further record."""
    found = [each for each in assignments(sequel, records) if is_match(sequel, records, each)]
    end = len(sequel.elements)
    return min(found, key=lambda taken: ([element for _, element in taken] + [end], taken), default=None)


@settings(max_examples=400)
@given(cases())
@example((Sequel((Element("a", 1, most=None), Element("b", 2))), [1, 3, 0, 1, 2]))
@example((Sequel((Element("a", 1), Element("b", 4, forbids=2))), [1, 2, 4]))
@example((Sequel((Element("a", 1, most=None), Element("b", 4, forbids=2))), [1, 2, 1, 4]))
@example((Sequel((Element("a", 1, least=2, most=3),), 2), [1, 1, 0, 2]))
def test_a_match_is_the_preferred_one_of_all_that_the_rules_allow(case: tuple[Sequel, list[int]]) -> None:
    sequel, records = case
    found = search(sequel, records, is_over=True)
    assert (None if isinstance(found, Unfinished) else found) == preferred(sequel, records)


@settings(max_examples=400)
@given(cases(), st.lists(st.integers(0, 255), max_size=3))
def test_what_is_decided_stays_whatever_comes_later(case: tuple[Sequel, list[int]], later: list[int]) -> None:
    sequel, records = case
    found = search(sequel, records, is_over=False)
    if found is not Unfinished.OPEN:
        assert search(sequel, records + later, is_over=True) == found
        assert search(sequel, records, is_over=True) == found


@settings(max_examples=400)
@given(cases(), st.booleans())
def test_searches_that_share_what_has_failed_find_what_others_find(
    case: tuple[Sequel, list[int]], is_over: bool
) -> None:
    sequel, records = case
    first, failed = 0, set[SearchState]()
    while first < len(records):
        found = search(sequel, records, is_over=is_over, first=first, seen=failed)
        alone = search(sequel, records[first:], is_over=is_over)
        if isinstance(found, Unfinished):
            assert alone is found
            first += 1
        else:
            assert alone == tuple((at - first, element) for at, element in found)
            first = found[-1][0] + 1
        if found is Unfinished.OPEN:
            break


def test_a_search_takes_time_in_proportion_to_its_records() -> None:
    every = Sequel(
        (Element("a", 1, most=None), Element("b", 1, most=None), Element("c", 1, most=None), Element("d", 2))
    )
    assert search(every, [1] * 20_000, is_over=True) is Unfinished.NONE
