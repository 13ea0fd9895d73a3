"""Asks the instances of an application at the addresses that they have named to its group.

Any process may join a group and name any address. So no token is sent there: questions and answers are signed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.console.shown import instance_object
from pipeline.hosting.clock import SystemClock
from pipeline.service.encryption import client_tls
from pipeline.service.peers import NoAnswerError, Peers
from pipeline.service.signatures import Signatures

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pipeline.project.app import App

_ANSWER_SECONDS = 3.0
_MOST_ASKED = 64
"""Maximum number of instances that are asked; of further ones only the address is shown."""


class Instances:
    """Instances of one application, in all its versions.

    Args:
        app: The application.
        threads: Threads in which questions wait for answers.
    """

    def __init__(self, app: App, threads: Executor) -> None:
        streams = app.config.streams
        self._app = app
        self._token = app.token or streams.server_read_token
        self._tls = client_tls(streams) if streams.server_ssl_certificate_location else None
        self._threads = threads
        self._peers: dict[str, Peers] = {}

    @property
    def scheme(self) -> str:
        """The scheme of pages' addresses: `http` or `https`."""
        return "http" if self._tls is None else "https"

    def found(self, application_id: str, servers: list[str]) -> list[dict[str, Any]]:
        """Ask instances for their status.

        Args:
            application_id: Their version.
            servers: Their addresses.

        Returns:
            The status of each; for an instance that does not answer, the reason.
        """
        peers = self._peers_of(application_id)
        known = self._threads.map(lambda server: _asked(peers, server), servers[:_MOST_ASKED])
        return [*known, *(_silent(server, "not asked: there are too many") for server in servers[_MOST_ASKED:])]

    def close(self) -> None:
        """Close connections."""
        for peers in self._peers.values():
            peers.close()

    def _peers_of(self, application_id: str) -> Peers:
        if application_id not in self._peers:
            signatures = Signatures.of(self._token, application_id) if self._token else None
            self._peers[application_id] = Peers(signatures, SystemClock(), self._tls, within_s=_ANSWER_SECONDS)
        return self._peers[application_id]


def _asked(peers: Peers, server: str) -> dict[str, Any]:
    try:
        answer = peers.get(server, "/status", {})
        if answer.status != 200:  # noqa: PLR2004 - OK
            return _silent(server, f"status {answer.status}: {answer.body.get('message', '')}")
        return instance_object(server, answer.body)
    except NoAnswerError as error:
        return _silent(server, str(error))
    except (AttributeError, KeyError, TypeError):  # something else answers there, or another version of Millrace
        return _silent(server, "it does not answer as an instance does")


def _silent(server: str, why: str) -> dict[str, Any]:
    return {"server": server, "state": "unknown", "error": why}
