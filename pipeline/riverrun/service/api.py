"""The HTTP interface of an instance: its stores, health and metrics, and commands to it."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from urllib.parse import quote

from fastapi import FastAPI, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from riverrun.config.secrets import redacted
from riverrun.config.streams import MOST_THREADS
from riverrun.hosting.process import SystemClock
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.service.admission import Access, Admission
from riverrun.service.answering import FILES, as_events, as_json, content, serve_files, show_errors
from riverrun.service.browsing import Browsed, Browsing, browse
from riverrun.service.history import History, Watched
from riverrun.service.history_topic import HistoryTopic, kept, past_router
from riverrun.service.measuring import instance_events
from riverrun.service.metrics import registry_of
from riverrun.service.peers import FORWARDED, Peers
from riverrun.service.push_queries import push_router
from riverrun.service.reading import (
    Bookmark,
    LiveReferral,
    QueriedInstance,
    RefusalError,
    ShownRows,
    StoreReader,
    StoreRequest,
)
from riverrun.service.rendering import key_bytes, prefix_bytes
from riverrun.service.signatures import POSITION, ROLE
from riverrun.service.statements import query_function, query_processes, sql_router
from riverrun.state.api import StoreKind
from riverrun.windows import MAX_TIME_MS
from riverrun.worker.answers import MAX_ROWS
from riverrun.worker.queries import KeyQuery, RangeQuery, Refusal, RefusalReason, SessionQuery, WindowQuery
from riverrun.worker.states import WorkerState

if TYPE_CHECKING:
    from riverrun.records import TaskId
    from riverrun.service.routing import StorePlace
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries import Query as StoreQuery
    from riverrun.worker.states import TaskFigures

log = logging.getLogger(__name__)

_STATUS = {
    RefusalReason.NO_SUCH_STORE: 404,
    RefusalReason.UNKNOWN_QUERY: 400,
    RefusalReason.NOT_HERE: 421,
    RefusalReason.NOT_LIVE: 421,
    RefusalReason.RESTORING: 503,
    RefusalReason.FAILED: 503,
}
_SHOWN = 1000
"""Greatest number of characters of a mistake in an answer: some repeat the request."""
_KEY_VALUE = frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE})
_TIMES = frozenset({"time_from", "time_to"})
_ALWAYS = frozenset({"limit", "page", "partition", "format", "raw", "stale", "version"})
_POINTS = _KEY_VALUE | {StoreKind.VERSIONED}
_WINDOW = frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW})


class ServedInstance(QueriedInstance, Watched, Protocol):
    """An instance, as seen by the HTTP interface (`StreamsInstance`)."""

    def scale(self, threads: int) -> None:
        """Change the number of stream threads."""

    def pause(self, *, paused: bool = True) -> None:
        """Pause processing, or resume it."""


class Parameters(BaseModel):
    """The parameters of a query of a store, after the `?`. Times are in ms."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    first: str | None = Field(None, alias="from", description="First key.")
    last: str | None = Field(None, alias="to", description="Last key.")
    prefix: str | None = Field(None, description="Only keys that begin with this.")
    reverse: bool = Field(default=False, description="Whether keys come in descending order; key-value stores only.")
    time: int | None = Field(None, ge=0, description="Start of a single window.")
    as_of: int | None = Field(None, ge=0, description="Time at which the value was valid; versioned stores only.")
    time_from: int = Field(0, ge=0, description="Earliest start of a window, or end of a session.")
    time_to: int = Field(MAX_TIME_MS, ge=0, description="Latest start of a window or session.")
    limit: int = Field(100, ge=1, le=MAX_ROWS, description="Maximum number of rows.")
    page: str | None = Field(None, description="The previous page's `next`.")
    partition: int | None = Field(None, ge=0, description="Only this partition of the store.")
    format: Literal["text", "base64"] = Field("text", description="Form of keys: text, or base64url of their bytes.")
    raw: bool = Field(default=False, description="Whether rows are returned as base64url of their bytes.")
    stale: bool = Field(default=False, description="Whether a standby may answer; it may be behind.")
    version: str | None = Field(None, description="Version of the application; the live one if left out.")


_EXCLUSIVE = ({"prefix", "reverse"}, {"prefix", "from"}, {"prefix", "to"}, {"time", "time_from"}, {"time", "time_to"})
"""Pairs of parameters of which one would leave the other without effect."""
_Asked = Annotated[Parameters, Query()]


