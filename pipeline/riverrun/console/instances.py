"""Asks the instances of an application for their status, for pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.console.shown import instance_object
from riverrun.service.members import Members
from riverrun.service.queries.peers import NoAnswerError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from riverrun.project.app import App

_MOST_ASKED = 64
"""Maximum number of instances that are asked; of further ones only the address is shown."""


class Instances:
    """Instances of one application, in all its versions.

    Args:
        app: The application.
        threads: Threads in which questions wait for answers.
    """

    def __init__(self, app: App, threads: Executor) -> None:
        self._streams = app.config.streams
        self._token = app.token
        self._threads = threads
        self._members: dict[str, Members] = {}

    @property
    def scheme(self) -> str:
        """The scheme of pages' addresses: `http` or `https`."""
        return "https" if self._streams.server_ssl_certificate_location else "http"

    def found(self, application_id: str, servers: list[str]) -> list[dict[str, Any]]:
        """Ask instances for their status.

        Args:
            application_id: Their version.
            servers: Their addresses.

        Returns:
            The status of each; for an instance that does not answer, the reason.
        """
        members = self._members_of(application_id)
        known = self._threads.map(lambda server: _asked(members, server), servers[:_MOST_ASKED])
        return [*known, *(_silent(server, "not asked: there are too many") for server in servers[_MOST_ASKED:])]

    def close(self) -> None:
        """Close connections."""
        for members in self._members.values():
            members.close()

    def _members_of(self, application_id: str) -> Members:
        if application_id not in self._members:
            self._members[application_id] = Members(self._streams, self._token, application_id)
        return self._members[application_id]


def _asked(members: Members, server: str) -> dict[str, Any]:
    try:
        return instance_object(server, members.ask(server, "/status"))
    except NoAnswerError as error:
        return _silent(server, str(error))
    except (AttributeError, KeyError, TypeError):  # something else answers there, or another version of Riverrun
        return _silent(server, "it does not answer as an instance does")


def _silent(server: str, why: str) -> dict[str, Any]:
    return {"server": server, "state": "unknown", "error": why}
