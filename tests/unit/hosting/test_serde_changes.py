"""A changed class is read where its stored rows can be, and refused where an example cannot."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import operator
import types
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import BYTES, DOUBLE, INTEGER, JSON, LONG, STRING, Serde, windowed
from riverrun.hosting.serde_changes import compare, described
from riverrun.serde.internal import change_serde, join_side_value
from riverrun.serde.written_form import examples, form_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Wider(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


@dataclasses.dataclass(frozen=True)
class Seat:
    row: int


@dataclasses.dataclass(frozen=True)
class NumberedSeat:
    row: float
    number: int = 1


@dataclasses.dataclass(frozen=True)
class NamedSeat:
    row: int
    name: str


class Tagged(msgspec.Struct, frozen=True, tag="seat"):
    row: int


class Node(msgspec.Struct, frozen=True):
    value: int
    next: Node | None = None


class WideNode(msgspec.Struct, frozen=True):
    value: int | str
    next: WideNode | None = None


class NarrowNode(msgspec.Struct, frozen=True):
    value: int
    next: Seat | None = None


WHOLE = st.integers(-(2**70), 2**70)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: WHOLE,
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    bytes: st.binary(),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=st.sampled_from([None, dt.UTC])),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    uuid.UUID: st.uuids(),
    Colour: st.sampled_from(Colour),
    Wider: st.sampled_from(Wider),
    Seat: st.builds(Seat, WHOLE),
    NumberedSeat: st.builds(NumberedSeat, st.floats(-1e9, 1e9), WHOLE),
    NamedSeat: st.builds(NamedSeat, WHOLE, st.text()),
    Tagged: st.builds(Tagged, WHOLE),
    Annotated[int, msgspec.Meta(ge=0)]: st.integers(0, 2**70),
    Annotated[int, msgspec.Meta(le=9)]: st.integers(-(2**70), 9),
    Annotated[str, msgspec.Meta(max_length=3)]: st.text(max_size=3),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    tuple[int, str]: st.tuples(WHOLE, st.text()),
}
PLAIN = st.sampled_from(list(VALUES))
UNIONS = [frozenset({int, float}), frozenset({int, str}), frozenset({bool, float}), frozenset({Seat, str})]


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    if type_ in VALUES:
        return VALUES[type_]
    origin, args = get_origin(type_), get_args(type_)
    if origin is list:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    return st.one_of([st.none() if each is type(None) else values_of(each) for each in args])


def union(members: frozenset[Any]) -> Any:
    return functools.reduce(operator.or_, sorted(members, key=str))


TYPES = st.one_of(
    PLAIN,
    PLAIN.map(lambda type_: type_ | None if isinstance(type_, type) else type_),
    PLAIN.map(lambda type_: types.GenericAlias(list, (type_,))),
    PLAIN.map(lambda type_: types.GenericAlias(dict, (str, type_))),
    st.sampled_from(UNIONS).map(union),
)
FIELDS = st.dictionaries(st.sampled_from("abcd"), st.tuples(TYPES, st.booleans()), min_size=1)


def made(fields: dict[str, tuple[Any, bool]]) -> type:
    """A dataclass; fields with True have a default, which rows never have."""
    ordered = sorted(fields.items(), key=lambda item: (item[1][1], item[0]))
    listed = [
        (name, type_, dataclasses.field(default=None)) if has_default else (name, type_)
        for name, (type_, has_default) in ordered
    ]
    return dataclasses.make_dataclass("Row", listed)


@st.composite
def changed(draw: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a class before and after some of them were added, removed, given a default, or made of another type."""
    old = draw(FIELDS)
    kept = {name: old[name] for name in old if draw(st.integers(0, 3))}
    return old, kept | draw(st.dictionaries(st.sampled_from("abcd"), st.tuples(TYPES, st.booleans()), max_size=2))


def is_read(serde: Serde[Any], data: bytes) -> bool:
    try:
        serde.deserialize(data)
    except msgspec.ValidationError:
        return False
    return True


