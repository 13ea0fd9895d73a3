"""The kinds of joins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JoinKind:
    """Says which sides appear in the result without a partner. Its text is part of fingerprints."""

    left_outer: bool
    right_outer: bool


INNER = JoinKind(left_outer=False, right_outer=False)
LEFT = JoinKind(left_outer=True, right_outer=False)
OUTER = JoinKind(left_outer=True, right_outer=True)
