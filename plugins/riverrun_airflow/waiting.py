"""Tasks that wait for candidates, for a watch after a switch, or for work elsewhere. They are deferred, and take no slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from riverrun_airflow.acting import acting
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink
from riverrun_airflow.operators import documented
from riverrun_airflow.sessions import bounded, look, now_ms
from riverrun_airflow.triggers import LookTrigger, ended
from riverrun_airflow.work_requests import RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

_MINUTE_MS = 60_000


class AwaitOperator(BaseOperator):
    """Waits until workers of a release's candidate have caught up (`riverrun release await`). If none run, it ends at once.

    Args:
        app: The application.
        config: Path of `streams.toml`; by default, as the connection says.
        max_lag: Offsets that the candidate may be behind.
        every_s: Seconds between two looks.
        riverrun_conn_id: The connection.
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

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Look once, and defer the task."""
        wanted = {"kind": "ready", "app": self.app, "max_lag": self.max_lag}
        return waited(self, wanted, self.every_s)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the state of the candidate."""
        return ended(event)


class WatchOperator(BaseOperator):
    """Watches the version that is live after a switch for some minutes, and returns its findings.

    If there are none, the result is an empty text.

    Args:
        app: The application.
        version: The version that is to be live.
        minutes: Duration of the watch.
        max_lag: Offsets behind at the end of the watch, above which the lag is reported; 0 if lag does not matter.
        config: Path of `streams.toml`; by default, as the connection says.
        every_s: Seconds between two looks.
        riverrun_conn_id: The connection.
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

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Look once, and defer the task until the watch ends."""
        until_ms = now_ms() + int(self.minutes) * _MINUTE_MS
        wanted = {"kind": "watched", "app": self.app, "version": self.version, "until_ms": until_ms}
        return waited(self, wanted | {"max_lag": int(self.max_lag)}, self.every_s)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the findings of the watch."""
        return ended(event)


class ProcessedSensor(BaseOperator):
    """Waits until an application has processed its topics up to an end, wherever it runs: in workers, or in a run elsewhere.

    Args:
        app: The application.
        end: `latest` (as it is when the task starts), a vector or a time.
        version: The version; by default, the live one.
        config: Path of `streams.toml`; by default, as the connection says.
        every_s: Seconds between two looks.
        riverrun_conn_id: The connection.
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
        every_s: float = 5.0,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.app = app
        self.end = end
        self.version = version
        self.config = config
        self.every_s = every_s
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Resolve the end, look once, and defer the task."""
        version, end = acting(self._resolved)
        waited(self, {"kind": "processed", "app": self.app, "version": version, "end": end}, self.every_s)
        return end

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the state of the application."""
        return ended(event)

    def _resolved(self) -> tuple[str, str]:
        request = RunRequest(self.app, "committed", self.end, self.version)
        chosen = bounded(located(self.config, self.riverrun_conn_id).project(), request)
        return chosen.application.version, str(chosen.range.end)


def waited(task: AwaitOperator | WatchOperator | ProcessedSensor, wanted: dict[str, Any], every_s: float) -> str:
    """Look once, and return the finding if the wait is over; otherwise defer the task.

    Args:
        task: The task.
        wanted: The arguments of the look: see `sessions.look`.
        every_s: Seconds between two looks.
    """
    first = acting(lambda: look(located(task.config, task.riverrun_conn_id).project(), **wanted))
    task.log.info("%s", first.said)
    if first.is_over:
        return first.found
    trigger = LookTrigger(wanted, task.config, task.riverrun_conn_id, every_s)
    task.defer(trigger=trigger, method_name="resume")
    raise AssertionError  # `defer` leaves by an exception, which its type does not say
