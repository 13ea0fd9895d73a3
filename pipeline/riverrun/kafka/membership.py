"""Membership in a consumer group whose members receive plans instead of partitions.

librdkafka has no custom assignors. kafka-python has them, but its consumer may end up in no group without an error. So this
sends the requests of the protocol itself, in a separate thread. It never reads a record.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from riverrun.errors import BrokerError
from riverrun.kafka.coordinators import COUNT_BYTES
from riverrun.kafka.errors import UNREACHABLE, mapped_errors, streams_error
from riverrun.kafka.kafka_python import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    connection,
    planned_in,
    said_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.kafka.door import Kafka

log = logging.getLogger(__name__)

_PROTOCOL = "riverrun"
_PROTOCOL_VERSION = 3
# With later versions, brokers tell a restarted static leader that the group has its plans already (KIP-814), and it makes
# none.
_JOIN_VERSION, _SYNC_VERSION = 7, 5
# Named in the subscription if there is no topic, as tools show members without one as idle. It is never read.
_SOME_TOPIC = "__consumer_offsets"
_LOOKUP_SECONDS = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Pause before a request is repeated, s; it doubles while the coordinator does not answer."""
_LEAVE_SECONDS = 3.0
_NO_GENERATION = -1
_COUNTED = frozenset({KafkaError.NO_ERROR, KafkaError.REBALANCE_IN_PROGRESS})
"""Answers to a member of the present generation."""
_FORGOTTEN = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.MEMBER_ID_REQUIRED})
"""Answers to a member that the group no longer has, or not yet."""


class _LeavingError(Exception):
    """The member has been told to leave, or another process has taken its place."""


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Settings of a member, by Kafka's names.

    Args:
        session_timeout_ms: Time without heartbeats after which a member counts as dead.
        heartbeat_interval_ms: Interval of heartbeats, at most a third of the session; members learn of a rebalance with the
            next one.
        rebalance_timeout_ms: How long brokers wait for the other members in a rebalance.
        group_instance_id: Makes it a static member, whose restart causes no rebalance.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None

    @property
    def heartbeat_s(self) -> float:
        """Return how often it sends heartbeats, s."""
        return min(self.heartbeat_interval_ms, self.session_timeout_ms / 3) / 1000


_AS_KAFKA = MemberConfig()


