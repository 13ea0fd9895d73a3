"""Asks the instances of a version from outside, at the addresses that they have named to its group.

Any process may join a group and name any address. So no token is sent there: questions and answers are signed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.hosting.clock import SystemClock
from riverrun.service.access.encryption import client_tls
from riverrun.service.access.signatures import Signatures
from riverrun.service.queries.peers import NoAnswerError, Peers

if TYPE_CHECKING:
    from riverrun.config import StreamsConfig

_ANSWER_SECONDS = 3.0
_OK = 200


class Members:
    """The instances of one version.

    Args:
        streams: Their settings.
        token: Their `server.token`; empty for none.
        application_id: Their version.
    """

    def __init__(self, streams: StreamsConfig, token: str, application_id: str) -> None:
        """Connect to none yet."""
        shared = token or streams.server_read_token
        signatures = Signatures.of(shared, application_id) if shared else None
        tls = client_tls(streams) if streams.server_ssl_certificate_location else None
        self._peers = Peers(signatures, SystemClock(), tls, within_s=_ANSWER_SECONDS)

    def ask(self, server: str, path: str) -> Any:
        """Return an instance's answer as parsed JSON.

        Args:
            server: Its `host:port`.
            path: The path to request.

        Raises:
            NoAnswerError: If it does not answer, or refuses.
        """
        answer = self._peers.get(server, path, {})
        if answer.status == _OK:
            return answer.body
        reason = answer.body.get("message", "") if isinstance(answer.body, dict) else ""
        message = f"{server} answers with status {answer.status}: {reason}"
        raise NoAnswerError(message)

    def close(self) -> None:
        """Close connections."""
        self._peers.close()
