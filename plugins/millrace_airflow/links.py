"""Links beside a task, to the page of its application."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE = "/millrace"
"""Where the plugin's page is, below Airflow's own address."""


class ApplicationLink(BaseOperatorLink):
    """Leads from a task to the page of its application."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "Millrace"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the application's page."""
        return application_page(getattr(operator, "app", ""))


def application_page(app: str) -> str:
    """Return the address of an application's page, below Airflow's."""
    return f"{PAGE}/apps/{quote(app)}" if app else f"{PAGE}/"
