"""Queries rows of stored tables from the instances of an application, in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import StreamsError
from riverrun.worker.group.protocol import servers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.project.app import App

# A rebalance ends once a member that has died is missed, after a session of 45 seconds.
_REBALANCE_SECONDS = 60.0


def pulled(
    app: App, statement: str, *, server: str | None = None, stale: bool = False
) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
    """Return the columns and the current rows of a SELECT over a stored table."""
    params = {"stale": str(stale).lower(), "version": app.version}
    ask, page = _first_answer(app, server, params, {"sql": statement})

    def rows() -> Iterator[tuple[Any, ...]]:
        found = page
        while True:
            yield from map(tuple, found["rows"])
            if found["next"] is None:
                return
            found = ask({"sql": statement, "page": found["next"]})

    return tuple(each["name"] for each in page["columns"]), rows()


def _first_answer(
    app: App, server: str | None, params: Mapping[str, Any], body: Mapping[str, Any]
) -> tuple[Callable[[Mapping[str, Any]], Any], Any]:
    """Return a function that queries an answering instance, and its first answer; raise the error of the last one asked."""
    failure: StreamsError | None = None
    # Further pages come from the instance that gave the first one.
    for each in [server] if server else servers_of(app.cluster.admin, app.application_id, within_s=_REBALANCE_SECONDS):
        ask = _asking(app, each, params)
        try:
            return ask, ask(body)
        except StreamsError as error:
            failure = error
    message = f"No instance of {app.application_id} answers queries"
    raise failure or StreamsError(message, hint=f"Start one: riverrun worker {app.name} --server 127.0.0.1:8090")


def _asking(app: App, server: str, params: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda body: app.ask("POST", "/query", server=server, body=body, **params)
