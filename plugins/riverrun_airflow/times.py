"""Times of schedules, between which no time is lost when clocks change."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import pendulum
from airflow.timetables.interval import CronDataIntervalTimetable
from croniter import croniter

if TYPE_CHECKING:
    from pendulum import DateTime
    from pendulum.tz.timezone import FixedTimezone, Timezone

_BOTH, _SECOND = (0, 1), (1,)


class AdjoiningTimetable(CronDataIntervalTimetable):
    """Airflow's intervals of a cron expression, each of which begins where the one before it ends.

    Airflow's class leaves intervals out when clocks change, makes them overlap, or raises an error. When clocks are set back,
    an expression for each hour takes the hour both times, others the second time. A time that clocks skip is the moment of
    the change; an expression for each hour leaves it out.
    """

    @property
    def expression(self) -> str:
        return self._expression

    @property
    def timezone(self) -> Timezone | FixedTimezone:
        """The time zone of the clock that it is about."""
        return self._timezone

    def _get_next(self, current: DateTime) -> DateTime:
        return pendulum.instance(min(self._nearest(current, fold, is_next=True) for fold in self._folds))

    def _get_prev(self, current: DateTime) -> DateTime:
        return pendulum.instance(max(self._nearest(current, fold, is_next=False) for fold in self._folds))

    @cached_property
    def _folds(self) -> tuple[int, ...]:
        return _BOTH if croniter(self._expression).expanded[1] == ["*"] else _SECOND

    def _nearest(self, current: DateTime, fold: int, *, is_next: bool) -> datetime:
        now = datetime.fromisoformat(current.astimezone(UTC).isoformat())
        reading = now.astimezone(self._timezone).replace(tzinfo=None, fold=0)
        # Times of one fold grow with their readings. But the other fold has the same readings earlier or later.
        ahead = now - (self._time(reading, fold) or now)
        start = reading + (min if is_next else max)(ahead, timedelta())
        readings = croniter(self._expression, start)
        while True:
            time = self._time((readings.get_next if is_next else readings.get_prev)(datetime), fold)
            if time is not None and (time > now if is_next else time < now):
                return time

    def _time(self, reading: datetime, fold: int) -> datetime | None:
        """Return the time at which a clock shows a reading; None if the reading is left out."""
        before, time = (reading.replace(tzinfo=self._timezone, fold=each).astimezone(UTC) for each in (1, fold))
        if time.astimezone(self._timezone).replace(tzinfo=None, fold=0) == reading:
            return time
        return None if self._folds == _BOTH else self._change(before)

    def _change(self, before: datetime) -> datetime:
        """Return the time of the change of clocks that follows within two days."""
        offset = before.astimezone(self._timezone).utcoffset()
        seconds = range(172_800)
        return before + timedelta(
            seconds=bisect_left(
                seconds,
                x=True,
                key=lambda after: (before + timedelta(seconds=after)).astimezone(self._timezone).utcoffset() != offset,
            )
        )
