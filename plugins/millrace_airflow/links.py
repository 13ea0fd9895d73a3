"""Addresses of the plugin's page, and the links beside tasks that lead to it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE = "/millrace"
"""The path of the page, below Airflow's own address."""


class ApplicationLink(BaseOperatorLink):
    """Leads from a task to the page of its application."""

    @property
    def name(self) -> str:
        """The text of the button."""
        return "Millrace"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address of the application's page."""
        return page_of(getattr(operator, "app", ""))


def page_of(app: str) -> str:
    """Return the address of an application's page; of that of all applications for an empty name."""
    return f"{base()}{PAGE}/apps/{quote(app)}" if app else f"{base()}{PAGE}/"


def base() -> str:
    """Return the path below which Airflow is served; empty at the root of a host."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
