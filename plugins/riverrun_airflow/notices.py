"""Notifies others of failed gates and checks, decisions that wait, late runs, and versions that fall behind."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException

from riverrun_airflow.acting import acting
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, documented
from riverrun_airflow.sessions import lags_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from airflow.sdk import Context
    from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback

_LOOKS = "looks"


@dataclass(frozen=True, slots=True)
class Notices:
    """Notifiers of problems with the applications of a project.

    Args:
        failed: Airflow's notifiers, or other functions of a context. They are called when a run, a gate, a check, a
            decision on held outputs or an archive has failed for good. A run whose outputs are held back has failed.
        behind: Likewise, when the lag of a version has grown at each of `looks` polls.
        looks: Number of consecutive polls at which the lag must have grown.
        look_schedule: Cron expression of these polls; by default, there are none.
        late: Airflow's callback for a scheduled run that is not done in time: `AsyncCallback(...)`, or `SyncCallback(...)`.
        late_after: Maximum time of a run, from when it is queued.
        waiting: Airflow's notifiers, or other functions of a context. They are called when a person is asked: about the
            warnings of a release, about the previous version, and with `dags(asks_about_held=True)` about held outputs.
    """

    failed: Sequence[Callable[[Context], None]] = ()
    behind: Sequence[Callable[[Context], None]] = ()
    looks: int = 3
    look_schedule: str | None = None
    late: AsyncCallback | SyncCallback | None = None
    late_after: timedelta | None = None
    waiting: Sequence[Callable[[Context], None]] = ()

    @property
    def deadline(self) -> DeadlineAlert | None:
        """The alert for late runs; None without receivers."""
        if self.late is None or self.late_after is None:
            return None
        return DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, self.late_after, self.late)


class LagOperator(BaseOperator):
    """Measures how far the live version and a release's candidate are behind. Fails if one falls further and further behind.

    Fails as well if committed offsets are beyond the ends of topics, as after a topic was created again.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        looks: Number of consecutive polls at which the lag of a version must have grown for the task to fail.
    """

    template_fields: Sequence[str] = ("config", "app", "looks", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(),)
    ui_color = "#f0f0f0"

    def __init__(
        self,
        *,
        app: str,
        looks: int | str = 3,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.app = app
        self.looks = looks
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> dict[str, int]:
        """Return the lag in offsets, by version. If a lag grows, the failure is not retried."""
        from riverrun.hosting.inputs import SHORTER, beyond_warning, total_text

        lags = acting(lambda: lags_of(located(self.config, self.riverrun_conn_id).project(), self.app))
        now = {version: sum(each.lag for each in found) for version, found in lags.items()}
        task: Any = context["ti"]
        # The lags of earlier runs are in their XComs: Airflow keeps no other state from run to run.
        before = task.xcom_pull(self.task_id, key=_LOOKS, include_prior_dates=True, map_indexes=-1) or []
        looks = [*before, now][-int(self.looks) - 1 :]
        task.xcom_push(_LOOKS, looks)
        for version, found in lags.items():
            self.log.info("%s %s is %s", self.app, version, total_text(found))
        beyond = [f"{version}: {said}" for version, found in lags.items() if (said := beyond_warning(found))]
        if beyond:
            raise AirflowFailException(f"{self.app}: {'; '.join(beyond)}\nHint: {SHORTER}")
        told = [f"{version}: {', '.join(map(str, seen))}" for version, seen in growing(looks, int(self.looks)).items()]
        if told:
            raise AirflowFailException(f"{self.app} falls further and further behind, in offsets: {'; '.join(told)}")
        return now


def growing(looks: Sequence[dict[str, int]], times: int) -> dict[str, list[int]]:
    """Return the lags of versions whose lag has grown at each of the last `times` polls, oldest first, by version.

    >>> growing([{"v1": 5, "v2": 5}, {"v1": 7, "v2": 4}, {"v1": 9, "v2": 9}], 2)
    {'v1': [5, 7, 9]}
    """
    last = looks[-times - 1 :]
    found = {}
    for version in looks[-1] if looks else ():
        seen = [look[version] for look in last if version in look]
        if len(seen) > times and all(one < other for one, other in pairwise(seen)):
            found[version] = seen
    return found
