"""Reads whole stores: asks the tasks that have their partitions, here and on other instances.

A query belongs to the live version: an instance of another version refuses it, and names an instance of the live one.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from riverrun.decoders import json_decoder
from riverrun.errors import StreamsError
from riverrun.kafka.admin import Admin
from riverrun.records import OffsetVector, shortened
from riverrun.service.peers import NoAnswerError
from riverrun.service.rendering import row_object
from riverrun.service.routing import Here, key_query_metadata, route, store_places
from riverrun.service.signatures import POSITION, ROLE
from riverrun.worker.group.protocol import servers_of
from riverrun.worker.queries import Refusal, RefusalReason, RowPlace, StoreQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.hosting.application import Application
    from riverrun.partitioning import StreamPartitioner
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout
    from riverrun.service.peers import Answer, Peers
    from riverrun.service.routing import KeyQueryMetadata, StorePlace
    from riverrun.worker.group.protocol import AssignmentInfo
    from riverrun.worker.queries import AnswerPage, Query
    from riverrun.worker.states import InstanceStatus

log = logging.getLogger(__name__)


class QueriedInstance(Protocol):
    """An instance, as seen by readers of its stores (`StreamsInstance`)."""

    @property
    def server(self) -> str:
        """`host:port` of its HTTP interface."""

    @property
    def application(self) -> Application:
        """The application that it runs."""

    @property
    def layout(self) -> Layout | None:
        """Its tasks; None before they are known."""

    @property
    def live_version(self) -> str | None:
        """The version that is live; None if the application was never released."""

    def status(self) -> InstanceStatus:
        """Return the status of this instance."""

    @property
    def assignment(self) -> AssignmentInfo | None:
        """The leader's last assignment, which says where all tasks are."""

    def ask(self, question: StoreQuery) -> AnswerPage | Refusal:
        """Answer a question to a task that runs here."""


_OK = 200
# For all instances that have a part of an answer, together: callers wait in threads that other requests need.
READ_SECONDS = 30.0
_SHOWN = 1000
"""Greatest number of characters of another instance's message."""


class RefusalError(Exception):
    """There is no answer; carries why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The end of a page: its partition, and the last row.

    >>> Bookmark.parse(str(Bookmark(2, RowPlace(0, b"k"))))
    Bookmark(partition=2, after=RowPlace(segment=0, key=b'k', time=0, start=0))
    """

    partition: int
    after: RowPlace | None = None

    def __str__(self) -> str:
        """Return a text that can be part of a URL."""
        return base64.urlsafe_b64encode(msgspec.json.encode((self.partition, self.after))).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        try:
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            partition, after = json_decoder(tuple[int, RowPlace | None]).decode(data)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"{shortened(text)} is not the `next` of a page") from error
        return cls(partition, after)


