"""New records of topics: a trigger for asset watchers and a look for sensors. They say exactly which offsets are new."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from riverrun.errors import RangeError
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.sessions import Look, front_door, now_ms
from riverrun_airflow.triggers import LookTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from riverrun.config import ProjectConfig
    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, TopicPartition

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_NEVER = 1 << 62
"""An event time that no record reaches."""
_LAST_OFFSETS = 10
"""Number of last offsets of a partition whose records say its event time. The very last ones may be marks of commits."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """The condition under which new records are reported; if it names several, the first that holds.

    Args:
        topics: The topics.
        records: Number of new offsets: records, and marks of commits. 0 if the number does not matter.
        minutes: Minutes after which any new record is reported; 0 if time does not matter.
        event_time_ms: Event time, ms since the epoch, that all partitions with new records must have reached; 0 if it does not
            matter.
        since: Offsets from which records are new, as text. Partitions that it leaves out are new from their first record.
        since_ms: The time from which `minutes` count, ms since the epoch.
    """

    topics: Sequence[str]
    records: int = 0
    minutes: float = 0.0
    event_time_ms: int = 0
    since: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """New records of topics at one look.

    Args:
        offsets: The new offsets, as text (`clicks-0@5..9`); those of partitions without new records are left out.
        end: The offsets behind the last records of all partitions, as text.
        records: Number of new offsets.
        event_time_ms: The lowest event time that partitions with new records have reached, ms since the epoch; None if it
            does not matter, or is unknown.
        reason: `records`, `minutes` or `event_time`, the condition that holds; empty if none does.
    """

    offsets: str
    end: str
    records: int
    event_time_ms: int | None = None
    reason: str = ""

    def told(self) -> dict[str, Any]:
        """Return the arrival as an object of JSON, with the event time as text."""
        known = self.event_time_ms is not None
        at = datetime.fromtimestamp((self.event_time_ms or 0) / 1000, UTC).isoformat() if known else None
        return {
            "offsets": self.offsets,
            "end": self.end,
            "records": self.records,
            "reason": self.reason,
            "event_time": at,
        }


def arrived(project: ProjectConfig, awaited: Awaited) -> Arrived:
    """Look once at what is new in topics. Only committed records count.

    Raises:
        BrokerError: If brokers do not answer.
        TopicError: If there is no such topic.
    """
    from riverrun.records import OffsetRange, OffsetVector
    from riverrun.spark.ranges import RunRange

    admin = front_door(project).cluster.admin
    ends, since = _ends(admin, awaited.topics), OffsetVector.parse(awaited.since).offsets
    first = admin.beginning_offsets(ends)
    # A partition that ends before its position belongs to a topic that was created again.
    starts = {tp: max(first[tp], since.get(tp, 0) if since.get(tp, 0) <= end else 0) for tp, end in ends.items()}
    new = {tp: OffsetRange(starts[tp], end) for tp, end in ends.items() if starts[tp] < end}
    count, at = sum(each.size for each in new.values()), None
    if awaited.event_time_ms and new:
        at = _event_time(admin, new, first)
    return Arrived(str(RunRange(new)), str(OffsetVector(ends)), count, at, reason_of(awaited, count, at, now_ms()))


def reason_of(awaited: Awaited, records: int, event_time_ms: int | None, at_ms: int) -> str:
    """Return the condition that holds; empty if none does, or nothing is new.

    >>> reason_of(Awaited(["clicks"], records=10, minutes=5), 3, None, 300_000)
    'minutes'

    Args:
        awaited: The conditions.
        records: Number of new offsets.
        event_time_ms: The event time that all partitions with new records have reached; None if it is unknown.
        at_ms: The time of the look.
    """
    if not records:
        return ""
    if awaited.records and records >= awaited.records:
        return "records"
    if awaited.event_time_ms and event_time_ms is not None and event_time_ms >= awaited.event_time_ms:
        return "event_time"
    if awaited.minutes and at_ms - awaited.since_ms >= awaited.minutes * _MINUTE_MS:
        return "minutes"
    return ""


def position(project: ProjectConfig, topics: Sequence[str], text: str) -> str:
    """Return offsets as text.

    Args:
        project: The project.
        topics: The topics.
        text: `latest`, `earliest` or a vector.

    Raises:
        BrokerError: If brokers do not answer.
        TopicError: If there is no such topic.
        RangeError: If it is not a vector.
    """
    from riverrun.records import OffsetVector

    if text not in {"latest", "earliest"}:
        try:
            return str(OffsetVector.parse(text))
        except ValueError as error:
            message = f"{text!r} is neither latest, earliest, nor a vector (topic-0@12,topic-1@7)"
            raise RangeError(message) from error
    admin = front_door(project).cluster.admin
    ends = _ends(admin, topics)
    return str(OffsetVector(ends if text == "latest" else admin.beginning_offsets(ends)))


def _ends(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, int]:
    from riverrun.records import TopicPartition

    admin.require(topics, "watched for new records")
    counts = admin.partitions(topics)
    return admin.end_offsets(TopicPartition(topic, n) for topic in topics for n in range(counts[topic]))


def _event_time(
    admin: Admin, new: Mapping[TopicPartition, OffsetRange], first: Mapping[TopicPartition, int]
) -> int | None:
    """Return the lowest event time that partitions have reached; None if one has no records among its last offsets."""
    from riverrun.kafka.ranges import read_fields
    from riverrun.records import RAW_TIMESTAMP, OffsetRange

    last = {tp: OffsetRange(max(first[tp], each.end - _LAST_OFFSETS), each.end) for tp, each in new.items()}
    times: dict[TopicPartition, int] = {}
    try:
        for tp, batch in read_fields(admin, last):
            times[tp] = max([times.get(tp, 0), *(fields[RAW_TIMESTAMP] for fields in batch)])
    except RangeError:  # retention has deleted them meanwhile
        return None
    return min(times.values()) if times.keys() == last.keys() else None


class ArrivalTrigger(LookTrigger):
    """Waits for new records of topics, for a sensor.

    Args:
        look: The fields of an `Awaited`.
        config: Path of `streams.toml`; empty if the connection says it.
        riverrun_conn_id: The connection.
        every_s: Seconds between two looks.
    """

    def _look(self) -> Look:
        return look_for(located(self.config, self.riverrun_conn_id).project(), Awaited(**self.look))


def look_for(project: ProjectConfig, awaited: Awaited) -> Look:
    """Look once for new records; the finding is an `Arrived` as JSON.

    Raises:
        StreamsError: If brokers do not answer, or there is no such topic.
    """
    found = arrived(project, awaited)
    said = f"{found.records} new offsets{f' ({found.reason})' if found.reason else ''}: {found.offsets or 'none'}"
    return Look(said, bool(found.reason), msgspec.json.encode(found.told()).decode())


class NewRecordsTrigger(BaseEventTrigger):
    """Makes an event whenever topics have enough new records, for the watcher of an asset.

    The payload of an event has `offsets`, the range of new records since the event before; `end`, `records`, `reason` and
    `event_time`. Airflow keeps the position with the asset. After a triggerer has died, an event may come twice, with the
    same start.

    Args:
        topics: The topics.
        records: Number of new offsets that make an event; 0 if the number does not matter.
        minutes: Minutes since the event before, after which any new record makes one; 0 if time does not matter.
        event_hours: Period of event time, in hours of UTC, whose end makes an event once all partitions with new records have
            passed it: 24 for days. 0 if event time does not matter.
        start: Where the first event begins: `latest`, `earliest` or a vector.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: The connection.
        every_s: Seconds between two looks.
    """

    def __init__(
        self,
        topics: Sequence[str],
        *,
        records: int = 0,
        minutes: float = 0.0,
        event_hours: float = 0.0,
        start: str = "latest",
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        every_s: float = 10.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        if isinstance(topics, str) or not topics or not (records or minutes or event_hours):
            message = "a list of topics, and records, minutes or event_hours above 0 are needed"
            raise ValueError(message)
        self.topics = list(topics)
        self.records = records
        self.minutes = minutes
        self.event_hours = event_hours
        self.start = start
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.every_s = every_s
        self._kept: dict[str, Any] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which a triggerer creates it."""
        names = ("topics", "records", "minutes", "event_hours", "start", "config", "riverrun_conn_id", "every_s")
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look forever. A look that fails is repeated, as a trigger that ends would watch no more."""
        state: dict[str, Any] = {}
        while True:
            try:
                state = state or await self._known() or await asyncio.to_thread(self._begun)
                await self._keep(state)  # only now: an event is stored soon after it was yielded
                found = await asyncio.to_thread(self._look, state)
                state = self._in_its_period(state, found)
            except Exception as error:  # noqa: BLE001 - brokers, Airflow's API server, a file being edited
                self.log.warning("Polling %s failed: %s", ", ".join(self.topics), error)
            else:
                if found.reason:
                    self.log.info("%d new offsets (%s): %s", found.records, found.reason, found.offsets)
                    yield TriggerEvent(found.told())  # type: ignore[no-untyped-call] # Airflow's
                    state = self._after(state, found)
            await asyncio.sleep(self.every_s)

    @property
    def _key(self) -> str:
        return f"riverrun-{sha256(','.join(self.topics).encode()).hexdigest()[:16]}"

    async def _known(self) -> dict[str, Any]:
        """Return the position that is kept with the asset; empty if there is none."""
        store: Any = self.asset_state_store
        return {} if store is None else await store.aget(self._key) or {}

    async def _keep(self, state: dict[str, Any]) -> None:
        store: Any = self.asset_state_store
        if store is not None and state != self._kept:
            await store.aset(self._key, state)
            self._kept = dict(state)

    def _begun(self) -> dict[str, Any]:
        """Return the position of a first watch."""
        project = located(self.config, self.riverrun_conn_id).project()
        return {"since": position(project, self.topics, self.start), "since_ms": now_ms(), "passed_ms": None}

    def _look(self, state: Mapping[str, Any]) -> Arrived:
        """Look once. The event time to pass is the end of the period that follows the last one passed."""
        period, passed = self._period_ms, state["passed_ms"]
        until = 0 if not period else _NEVER if passed is None else passed + period
        awaited = Awaited(self.topics, self.records, self.minutes, until, state["since"], state["since_ms"])
        return arrived(located(self.config, self.riverrun_conn_id).project(), awaited)

    def _in_its_period(self, state: dict[str, Any], found: Arrived) -> dict[str, Any]:
        """Return the position; the first event time that is known says in which period the watch has begun."""
        if not self._period_ms or state["passed_ms"] is not None or found.event_time_ms is None:
            return state
        return {**state, "passed_ms": found.event_time_ms // self._period_ms * self._period_ms}

    def _after(self, state: Mapping[str, Any], found: Arrived) -> dict[str, Any]:
        """Return the position after an event."""
        passed = state["passed_ms"]
        if self._period_ms and found.event_time_ms is not None:
            passed = max(passed, found.event_time_ms // self._period_ms * self._period_ms)
        return {"since": found.end, "since_ms": now_ms(), "passed_ms": passed}

    @property
    def _period_ms(self) -> int:
        return round(self.event_hours * _HOUR_MS)


def watched(topics: str | Sequence[str], *, name: str = "", **conditions: Any) -> Asset:
    """Return an asset that has an event whenever topics have enough new records, for the `schedule` of DAGs.

    Args:
        topics: The topic, or several.
        name: Name of the asset; by default, `riverrun-watch:` with the topics.
        conditions: The arguments of `NewRecordsTrigger`: `records`, `minutes`, `event_hours`, `start` and so on.
    """
    listed = [topics] if isinstance(topics, str) else list(topics)
    chosen = name or f"riverrun-watch:{','.join(listed)}"
    watcher = AssetWatcher(name=chosen, trigger=NewRecordsTrigger(listed, **conditions))
    return Asset(name=chosen, group="riverrun", watchers=[watcher])


def fields_of(awaited: Awaited) -> dict[str, Any]:
    """Return a condition as the arguments of a trigger."""
    return {**asdict(awaited), "topics": list(awaited.topics)}


def time_ms(text: str) -> int:
    """Return a time as ms since the epoch; 0 for an empty text. One without a zone is in UTC.

    >>> time_ms("1970-01-01T00:01:00+00:00"), time_ms("")
    (60000, 0)

    Raises:
        RangeError: If the text is not a time.
    """
    from riverrun.spark.ranges import time_ms as parsed

    return parsed(text) if text else 0
