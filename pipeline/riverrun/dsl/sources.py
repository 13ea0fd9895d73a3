"""The sources of a builder's streams: one per set of topics (`InternalStreamsBuilder.mergeDuplicateSourceNodes`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from riverrun.dsl.options import Consumed

Topics = frozenset[str] | tuple[str, int]
"""A set of topics, or the text and the flags of a pattern."""


@dataclass(slots=True)
class StreamSources:
    """The sources added so far, by their topics."""

    _known: dict[Topics, tuple[str, Consumed[Any, Any]]] = field(default_factory=dict)

    def source_of(
        self, name: str, topics: str | tuple[str, ...] | re.Pattern[str], consumed: Consumed[Any, Any]
    ) -> str:
        """Return the source of these topics: an existing one, or a new one with this name.

        Raises:
            TopologyError: If the existing source starts elsewhere, or has other serdes: records are deserialized once.
        """
        if isinstance(topics, re.Pattern):
            key: Topics = (topics.pattern, topics.flags)
        else:
            key = frozenset({topics} if isinstance(topics, str) else topics)
        known, first = self._known.setdefault(key, (name, consumed))
        if first.offset_reset_policy != consumed.offset_reset_policy:
            message = "Can't configure different offset reset policies on the same input topic(s)"
            raise TopologyError(message)
        for one, other in ((first.key_serde, consumed.key_serde), (first.value_serde, consumed.value_serde)):
            if one.name != other.name:
                message = f"Can't configure different serdes on the same input topic(s): {one.name} and {other.name}"
                raise TopologyError(
                    message, hint="Read the topic once, with a serde of all fields, and use that stream twice."
                )
        return known

    def check(self) -> None:
        """Check that no topic is part of two sets.

        Raises:
            TopologyError: If a topic is.
        """
        sets = [topics for topics in self._known if isinstance(topics, frozenset)]
        if any(one & other for one, other in combinations(sets, 2)):
            message = "Two source nodes are subscribed to overlapping but not equal input topics"
            raise TopologyError(message)
