"""The hash by which foreign-key joins recognise stale answers (`org.apache.kafka.streams.state.internals.Murmur3`)."""

from __future__ import annotations

import struct

_SEED = 104729
_MASK = 0xFFFFFFFFFFFFFFFF
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_N1, _N2 = 0x52DCE729, 0x38495AB5
_BLOCK = struct.Struct("<QQ")
_HASH = struct.Struct(">QQ")


def hash128(data: bytes) -> bytes:
    """Compute Murmur3, 128 bits for 64-bit machines, with Kafka Streams' seed; returns 16 bytes, big-endian.

    >>> hash128(b"hello").hex()
    '30bfb4f39919e764566aea857401d1c6'
    """
    length = len(data)
    h1 = h2 = _SEED
    blocks = length // 16 * 16
    for k1, k2 in _BLOCK.iter_unpack(data[:blocks]):
        h1 ^= _mixed1(k1)
        h1 = ((_rotated(h1, 27) + h2) * 5 + _N1) & _MASK
        h2 ^= _mixed2(k2)
        h2 = ((_rotated(h2, 31) + h1) * 5 + _N2) & _MASK
    if length > blocks:
        k1, k2 = _BLOCK.unpack(data[blocks:].ljust(16, b"\0"))
        h1 ^= _mixed1(k1)
        h2 ^= _mixed2(k2)
    h1, h2 = h1 ^ length, h2 ^ length
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finished(h1), _finished(h2)
    h1 = (h1 + h2) & _MASK
    return _HASH.pack(h1, (h2 + h1) & _MASK)


def _mixed1(k: int) -> int:
    return _rotated(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed2(k: int) -> int:
    return _rotated(k * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finished(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33
