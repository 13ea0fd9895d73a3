"""A consumer's membership, in the bytes that the client library hands from consumers to transactional producers."""

from __future__ import annotations

import struct

from riverrun.simulation.groups import Caller

_MAGIC = b"CGMDv2:"
_NUMBER = struct.Struct("=i")


def caller_in(metadata: bytes) -> tuple[str, Caller]:
    """Return the group and the member."""
    (generation,) = _NUMBER.unpack_from(metadata, len(_MAGIC))
    rest = metadata[len(_MAGIC) + _NUMBER.size :]
    group, member, instance = rest.split(b"\0", 2)
    # A byte says whether there is an instance; 1 stands for none.
    named = None if instance[:1] == b"\x01" else instance[1:].rstrip(b"\0").decode()
    return group.decode(), Caller(member.decode(), generation, named)


def as_metadata(group: str, caller: Caller) -> bytes:
    """Return the bytes of a membership."""
    instance = b"\x01" if caller.instance is None else b"\0" + caller.instance.encode() + b"\0"
    return (
        _MAGIC + _NUMBER.pack(caller.generation) + group.encode() + b"\0" + caller.member_id.encode() + b"\0" + instance
    )
