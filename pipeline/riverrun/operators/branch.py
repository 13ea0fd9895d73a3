"""Sends each record down one of several branches (`KStreamBranch`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.arguments import is_true
from riverrun.operators.stateless import test_of
from riverrun.processor.fused import block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.fused import Site
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers


class Branch:
    """Forwards a record to the child of the first predicate that holds, or to the default child; drops it if there is none.

    Args:
        predicates: `(key, value) -> bool`, in order.
        children: Names of the nodes of the branches, in the same order; one more is the default branch.
    """

    def __init__(self, predicates: Sequence[Callable[[Any, Any], bool]], children: Sequence[str]) -> None:
        self.predicates = predicates
        self.children = children
        self._ways: list[tuple[Callable[[Any, Any], bool], Callable[[Any, Any, int, Headers], None]]] = []
        self._default: Callable[[Any, Any, int, Headers], None] | None = None

    def init(self, context: OperatorContext) -> None:
        """Bind the children."""
        ways = [context.forward_to(child) for child in self.children]
        self._ways = list(zip(self.predicates, ways, strict=False))
        self._default = ways[-1] if len(ways) > len(self.predicates) else None

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Forward to one child, or drop."""
        for predicate, forward in self._ways:
            kept = predicate(key, value)
            if kept is True or (kept is not False and is_true(kept)):
                forward(key, value, timestamp, headers)
                return
        if self._default is not None:
            self._default(key, value, timestamp, headers)

    def lines(self, at: Site) -> str:
        """Return the lines of `process`."""
        ways, word = [], "if"
        for number, (predicate, child) in enumerate(zip(self.predicates, self.children, strict=False)):
            ways.append(block(f"{word} {test_of(at, f'predicate_{number}', predicate)}:", at.to(child)))
            word = "elif"
        if len(self.children) > len(self.predicates):
            default = at.to(self.children[-1])
            ways.append(block("else:", default) if ways else default)
        return "\n".join(ways)

    def close(self) -> None:
        """Nothing to release."""
