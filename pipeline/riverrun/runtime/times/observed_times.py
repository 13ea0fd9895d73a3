"""Event times from which a task's operators, stores and punctuations continue, kept with committed offsets.

Lateness must not depend on where a task was stopped, which worker takes it over, or where a run was cut. So the transaction
that commits results also commits all times that they depend on, unless the stored data contains them.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.state.api import KeepsTimes

_NAME_BYTES = 6


def short_name(name: str) -> str:
    """Return eight characters that stand for a name of any length.

    >>> short_name("KSTREAM-AGGREGATE-0000000003")
    'LnuBlOZg'
    """
    return urlsafe_b64encode(sha256(name.encode()).digest()[:_NAME_BYTES]).decode()


class ObservedTimes:
    """The times of one task.

    Args:
        keepers: The objects that keep times, by names that are unique within the task.
    """

    def __init__(self, keepers: Mapping[str, KeepsTimes]) -> None:
        """Start without known times."""
        self._keepers = {short_name(name): keeper for name, keeper in keepers.items()}
        self._known: dict[str, int] = {}

    def learn(self, times: Mapping[str, int]) -> None:
        """Take over the times that were committed with an input. Each input has its own copy, and the latest time counts."""
        for name, time_ms in times.items():
            self._known[name] = max(time_ms, self._known.get(name, time_ms))

    def resume(self) -> None:
        """Let every object whose times are known continue from them."""
        for name, keeper in self._keepers.items():
            known = [self._known[f"{name}{number}"] for number in self._numbers(name)]
            if known:
                keeper.resume(known)

    def current(self) -> Mapping[str, int]:
        """Return all current times; those that are still unknown keep their earlier values."""
        for name, keeper in self._keepers.items():
            self._known |= {f"{name}{n}": time_ms for n, time_ms in enumerate(keeper.times()) if time_ms >= 0}
        return self._known

    def _numbers(self, name: str) -> Iterator[int]:
        number = 0
        while f"{name}{number}" in self._known:
            yield number
            number += 1
