"""`POST /query`: answers SELECTs over the tables of an SQL application, from wherever their rows are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from riverrun.config.checks import read_text
from riverrun.decoders import json_decoder
from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import StreamsError
from riverrun.service.access.admission import QUERY_PATH, refused
from riverrun.service.access.signatures import POSITION, ROLE
from riverrun.service.queries.reading import Bookmark, Rows, Wanted
from riverrun.service.queries.rendering import from_base64, to_base64
from riverrun.state.api import StoreKind
from riverrun.windows import MAX_TIME_MS, Window
from riverrun.worker.queries.answers import MAX_ROWS
from riverrun.worker.queries.queries import KeyQuery, RangeQuery, SessionQuery, WindowQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.hosting.application import Application
    from riverrun.service.queries.live_version import LiveVersion
    from riverrun.service.queries.reading import StoreReader
    from riverrun.service.queries.routing import StorePlace
    from riverrun.sql.answering.pull_queries import PullQuery
    from riverrun.sql.catalog import Catalog
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries.queries import Query as StoreQuery

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Statement(BaseModel):
    """The body of a query."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(description="A SELECT.")
    page: str | None = Field(None, description="`next` of the page before.")


def sql_router(application: Application, reader: StoreReader, live: LiveVersion) -> APIRouter:
    """Return the route that answers statements.

    Args:
        application: The application that runs.
        reader: Reads its stores.
        live: Leaves queries to the live version.
    """
    router = APIRouter()
    catalog = _catalog(application)

    @router.post(QUERY_PATH)
    def query(
        statement: Statement,
        stale: Annotated[bool, Query()] = False,  # noqa: FBT002 - FastAPI reads it by its name
        version: Annotated[str | None, Query()] = None,
    ) -> Response:
        """Return the rows of the SELECT statement in the body, from the stores of an SQL application."""
        if catalog is None:
            return refused("bad-statement", f"The topology of {application.id} is no file of statements", 400)
        live.require(version)
        try:
            pulled = _parsed(statement.sql, catalog)
            return _answer(_Pull(reader, pulled, allows_standby=stale), statement.page)
        except StreamsError as error:
            return refused("bad-statement", str(error), 400)

    return router


def _catalog(application: Application) -> Catalog | None:
    """Return the sources of an application's statements; None if its topology is not a file of statements."""
    path = application.config.topology_of(application.version)
    if not isinstance(path, str) or not path.endswith(".sql"):
        return None
    from riverrun.sql.answering.inspection import Statements  # noqa: PLC0415 - its parser is an extra

    builder = StreamsBuilder(application.config.streams.topology_config)
    return Statements.of(read_text(Path(path)), path, builder).catalog


def _parsed(text: str, catalog: Catalog) -> PullQuery:
    """Parse a query.

    Raises:
        SqlError: If it has a mistake, or stores cannot answer it.
    """
    from riverrun.sql.answering.commands import Select, parse_commands  # noqa: PLC0415 - its parser is an extra
    from riverrun.sql.answering.pull_queries import pull_query  # noqa: PLC0415 - as above
    from riverrun.sql.errors import SqlError  # noqa: PLC0415 - as above

    try:
        match parse_commands(text):
            case [Select() as select]:
                return pull_query(select, catalog)
    except SqlError as error:
        error.place(text, "query")
        raise
    message = "A query is one SELECT"
    raise SqlError(message)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The beginning of the next page: index of the key, place in the store, and number of rows still allowed."""

    number: int
    left: int | None
    bookmark: str | None = None

    def __str__(self) -> str:
        return to_base64(msgspec.json.encode((self.number, self.left, self.bookmark)))

    @classmethod
    def parse(cls, text: str) -> _Mark:
        try:
            return cls(*json_decoder(tuple[int, int | None, str | None]).decode(from_base64(text)))
        except (ValueError, msgspec.MsgspecError) as error:
            message = f"{text!r} is not the `next` of a page"
            raise ValueError(message) from error


def _answer(pull: _Pull, page: str | None) -> Response:
    """Return a page: the rows among a limited number of the store's entries, or fewer where the query ends."""
    mark: _Mark | None = _Mark(0, pull.pulled.limit) if page is None else _Mark.parse(page)
    rows: list[tuple[Any, ...]] = []
    positions: list[str] = []
    roles: set[str] = set()
    looked_at = 0
    while mark is not None and looked_at < MAX_ROWS and mark.left != 0:
        found = pull.read(mark, MAX_ROWS - looked_at)
        looked_at += max(len(found.rows), 1)
        made = [row for each in found.rows if (row := pull.row(each)) is not None][: mark.left]
        rows += made
        positions.append(found.position)
        roles.add(found.role)
        mark = pull.following(mark, found, len(made))
    following = None if mark is None or mark.left == 0 else str(mark)
    columns = [{"name": name, "type": str(type_)} for name, type_ in pull.pulled.columns]
    headers = {POSITION: ",".join(filter(None, positions)), ROLE: "standby" if "standby" in roles else "active"}
    body = _encode({"columns": columns, "rows": rows, "next": following})
    return Response(body, headers=headers, media_type="application/json")