@dataclass(frozen=True, slots=True)
class ShownRows:
    """An answer as HTTP shows it.

    Args:
        next: Where the next page begins (`Bookmark`); None if this is the last.
        position: The point in history that the answer is from (`POSITION`).
        role: The role of the answering task (`ROLE`).
    """

    rows: list[Any]
    next: Bookmark | None
    position: str
    role: str


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A question about a store.

    Args:
        path: Path under which other instances answer this question.
        allows_standby: Whether a standby may answer, whose rows may be older.
        is_forwarded: Whether another instance has forwarded it; then it is not forwarded again.
        is_raw: Whether keys and values are wanted as base64url of their bytes.
        until: When the answer must be there (`time.monotonic`), however many instances have a part of it.
    """

    store: StorePlace
    query: Query
    path: str
    params: Mapping[str, str]
    limit: int
    allows_standby: bool
    is_forwarded: bool = False
    is_raw: bool = False
    until: float = field(default_factory=lambda: time.monotonic() + READ_SECONDS)


class StoreReader:
    """Reads stores wherever their partitions are."""

    def __init__(self, host: QueriedInstance, peers: Peers) -> None:
        self._host = host
        self._peers = peers
        self._places: dict[str, StorePlace] = {}
        self._placed: Layout | None = None

    def places(self) -> Mapping[str, StorePlace]:
        layout, application = self._host.layout, self._host.application
        if layout is None:
            raise RefusalError(Refusal(RefusalReason.FAILED, f"{application.id} is starting"))
        # A new object whenever the tasks have changed, since a pattern has matched further topics.
        if layout is not self._placed:
            self._places = store_places(application.topology, layout, application.id)
            self._placed = layout
        return self._places

    def place(self, store: str) -> StorePlace:
        places = self.places()
        if store not in places:
            known = ", ".join(sorted(places)) or "none"
            raise RefusalError(Refusal(RefusalReason.NO_SUCH_STORE, f"There is no store {store}; there are: {known}"))
        return places[store]

    def query_metadata_for_key(
        self, store: str, key: Any, *, partitioner: StreamPartitioner | None = None
    ) -> KeyQueryMetadata:
        """Return where a key is, or would be (`KafkaStreams.queryMetadataForKey`).

        `partitioner` overrides that of the topology or, for topics of others, Kafka's default. It is called without a value.
        """
        place = self.place(store)
        task = place.task_of(place.builder.key_serde.serialize(key), partitioner)
        return key_query_metadata(place, task, self._host.assignment, self._host.server)

    def read(self, wanted: StoreRequest, partitions: list[int], start: Bookmark | None) -> ShownRows:
        """Return rows of several partitions of a store, one partition after the other, from `start` on."""
        rows: list[Any] = []
        positions: list[str] = []
        roles: set[str] = set()
        mark = start or Bookmark(partitions[0])
        if mark.partition not in partitions:
            raise ValueError(f"The page is of partition {mark.partition}, which the request leaves out")
        for partition in [number for number in partitions if number >= mark.partition]:
            after = mark.after if partition == mark.partition else None
            if len(rows) >= wanted.limit:
                return ShownRows(rows, Bookmark(partition), *_together(positions, roles))
            part = self._part(wanted, Bookmark(partition, after), wanted.limit - len(rows))
            rows += part.rows
            positions.append(part.position)
            roles.add(part.role)
            if part.next is not None:
                return ShownRows(rows, part.next, *_together(positions, roles))
        return ShownRows(rows, None, *_together(positions, roles))

    def _part(self, wanted: StoreRequest, mark: Bookmark, limit: int) -> ShownRows:
        tasks = wanted.store.tasks
        task = tasks[mark.partition] if tasks else None
        status, assignment = self._host.status(), self._host.assignment
        place = route(
            task,
            status.active,
            status.standby,
            assignment,
            own_server=self._host.server,
            allows_standby=wanted.allows_standby,
        )
        if isinstance(place, Here):
            try:
                return self._here(wanted, task, mark, limit)
            except RefusalError as error:
                copies = _copies(task, assignment, self._host.server)
                # The instance that the task has moved to restores it first, while standbys elsewhere are nearly up to date.
                may_help = wanted.allows_standby and error.refusal.reason is RefusalReason.RESTORING
                if wanted.is_forwarded or not (may_help and copies):
                    raise
                return self._there(wanted, copies, mark, limit)
        # Assignments of two instances may differ for a moment: forwarding again could go in circles.
        if wanted.is_forwarded:
            message = f"Task {task} does not run here"
            raise RefusalError(Refusal(RefusalReason.NOT_HERE, message, place.servers[0]))
        return self._there(wanted, place.servers, mark, limit)

    def _here(self, wanted: StoreRequest, task: TaskId | None, mark: Bookmark, limit: int) -> ShownRows:
        builder = wanted.store.builder
        question = StoreQuery(builder.name, task, wanted.query, limit, mark.after, wanted.allows_standby)
        answer = self._host.ask(question)
        if isinstance(answer, Refusal):
            raise RefusalError(answer)
        rows = [row_object(row, builder, is_raw=wanted.is_raw) for row in answer.rows]
        following = None if answer.after is None else Bookmark(mark.partition, answer.after)
        position = str(OffsetVector(answer.position))
        return ShownRows(rows, following, position, "standby" if answer.is_standby else "active")

    def _there(self, wanted: StoreRequest, servers: tuple[str, ...], mark: Bookmark, limit: int) -> ShownRows:
        params = {**wanted.params, "partition": str(mark.partition), "limit": str(limit), "page": str(mark)}
        refusal = Refusal(RefusalReason.FAILED, "No instance was asked")
        for server in servers:
            left_s = wanted.until - time.monotonic()
            if left_s <= 0:
                message = f"Store {wanted.store.builder.name} could not be read in time"
                raise RefusalError(Refusal(RefusalReason.FAILED, message, server))
            try:
                answer = self._peers.get(server, wanted.path, params, left_s)
                if answer.status == _OK:
                    return _rows_of(answer)
            except NoAnswerError as error:
                refusal = Refusal(RefusalReason.FAILED, str(error), server)
                continue
            # Signed, but an instance of another release of Riverrun may answer in another form.
            except (ValueError, LookupError, TypeError):
                refusal = Refusal(RefusalReason.FAILED, f"{server} answers without a page of rows", server)
                continue
            refusal = _refusal_of(answer, server)
        raise RefusalError(refusal)


def _copies(task: TaskId | None, assignment: AssignmentInfo | None, own_server: str) -> tuple[str, ...]:
    """Return the other instances that follow a task."""
    known = assignment.standby_servers.get(str(task), []) if assignment is not None else []
    return tuple(server for server in known if server != own_server)


def _together(positions: list[str], roles: set[str]) -> tuple[str, str]:
    return ",".join(filter(None, positions)), "standby" if "standby" in roles else "active"


def _rows_of(answer: Answer) -> ShownRows:
    following = answer.body["next"]
    mark = Bookmark.parse(following) if following else None
    return ShownRows(list(answer.body["rows"]), mark, answer.headers[POSITION], answer.headers[ROLE])


def _refusal_of(answer: Answer, server: str) -> Refusal:
    """Return another instance's refusal. Other content of a failed answer is not repeated, since it may be anything."""
    known = {reason.value: reason for reason in RefusalReason}
    body = answer.body
    error = str(body.get("error")) if isinstance(body, dict) else ""
    if error not in known:
        return Refusal(RefusalReason.FAILED, f"{server} answers with status {answer.status}", server)
    shown, missing = str(body.get("message"))[:_SHOWN], body.get("missing")
    named = body.get("server")
    return Refusal(
        known[error],
        shown,
        named[:_SHOWN] if isinstance(named, str) and named else server,
        missing if isinstance(missing, int) else None,
    )


