"""Functions of users in Python take part in statements."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from riverrun.errors import TopologyError
from riverrun.sql import udaf, udf, udtf
from riverrun.sql.functions import find_aggregate, find_scalar, find_table_function
from riverrun.sql.functions.registry import REGISTRY
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType
from tests.pages.functions import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Money = Annotated[decimal.Decimal, Decimal(10, 2)]


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    before = {key: list(overloads) for key, overloads in REGISTRY.overloads.items()}
    yield
    REGISTRY.overloads.clear()
    REGISTRY.overloads.update(before)


def test_annotations_become_types() -> None:
    @udf
    def shown(a: int, b: float, c: str, d: bool, e: bytes, f: Money, g: list[int], h: dict[str, float]) -> list[str]:
        return [repr(each) for each in (a, b, c, d, e, f, g, h)]

    given: list[SqlType] = [
        Primitive.INTEGER,
        Primitive.INTEGER,
        Primitive.STRING,
        Primitive.BOOLEAN,
        Primitive.BYTES,
        Primitive.INTEGER,
        Array(Primitive.BIGINT),
        Map(Primitive.STRING, Primitive.DOUBLE),
    ]
    with pytest.raises(TopologyError):
        find_scalar("shown", given[:1])
    given[5] = Decimal(10, 2)
    found = find_scalar("SHOWN", given)
    assert found.returns == Array(Primitive.STRING)
    assert found.apply(1, 2, "c", True, b"e", decimal.Decimal("1.00"), [1], {}) == [
        "1", "2.0", "'c'", "True", "b'e'", "Decimal('1.00')", "[1]", "{}"
    ]  # fmt: skip


def test_a_null_makes_the_result_null_unless_it_is_asked_for() -> None:
    @udf
    def named(first: str, last: str | None) -> str:
        return f"{first} {last or '?'}"

    apply = find_scalar("named", [Primitive.STRING, Primitive.STRING]).apply
    assert (apply("Ada", None), apply(None, "Byron")) == ("Ada ?", None)


def test_a_function_declared_again_replaces_the_one_before() -> None:
    for result in (1, 2):

        @udf
        def answer(result: int = result) -> int:
            return result

    assert find_scalar("ANSWER", [Primitive.BIGINT]).apply(7) == 7
    assert len(REGISTRY.named("scalar", "answer")) == 1


def test_names_and_types_of_ksqldb_are_taken() -> None:
    with pytest.raises(TopologyError, match="is a function of ksqlDB's"):

        @udf
        def ucase(text: str) -> str:
            return text


def test_a_list_becomes_rows() -> None:
    @udtf
    def words(text: str) -> list[str]:
        return text.split()

    found = find_table_function("WORDS", [Primitive.STRING])
    assert (found.returns, found.apply("a b")) == (Primitive.STRING, ["a", "b"])


def test_a_class_becomes_an_aggregate() -> None:
    @udaf
    class Longest:
        def initial(self) -> str:
            return ""

        def add(self, state: str, value: str) -> str:
            return value if len(value) > len(state) else state

        def merge(self, first: str, second: str) -> str:
            return self.add(first, second)

        def result(self, state: str) -> int:
            return len(state)

    found = find_aggregate("longest", [Primitive.STRING])
    assert (found.returns, found.intermediate, found.undo) == (Primitive.BIGINT, Primitive.STRING, None)
    assert found.result(found.merge(found.add(found.initial(), "abc"), "ab")) == 3


def test_an_aggregate_may_take_rows_out_and_be_its_own_state() -> None:
    @udaf
    class Balance:
        def initial(self) -> int:
            return 0

        def add(self, state: int, gained: int, lost: int) -> int:
            return state + gained - lost

        def undo(self, state: int, gained: int, lost: int) -> int:
            return state - gained + lost

        def merge(self, first: int, second: int) -> int:
            return first + second

    found = find_aggregate("BALANCE", [Primitive.INTEGER, Primitive.BIGINT])
    assert found.undo is not None
    assert found.result(found.undo(found.add(0, 5, 3), 1, 1)) == 2


def test_what_cannot_be_typed_is_refused() -> None:
    def bare(value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - this is what is refused
        return value

    def exact(value: decimal.Decimal) -> int:
        return int(value)

    def single(value: int) -> int:
        return value

    class Half:
        pass

    refused: tuple[tuple[Callable[[Any], Any], object, str], ...] = (
        (udf, bare, "bare has no annotation for value, return"),
        (udf, exact, "decimal.Decimal without precision"),
        (udtf, single, "must return a list"),
        (udaf, Half, "has no initial and no add and no merge"),
    )
    for decorate, declared, message in refused:
        with pytest.raises(TopologyError, match=message):
            decorate(declared)


def test_the_reference_lists_ksqldb_functions_only() -> None:
    @udf
    def private(value: int) -> int:
        return value

    assert "PRIVATE" not in reference()
