"""Tasks that wait: for candidates, a watch after a switch, work elsewhere or new records. All can wait without a slot."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from riverrun_airflow.acting import acting, number
from riverrun_airflow.deadlines import time_left
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, documented, returning_fields
from riverrun_airflow.looks import Awaited, Look, fields_of, look, position, time_ms
from riverrun_airflow.sessions import bounded, now_ms
from riverrun_airflow.triggers import LookTrigger, ended
from riverrun_airflow.work_requests import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

_MINUTE_MS = 60_000
# Key of a task's state: what a sensor waits for.
_WANTED = "wanted"


class AwaitOperator(BaseOperator):
    """Waits until workers of a release's candidate have caught up (`riverrun release await`). If none run, it ends at once.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        max_lag: Highest lag of the candidate, in offsets, at which the wait ends.
        every_s: Seconds between two polls.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        app: str,
        config: str = "",
        max_lag: int = 1000,
        every_s: float = 5.0,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.app = app
        self.config = config
        self.max_lag = max_lag
        self.every_s = every_s
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> str:
        """Look once, and defer the task."""
        wanted = {"kind": "ready", "app": self.app, "max_lag": self.max_lag}
        return waited(self, context, wanted, self.every_s)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the state of the candidate."""
        return ended(event)


class WatchOperator(BaseOperator):
    """Watches the version that is live after a switch for some minutes, and returns its findings.

    If there are none, the result is an empty text.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        version: The version that is to be live.
        minutes: Duration of the watch.
        max_lag: Lag in offsets at the end of the watch above which it is reported; 0 if lag does not matter.
        every_s: Seconds between two polls.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "version", "minutes", "max_lag", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        app: str,
        version: str,
        minutes: int | str = 0,
        max_lag: int | str = 0,
        config: str = "",
        every_s: float = 10.0,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.app = app
        self.version = version
        self.minutes = minutes
        self.max_lag = max_lag
        self.config = config
        self.every_s = every_s
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> str:
        """Look once, and defer the task until the watch ends."""
        until_ms = now_ms() + int(self.minutes) * _MINUTE_MS
        wanted = {"kind": "watched", "app": self.app, "version": self.version, "until_ms": until_ms}
        return waited(self, context, wanted | {"max_lag": int(self.max_lag)}, self.every_s)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002 - Airflow's signature
        return ended(event)


