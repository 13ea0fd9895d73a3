"""Aggregates that gather values: in arrays, in maps, and in counts of distinct values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.functions.values import WrongArguments, distinct
from riverrun.sql.types import Array, Map, Primitive, Struct

# The limit of ksqlDB's HISTOGRAM.
_ENTRIES = 1000


# A row writes the whole state of its group: more values would make each row slow, and then too large for a changelog.
_DIFFERENT = 10_000


class TooManyValuesError(OverflowError):
    """A group would have to hold more values than it may."""


def _limit(call: AggregateCall, name: str, default: int = -1) -> int | None:
    """Return the limit of SET; below zero there is none."""
    setting = f"ksql.functions.{name}.limit"
    limit = str(call.settings.get(setting, default))
    if not re.fullmatch(r"-?[0-9]{1,18}", limit):
        raise WrongArguments(f"'{setting}' must be a whole number of up to 18 digits, not '{limit[:100]}'")
    return None if limit.startswith("-") else int(limit)


def _without_last(items: list[Any], item: Any) -> list[Any]:
    """Return the items without the last one that equals `item`."""
    for at in range(len(items) - 1, -1, -1):
        if items[at] == item:
            return items[:at] + items[at + 1 :]
    return items


@aggregate("COLLECT_LIST(value T) -> ARRAY<T>")
def collect_list(call: AggregateCall) -> Aggregate:
    """All values in the order they come, NULLs too. `ksql.functions.collect_list.limit` bounds them."""
    limit = _limit(call, "collect_list")
    return Aggregate(
        call.returns,
        call.returns,
        initial=list,
        add=lambda state, value, *_: state if limit is not None and len(state) >= limit else [*state, value],
        undo=lambda state, value, *_: _without_last(state, value),
        merge=lambda first, second: [*first, *second][:limit],
        result=lambda state: state,
    )


@aggregate("COLLECT_SET(value T) -> ARRAY<T>")
def collect_set(call: AggregateCall) -> Aggregate:
    """Each value once in the order they come, NULL too. `ksql.functions.collect_set.limit` bounds them."""
    limit = _limit(call, "collect_set")

    def add(state: list[Any], value: Any, *_: Any) -> list[Any]:
        full = limit is not None and len(state) >= limit
        return state if full or value in state else [*state, value]

    return Aggregate(
        call.returns,
        call.returns,
        initial=list,
        add=add,
        merge=lambda first, second: distinct([*first, *second])[:limit],
        result=lambda state: state,
    )


@aggregate("HISTOGRAM(value STRING) -> MAP<STRING, BIGINT>")
def histogram(call: AggregateCall) -> Aggregate:
    """How often each text comes, for the first 1000 different ones. NULLs are ignored."""

    def moved(state: dict[str, int], value: str | None, by: int) -> dict[str, int]:
        if value is None or (value not in state and len(state) >= _ENTRIES):
            return state
        counts = {**state, value: state.get(value, 0) + by}
        if counts[value] < 1:
            del counts[value]
        return counts

    def merge(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
        for value, times in second.items():
            first = moved(first, value, times)
        return first

    return Aggregate(
        call.returns,
        call.returns,
        initial=dict,
        add=lambda state, value, *_: moved(state, value, 1),
        undo=lambda state, value, *_: moved(state, value, -1) if value in state else state,
        merge=merge,
        result=lambda state: state,
    )


@aggregate("ATTR(value T) -> T")
def attribute(call: AggregateCall) -> Aggregate:
    """The value that all rows have in common, which may be NULL; NULL if they differ."""

    def moved(state: list[dict[str, Any]], value: Any, by: int) -> list[dict[str, Any]]:
        found = any(entry["VALUE"] == value for entry in state)
        counted = state if found else [*state, {"VALUE": value, "COUNT": 0}]
        changed = [
            {"VALUE": value, "COUNT": entry["COUNT"] + by} if entry["VALUE"] == value else entry for entry in counted
        ]
        return [entry for entry in changed if entry["COUNT"] > 0]

    def merge(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in second:
            first = moved(first, entry["VALUE"], entry["COUNT"])
        return first

    return Aggregate(
        call.returns,
        Array(Struct((("VALUE", call.returns), ("COUNT", Primitive.INTEGER)))),
        initial=list,
        add=lambda state, value, *_: moved(state, value, 1),
        undo=lambda state, value, *_: moved(state, value, -1),
        merge=merge,
        result=lambda state: state[0]["VALUE"] if len(state) == 1 else None,
    )


# HyperLogLog in own code, since changelogs keep the state: a library's bytes would change with its versions, and Apache's
# has had no release since March 2025. The first byte of a state selects its form: up to 512 sorted hashes of 8 bytes, which
# count exactly, or 4096 registers, whose standard error is 1.6 percent.
_HASH = 8
_EXACT = 512
_BITS = 12
_REGISTERS = 1 << _BITS
_RANKS = 66 - _BITS
"""Values that a register can have: ranks of 64-bit hashes without the register's bits, and 0."""
_FEW, _MANY = b"\x00", b"\x01"
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _pairs(value: Any) -> Any:
    """Return a value with lists in place of maps: JSON's objects have no NULL, BYTES or DECIMAL as keys."""
    if isinstance(value, dict):
        return sorted([repr(key), _pairs(each)] for key, each in value.items())
    return [_pairs(each) for each in value] if isinstance(value, list) else value


