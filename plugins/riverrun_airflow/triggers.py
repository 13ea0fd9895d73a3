"""Triggers of waits that take no slot. They poll, and keep nothing in memory that a restart of the triggerer would lose."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from riverrun.errors import BrokerError, StreamsError
from riverrun_airflow.acting import in_airflow
from riverrun_airflow.drivers import end, look_at
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.looks import Look, look
from riverrun_airflow.sessions import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

OK, FAILED = "ok", "failed"
# Airflow may take a task that is resumed right after it was deferred for a failed one.
_DEFERRED_S = 5.0
# Of a driver: the shorter its work, the more of its task's time is a wait for the next poll.
_FIRST_PAUSE_S, _GROWTH = 1.0, 1.1


class LookTrigger(BaseTrigger):
    """Checks the state of an application repeatedly, and fires when it is as wanted.

    If brokers do not answer, it tries again.

    Args:
        look: The arguments of the check: see `looks.look`.
        config: Path of `streams.toml`; empty if the connection says it.
        every_s: Seconds between two polls.
    """

    def __init__(
        self, look: dict[str, Any], config: str = "", riverrun_conn_id: str = CONNECTION, every_s: float = 5.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.look = look
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which another triggerer creates it again."""
        arguments = {
            "look": self.look,
            "config": self.config,
            "riverrun_conn_id": self.riverrun_conn_id,
            "every_s": self.every_s,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to report."""
        for pause_s in self._pauses():
            try:
                found = await asyncio.to_thread(self._look)
            # Brokers may answer the next poll, and a failed trigger would fail the task.
            except BrokerError as error:
                self.log.warning("Polling failed: %s", error.message)
            except StreamsError as error:
                yield _event({"status": FAILED, "said": in_airflow(str(error))})
                return
            # So may Airflow's API server, which has the connection.
            except Exception as error:  # noqa: BLE001 - of any library
                self.log.warning("Polling failed: %s", error)
            else:
                self.log.info("%s", found.said)
                if found.is_over:
                    yield _event({"status": OK, "said": found.said, "found": found.found})
                    return
            await asyncio.sleep(pause_s)

    def _pauses(self) -> Iterator[float]:
        """Return the seconds after each poll."""
        return repeat(self.every_s)

    def _look(self) -> Look:
        return look(located(self.config, self.riverrun_conn_id).project(), **self.look)


class DriverTrigger(LookTrigger):
    """Waits until a Spark driver has ended, and ends it if its task is cancelled.

    Args:
        look: The driver and its start time: the arguments of `drivers.look_at`.
        config: Path of `streams.toml`; empty if the connection says it.
        every_s: Longest time in seconds between two polls; the first ones follow each other faster.
        until_ms: Time at which the driver is asked to end, ms since the epoch; None without a limit.
    """

    def __init__(
        self,
        look: dict[str, Any],
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        every_s: float = 5.0,
        until_ms: int | None = None,
    ) -> None:
        super().__init__(look, config, riverrun_conn_id, every_s)
        self.until_ms = until_ms

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which another triggerer creates it again."""
        path, arguments = super().serialize()
        return path, {**arguments, "until_ms": self.until_ms}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the driver has ended, not at once."""
        await asyncio.sleep(_DEFERRED_S)
        async for event in super().run():
            yield event

    def _pauses(self) -> Iterator[float]:
        pause_s = min(_FIRST_PAUSE_S, self.every_s)
        while True:
            yield pause_s
            pause_s = min(pause_s * _GROWTH, self.every_s)

    async def on_kill(self) -> None:
        await asyncio.to_thread(self._end)

    def _look(self) -> Look:
        # A driver ends itself in time. One of an earlier attempt may have been started without a limit.
        if self.until_ms is not None and now_ms() >= self.until_ms:
            self._end()
        return look_at(located(self.config, self.riverrun_conn_id).project(), **self.look)

    def _end(self) -> None:
        end(located(self.config, self.riverrun_conn_id).project(), self.look["driver"])


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call] # Airflow's


def ended(event: dict[str, Any]) -> str:
    """Return the findings of a wait; fail the task if the wait failed."""
    if event.get("status", OK) != OK:
        raise AirflowFailException(event["said"])
    found: str = event.get("found", "")
    return found
