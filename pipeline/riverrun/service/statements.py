"""`POST /query`: answers SELECTs over the tables of an SQL application, from wherever their rows are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from riverrun.config import load_attribute
from riverrun.decoders import json_decoder
from riverrun.records import shortened
from riverrun.service.admission import QUERY_PATH, refused
from riverrun.service.processes import QueryProcesses, QueryRefusedError
from riverrun.service.reading import Bookmark, ShownRows, StoreRequest
from riverrun.service.rendering import from_base64, to_base64
from riverrun.service.signatures import POSITION, ROLE
from riverrun.state.api import StoreKind
from riverrun.windows import MAX_TIME_MS
from riverrun.worker.answers import MAX_ROWS
from riverrun.worker.queries import KeyQuery, RangeQuery, SessionQuery, WindowQuery

if TYPE_CHECKING:
    from riverrun.hosting.application import Application
    from riverrun.service.processes import Planned, QueryProcess
    from riverrun.service.reading import LiveReferral, StoreReader
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries import Query as StoreQuery

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Statement(BaseModel):
    """The body of a query."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(description="A SELECT.")
    page: str | None = Field(None, description="`next` of the page before.")


def sql_router(
    application: Application, reader: StoreReader, live: LiveReferral, queries: QueryProcesses | None
) -> APIRouter:
    """Return the route that answers statements."""
    router = APIRouter()

    @router.post(QUERY_PATH)
    def query(
        statement: Statement,
        stale: Annotated[bool, Query()] = False,  # noqa: FBT002 - FastAPI reads it by its name
        version: Annotated[str | None, Query()] = None,
    ) -> Response:
        """Return the rows of the SELECT statement in the body, from the stores of an SQL application."""
        if queries is None:
            return refused("bad-statement", f"The topology of {application.id} is not a file of statements", 400)
        live.require(version)
        began = time.monotonic()
        until = began + queries.seconds
        try:
            with queries.process(until) as process:
                planned = process.plan(statement.sql, until)
                pull = _Pull(reader, planned, until, allows_standby=stale)
                return _answer(pull, statement, process, began)
        except QueryRefusedError as error:
            return refused(error.error, error.message, error.status)

    return router


def query_processes(application: Application) -> QueryProcesses | None:
    """Return the processes that compute an application's queries; None if its topology is not a file of statements."""
    compute = query_function(application)
    return None if compute is None else QueryProcesses(application, load_attribute(compute))


def query_function(application: Application) -> str | None:
    """Return the name of the function that computes an application's queries; None if it answers none."""
    loader = application.config.loader_of(application.version)
    return None if loader is None else loader.queries


@dataclass(frozen=True, slots=True)
class _Mark:
    """The beginning of the next page: index of the key, number of rows still allowed (None: any), and place in the store."""

    number: int
    left: int | None
    bookmark: str | None = None

    def __str__(self) -> str:
        return to_base64(msgspec.json.encode((self.number, self.left, self.bookmark)))

    @classmethod
    def parse(cls, text: str) -> _Mark:
        try:
            found = cls(*json_decoder(tuple[_Count, _Count | None, str | None]).decode(from_base64(text)))
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"{shortened(text)} is not the `next` of a page") from error
        return found