def _hash(value: Any) -> bytes:
    # Not Python's `hash`, which differs between processes: the state outlives them.
    try:
        text = _text(value)
    # Only here, since states have the hashes of the other texts.
    except TypeError:
        text = _text(_pairs(value))
    return hashlib.blake2b(text.encode(), digest_size=_HASH).digest()


def _hashes(state: bytes) -> set[bytes]:
    return {state[at : at + _HASH] for at in range(1, len(state), _HASH)}


def _sparse_or_dense(hashes: set[bytes]) -> bytes:
    if len(hashes) <= _EXACT:
        return _FEW + b"".join(sorted(hashes))
    registers = bytearray(_REGISTERS)
    for each in hashes:
        _take(registers, each)
    return _MANY + bytes(registers)


def _take(registers: bytearray, hashed: bytes) -> bool:
    """Add a hash; return whether a register changed."""
    number = int.from_bytes(hashed)
    at, rest = number & (_REGISTERS - 1), number >> _BITS
    rank = 65 - _BITS - rest.bit_length()
    changed = registers[at] < rank
    if changed:
        registers[at] = rank
    return changed


def _add(state: bytes, value: Any = None, *_: Any) -> bytes:
    if value is None:
        return state
    hashed = _hash(value)
    if state[:1] == _FEW:
        known = _hashes(state)
        return state if hashed in known else _sparse_or_dense(known | {hashed})
    registers = bytearray(state[1:])
    return _MANY + bytes(registers) if _take(registers, hashed) else state


def _merge(first: bytes, second: bytes) -> bytes:
    if first[:1] == second[:1] == _FEW:
        return _sparse_or_dense(_hashes(first) | _hashes(second))
    if first[:1] == _FEW:
        first, second = second, first
    registers = bytearray(first[1:])
    if second[:1] == _MANY:
        return _MANY + bytes(map(max, registers, second[1:]))
    for hashed in _hashes(second):
        _take(registers, hashed)
    return _MANY + bytes(registers)


def _estimate(state: bytes) -> int:
    if state[:1] == _FEW:
        return len(state) // _HASH
    registers = state[1:]
    estimate = _ALPHA * _REGISTERS**2 / sum(registers.count(rank) * 2.0**-rank for rank in range(_RANKS))
    empty = registers.count(0)
    # HyperLogLog overestimates small numbers: while registers are empty, linear counting is closer.
    if estimate <= 2.5 * _REGISTERS and empty:
        estimate = _REGISTERS * math.log(_REGISTERS / empty)
    return round(estimate)


@aggregate("COUNT_DISTINCT(value T) -> BIGINT")
def count_distinct(call: AggregateCall) -> Aggregate:
    """The number of different values that are not NULL: exact up to 512, then estimated with an error of 1.6 percent."""
    return Aggregate(call.returns, Primitive.BYTES, initial=lambda: _FEW, add=_add, merge=_merge, result=_estimate)


@aggregate("COUNT(DISTINCT value X, [others X...]) -> BIGINT")
def count_exactly(call: AggregateCall) -> Aggregate:
    """The exact number of different values, or of different combinations of several; rows in which one is NULL do not count.

    A group holds each value once: `ksql.functions.count.limit` bounds them, and is 10000 unless set. A row beyond is an error.
    """
    limit = _limit(call, "count", _DIFFERENT)

    def added(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
        made = {**first, **{text: first.get(text, 0) + times for text, times in second.items()}}
        # A limit that has been lowered must not stop groups that are larger.
        if limit is not None and len(made) > max(limit, len(first)):
            hint = (
                "COUNT_DISTINCT estimates any number; in a file, SET 'ksql.functions.count.limit' = '...' allows more."
            )
            raise TooManyValuesError(f"COUNT(DISTINCT ...) takes {limit} different values in a group. {hint}")
        return made

    def text_of(values: tuple[Any, ...]) -> str:
        """Return a text that is the same for equal values, and another one for others."""
        return _text([_pairs(each) for each in values])

    def undo(state: dict[str, int], *values: Any) -> dict[str, int]:
        text = text_of(values)
        if text not in state:
            return state
        left = {**state, text: state[text] - 1}
        if not left[text]:
            del left[text]
        return left

    return Aggregate(
        call.returns,
        Map(Primitive.STRING, Primitive.BIGINT),
        initial=dict,
        add=lambda state, *values: state if None in values else added(state, {text_of(values): 1}),
        undo=undo,
        merge=added,
        result=len,
    )
