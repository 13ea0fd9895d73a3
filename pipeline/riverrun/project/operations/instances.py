"""Requests to an instance over HTTP, from outside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from riverrun.config.address import checked_address
from riverrun.errors import ConfigError, StreamsError
from riverrun.extras import require_extra
from riverrun.records import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.releases.quality.worker_quality import Answers

_ANSWER_SECONDS = 10.0
_ASKED_AT_ONCE = 16
_SHOWN = 1_000
"""Characters of an answer that a message shows: another program may have given it."""
_HINT = "Name a running instance: --server host:port."


def asked(
    chosen: ChosenVersion,
    method: str,
    path: str,
    *,
    server: str | None,
    params: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Any:
    """Return an instance's answer as parsed JSON.

    Args:
        chosen: The application.
        method: `GET` or `POST`.
        path: Path of the request.
        server: `host:port`. Default: `application.server`.
        params: Parameters of the query string.
        body: Body of the request, as JSON; None for none. With a body, decimal numbers of the answer are exact.

    Raises:
        ConfigError: If no address of an instance is known.
        MissingExtraError: If the packages for HTTP are not installed.
        StreamsError: If the instance does not answer, or refuses.
    """
    streams = chosen.config.streams
    address = server or streams.application_server
    if not address or checked_address("--server", address).port == 0:
        message = f"No address of an instance of {chosen.name} is known"
        raise ConfigError(message, hint="Name one: --server host:port, or set application.server.")
    require_extra("http")
    import httpx

    from riverrun.service.access.encryption import client_tls

    tls = client_tls(streams)
    token = chosen.token or streams.server_read_token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http{'s' if tls else ''}://{address}{path}"
    with httpx.Client(
        timeout=_ANSWER_SECONDS, trust_env=False, verify=tls or True
    ) as client:  # no proxy must see the token
        try:
            answer = client.request(method, url, params=dict(params or {}), headers=headers, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"Instance {address} does not answer: {error}"
            raise StreamsError(message, hint=_HINT) from error
    if answer.is_error:
        message = f"Instance {address} refuses, with status {answer.status_code}: {answer.text[:_SHOWN]}"
        is_stranger = answer.status_code == httpx.codes.UNAUTHORIZED
        raise StreamsError(message, hint="Set server.token, or RIVERRUN_TOKEN." if is_stranger else None)
    try:
        return answer.json(parse_float=None if body is None else Decimal)
    except (ValueError, RecursionError) as error:
        message = f"{address} does not answer as an instance does, but with {shortened(answer.content)}"
        raise StreamsError(message, hint="Does another program answer there?") from error


def work_of(chosen: ChosenVersion, application_id: str) -> Answers:
    """Ask all instances of a version for the work of their tasks.

    Args:
        chosen: The application.
        application_id: The version.

    Raises:
        MissingExtraError: If the packages for HTTP are not installed.
    """
    require_extra("http")
    from riverrun.releases.quality.worker_quality import Answers, InstanceWork
    from riverrun.service.members import Members
    from riverrun.service.queries.peers import NoAnswerError
    from riverrun.worker.group.servers import servers_of

    def told_by(server: str) -> InstanceWork | str:
        try:
            return InstanceWork.of(members.ask(server, "/tasks"))
        except NoAnswerError as error:
            return str(error)
        except ValueError:  # another program answers there, or another version of Riverrun
            return f"{server} does not answer as an instance does"

    servers = servers_of(chosen.cluster.admin, application_id)
    members = Members(chosen.config.streams, chosen.token, application_id)
    with closing(members), ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        found = list(zip(servers, threads.map(told_by, servers), strict=True))
    told = {server: each for server, each in found if isinstance(each, InstanceWork)}
    return Answers(told, {server: each for server, each in found if isinstance(each, str)})
