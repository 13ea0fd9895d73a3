"""Ways in which user code ends that is no ordinary error."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ENOUGH = "enough"


class OwnError(BaseException):
    """An end that is no exception of Python's."""


def generator_closed() -> Any:
    """End a generator as its caller does."""
    raise GeneratorExit


def cancelled() -> Any:
    raise asyncio.CancelledError(ENOUGH)


def interrupted() -> Any:
    raise KeyboardInterrupt


def own() -> Any:
    raise OwnError(ENOUGH)


def stopped() -> Any:
    raise StopIteration(ENOUGH)


def in_a_group() -> Any:
    raise BaseExceptionGroup(ENOUGH, [KeyboardInterrupt(), SystemExit(3)])


ENDS: dict[Callable[[], Any], str] = {
    lambda: sys.exit("enough"): r"sys\.exit\('enough'\) was called",
    generator_closed: r"GeneratorExit\(\) was raised",
    cancelled: r"CancelledError\('enough'\) was raised",
    interrupted: r"KeyboardInterrupt\(\) was raised",
    own: r"OwnError\('enough'\) was raised",
    stopped: "StopIteration",
    in_a_group: r"BaseExceptionGroup\('enough', .* was raised",
}
"""With what is said of each."""