class GroupMember:
    """One member of a group, from the first `poll` until it is closed.

    A thread takes part: it joins, receives plans and sends heartbeats, whatever the caller does meanwhile. It repeats a request
    until brokers have answered: a member that stops half-way would be in no group.

    Args:
        topics: Returns the topics to subscribe to, at every rebalance, in the thread. They are shown in descriptions of the
            group; it never reads them.
        client_id: Its name in brokers' lists of members.
        describe: Returns this member's metadata; called at every rebalance, in the thread.
        assign: Returns a plan per member, given the metadata of all; called in the leader, in another thread.
        on_plan: Called with each new plan of this member, in the thread; must not block.
    """

    def __init__(
        self,
        kafka: Kafka,
        group_id: str,
        topics: Callable[[], Collection[str]] = tuple,
        *,
        client_id: str,
        describe: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        on_plan: Callable[[bytes], None],
        config: MemberConfig = _AS_KAFKA,
    ) -> None:
        self.is_refused = False
        """True if brokers have refused the record of the group's messages since the last plan."""
        self.has_joined = False
        self.is_fenced = False
        """True once another process has joined with this `group_instance_id`, which ends this membership for good."""
        self._group_id = group_id
        self._topics = topics
        self._describe = describe
        self._assign = assign
        self._on_plan = on_plan
        self._config = config
        # Raises here if the login needs a token and there is none, rather than in the thread.
        connection(kafka.properties)
        self._coordinator = kafka.coordinator(client_id, group_id)
        self._counts = itertools.count()
        self._member_id = ""
        self._generation = _NO_GENERATION
        self._heartbeat_at = self._counted_at = time.monotonic()
        self._pause_s = _SHORTEST_PAUSE
        self._unreachable_since: float | None = None
        self._rejoins = threading.Event()
        self._ends = threading.Event()
        self._wakes = threading.Event()
        self._errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"member-of-{group_id}", daemon=True)

    @property
    def uncounted_s(self) -> float:
        """Return for how long brokers have not shown that they count this as a member, s."""
        return time.monotonic() - self._counted_at

    @property
    def unreachable_s(self) -> float:
        """Return for how long no broker has named the coordinator, s; 0 if it is known."""
        since = self._unreachable_since
        return 0.0 if since is None else time.monotonic() - since

    def poll(self, timeout_s: float) -> None:
        """Wait for an error of the membership, which continues unless the error is final. Unreachable brokers are none."""
        if self._thread.ident is None:
            self._thread.start()
        try:
            error = self._errors.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return
        raise error

    def rejoin(self) -> None:
        """Send new metadata, which starts a rebalance. May be called from any thread."""
        self._rejoins.set()
        self._wakes.set()

    def close(self) -> None:
        """Leave the group; a static member stays until its session times out."""
        self._ends.set()
        self._wakes.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._take_part()
        except _LeavingError:
            pass
        except Exception as error:  # noqa: BLE001 - raised where the member is polled
            self._errors.put(error)
        finally:
            self._leave()
            self._coordinator.close()

    def _take_part(self) -> None:
        while not self._ends.is_set():
            if self._generation == _NO_GENERATION or self._rejoins.is_set():
                self._join()
            elif (left_s := self._heartbeat_at - time.monotonic()) > 0:
                self._wait(left_s)
            else:
                self._counts_as_member(self._beat(self._generation))

    def _join(self) -> None:
        self._rejoins.clear()
        self._generation = _NO_GENERATION
        said = self._subscription()
        joined = self._answer(lambda: self._join_request(said), self._config.session_timeout_ms / 1000)
        # Brokers give a new member an id first, and let it join with that id only (KIP-394).
        if joined.error_code == KafkaError.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            joined = self._answer(lambda: self._join_request(said), self._config.session_timeout_ms / 1000)
        if not self._counts_as_member(joined.error_code):
            self._wait(_SHORTEST_PAUSE)
            return
        self._member_id = joined.member_id
        plans = self._plans(joined) if joined.leader == joined.member_id else {}
        synced = self._answer(lambda: self._sync_request(joined, plans), self._config.session_timeout_ms / 1000)
        if not self._counts_as_member(synced.error_code):
            self._wait(_SHORTEST_PAUSE)
            return
        self._generation, self.has_joined = joined.generation_id, True
        self._heartbeat_at = time.monotonic() + self._config.heartbeat_s
        plan = planned_in(bytes(synced.assignment or b""))
        if plan:
            self.is_refused = False
            self._on_plan(plan)

    def _plans(self, joined: Any) -> Mapping[str, bytes]:
        """Make the plans of all members in another thread, and send heartbeats meanwhile."""
        said = {each.member_id: said_by(bytes(each.metadata or b""))[COUNT_BYTES:] for each in joined.members}
        made: Future[Mapping[str, bytes]] = Future()
        made.add_done_callback(lambda _made: self._wakes.set())

        def make() -> None:
            try:
                made.set_result(self._assign(said))
            except Exception as error:  # noqa: BLE001 - raised where the member is polled
                made.set_exception(error)

        # Brokers would drop a leader whose plans take longer than its session, and the group would start over, forever.
        threading.Thread(target=make, name="assignment", daemon=True).start()
        while not made.done():
            self._wait(self._config.heartbeat_s)
            if self._ends.is_set():
                raise _LeavingError
            # Any other answer is left alone here: brokers will give it to the plans, too.
            if not made.done() and self._beat(joined.generation_id) in _COUNTED:
                self._counted_at = time.monotonic()
        return made.result()

    def _beat(self, generation: int) -> int:
        answer = self._answer(
            lambda: HeartbeatRequest(
                group_id=self._group_id,
                generation_id=generation,
                member_id=self._member_id,
                group_instance_id=self._config.group_instance_id,
            ),
            self._config.session_timeout_ms / 1000 / 2,
        )
        self._heartbeat_at = time.monotonic() + self._config.heartbeat_s
        return int(answer.error_code)

    def _counts_as_member(self, code: int) -> bool:
        """Take note of an answer. Return whether brokers still count this as a member of its generation."""
        if code in _COUNTED:
            self._counted_at = time.monotonic()
        if code == KafkaError.NO_ERROR:
            return True
        if code == KafkaError.REBALANCE_IN_PROGRESS:
            self._rejoins.set()
            return False
        self._generation = _NO_GENERATION
        if code == KafkaError.FENCED_INSTANCE_ID:
            self.is_fenced = True
            raise _LeavingError
        if code == KafkaError.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code in _FORGOTTEN:
            log.info("group %s no longer counts this member, which joins again", self._group_id)
        else:
            self._refused(code)
        return False

    def _refused(self, code: int) -> None:
        """Report an error that another attempt may not meet."""
        error: Exception = streams_error(KafkaError(code), f"be a member of group {self._group_id}")
        if code == KafkaError.UNKNOWN:
            # Brokers' name for messages of a group that exceed their message.max.bytes. The leader can make them smaller.
            self.is_refused = True
            hint = "The brokers' message.max.bytes may be too small for the group."
            error = BrokerError(str(error), retriable=True, hint=hint)
        if not getattr(error, "retriable", False):
            raise error
        self._errors.put(error)
        self._wait(_LONGEST_PAUSE)

    def _answer(self, request: Callable[[], Any], within_s: float) -> Any:
        """Return the answer to a request, which is repeated until a coordinator has answered."""
        # Brokers give a repeated request the same answer: a `JoinGroup` with the same metadata starts no second rebalance.
        while True:
            if self._ends.is_set():
                raise _LeavingError
            try:
                with mapped_errors(f"ask the coordinator of group {self._group_id}"):
                    self._coordinator.find(_LOOKUP_SECONDS, self._ends.is_set)
                    self._unreachable_since = None
                    answer = self._coordinator.ask(request(), within_s, self._ends.is_set)
                    if answer.error_code in UNREACHABLE:
                        raise KafkaException(KafkaError(answer.error_code))
            except BrokerError as error:
                self._coordinator.close()
                if not error.retriable and not self._ends.is_set():
                    raise
                self._pause(error)
            else:
                self._pause_s = _SHORTEST_PAUSE
                return answer

    def _pause(self, error: BrokerError) -> None:
        """Wait a while before another attempt, as the coordinator has moved or does not answer."""
        # Only the first attempt of an outage is logged.
        if self._pause_s == _SHORTEST_PAUSE:
            log.info("%s", error.message)
        self._unreachable_since = self._unreachable_since or time.monotonic()
        self._ends.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE)

    def _wait(self, seconds: float) -> None:
        self._wakes.wait(seconds)
        self._wakes.clear()

    def _subscription(self) -> bytes:
        said = ConsumerProtocolSubscription(
            version=_PROTOCOL_VERSION,
            # Brokers delete committed offsets of topics that no member subscribes to.
            topics=sorted({*self._topics()}) or [_SOME_TOPIC],
            # The number makes the bytes differ each time: otherwise brokers start no rebalance.
            user_data=next(self._counts).to_bytes(COUNT_BYTES, "big") + self._describe(),
            owned_partitions=[],
        )
        encoded: bytes = said.encode()
        return encoded

    def _join_request(self, said: bytes) -> Any:
        return JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=ConsumerProtocolType,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(_PROTOCOL, said)],
            max_version=_JOIN_VERSION,
        )

    def _sync_request(self, joined: Any, plans: Mapping[str, bytes]) -> Any:
        return SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=ConsumerProtocolType,
            protocol_name=_PROTOCOL,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member, ConsumerProtocolAssignment(0, [], plan).encode())
                for member, plan in plans.items()
            ],
            max_version=_SYNC_VERSION,
        )

    def _leave(self) -> None:
        """Leave, at once, without another attempt: brokers drop members without heartbeats anyway."""
        # A static member stays, so that its restart within a session causes no rebalance.
        if self._config.group_instance_id is not None or not self._member_id:
            return
        request = LeaveGroupRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=self._member_id, group_instance_id=None, reason=None)],
        )
        try:
            self._coordinator.ask(request, _LEAVE_SECONDS, lambda: False)
        except Exception as error:  # noqa: BLE001 - of any kind, as it ends
            log.info("group %s was not left in time: %r", self._group_id, error)