@given(changed(), st.data())
def test_what_is_accepted_reads_every_row_and_what_is_refused_does_not_read_one(
    change: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    old, new = (made(each) for each in change)
    found = compare(described(JSON(old)), JSON(new), is_key=False)
    assert found.is_sure
    if found.reasons:
        form = form_of(old)
        assert form is not None
        possible = [msgspec.json.encode(example) for example in examples(form) or []]
        assert all(JSON(old).deserialize(each) is not None for each in possible), "rows of the old class could be so"
        assert not all(is_read(JSON(new), each) for each in possible)
        return
    row = old(**{name: data.draw(values_of(type_)) for name, (type_, _) in change[0].items()})
    JSON(new).deserialize(JSON(old).serialize(row))


@given(FIELDS)
def test_examples_are_rows_that_the_class_itself_reads(fields: dict[str, tuple[Any, bool]]) -> None:
    form = form_of(made(fields))
    assert form is not None
    assert json.loads(json.dumps(form)) == form, "a form can be kept"
    for example in examples(form) or []:
        JSON(made(fields)).deserialize(msgspec.json.encode(example))


@pytest.mark.parametrize(
    ("old", "new", "is_read"),
    [
        (Seat, NumberedSeat, True),
        (NumberedSeat, Seat, False),  # 0.5 is no whole number
        (Seat, NamedSeat, False),
        (NamedSeat, Seat, True),
        (Tagged, Seat, True),
        (Seat, Tagged, True),  # msgspec reads objects without a tag
        (Node, WideNode, True),
        (WideNode, Node, False),
        (Node, NarrowNode, False),
        (Colour, Wider, True),
        (Wider, Colour, False),
        (int, float, True),
        (float, int, False),
        (dict[str, int], dict[int, int], False),
        (dict[int, int], dict[str, int], True),
        (list[int], tuple[int, ...], True),
        (list[int], tuple[int, int], False),
    ],
)
def test_a_changed_value_type_is_read_where_all_its_rows_can_be(old: Any, new: Any, is_read: bool) -> None:
    found = compare(described(JSON(old)), JSON(new), is_key=False)
    assert (not found.reasons, found.is_sure) == (is_read, True)


def test_keys_must_be_written_again_as_they_were() -> None:
    seat = described(JSON(Seat))
    assert compare(seat, JSON(NumberedSeat), is_key=True).reasons
    assert not compare(seat, JSON(dataclasses.make_dataclass("Place", [("row", int)])), is_key=True).reasons
    assert compare(described(JSON(int)), JSON(float), is_key=True).reasons


def test_another_format_is_refused_even_if_its_bytes_can_be_read() -> None:
    found = compare(described(LONG), DOUBLE, is_key=False)
    assert (found.reasons, found.is_misread) == (("they were written as long, not as double",), True)
    assert compare(described(LONG), INTEGER, is_key=False).reasons
    assert compare(described(STRING), JSON, is_key=False).reasons
    assert not compare(described(LONG), BYTES, is_key=False).reasons


def test_serdes_within_others_are_compared_one_by_one() -> None:
    old = described(join_side_value(change_serde(JSON(Seat)), LONG))
    assert not compare(old, join_side_value(change_serde(JSON(NumberedSeat)), LONG), is_key=False).reasons
    assert compare(old, join_side_value(change_serde(JSON(NamedSeat)), LONG), is_key=False).reasons
    assert compare(old, join_side_value(change_serde(JSON(Seat)), DOUBLE), is_key=False).reasons
    assert compare(described(windowed(LONG)), windowed(DOUBLE), is_key=True).reasons


def test_fields_that_are_no_longer_read_are_named() -> None:
    assert compare(
        described(JSON(NumberedSeat)), JSON(dataclasses.make_dataclass("S", [("row", float)])), is_key=False
    ).lost == ("number",)


def test_rows_decide_where_a_description_does_not_say_everything() -> None:
    own = Serde("own", str.encode, bytes.decode)
    other = Serde("own", lambda text: text.encode("utf-16"), lambda data: data.decode("utf-16"))
    assert compare(described(own), own, is_key=False).is_sure
    assert not compare(described(own), other, is_key=False).is_sure
    assert not compare(described(JSON), JSON(Seat), is_key=False).is_sure
    assert not compare(described(JSON(dict[str, Any])), JSON(dict[str, int]), is_key=False).is_sure
    assert compare(described(JSON(Seat)), JSON, is_key=False).is_sure


class Checked(msgspec.Struct):
    row: int
    name: str = ""

    def __post_init__(self) -> None:
        if self.row < 0:
            message = "no such row"
            raise ValueError(message)


def test_rows_decide_about_values_that_a_class_refuses_itself() -> None:
    found = compare(described(JSON(Seat)), JSON(Checked), is_key=False)
    assert (found.reasons, found.is_sure) == ((), False)
