"""Follows a source into a target: drives a feed, commits what is due, and waits for a target that does not answer.

The feed of exports and archives reads topics (`riverrun.transfers.topic_feed`). That of imports polls a source
(`riverrun.transfers.polled_feed`).
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from riverrun.errors import BrokerError, EngineError, StreamsError, TaskMigratedError
from riverrun.processor.sinks import RefusedRecordsError
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_LOOK_SECONDS = 10.0
"""Seconds between two checks whether another version of the application is live."""


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """When to commit, and how long to wait for a target.

    Args:
        commit_seconds: Time after the first record without a commit.
        commit_records: Number of records without a commit.
        commit_bytes: Size of their keys and values.
        retry_seconds: Time to wait for a target that does not answer, and in a batch for brokers and a schema registry as well.
            The follower then ends.
    """

    commit_seconds: float = 1.0
    commit_records: int = 10_000
    commit_bytes: int = 16_000_000
    retry_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The progress of a follower.

    Args:
        records: Records committed so far.
        commits: Number of commits.
        rate: Records committed per second since the last report.
        lag: Number of offsets of its partitions that are not committed; partitions of unknown end do not count.
        offsets: By partition, the end offset (exclusive) of the target.
        lags: By partition, the number of offsets that are not committed, if the end is known.
        since_commit: Seconds since the last commit; None before it.
        skipped: Number of records that could not be read and were skipped; those of `records` include them.
        place: The position of an import in its source; empty for topics.
    """

    records: int = 0
    commits: int = 0
    rate: float = 0.0
    lag: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    since_commit: float | None = None
    skipped: int = 0
    place: str = ""

    def __str__(self) -> str:
        """Describe it on one line.

        >>> print(FollowReport(1200, 3, 400.5, 7))
        1,200 records in 3 commits, 400/s, 7 behind, no partitions
        """
        offsets = ", ".join(f"{tp}@{offset}" for tp, offset in sorted(self.offsets.items()))
        parts = self.place or offsets or "no partitions"
        done = f"{self.records:,} {'record' if self.records == 1 else 'records'} in {counted(self.commits, 'commit')}"
        if self.skipped:
            done += f" ({self.skipped:,} unreadable ones skipped)"
        return f"{done}, {self.rate:,.0f}/s, {self.lag:,} behind, {parts}"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options of one call that follows.

    Args:
        until_caught_up: Whether to stop at the present end of the source.
        ends: Returns whether a stop is requested; asked about ten times per second.
        on_report: Called with the progress every `report_seconds`.
        report_seconds: Time between two reports.
    """

    until_caught_up: bool = False
    ends: Callable[[], bool] = lambda: False
    on_report: Callable[[FollowReport], None] = lambda _report: None
    report_seconds: float = 10.0


class Feed(Protocol):
    """A source with the target that it feeds.

    Methods raise `EngineError` if the target does not answer, `TaskMigratedError` if another owner has taken over, and
    `RefusedRecordsError` for records that the target will never take. Before they raise `BrokerError`, they forget what was
    read.
    """

    records: int
    """Number of records that are written and not committed."""
    size: int
    """Bytes of their keys and values."""

    @property
    def has_to_begin(self) -> bool:
        """Return whether `begin` is the next step."""

    @property
    def is_reading(self) -> bool:
        """Return whether there is something to read."""

    @property
    def is_at_end(self) -> bool:
        """Return whether everything has been read that there is at present."""

    @property
    def is_urgent(self) -> bool:
        """Return whether a commit is due, even without records."""

    def take_part(self, commit: Callable[[], None]) -> bool:
        """Return whether the share of this process is a new one. Calls `commit` before others get the present one."""

    def begin(self) -> None:
        """Take the target over from all others, and resume after its last record."""

    def read(self, timeout_s: float) -> bool:
        """Wait for records up to a timeout, and write them; return whether an end was reached."""

    def look(self) -> None:
        """Do what is due from time to time."""

    def commit(self) -> None:
        """Make what was written visible, together with the progress."""

    def forget(self) -> None:
        """Stop reading; what was not committed is read again after `begin`."""

    def give_way(self) -> None:
        """Leave the target to another owner, or raise."""

    def refuse(self, error: RefusedRecordsError) -> None:
        """Leave out records that the target refuses, or raise."""

    def release(self) -> None:
        """Release the target."""

    def reached(self) -> FollowReport:
        """Return how far the target is, in a report without counts."""


@contextmanager
def forgetting(feed: Feed) -> Iterator[None]:
    """Forget what was read if brokers fail: it may be written in part, and is read again from the last commit."""
    try:
        yield
    except BrokerError:
        feed.forget()
        raise


class Follower:
    """Keeps a target up to date."""

    def __init__(
        self,
        feed: Feed,
        settings: FollowSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._feed = feed
        self._settings = settings
        self._clock = clock
        self._pause = pause
        self._due_at = 0.0
        self._done = self._commits = self._done_before = 0
        self._reported_at = clock()
        self._committed_at: float | None = None
        self._failing_since: float | None = None
        self._is_batch = False
        self._again_at = 0.0
        self._next_pause = _FIRST_PAUSE_SECONDS

    def follow(self, options: FollowOptions, is_outdated: Callable[[], bool] = lambda: False) -> bool:
        """Follow until a stop is requested, and commit what was read; return whether the feed is outdated.

        `is_outdated` returns whether records have to be made in another way from now on, which ends this follower.
        """
        self._is_batch = options.until_caught_up
        look_at = self._clock() + _LOOK_SECONDS
        try:
            while not options.ends():
                self.turn()
                now = self._clock()
                if now - self._reported_at >= options.report_seconds:
                    options.on_report(self.report())
                if options.until_caught_up and self._is_caught_up():
                    break
                if now >= look_at:
                    look_at = now + _LOOK_SECONDS
                    if is_outdated():
                        self._finish()
                        return True
            self._finish()
        finally:
            self._let_go()
        return False

    def turn(self) -> None:
        """Take part in the group, read some records, and commit what is due."""
        if self._feed.take_part(self._commit_for_others):
            self._again_at = 0.0
        if self._feed.has_to_begin and self._clock() >= self._again_at:
            with self._recovering():
                self._feed.begin()
        self._read()

    def report(self) -> FollowReport:
        """Return the progress; the rate is the one since the last call."""
        now = self._clock()
        seconds, done = now - self._reported_at, self._done - self._done_before
        self._reported_at, self._done_before = now, self._done
        return replace(
            self._feed.reached(),
            records=self._done,
            commits=self._commits,
            rate=done / seconds if seconds else 0.0,
            since_commit=None if self._committed_at is None else now - self._committed_at,
        )

    def _read(self) -> None:
        """Read records and commit what is due; pause if there is nothing to read."""
        feed = self._feed
        if not feed.is_reading:
            self._pause(_POLL_SECONDS)
            return
        with self._recovering():
            had_some, now = feed.records > 0, self._clock()
            is_end = feed.read(_POLL_SECONDS)
            if not had_some:
                self._due_at = now + self._settings.commit_seconds
            if self._is_due():
                self._commit()
            if is_end and not feed.records:
                self._note_recovery()
            feed.look()

    def _note_recovery(self) -> None:
        """End a series of failures: whatever was read is written, and not only begun."""
        if self._failing_since is not None:
            log.warning("recovered after %.0f s", self._clock() - self._failing_since)
        self._failing_since, self._next_pause = None, _FIRST_PAUSE_SECONDS

    def _is_due(self) -> bool:
        feed, settings = self._feed, self._settings
        return feed.is_urgent or (
            feed.records > 0
            and (
                feed.records >= settings.commit_records
                or feed.size >= settings.commit_bytes
                or self._clock() >= self._due_at
            )
        )

    def _commit(self) -> None:
        records = self._feed.records
        if not records and not self._feed.is_urgent:
            return
        self._feed.commit()
        self._done += records
        self._commits += 1
        self._committed_at = self._clock()
        self._note_recovery()

    def _is_caught_up(self) -> bool:
        """Return whether everything has been read, after a commit of what was read."""
        if not self._feed.is_at_end:
            return False
        with self._recovering():
            self._commit()
        # A commit that failed leaves the feed to begin again.
        return not self._feed.records and self._feed.is_at_end

    def _finish(self) -> None:
        try:
            self._commit()
        # Nothing is lost: the next follower begins at the target's offsets, and writes these records.
        except (BrokerError, EngineError, TaskMigratedError, RefusedRecordsError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                raise
            log.warning("the last records are left to the next follower: %s", error.message)

    def _commit_for_others(self) -> None:
        """Commit before others get the partitions."""
        try:
            self._commit()
        # The group takes the partitions away in any case. Without this commit, their next owner reads the records again.
        except StreamsError as error:
            log.warning("records are left to the next owner of their partitions: %s", error.message)

    def _let_go(self) -> None:
        self._feed.forget()
        try:
            self._feed.release()
        except StreamsError as error:
            log.warning("the target was not released: %s", error.message)

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Continue after errors that pass: what was not committed is read again from where the target ends."""
        try:
            yield
        except TaskMigratedError as error:
            self._feed.forget()
            self._feed.give_way()
            log.warning("%s; joining the group again", error.message)
        except BrokerError as error:
            if not error.retriable:
                raise
            # The caller of a batch waits for its end.
            if self._is_batch:
                self._plan_attempt(error)
            else:
                self._wait_for_brokers(error)
        except EngineError as error:
            self._plan_attempt(error)
        except RefusedRecordsError as error:
            self._feed.refuse(error)
            log.warning("resuming from the last commit: %s", error.message)
            self._feed.forget()
            self._again_at = 0.0

    def _wait_for_brokers(self, error: BrokerError) -> None:
        """Pause after an error of brokers or a schema registry, for longer each time if the feed has to begin again."""
        # Nobody knows whether the target would have answered meanwhile.
        self._failing_since = None
        if self._feed.is_reading:
            log.warning("%s", error.message)
            self._pause(_POLL_SECONDS)
        else:
            log.warning("%s; retrying in %.1f s", error.message, self._next_pause)
            self._begin_later(self._clock())

    def _plan_attempt(self, error: BrokerError | EngineError) -> None:
        """Plan the next attempt to begin, or raise the error."""
        self._feed.forget()
        now = self._clock()
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        if now - since >= self._settings.retry_seconds:
            raise error
        left = self._settings.retry_seconds - (now - since)
        log.warning("%s; retrying in %.1f s, for at most %.0f s more", error.message, self._next_pause, left)
        self._begin_later(now)

    def _begin_later(self, now: float) -> None:
        self._again_at = now + self._next_pause
        self._next_pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._next_pause)