class _Pull:
    """Reads the rows of a query from its store.

    Args:
        reader: Reads stores.
        pulled: The query.
        allows_standby: Whether a standby's answer, which may be old, will do.
    """

    def __init__(self, reader: StoreReader, pulled: PullQuery, *, allows_standby: bool) -> None:
        self.pulled = pulled
        self._reader = reader
        self._place = reader.place(pulled.table.store)
        self._allows_standby = allows_standby
        self._keys = list(self._stored_keys())

    def read(self, mark: _Mark, limit: int) -> Rows:
        """Return the next entries of the store.

        Raises:
            RefusedError: If a partition of the store cannot answer.
            ValueError: If the mark is of another query.
        """
        if mark.number >= max(len(self._keys), 1):
            message = "The page is of another query"
            raise ValueError(message)
        if not self._keys:
            return Rows([], None, "", "active")
        key = self._keys[mark.number]
        bookmark = Bookmark.parse(mark.bookmark) if mark.bookmark else None
        return self._reader.read(self._wanted(key, limit), self._place.partitions_of(key), bookmark)

    def row(self, found: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return a row of the query; None if an entry of the store is not part of the result."""
        builder = self._place.builder
        key = builder.key_serde.deserialize(from_base64(found["key"]["base64"]))
        value = builder.value_serde.deserialize(from_base64(found["value"]["base64"]))
        times = found.get("window") or found.get("session")
        window = None if times is None else Window(times["start"], times["end"])
        return self.pulled.row(key, value, found.get("timestamp"), window)

    def following(self, mark: _Mark, found: Rows, rows: int) -> _Mark | None:
        """Return where the next page begins; None if this was the last."""
        left = None if mark.left is None else mark.left - rows
        if found.next is not None:
            return _Mark(mark.number, left, str(found.next))
        return _Mark(mark.number + 1, left) if mark.number + 1 < len(self._keys) else None

    def _stored_keys(self) -> Iterator[bytes | None]:
        """Yield the bytes of the keys to look up; None stands for all of them."""
        keys, builder = self.pulled.sought.keys, self._place.builder
        if keys is None or builder.key_serde.name.startswith("windowed"):
            yield None
            return
        for key in keys:
            yield builder.key_serde.serialize(key)

    def _wanted(self, key: bytes | None, limit: int) -> Wanted:
        builder = self._place.builder
        query, params = _question(self._place, self.pulled, key)
        path = f"/stores/{quote(builder.name, safe='')}" + ("" if key is None else f"/{to_base64(key)}")
        params |= {"format": "base64", "raw": "true", "stale": str(self._allows_standby).lower()}
        return Wanted(self._place, query, path, params, limit, allows_standby=self._allows_standby, is_raw=True)


def _question(place: StorePlace, pulled: PullQuery, key: bytes | None) -> tuple[StoreQuery, dict[str, str]]:
    """Return the query of each partition of a store, and the parameters that ask another instance for it."""
    builder, sought = place.builder, pulled.sought
    lower, upper = (key, key) if key is not None else _bounds(builder, pulled)
    bounds = {"from": lower, "to": upper} if key is None else {}
    params = {name: to_base64(each) for name, each in bounds.items() if each is not None}
    if builder.kind in {StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE}:
        return (RangeQuery(lower, upper) if key is None else KeyQuery(key)), params
    if sought.time_from:
        params["time_from"] = str(sought.time_from)
    if sought.time_to < MAX_TIME_MS:
        params["time_to"] = str(sought.time_to)
    if builder.kind is StoreKind.SESSION:
        return SessionQuery(key, sought.time_from, sought.time_to), params
    return WindowQuery(lower, upper, sought.time_from, sought.time_to), params


def _bounds(builder: StoreBuilder, pulled: PullQuery) -> tuple[bytes | None, bytes | None]:
    sought = pulled.sought
    if builder.kind is StoreKind.SESSION or builder.key_serde.name != "string":
        return None, None
    lower, upper = (
        None if each is None else builder.key_serde.serialize((each,)) for each in (sought.lower, sought.upper)
    )
    return lower, upper
