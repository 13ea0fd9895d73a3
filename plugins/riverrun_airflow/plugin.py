"""Entry points for Airflow's plugin manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from riverrun_airflow import pools
from riverrun_airflow.links import PAGE, ApplicationLink, DocsLink, SparkLink, page_of
from riverrun_airflow.times import AdjoiningTimetable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Page:
    """Creates the page on the first request."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            # Not at the top: every task loads plugins, but only the web server needs the page.
            from riverrun_airflow.page import application

            self._app = application()
        await self._app(scope, receive, send)


class RiverrunPlugin(AirflowPlugin):
    """Registers the page, links, pools and times with Airflow; DAGs import operators themselves."""

    name = "riverrun"
    listeners = [pools]  # noqa: RUF012 - as Airflow declares it
    timetables = [AdjoiningTimetable]  # noqa: RUF012
    operator_extra_links = [ApplicationLink(), DocsLink(), SparkLink()]  # noqa: RUF012
    fastapi_apps: list[Any] = [{"app": Page(), "url_prefix": PAGE, "name": "Riverrun"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Riverrun", "href": page_of(""), "destination": "nav", "url_route": "riverrun"}
    ]