def _answer(pull: _Pull, statement: Statement, process: QueryProcess, began: float) -> Response:
    """Return a page: the rows among a limited number of the store's entries, or fewer where the query ends.

    A query with groups or an order has one page, of all entries.
    """
    planned = pull.planned
    mark: _Mark | None = _Mark(0, planned.limit) if statement.page is None else _Mark.parse(statement.page)
    if planned.is_gathered and statement.page is not None:
        raise ValueError("The page belongs to another query")
    rows: list[bytes] = []
    positions: dict[str, str] = {}
    roles: set[str] = set()
    looked_at = 0
    # A page ends after half of the time: the last read and its rows must fit into the other half.
    half = (began + pull.until) / 2
    while mark is not None and mark.left != 0:
        found = pull.read(mark, MAX_ROWS - looked_at)
        # Also empty partitions count, so that a store of many of them ends a page at all.
        looked_at += 0 if planned.is_gathered else max(len(found.rows), 1)
        made = process.rows(found.rows, mark.left, statement.sql, pull.until) if found.rows else []
        rows += made
        # Several reads of a partition: the earliest has its part of the answer, and later ones have more.
        for entry in filter(None, found.position.split(",")):
            positions.setdefault(entry.rpartition("@")[0], entry)
        roles.add(found.role)
        mark = pull.following(mark, found, len(made))
        if planned.is_gathered and time.monotonic() > pull.until:
            raise QueryRefusedError("query-too-long", "The query took longer than server.query.timeout.ms", 503)
        if looked_at >= MAX_ROWS or (time.monotonic() >= half and not planned.is_gathered):
            break
    if planned.is_gathered:
        rows, mark = process.rows(None, None, statement.sql, pull.until), None
    following = None if mark is None or mark.left == 0 else str(mark)
    columns = [{"name": name, "type": type_} for name, type_ in planned.columns]
    headers = {POSITION: ",".join(positions.values()), ROLE: "standby" if "standby" in roles else "active"}
    body = {"columns": columns, "rows": msgspec.Raw(b"[" + b",".join(rows) + b"]"), "next": following}
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")


class _Pull:
    """Reads the rows of a query from its store."""

    def __init__(self, reader: StoreReader, planned: Planned, until: float, *, allows_standby: bool) -> None:
        self.planned = planned
        self.until = until
        self._reader = reader
        self._place = reader.place(planned.store)
        self._allows_standby = allows_standby
        self._keys: tuple[bytes | None, ...] = (None,) if planned.keys is None else planned.keys

    def read(self, mark: _Mark, limit: int) -> ShownRows:
        """Return the next entries of the store."""
        # A page token is text of the caller: nothing says that it belongs to this query.
        if mark.number >= max(len(self._keys), 1):
            raise ValueError("The page belongs to another query")
        if not self._keys:
            return ShownRows([], None, "", "active")
        key = self._keys[mark.number]
        bookmark = Bookmark.parse(mark.bookmark) if mark.bookmark else None
        return self._reader.read(self._wanted(key, limit), self._place.partitions_of(key), bookmark)

    def following(self, mark: _Mark, found: ShownRows, rows: int) -> _Mark | None:
        """Return where the next page begins; None if this was the last."""
        left = None if mark.left is None else mark.left - rows
        if found.next is not None:
            return _Mark(mark.number, left, str(found.next))
        return _Mark(mark.number + 1, left) if mark.number + 1 < len(self._keys) else None

    def _wanted(self, key: bytes | None, limit: int) -> StoreRequest:
        builder = self._place.builder
        query, params = _question(builder, self.planned, key)
        path = f"/stores/{quote(builder.name, safe='')}" + ("" if key is None else f"/{to_base64(key)}")
        params |= {"format": "base64", "raw": "true", "stale": str(self._allows_standby).lower()}
        return StoreRequest(
            self._place,
            query,
            path,
            params,
            limit,
            allows_standby=self._allows_standby,
            is_raw=True,
            until=self.until,
        )


def _question(builder: StoreBuilder, planned: Planned, key: bytes | None) -> tuple[StoreQuery, dict[str, str]]:
    """Return the query of each partition of a store, and the parameters that ask another instance for it."""
    lower, upper = (key, key) if key is not None else (planned.lower, planned.upper)
    bounds = {"from": lower, "to": upper} if key is None else {}
    params = {name: to_base64(each) for name, each in bounds.items() if each is not None}
    if builder.kind in {StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE}:
        return (RangeQuery(lower, upper) if key is None else KeyQuery(key)), params
    if planned.time_from:
        params["time_from"] = str(planned.time_from)
    if planned.time_to < MAX_TIME_MS:
        params["time_to"] = str(planned.time_to)
    if builder.kind is StoreKind.SESSION:
        return SessionQuery(key, planned.time_from, planned.time_to), params
    return WindowQuery(lower, upper, planned.time_from, planned.time_to), params
