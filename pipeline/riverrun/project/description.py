"""An application's topology as text, picture or page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import ConfigError
from riverrun.records import TaskId

if TYPE_CHECKING:
    from riverrun.hosting.application import Application

FORMATS = ("text", "mermaid", "svg", "html")


def described(application: Application, form: str) -> str:
    """Return the topology in a format.

    Args:
        application: The application with its topology.
        form: One of `FORMATS`.

    Raises:
        ConfigError: If there is no such format.
    """
    topology = application.topology
    match form:
        case "text":
            return topology.describe()
        case "mermaid":
            return topology.mermaid()
        case "svg":
            return topology.svg()
        case "html":
            return topology.html(f"{application.config.name} {application.version}")
    message = f"a topology has no description as {form!r}"
    raise ConfigError(message, hint=f"Formats are {', '.join(FORMATS)}.")


def generated_code(application: Application) -> str:
    """Return the code that tasks generate for each sub-topology, and the nodes that it calls, with reasons."""
    from riverrun.runtime.compile import sub_topology_code

    parts = []
    for sub in application.topology.sub_topologies():
        spec = application.task_spec(TaskId(sub.id, 0), ())
        parts.append(str(sub_topology_code(spec.sub_topology, spec.handlers, spec.timestamp_extractor)))
    return "\n".join(parts)
