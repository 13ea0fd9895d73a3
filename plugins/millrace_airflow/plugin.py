"""What Airflow finds by entry point."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class MillracePlugin(AirflowPlugin):
    """Makes the package known to Airflow; operators are imported by DAGs."""

    name = "millrace"
