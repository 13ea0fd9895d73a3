"""The sources of a builder's streams: one per set of topics (`InternalStreamsBuilder.mergeDuplicateSourceNodes`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from pipeline.errors import TopologyError

if TYPE_CHECKING:
    from pipeline.records import AutoOffsetReset

Topics = frozenset[str] | tuple[str, int]
"""A set of topics, or the text and the flags of a pattern."""


@dataclass(slots=True)
class StreamSources:
    """The sources added so far, by their topics."""

    _known: dict[Topics, tuple[str, AutoOffsetReset | None]] = field(default_factory=dict)

    def source_of(
        self, name: str, topics: str | tuple[str, ...] | re.Pattern[str], reset: AutoOffsetReset | None
    ) -> str:
        """Return the source of these topics: an existing one, or a new one with this name.

        Raises:
            TopologyError: If the existing source starts elsewhere.
        """
        if isinstance(topics, re.Pattern):
            key: Topics = (topics.pattern, topics.flags)
        else:
            key = frozenset({topics} if isinstance(topics, str) else topics)
        known, known_reset = self._known.setdefault(key, (name, reset))
        if known_reset != reset:
            message = "Can't configure different offset reset policies on the same input topic(s)"
            raise TopologyError(message)
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
