"""The places where an application runs, and how far it is behind its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.project.operations.instances import asked
from riverrun.project.status import AppStatus

if TYPE_CHECKING:
    from riverrun.hosting.inputs.lags import InputLag
    from riverrun.project.chosen_version import ChosenVersion


def status_of(chosen: ChosenVersion, server: str | None) -> AppStatus:
    """Return the places where an application runs.

    Args:
        chosen: The application.
        server: `host:port` of an instance with details; None for `application.server`, if an instance runs.
    """
    application_id = chosen.application_id
    group = chosen.cluster.admin.group(application_id)
    address = server or chosen.config.streams.application_server
    is_asked = bool(group.members or server) and bool(address) and not address.endswith(":0")
    instance = asked(chosen, "GET", "/status", server=address) if is_asked else None
    return AppStatus(application_id, group.state, tuple(map(str, group.members)), instance)


def lag_of(chosen: ChosenVersion) -> list[InputLag]:
    """Return the lag of an application per partition of its inputs and of its repartition topics."""
    from riverrun.hosting.inputs.lags import input_lags

    return input_lags(chosen.connected())
