"""Push queries: a SELECT with EMIT CHANGES over HTTP, as lines of JSON, for a limited time.

A process for queries computes it from the records of topics, in memory. It is ended when the time is over or the reader leaves.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from anyio import CancelScope
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from riverrun.service.admission import CHANGES_PATH, refused
from riverrun.service.answering import UNKEPT
from riverrun.service.processes import QueryRefusedError, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from starlette.types import Receive, Scope, Send

    from riverrun.hosting.application import Application
    from riverrun.service.processes import QueryProcesses
    from riverrun.service.reading import LiveReferral

# Every push query occupies a process, of which there are few.
MOST_SECONDS = 60.0
# An empty line shows the reader that nothing has come. Only writing shows the server that the reader has left.
_BEAT_SECONDS = 1.0


class PushStatement(BaseModel):
    """The body of a push query."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(description="A SELECT with EMIT CHANGES.")


def push_router(application: Application, live: LiveReferral, queries: QueryProcesses | None) -> APIRouter:
    """Return the route that answers push queries."""
    router = APIRouter()
    pushes = None if queries is None else _Pushes(queries)

    @router.post(CHANGES_PATH)
    def changes(
        statement: PushStatement,
        start: Annotated[
            Literal["latest", "earliest"], Query(alias="from", description="Where topics begin.")
        ] = "latest",
        version: Annotated[str | None, Query()] = None,
    ) -> Response:
        """Return the changes that a SELECT with EMIT CHANGES makes, as lines of JSON, for a minute at most.

        The first line has the columns, each further one a row, and the last one why there are no more.
        """
        if pushes is None:
            return refused("bad-statement", f"The topology of {application.id} is not a file of statements", 400)
        live.require(version)
        lines = pushes.lines(statement.sql, start)
        try:
            # Before the response begins: a mistake in the query must still become its status.
            first = next(lines)
        except QueryRefusedError as error:
            return refused(error.error, error.message, error.status)
        return _Streamed(first, lines)

    return router


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last line."""

    ended: str
    message: str = ""


class _Pushes:
    """Answers push queries."""

    def __init__(self, queries: QueryProcesses) -> None:
        self._queries = queries
        # They run for a minute: one process is left for pull queries, if there are several.
        self._free = Semaphore(max(1, queries.most - 1))

    def lines(self, text: str, start: str) -> Generator[bytes, None, None]:
        """Yield the lines of an answer; closing the generator ends the query. Later errors are the last line."""
        until = time.monotonic() + MOST_SECONDS
        with self._turn(), self._queries.process(time.monotonic() + self._queries.seconds) as process:
            has_begun = False
            try:
                for answer in process.changes(text, start, until, _BEAT_SECONDS):
                    has_begun = True
                    yield _line(answer)
                yield _line(_Ended("limit"))
            except TimeOverError:
                yield _line(_Ended("time", f"{MOST_SECONDS:.0f} s are over"))
            except QueryRefusedError as error:
                if not has_begun:
                    raise
                yield _line(_Ended(error.error, error.message))
            finally:
                process.end_unless_idle()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            error = "too-many-queries"
            raise QueryRefusedError(error, "Other push queries are running: try again", 503)
        try:
            yield
        finally:
            self._free.release()


class _Streamed(StreamingResponse):
    """Streams lines, and closes their generator when the reader leaves."""

    def __init__(self, first: bytes, lines: Generator[bytes, None, None]) -> None:
        self._lines, self._stream = lines, _after(first, lines)
        super().__init__(self._stream, headers=UNKEPT, media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # The reader's leaving cancels this task. Without a shield, the garbage collector would close the generator. It may
            # run in any thread, also in one that holds locks of the query's process.
            with CancelScope(shield=True):
                await run_in_threadpool(self._close)

    def _close(self) -> None:
        # First the outer one: left to the garbage collector, it would close the lines while they are being closed.
        self._stream.close()
        self._lines.close()


def _after(first: bytes, lines: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield first
    yield from lines


def _line(answer: Any) -> bytes:
    """Return a line: the columns, a row that is JSON already, nothing, or the end."""
    if answer is None:
        return b"\n"
    if isinstance(answer, bytes):
        return answer + b"\n"
    if isinstance(answer, _Ended):
        return msgspec.json.encode({"ended": answer.ended, "message": answer.message}) + b"\n"
    return msgspec.json.encode({"columns": [{"name": name} for name in answer]}) + b"\n"
