"""Finds the record that frames of Python process, where that is not the one that its task has taken last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS, as_exception
from riverrun.generated import owner_of
from riverrun.records import TopicPartition, shortened
from riverrun.runtime.failures import Failures
from riverrun.runtime.node_context import NodeContext

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from riverrun.state.api import Place

_ACTING_AS = NodeContext.acting_as.__code__
_BY_TIME = {NodeContext.by_time.__code__, Failures.punctuate.__code__}
# Their frames have the key of a node; those of serdes and of the user may have other things of that name.
_ROOMS = ("riverrun.operators.", "riverrun.runtime.")


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A record that was held back, or a result that time has brought out, while another record is the last one taken.

    Args:
        place: Partition and offset of the record; None if there is none.
        keys: The key at the innermost node; empty if it is not known.
    """

    place: tuple[TopicPartition, int] | None
    keys: tuple[Any, ...]

    @property
    def key_text(self) -> str:
        """Return the key in readable form; empty if it is not known."""
        return "".join(map(_shown, self.keys))


def held_back(frames: Iterable[FrameType]) -> HeldBack | None:
    """Return what the innermost of these frames process, given from there outwards; None if that is the last one taken."""
    keys: tuple[Any, ...] = ()
    for frame in frames:
        code, names = frame.f_code, frame.f_locals
        is_generated = owner_of(code.co_filename, frame.f_lineno) != ""
        if not keys and "key" in names and (is_generated or _is_own(frame)):
            keys = (names["key"],)
        if code is _ACTING_AS:
            return HeldBack(place_of(names["metadata"]), keys)
        if code in _BY_TIME:
            return HeldBack(None, keys)
        # It forwards what a cache has held back.
        if is_generated and "updates" in names and "place" in names:
            return HeldBack(place_of(names["place"]), keys)
    return None


def place_of(found: Place | None) -> tuple[TopicPartition, int] | None:
    """Return the partition and the offset of a record; None if it came from no topic."""
    if found is None or found[0] is None:
        return None
    return TopicPartition(found[0], found[1]), found[2]


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_ROOMS)


def _shown(key: Any) -> str:
    try:
        return shortened(key)
    except USER_ERRORS as error:  # of a class of the user
        as_exception(error)
        return type(key).__name__
