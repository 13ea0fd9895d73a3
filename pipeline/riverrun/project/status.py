"""The places where an application runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class AppStatus:
    """Instances and tasks of a running application.

    Args:
        application_id: Id of the application and version.
        group: The state of its consumer group, by Kafka's names.
        members: Its instances and runs, as `client-id@host`.
        instance: The `/status` of one instance, which covers all tasks; None if none was asked.
    """

    application_id: str
    group: str
    members: tuple[str, ...]
    instance: Mapping[str, Any] | None = None
