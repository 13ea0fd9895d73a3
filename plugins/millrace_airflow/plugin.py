"""What Airflow finds by entry point."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from millrace_airflow import pools
from millrace_airflow.links import ApplicationLink


class MillracePlugin(AirflowPlugin):
    """Makes links and pools known to Airflow; operators are imported by DAGs."""

    name = "millrace"
    listeners = [pools]  # noqa: RUF012 - as Airflow declares it
    operator_extra_links = [ApplicationLink()]  # noqa: RUF012