class ProcessedSensor(BaseSensorOperator):
    """Waits until an application has processed its topics up to an end, wherever it runs: in workers, or in a run elsewhere.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        end: `latest` (as it is when the task starts), a vector or a time.
        version: The version; by default, the live one.
        deferrable: Whether it waits without a slot. Otherwise `mode` says how it waits.
        poke_interval: Seconds between two polls.
        kwargs: Arguments of Airflow's `BaseSensorOperator`: `timeout`, `soft_fail`, `mode`.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "end", "version", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        app: str,
        end: str = "latest",
        version: str = "",
        config: str = "",
        deferrable: bool = True,
        poke_interval: float | timedelta = 5.0,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **returning_fields(self, kwargs))
        self.app = app
        self.end = end
        self.version = version
        self.config = config
        self.deferrable = deferrable
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> Any:
        """Resolve the end, and wait until it is processed. Returns `app`, `version` and `end`."""
        return sensed(self, context) if self.deferrable else super().execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        return poked(self, context)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        ended(event)
        return self.result(context, "")

    def trigger(self, context: Context) -> LookTrigger:
        """Return the trigger that waits in its place."""
        return LookTrigger({"kind": "processed", **self._wanted(context)}, self.config, self.riverrun_conn_id)

    def look(self, context: Context) -> Look:
        return look(located(self.config, self.riverrun_conn_id).project(), "processed", **self._wanted(context))

    def result(self, context: Context, found: str) -> dict[str, Any]:  # noqa: ARG002 - as all sensors
        return self._wanted(context)

    def _wanted(self, context: Context) -> dict[str, str]:
        return kept(context, self._resolved)

    def _resolved(self) -> dict[str, str]:
        request = RunRequest(self.app, "committed", self.end, self.version)
        chosen = bounded(located(self.config, self.riverrun_conn_id).project(), request)
        return {"app": self.app, "version": chosen.application.version, "end": str(chosen.range.end)}


class NewRecordsSensor(BaseSensorOperator):
    """Waits until topics have a number of new records, or new records after some minutes, or an event time has passed.

    With several conditions, the first that holds ends it. Without any, one new record does.

    Args:
        topics: Names of the topics, whose new offsets count together.
        records: Number of new offsets; 0 if it does not matter.
        minutes: Minutes after which any new record is enough; 0 if time does not matter.
        event_time: A time that all partitions with new records must have reached; empty if it does not matter.
        start: Offsets from which records are new: `latest` (as it is when the task starts), `earliest` or a vector.
        deferrable: Whether it waits without a slot. Otherwise `mode` says how it waits.
        poke_interval: Seconds between two polls.
        kwargs: Arguments of Airflow's `BaseSensorOperator`: `timeout`, `soft_fail`, `mode`.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = (
        "config",
        "topics",
        "records",
        "minutes",
        "event_time",
        "start",
        "riverrun_conn_id",
    )
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        topics: Sequence[str],
        records: int | str = 0,
        minutes: float | str = 0,
        event_time: str = "",
        start: str = "latest",
        config: str = "",
        deferrable: bool = True,
        poke_interval: float | timedelta = 5.0,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **returning_fields(self, kwargs))
        self.topics = topics
        self.records = records
        self.minutes = minutes
        self.event_time = event_time
        self.start = start
        self.config = config
        self.deferrable = deferrable
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> Any:
        """Wait. Returns `offsets` (the range of the new records), `end`, `records`, `reason` and `event_time`."""
        return sensed(self, context) if self.deferrable else super().execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        return poked(self, context)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        return self.result(context, ended(event))

    def trigger(self, context: Context) -> LookTrigger:
        """Return the trigger that waits in its place."""
        return LookTrigger({"kind": "arrived", **self._wanted(context)}, self.config, self.riverrun_conn_id)

    def look(self, context: Context) -> Look:
        return look(located(self.config, self.riverrun_conn_id).project(), "arrived", **self._wanted(context))

    def result(self, context: Context, found: str) -> dict[str, Any]:  # noqa: ARG002 - as all sensors
        arrived: dict[str, Any] = json.loads(found)
        return arrived

    def _wanted(self, context: Context) -> dict[str, Any]:
        return kept(context, self._awaited)

    def _awaited(self) -> dict[str, Any]:
        topics = [self.topics] if isinstance(self.topics, str) else list(self.topics)
        records, minutes, event_time = (
            number("records", self.records),
            float(self.minutes or 0),
            time_ms(self.event_time),
        )
        since = position(located(self.config, self.riverrun_conn_id).project(), topics, self.start)
        any_of_them = records or minutes or event_time
        return fields_of(Awaited(topics, records if any_of_them else 1, minutes, event_time, since, now_ms()))


def kept(context: Context, resolve: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a sensor waits for, as it was when the task started."""
    store: Any = context["task_state_store"]
    # Resolved once: `latest` of a second attempt would be another one, and polls would chase a moving end.
    found: dict[str, Any] | None = store.get(_WANTED)
    if found is None:
        found = acting(resolve)
        store.set(_WANTED, found)
    return found


def poked(sensor: ProcessedSensor | NewRecordsSensor, context: Context) -> PokeReturnValue:
    """Look once, and return whether the wait is over, with the result."""
    first = acting(lambda: sensor.look(context))
    sensor.log.info("%s", first.said)
    return PokeReturnValue(first.is_over, sensor.result(context, first.found) if first.is_over else None)


def sensed(sensor: ProcessedSensor | NewRecordsSensor, context: Context) -> Any:
    """Look once, and return the result if the wait is over; otherwise defer the task.

    Raises:
        AirflowSkipException: If the wait cannot succeed, and the sensor is to fail softly.
    """
    try:
        found = sensor.poke(context)
    except AirflowFailException as error:
        # Airflow's sensors do so in `execute`, which a deferrable sensor does not call.
        if sensor.soft_fail:
            raise AirflowSkipException(str(error)) from error
        raise
    if found.is_done:
        return found.xcom_value
    trigger = sensor.trigger(context)
    trigger.every_s = sensor.poke_interval
    limits = timedelta(seconds=sensor.timeout), time_left(context)
    sensor.defer(trigger=trigger, method_name="resume", timeout=min(each for each in limits if each is not None))
    raise AssertionError  # `defer` leaves by an exception, which its type does not say


def waited(task: AwaitOperator | WatchOperator, context: Context, wanted: dict[str, Any], every_s: float) -> str:
    """Poll once; return the finding if the wait is over, else defer the task. `wanted` are arguments of `looks.look`."""
    first = acting(lambda: look(located(task.config, task.riverrun_conn_id).project(), **wanted))
    task.log.info("%s", first.said)
    if first.is_over:
        return first.found
    trigger = LookTrigger(wanted, task.config, task.riverrun_conn_id, every_s)
    task.defer(trigger=trigger, method_name="resume", timeout=time_left(context))
    raise AssertionError  # `defer` leaves by an exception, which its type does not say
