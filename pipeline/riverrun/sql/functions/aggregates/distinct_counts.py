"""Counts of distinct values: exact for few values, then by HyperLogLog.

The state is bytes. The first byte tells which of two forms follows: up to 512 sorted hashes of 8 bytes, or 4096 registers of
HyperLogLog, whose standard error is 1.6 percent.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.types import Primitive

_HASH = 8
_EXACT = 512
_BITS = 12
_REGISTERS = 1 << _BITS
_FEW, _MANY = b"\x00", b"\x01"
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


def _hash(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, default=repr)
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
    estimate = _ALPHA * _REGISTERS**2 / sum(2.0**-rank for rank in registers)
    empty = registers.count(0)
    if estimate <= 2.5 * _REGISTERS and empty:
        estimate = _REGISTERS * math.log(_REGISTERS / empty)
    return round(estimate)


@aggregate("COUNT_DISTINCT(value T) -> BIGINT")
def count_distinct(call: AggregateCall) -> Aggregate:
    """The number of different values that are not NULL: exact up to 512, then estimated with an error of 1.6 percent."""
    return Aggregate(call.returns, Primitive.BYTES, initial=lambda: _FEW, add=_add, merge=_merge, result=_estimate)
