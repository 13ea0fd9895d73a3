"""When the leader is to hear that what warms up here has caught up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pipeline.records import TaskId

_AGAIN_SECONDS = 30.0
"""The leader compares positions that are up to a second old: under load it may find a lag that is none, and is told again."""


class WarmUps:
    """Tasks that the leader waits for, as they catch up.

    Args:
        acceptable_lag: With at most so many records missing a task has caught up (`acceptable.recovery.lag`).
    """

    def __init__(self, acceptable_lag: int) -> None:
        """None has caught up."""
        self._acceptable_lag = acceptable_lag
        self._ready: frozenset[TaskId] = frozenset()
        self._told_at = 0.0

    def are_news(self, warm_ups: Collection[TaskId], lags: Mapping[TaskId, int], now_s: float) -> bool:
        """Whether to tell the leader: more have caught up, or have for long and are still waited for (probing rebalance).

        Args:
            warm_ups: Those that are waited for.
            lags: Records that are missing, per standby.
            now_s: What time it is (monotonic seconds).
        """
        before = self._ready
        self._ready = frozenset(
            task for task in warm_ups if lags.get(task, self._acceptable_lag + 1) <= self._acceptable_lag
        )
        if self._ready <= before and not (self._ready and now_s - self._told_at >= _AGAIN_SECONDS):
            return False
        self._told_at = now_s
        return True
