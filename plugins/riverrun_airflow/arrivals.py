"""New records of topics as events of assets, which say exactly which offsets are new."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.looks import Arrived, Awaited, arrived, position
from riverrun_airflow.sessions import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

_HOUR_MS = 3_600_000
# An event time that no record reaches.
_NEVER = 1 << 62
# Arguments of a watch that are in the name of its asset.
_NAMED = ("event_hours", "minutes", "records", "riverrun_conn_id")


class NewRecordsTrigger(BaseEventTrigger):
    """Makes an event whenever topics have enough new records, for the watcher of an asset.

    The payload of an event has `offsets`, the range of new records since the event before; `end`, `records`, `reason` and
    `event_time`. Airflow keeps the position with the asset. After a triggerer has died, an event may come twice, with the
    same start.

    Args:
        topics: Names of the topics, whose new offsets count together.
        records: Number of new offsets that make an event; 0 if the number does not matter.
        minutes: Minutes since the event before, after which any new record makes one; 0 if time does not matter.
        event_hours: Period of event time, in hours of UTC, whose end makes an event once all partitions with new records have
            passed it: 24 for days. 0 if event time does not matter.
        start: Where the first event begins: `latest`, `earliest` or a vector.
        every_s: Seconds between two polls.
        watch: Name of the watch, under which Airflow keeps the position; watches of an asset need different ones.
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
        watch: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        if isinstance(topics, str) or not topics or not (records or minutes or event_hours):
            raise ValueError("a list of topics, and records, minutes or event_hours above 0 are needed")
        self.topics = list(topics)
        self.records = records
        self.minutes = minutes
        self.event_hours = event_hours
        self.start = start
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.every_s = every_s
        self.watch = watch
        self._kept: dict[str, Any] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which a triggerer creates it."""
        names = (
            "topics",
            "records",
            "minutes",
            "event_hours",
            "start",
            "config",
            "riverrun_conn_id",
            "every_s",
            "watch",
        )
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        state: dict[str, Any] = {}
        while True:
            try:
                state = state or await self._known() or await asyncio.to_thread(self._begun)
                # One poll late: Airflow stores an event some time after it was yielded. If the triggerer dies before,
                # the event comes twice instead of never.
                await self._keep(state)
                found = await asyncio.to_thread(self._look, state)
                state = self._in_its_period(state, found)
            # Whatever fails is tried again: a trigger that has ended would watch no more.
            except Exception as error:  # noqa: BLE001 - brokers, Airflow's API server, a file being edited
                self.log.warning("Polling %s failed: %s", ", ".join(self.topics), error)
            else:
                if found.reason:
                    self.log.info("%d new offsets (%s): %s", found.records, found.reason, found.offsets)
                    yield TriggerEvent(found.told())  # type: ignore[no-untyped-call] # Airflow's
                    state = self._after(state, found)
            await asyncio.sleep(self.every_s)

    async def _known(self) -> dict[str, Any]:
        """Return the position that is kept with the asset; empty if there is none."""
        store: Any = self.asset_state_store
        if store is None:
            return {}
        # Watches kept it without their name before they had one.
        return await store.aget(_key(self.topics, self.watch)) or await store.aget(_key(self.topics)) or {}

    async def _keep(self, state: dict[str, Any]) -> None:
        store: Any = self.asset_state_store
        if store is not None and state != self._kept:
            await store.aset(_key(self.topics, self.watch), state)
            self._kept = dict(state)

    def _begun(self) -> dict[str, Any]:
        project = located(self.config, self.riverrun_conn_id).project()
        return {"since": position(project, self.topics, self.start), "since_ms": now_ms(), "passed_ms": None}

    def _look(self, state: Mapping[str, Any]) -> Arrived:
        period, passed = self._period_ms, state["passed_ms"]
        # The end of the period after the last one that was passed. Before that is known, no time can be passed.
        until = 0 if not period else _NEVER if passed is None else passed + period
        awaited = Awaited(self.topics, self.records, self.minutes, until, state["since"], state["since_ms"])
        return arrived(located(self.config, self.riverrun_conn_id).project(), awaited)

    def _in_its_period(self, state: dict[str, Any], found: Arrived) -> dict[str, Any]:
        """Return the position; the first event time that is known decides in which period the watch has begun."""
        if not self._period_ms or state["passed_ms"] is not None or found.event_time_ms is None:
            return state
        return {**state, "passed_ms": found.event_time_ms // self._period_ms * self._period_ms}

    def _after(self, state: Mapping[str, Any], found: Arrived) -> dict[str, Any]:
        passed = state["passed_ms"]
        if self._period_ms and found.event_time_ms is not None:
            passed = max(passed, found.event_time_ms // self._period_ms * self._period_ms)
        return {"since": found.end, "since_ms": now_ms(), "passed_ms": passed}

    @property
    def _period_ms(self) -> int:
        return round(self.event_hours * _HOUR_MS)


def _key(topics: Sequence[str], watch: str = "") -> str:
    named = ",".join(topics) + (f"?{watch}" if watch else "")
    return f"riverrun-{sha256(named.encode()).hexdigest()[:16]}"


def watched(topics: str | Sequence[str], *, name: str = "", **conditions: Any) -> Asset:
    """Return an asset that has an event whenever topics have enough new records, for the `schedule` of DAGs.

    Args:
        topics: The topic, or several.
        name: Name of the asset; by default, `riverrun-watch:` with the topics, `records`, `minutes`, `event_hours` and the
            connection. Airflow keeps the position with it. Watches that differ in nothing of this need names, and a named
            one keeps its position whatever changes.
        conditions: The arguments of `NewRecordsTrigger`: `records`, `minutes`, `event_hours`, `start` and so on.
    """
    listed = [topics] if isinstance(topics, str) else list(topics)
    # Airflow has one watch for each asset: the one that it reads last.
    told = "&".join(f"{key}={conditions[key]}" for key in _NAMED if conditions.get(key))
    chosen = name or f"riverrun-watch:{','.join(listed)}?{told}"
    watcher = AssetWatcher(name=chosen, trigger=NewRecordsTrigger(listed, watch=chosen, **conditions))
    made = Asset(name=chosen, group="riverrun", watchers=[watcher])
    # Airflow normalises URIs, so that those of several names may be equal; it leaves schemes of users alone.
    if made.uri != chosen:
        made.uri = f"x-{chosen}"
    return made
