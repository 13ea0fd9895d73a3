"""Decides when the leader has to hear that warm-ups here have caught up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.records import TaskId

_AGAIN_SECONDS = 30.0
"""Interval of repeated reports: the leader compares positions up to a second old, and may see a false lag under load."""


class WarmUps:
    """The tasks that are warming up here.

    Args:
        acceptable_lag: The most records that a caught-up task may lack (`acceptable.recovery.lag`).
    """

    def __init__(self, acceptable_lag: int) -> None:
        """Begin without a task that has caught up."""
        self._acceptable_lag = acceptable_lag
        self._ready: frozenset[TaskId] = frozenset()
        self._told_at = 0.0

    def are_news(self, warm_ups: Collection[TaskId], lags: Mapping[TaskId, int], now_s: float) -> bool:
        """Return whether to ask for a probing rebalance: more tasks have caught up, or some did long ago and still wait.

        Args:
            warm_ups: The tasks that are warming up.
            lags: Number of missing records per standby.
            now_s: The present time (monotonic seconds).
        """
        before = self._ready
        self._ready = frozenset(
            task for task in warm_ups if lags.get(task, self._acceptable_lag + 1) <= self._acceptable_lag
        )
        if self._ready <= before and not (self._ready and now_s - self._told_at >= _AGAIN_SECONDS):
            return False
        self._told_at = now_s
        return True
