"""Leaves queries to the live version. An instance of another version names an instance of the live one."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.kafka.admin import Admin
from riverrun.service.queries.reading import RefusedError
from riverrun.worker.group.servers import servers_of
from riverrun.worker.queries.queries import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.service.queries.reading import Host

log = logging.getLogger(__name__)

_REMEMBERED_SECONDS = 5.0
"""Instances come and go, but a crowd of callers must not make brokers answer as often."""


class LiveVersion:
    """Refers queries to the live version if the instance runs another one.

    Args:
        instance: The instance that is asked.
        find: Returns the addresses of a group's instances, by the group's id.
    """

    def __init__(self, instance: Host, find: Callable[[str], Sequence[str]] | None = None) -> None:
        self._instance = instance
        self._find = find or (lambda group: servers_of(Admin(instance.application.kafka), group))
        self._lock = threading.Lock()
        self._found: tuple[str, float, Sequence[str]] = ("", 0.0, ())

    def require(self, version: str | None) -> None:
        """Make sure that the instance is of the version that is to answer.

        Args:
            version: The version that the query names; None for the live one.

        Raises:
            RefusedError: If the instance is of another version. Names an instance of the right one, if one is known.
        """
        own, config = self._instance.application.version, self._instance.application.config
        wanted = version or self._instance.live_version or own
        if wanted == own:
            return
        what = "is wanted" if version else "is live"
        message = f"{wanted} of {config.name} {what}, and this is an instance of {own}"
        raise RefusedError(Refusal(Reason.NOT_LIVE, message, self._server(f"{config.name}-{wanted}")))

    def _server(self, group: str) -> str | None:
        with self._lock:
            known, until, servers = self._found
            if known != group or time.monotonic() > until:
                servers = self._asked(group)
                self._found = group, time.monotonic() + _REMEMBERED_SECONDS, servers
        return random.choice(servers) if servers else None  # noqa: S311 - any one will do

    def _asked(self, group: str) -> Sequence[str]:
        try:
            return self._find(group)
        except StreamsError as error:  # the version is named all the same
            log.warning("instances of %s cannot be found: %s", group, error.message)
            return ()
