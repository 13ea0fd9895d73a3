"""Finds a project by a connection, a variable of Airflow, or the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowNotFoundException

from riverrun.errors import ConfigError, StreamsError
from riverrun_airflow.location import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config import ProjectConfig

CONNECTION = "riverrun_default"
"""The id of the default connection. It may be missing."""
VARIABLE = "riverrun_project"
ENVIRONMENT = "RIVERRUN_CONFIG"
_ANSWER_SECONDS = 10.0


class RiverrunHook(BaseHook):
    """Finds the project of a connection of type `riverrun`.

    Args:
        riverrun_conn_id: The connection. If `riverrun_default` is missing, the variable `riverrun_project` and the
            environment's `RIVERRUN_CONFIG` are used instead.
    """

    conn_name_attr = "riverrun_conn_id"
    default_conn_name = CONNECTION
    conn_type = "riverrun"
    hook_name = "Riverrun"

    def __init__(self, riverrun_conn_id: str = CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.riverrun_conn_id = riverrun_conn_id

    def location(self) -> Location:
        """Return the location of the project.

        Raises:
            ConfigError: If neither the connection, nor the variable, nor the environment says it.
        """
        return located("", self.riverrun_conn_id)

    def get_conn(self) -> ProjectConfig:
        """Return the project: its applications, and the properties of Kafka's clients.

        Raises:
            ConfigError: If it is not found, or cannot be used.
        """
        return self.location().project()

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the project can be read and brokers answer, with a message; for the button of Airflow's form."""
        from riverrun_airflow.sessions import is_answered

        try:
            project = self.get_conn()
            if not is_answered(project, _ANSWER_SECONDS):
                return False, f"{project.path} can be read, but no broker answers"
        except StreamsError as error:
            return False, str(error)
        return (
            True,
            f"{project.path} has {', '.join((*project.apps, *project.refused)) or 'no applications'}; brokers answer",
        )


def located(config: str, connection: str = CONNECTION) -> Location:
    """Return the location of a project.

    Args:
        config: Path of `streams.toml`, if it is known: it overrides the connection's.
        connection: Id of the connection.

    Raises:
        ConfigError: If nothing says it, or the connection cannot be used.
    """
    found = location_if_known(config, connection)
    if found is None:
        raise ConfigError("The location of streams.toml is unknown", hint=_ways(connection))
    return found


def location_if_known(config: str, connection: str = CONNECTION) -> Location | None:
    """Return the location of a project; None if nothing says it. Arguments are those of `located`.

    Raises:
        ConfigError: If the connection cannot be used.
    """
    kafka, master = {}, ""
    try:
        found = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        if connection != CONNECTION:
            raise ConfigError(f"Airflow has no connection {connection!r}", hint=_ways(connection)) from None
    else:
        extra = _checked(connection, found)
        config = config or str(extra.get("project") or "")
        kafka, master = _kafka(connection, found, extra), str(extra.get("master") or "")
    path = config or Variable.get(VARIABLE, default=None) or os.environ.get(ENVIRONMENT)
    return Location(Path(path), kafka, master) if path else None


def _checked(name: str, found: Any) -> Mapping[str, Any]:
    if found.conn_type != RiverrunHook.conn_type:
        message = f"The connection {name!r} is of type {found.conn_type!r}"
        raise ConfigError(message, hint=f"Its type must be {RiverrunHook.conn_type}.")
    try:
        extra = json.loads(found.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        message = f"The extra of connection {name!r} is not a JSON object"
        raise ConfigError(message, hint='For example {"project": "/srv/clicks/streams.toml"}.')
    return extra


def _kafka(name: str, found: Any, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the client properties of a connection: those of the form, which `extra` overrides."""
    server = f"{found.host}:{found.port}" if found.host and found.port else found.host
    named = {"bootstrap.servers": server, "sasl.username": found.login, "sasl.password": found.password}
    given = extra.get("kafka") or {}
    # Airflow's form keeps a field of extra as text; a connection in the environment may have the object itself.
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, dict):
        message = f"kafka in the extra of connection {name!r} is not a JSON object"
        raise ConfigError(message, hint='For example {"security.protocol": "SSL"}.')
    return {key: str(value) for key, value in {**named, **given}.items() if value}


def _ways(connection: str) -> str:
    command = f"airflow connections add {connection} --conn-type riverrun"
    return (
        f"""{command} --conn-extra '{{"project": "/path/of/streams.toml"}}'; """
        f"or set the variable {VARIABLE}, or {ENVIRONMENT} in the environment."
    )