# Instances come and go, but a crowd of callers must not make brokers answer as often.
_REMEMBERED_SECONDS = 5.0


class LiveReferral:
    """Refers queries to the live version if the instance runs another one.

    Args:
        find: Returns the addresses of a group's instances, by the group's id.
    """

    def __init__(self, instance: QueriedInstance, find: Callable[[str], Sequence[str]] | None = None) -> None:
        self._instance = instance
        self._find = find or (lambda group: servers_of(Admin(instance.application.kafka), group))
        self._lock = threading.Lock()
        self._found: tuple[str, float, Sequence[str]] = ("", 0.0, ())

    def require(self, version: str | None) -> None:
        """Raise unless the instance is of this version (None is the live one). The error names an instance of the right one."""
        own, config = self._instance.application.version, self._instance.application.config
        wanted = version or self._instance.live_version or own
        if wanted == own:
            return
        what = "was requested" if version else "is live"
        message = f"{wanted} of {config.name} {what}, but this is an instance of {own}"
        raise RefusalError(Refusal(RefusalReason.NOT_LIVE, message, self._server(f"{config.name}-{wanted}")))

    def _server(self, group: str) -> str | None:
        # Held while brokers are asked, so that a crowd of callers makes them answer once.
        with self._lock:
            known, until, servers = self._found
            if known != group or time.monotonic() > until:
                servers = self._asked(group)
                self._found = group, time.monotonic() + _REMEMBERED_SECONDS, servers
        return random.choice(servers) if servers else None  # noqa: S311 - any one will do

    def _asked(self, group: str) -> Sequence[str]:
        try:
            return self._find(group)
        # The refusal still names the version, just no instance of it.
        except StreamsError as error:
            log.warning("instances of %s cannot be found: %s", group, error.message)
            return ()