def new_api(
    instance: ServedInstance, access: Access | None = None, peers: Peers | None = None, browsed: Browsed | None = None
) -> FastAPI:
    """Return the HTTP interface of an instance. By default, it admits callers of this machine, and asks only peers there."""
    history = History(instance)
    topic = HistoryTopic(instance) if instance.application.config.streams.history_topic else None
    title = f"Riverrun: {instance.application.id}"
    api = FastAPI(title=title, docs_url=None, redoc_url=None, lifespan=lambda _api: kept(history, topic))
    clock = SystemClock()
    # A middleware rather than a dependency of routes: no route can be added that forgets to ask for a token.
    api.add_middleware(Admission, access=access or Access(server=instance.server), clock=clock)
    _show_errors(api)
    _watch(api, instance)
    _stream(api, instance)
    api.state.history = history
    api.include_router(past_router(history, topic))
    _show_console(api, instance)
    _operate(api, instance)
    browse(api, browsed or Browsing(instance))
    _query_stores(api, instance, peers or Peers(None, clock))
    return api


def _show_errors(api: FastAPI) -> None:
    show_errors(api)

    @api.exception_handler(RefusalError)
    def refuse(_request: Request, error: RefusalError) -> Response:
        refusal = error.refusal
        shown = {"server": refusal.server, "missing": refusal.missing}
        body = {"error": refusal.reason.value, "message": redacted(refusal.message)}
        present = {name: value for name, value in shown.items() if value is not None}
        return as_json(body | present, _STATUS[refusal.reason])

    @api.exception_handler(ValueError)
    def complain(_request: Request, error: ValueError) -> Response:
        return as_json({"error": "bad-request", "message": redacted(str(error)[:_SHOWN])}, 400)


def _watch(api: FastAPI, instance: ServedInstance) -> None:
    registry = registry_of(instance)

    # Async, unlike the other endpoints: queries may occupy all threads of the pool, and health must be answered even then.
    @api.get("/health")
    async def health() -> Response:
        """Return the state, and whether the instance is paused and in its group. The status is 503 if it has failed."""
        status = instance.status()
        body = {"state": status.state.value, "paused": status.paused, "member": status.is_member}
        return as_json(body, 503 if status.state is WorkerState.ERROR else 200)

    @api.get("/ready")
    async def ready() -> Response:
        """Return whether all tasks of the instance run, so that it answers queries. The status is 503 if not."""
        status = instance.status()
        is_ready = status.state is WorkerState.RUNNING and not status.restoring
        body = {"ready": is_ready, "state": status.state.value, "paused": status.paused}
        return as_json(body, 200 if is_ready else 503)

    @api.get("/metrics")
    def metrics() -> Response:
        """Return the metrics in the format of Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @api.get("/status")
    def status() -> Response:
        """Return the state, tasks and threads of the instance, and the places of all tasks."""
        return as_json(status_object(instance))

    @api.get("/tasks")
    def tasks() -> Response:
        """The work of each task that runs here since it was taken over: records, dropped ones by reason, lateness."""
        return as_json(tasks_object(instance))


def _stream(api: FastAPI, instance: ServedInstance) -> None:
    """Stream events. `api.state.events` ends all streams when the server stops."""
    events = instance_events(instance, lambda: status_object(instance))
    api.state.events = events

    @api.get("/events")
    async def stream() -> Response:
        """Send the status once per second, as server-sent events, with rates, lags and bytes of local state."""
        return await as_events(events)


def _show_console(api: FastAPI, instance: ServedInstance) -> None:
    """Serve the console's page, and the graph that it shows."""
    serve_files(api, {path: (content(path), media_type) for path, (_, media_type) in FILES.items()})

    @api.get("/topology")
    def topology() -> Response:
        """Return the topology: its description, picture (SVG) and fingerprint, and whether it is a file of statements."""
        application = instance.application
        shown = application.topology
        return as_json({
            "description": shown.describe(),
            "picture": shown.svg(),
            "fingerprint": shown.fingerprint(),
            "is_sql": query_function(application) is not None,
        })  # fmt: skip


def _operate(api: FastAPI, instance: ServedInstance) -> None:
    """Serve commands to an instance. The log names the caller."""

    @api.post("/scale")
    def scale(
        threads: Annotated[
            int, Query(ge=1, le=MOST_THREADS, description="Number of stream threads; at most one per task.")
        ],
        request: Request,
    ) -> Response:
        """Set the number of stream threads."""
        layout = instance.layout
        if layout is None:
            raise RefusalError(Refusal(RefusalReason.FAILED, f"{instance.application.id} is starting"))
        if threads > len(layout.tasks):
            message = f"threads: {instance.application.id} has {len(layout.tasks)} tasks, too few for {threads} threads"
            return as_json({"error": "bad-request", "message": message}, 422)
        log.warning("scaled to %d stream threads at the request of %s", threads, _caller(request))
        instance.scale(threads)
        return as_json({"threads": threads})

    @api.post("/pause")
    def pause(request: Request) -> Response:
        """Commit and pause processing. The instance keeps its tasks and standbys."""
        log.warning("paused at the request of %s", _caller(request))
        instance.pause()
        return as_json({"paused": True})

    @api.post("/resume")
    def resume(request: Request) -> Response:
        """Resume processing."""
        log.warning("resumed at the request of %s", _caller(request))
        instance.pause(paused=False)
        return as_json({"paused": False})


