"""The provider's description for Airflow: its connection type, operators, sensors, triggers, decorators and links."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, as Airflow's entry point `apache_airflow_provider` asks for it."""
    hook = "riverrun_airflow.hooks.RiverrunHook"
    return {
        "package-name": "riverrun-airflow",
        "name": "Riverrun",
        "description": "Bounded runs, backfills and releases of Kafka Streams topologies in Python.",
        "integrations": [
            {
                "integration-name": "Riverrun",
                "external-doc-url": "https://pypi.org/project/riverrun/",
                "tags": ["service"],
            }
        ],
        "hooks": [{"integration-name": "Riverrun", "python-modules": ["riverrun_airflow.hooks"]}],
        "operators": [{"integration-name": "Riverrun", "python-modules": list(_OPERATORS)}],
        "sensors": [{"integration-name": "Riverrun", "python-modules": ["riverrun_airflow.waiting"]}],
        "task-decorators": [{"name": "riverrun_run", "class-name": "riverrun_airflow.task_group.riverrun_run_task"}],
        "triggers": [{"integration-name": "Riverrun", "python-modules": list(_TRIGGERS)}],
        "connection-types": [
            {
                "connection-type": "riverrun",
                "hook-class-name": hook,
                "hook-name": "Riverrun",
                "conn-fields": _FIELDS,
                "ui-field-behaviour": _BEHAVIOUR,
            }
        ],
        "extra-links": [f"riverrun_airflow.links.{name}" for name in ("ApplicationLink", "DocsLink", "SparkLink")],
    }


_OPERATORS = tuple(
    f"riverrun_airflow.{name}"
    for name in ("operators", "approval", "archives", "held", "notices", "releases", "task_group", "transfers")
)
_TRIGGERS = ("riverrun_airflow.arrivals", "riverrun_airflow.triggers")
_FIELDS = {
    "project": {
        "label": "Project",
        "description": "Path of streams.toml on the machines that run tasks and read DAG files.",
        "schema": {"type": ["string", "null"]},
    },
    "kafka": {
        "label": "Kafka",
        "description": "Client properties as a JSON object; they come before those of streams.toml.",
        "schema": {"type": ["string", "null"]},
    },
    "master": {
        "label": "Spark",
        "description": "Spark's master URL, or that of a Spark Connect server; as streams.toml says if left out.",
        "schema": {"type": ["string", "null"]},
    },
}
_BEHAVIOUR = {
    "hidden-fields": ["schema", "port"],
    "relabeling": {"host": "Bootstrap servers", "login": "SASL user", "password": "SASL password"},
    "placeholders": {"host": "as in streams.toml", "project": "/srv/clicks/streams.toml"},
}
