"""A source that a follower polls, and the topic that its rows go to: one process at a time, without a group."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from riverrun.errors import EngineError, SerializationError, TaskMigratedError
from riverrun.hosting.process import SystemClock
from riverrun.processor.handlers import ERRORS_EXCEPTION, ERRORS_MESSAGE
from riverrun.transfers.follower import FollowReport, forgetting
from riverrun.transfers.import_progress import Resumable, outages_told
from riverrun.transfers.topic_feed import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.sinks import RefusedRecordsError
    from riverrun.records import RawFields
    from riverrun.transfers.import_progress import TopicTarget
    from riverrun.transfers.import_rows import RowForm, SourceRow

log = logging.getLogger(__name__)

_POLLED = 2_000
"""Rows of a poll, about."""
_ONE_HINT = (
    "Run one process of an import at a time. If this was the only one, it had written nothing for longer than brokers"
    " remember it (transactional.id.expiration.ms, a week): start it again."
)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one poll of a source.

    Args:
        rows: Rows, which follow those of the poll before.
        has_more: Whether the next poll may find more at once.
        is_end: Whether everything has been read that was there when the source was opened.
        again_seconds: Seconds until the next poll if there was not more, if that is sooner than usual.
    """

    rows: Sequence[SourceRow]
    has_more: bool = False
    is_end: bool = False
    again_seconds: float | None = None


class PolledSource(Resumable, Protocol):
    """A source that can be asked for rows after its position."""

    def open(self) -> None:
        """Connect, and check that the source has what is needed."""

    def close(self) -> None:
        """Release connections."""

    def read(self, most: int) -> Found:
        """Return about `most` rows after the position, which moves past them."""

    def waiting(self) -> int:
        """Return the number of rows, or files, after the position."""

    def shown(self) -> str:
        """Return the position as text for reports."""


class PolledFeed:
    """Feeds a topic with the rows of a source (`riverrun.transfers.follower.Feed`).

    Args:
        name: Name of the import, for messages.
        poll_seconds: Time between two polls of a source that had nothing new.
        continues: Whether rows that cannot become records become letters, which have headers; otherwise they are an error.
        clock: Returns seconds that only rise.
    """

    is_urgent = False

    def __init__(
        self,
        name: str,
        source: PolledSource,
        target: TopicTarget,
        form: RowForm,
        *,
        poll_seconds: float,
        continues: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._form = form
        self._poll_seconds = poll_seconds
        self._continues = continues
        self._clock = clock
        self._pause = pause
        self.records = self.size = 0
        self._skipped = self._skipped_committed = 0
        self._look_at = 0.0
        self.is_reading = False
        self.is_at_end = False

    @property
    def has_to_begin(self) -> bool:
        return not self.is_reading

    def take_part(self, _commit: Callable[[], None]) -> bool:
        return False

    def begin(self) -> None:
        self._target.begin()
        self._source.open()
        self.is_reading, self._look_at = True, self._clock()
        log.info("following the source of import %s from %s", self._name, self._source.shown())

    def read(self, timeout_s: float) -> bool:
        """Poll the source if it is time, and write its rows; otherwise wait, at most until then."""
        now = self._clock()
        if now < self._look_at:
            self._pause(min(timeout_s, self._look_at - now))
            return False
        found = self._source.read(_POLLED)
        if not found.has_more:
            usual = self._poll_seconds
            self._look_at = self._clock() + min(usual, usual if found.again_seconds is None else found.again_seconds)
        now_ms = SystemClock().now_ms()
        # Without a schema registry, the follower begins again before these rows, as after outages of brokers (`TopicTarget`).
        with forgetting(self), outages_told():
            records = [self._record(row, now_ms) for row in found.rows]
        self._target.write(records)
        self.records += len(records)
        self.size += size_of(records)
        self.is_at_end = found.is_end or (self.is_at_end and not records)
        return found.is_end

    def look(self) -> None:
        """Do nothing: a source forgets no deletions that it had."""

    def commit(self) -> None:
        with forgetting(self):
            self._target.commit()
        self.records = self.size = 0
        self._skipped_committed = self._skipped

    def forget(self) -> None:
        if self.is_reading:
            self._source.close()
        self.is_reading = self.is_at_end = False
        self.records = self.size = 0
        # What was not committed is read again.
        self._skipped = self._skipped_committed

    def give_way(self) -> None:
        """End this process, which another one has fenced."""
        message = f"Import {self._name} also runs elsewhere: another process has taken it over"
        raise TaskMigratedError(message, hint=_ONE_HINT)

    def refuse(self, error: RefusedRecordsError) -> None:
        raise error

    def release(self) -> None:
        self._target.release()

    def reached(self) -> FollowReport:
        """Return the place in the source; the lag is the number of rows, or files, that the topic does not have yet."""
        return FollowReport(lag=self._lag(), skipped=self._skipped_committed, place=self._source.shown())

    def _lag(self) -> int:
        try:
            return self.records + self._source.waiting() if self.is_reading else 0
        # The lag is only for reports; the next poll reports the error.
        except EngineError:
            return 0

    def _record(self, row: SourceRow, now_ms: int) -> RawFields:
        try:
            return (*self._form.record(row, now_ms), 0, ())
        except SerializationError as error:
            if not self._continues:
                raise
            self._skipped += 1
            cause = type(error.__cause__ or error).__name__
            headers = ((ERRORS_EXCEPTION, cause.encode()), (ERRORS_MESSAGE, error.message.encode()))
            return (None, self._form.shown(row), now_ms, 0, headers)