def _caller(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else "somebody"


def _query_stores(api: FastAPI, instance: ServedInstance, peers: Peers) -> None:
    """Serve queries of stores, wherever their partitions are."""
    reader, live = StoreReader(instance, peers), LiveReferral(instance)

    def require_version(asked: Parameters, request: Request) -> None:
        if FORWARDED not in request.headers:  # the forwarding instance has checked the version
            live.require(asked.version)

    api.state.queries = query_processes(instance.application)
    api.include_router(sql_router(instance.application, reader, live, api.state.queries))
    api.include_router(push_router(instance.application, live, api.state.queries))

    @api.get("/stores")
    def stores() -> Response:
        """Return the stores, with their kinds, numbers of partitions and serdes."""
        found = sorted(reader.places().items())
        return as_json([_store_object(name, place) for name, place in found])

    @api.get("/metadata/{store}/{key:path}")
    def metadata(
        store: str,
        key: str,
        format: Literal["text", "base64"] = "text",  # noqa: A002 - as in `Parameters`
        version: str | None = None,
    ) -> Response:
        """Return the partition of a key, and the instances that hold it."""
        live.require(version)
        serde = reader.place(store).builder.key_serde
        raw = key_bytes(key, serde, is_base64=format == "base64")
        return as_json(reader.query_metadata_for_key(store, serde.deserialize(raw)))

    @api.get("/stores/{store}")
    def scan(store: str, asked: _Asked, request: Request) -> Response:
        """Return a page of a store's rows. Versioned stores have none: they answer for single keys only."""
        require_version(asked, request)
        return _page(_read(reader, store, None, asked, request))

    @api.get("/stores/{store}/{key:path}")
    def look_up(store: str, key: str, asked: _Asked, request: Request) -> Response:
        """Return the row of a key in key-value and versioned stores. In other stores, return a page of its rows."""
        require_version(asked, request)
        found = _read(reader, store, key, asked, request)
        is_point = reader.place(store).builder.kind in _POINTS or asked.time is not None
        if not is_point or FORWARDED in request.headers:
            return _page(found)
        if not found.rows:
            return as_json({"error": "no-such-key", "message": f"Store {store} has no such key"}, 404, _headers(found))
        return as_json(found.rows[0], 200, _headers(found))


def _store_object(name: str, place: StorePlace) -> dict[str, Any]:
    builder = place.builder
    serdes = {"key_serde": builder.key_serde.name, "value_serde": builder.value_serde.name}
    return {"store": name, "kind": builder.kind.value, "partitions": len(place.tasks), **serdes}


def status_object(instance: ServedInstance) -> dict[str, Any]:
    """Return an instance's view of itself and of all tasks, as JSON shows it."""
    status, assignment = instance.status(), instance.assignment
    summary = status.summary
    return {
        "application": instance.application.id,
        "instance": instance.id,
        "server": instance.server,
        "state": status.state.value,
        "paused": status.paused,
        "member": status.is_member,
        "threads": status.threads,
        "recovery_s": status.recovery_s,
        "holding": status.holding,
        "held_s": status.held_s,
        "active": sorted(map(str, status.active)),
        "standby": {str(task): status.lags.get(task) for task in sorted(status.standby)},
        "restoring": {str(task): missing for task, missing in sorted(status.restoring.items())},
        "waiting": _waiting(instance),
        "stuck": [{"thread": number, **asdict(record)} for number, record in sorted(status.stuck.items())],
        "processed": summary.processed,
        "commits": summary.commits,
        "dropped": dict(summary.dropped),
        "warnings": {str(task): list(each.warnings) for task, each in _figures(instance).items() if each.warnings},
        "servers": dict(assignment.servers) if assignment is not None else {},
        "standby_servers": dict(assignment.standby_servers) if assignment is not None else {},
    }


def tasks_object(instance: ServedInstance) -> dict[str, Any]:
    """Return the work of the tasks that run in an instance, as JSON shows it.

    `maxima` has wall-clock times with the highest lateness of records from then on, all in ms: see `Lateness`.
    """
    tasks = {
        str(task): {
            "since": figures.since_ms,
            "at": figures.at_ms,
            "processed": figures.processed,
            "dropped": dict(figures.dropped),
            "lateness_ms": figures.lateness.total_ms,
            "maxima": figures.lateness.maxima,
        }
        for task, figures in _figures(instance).items()
        if task != GLOBAL_TASK
    }
    return {"application": instance.application.id, "instance": instance.id, "tasks": tasks}


def _figures(instance: ServedInstance) -> dict[TaskId, TaskFigures]:
    tasks = {task: figures for report in instance.reports().values() for task, figures in report.tasks.items()}
    return dict(sorted(tasks.items()))


def _waiting(instance: ServedInstance) -> dict[str, Any]:
    """Return what tasks with buffered records wait for, and since when (ms)."""
    return {
        str(task): {
            "since": figures.waiting.since_ms,
            "inputs": list(map(str, figures.waiting.inputs)),
            "tasks": list(map(str, figures.waiting.tasks)),
        }
        for task, figures in _figures(instance).items()
        if figures.waiting is not None
    }


def _read(reader: StoreReader, store: str, key: str | None, asked: Parameters, request: Request) -> ShownRows:
    place = reader.place(store)
    raw = None if key is None else key_bytes(key, place.builder.key_serde, is_base64=asked.format == "base64")
    wanted = StoreRequest(
        place,
        _query(place.builder, raw, asked),
        f"/stores/{quote(store, safe='')}" + ("" if key is None else f"/{quote(key, safe='')}"),
        dict(request.query_params),
        asked.limit,
        allows_standby=asked.stale,
        is_forwarded=FORWARDED in request.headers,
        is_raw=asked.raw,
    )
    return reader.read(wanted, _partitions(place, raw, asked), Bookmark.parse(asked.page) if asked.page else None)


def _partitions(place: StorePlace, key: bytes | None, asked: Parameters) -> list[int]:
    if asked.partition is not None:
        if asked.partition >= max(len(place.tasks), 1):
            raise ValueError(
                f"Store {place.builder.name} has {len(place.tasks)} partitions, but no partition {asked.partition}"
            )
        return [asked.partition]
    return place.partitions_of(key)


def _check(builder: StoreBuilder, asked: Parameters, *, is_key: bool) -> None:
    """Make sure that no parameter would be ignored."""
    if builder.kind in _KEY_VALUE:
        own = frozenset[str]() if is_key else frozenset({"from", "to", "prefix", "reverse"})
    elif builder.kind in _WINDOW:
        own = _TIMES | {"time"} if is_key else _TIMES | {"time", "from", "to"}
    else:
        own = _TIMES if builder.kind is StoreKind.SESSION else frozenset({"as_of"})
    given = {Parameters.model_fields[name].alias or name for name in asked.model_dump(exclude_defaults=True)}
    what = f"{'One key' if is_key else 'A range'} of store {builder.name} ({builder.kind.value})"
    if unknown := given - own - _ALWAYS:
        message = f"{what} does not take {', '.join(sorted(unknown))}; it takes: {', '.join(sorted(own)) or 'none'}"
        raise RefusalError(Refusal(RefusalReason.UNKNOWN_QUERY, message))
    for pair in _EXCLUSIVE:
        if pair <= given:
            message = f"{what} takes only one of {' and '.join(sorted(pair))}"
            raise RefusalError(Refusal(RefusalReason.UNKNOWN_QUERY, message))


def _query(builder: StoreBuilder, key: bytes | None, asked: Parameters) -> StoreQuery:
    def bytes_of(text: str | None) -> bytes | None:
        return None if text is None else key_bytes(text, builder.key_serde, is_base64=asked.format == "base64")

    _check(builder, asked, is_key=key is not None)
    lower, upper = (key, key) if key is not None else (bytes_of(asked.first), bytes_of(asked.last))
    if builder.kind in _KEY_VALUE:
        if key is not None:
            return KeyQuery(key, asked.as_of)
        is_base64 = asked.format == "base64"
        prefix = prefix_bytes(asked.prefix, builder.key_serde, is_base64=is_base64) if asked.prefix else b""
        return RangeQuery(lower, upper, prefix, asked.reverse)
    if builder.kind in _WINDOW:
        times = (asked.time, asked.time) if asked.time is not None else (asked.time_from, asked.time_to)
        return WindowQuery(lower, upper, *times)
    if builder.kind is StoreKind.VERSIONED and key is not None:
        return KeyQuery(key, asked.as_of)
    if builder.kind is StoreKind.SESSION:
        return SessionQuery(key, asked.time_from, asked.time_to)
    message = f"Store {builder.name} ({builder.kind.value}) cannot be queried"
    raise RefusalError(Refusal(RefusalReason.UNKNOWN_QUERY, message))


def _page(found: ShownRows) -> Response:
    following = str(found.next) if found.next is not None else None
    return as_json({"rows": found.rows, "next": following}, 200, _headers(found))


def _headers(found: ShownRows) -> dict[str, str]:
    return {POSITION: found.position, ROLE: found.role}
