"""The brokers: all topics, transactions and groups under one lock and one clock, with one way in for requests."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from weakref import ref

from confluent_kafka import KafkaError

from riverrun.simulation import cleaning
from riverrun.simulation.committed_offsets import Committed
from riverrun.simulation.faults import NO_FAULT, NoFaults
from riverrun.simulation.groups import ConsumerGroup, State
from riverrun.simulation.partition_log import NO_PRODUCER
from riverrun.simulation.refusals import LostError, RefusedError
from riverrun.simulation.settings import broker_settings
from riverrun.simulation.subscriptions import subscribed_topics
from riverrun.simulation.topics import ClusterTopics
from riverrun.simulation.transactions import Owner, Transactions
from riverrun.simulation.waiting import ThreadWaiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from riverrun.records import TopicPartition
    from riverrun.simulation.faults import Faults
    from riverrun.simulation.groups import Caller, JoinAnswer, JoinRequest, Pending, Synced
    from riverrun.simulation.partition_log import Appended, BatchWriter, NewRecord
    from riverrun.simulation.waiting import WaitingLock

T = TypeVar("T")

SERVERS = "memory:9092"
"""The address of the one broker. Nothing connects to it."""

COORDINATOR = "coordinator"
"""The client of `WriteTxnMarkers`. If one is lost, the markers are written with a later tick."""
_MOST_FETCHED = 1_000_000


class ClusterClock(Protocol):
    """The one clock of a cluster."""

    def now_ms(self) -> int:
        """Return the time, ms since the epoch."""
        ...


class Background(Protocol):
    """A client with work that its library does in a thread: heartbeats, and sending what lingers."""

    def work(self) -> None:
        """Do the work. The caller holds the lock."""
        ...


class NewOffset(NamedTuple):
    """An offset to commit."""

    offset: int
    metadata: str


class Brokers:
    """A cluster of one broker, in memory. Nothing happens by itself: time-driven work waits for `tick`.

    Args:
        clock: The brokers' clock.
        config: Settings of the brokers that differ from those of the embedded broker.
        waiting: How calls wait.
        faults: What happens to requests.
        seed: Decides random choices, such as the ids of topics.
        at_end: Takes what must be called when the host ends that makes the present client.
        away: Returns the function that says whether the host that makes the present client is suspended, or hangs.
    """

    def __init__(
        self,
        clock: ClusterClock,
        *,
        config: Mapping[str, str] | None = None,
        waiting: WaitingLock | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        at_end: Callable[[Callable[[], None]], None] = lambda _leave: None,
        away: Callable[[], Callable[[], bool]] = lambda: lambda: False,
    ) -> None:
        self.clock = clock
        self.config = broker_settings(config or {})
        self.waiting: WaitingLock = waiting or ThreadWaiting()
        self.faults: Faults = faults or NoFaults()
        self.random = Random(seed)  # noqa: S311 - no secret
        self.most_fetched = _MOST_FETCHED
        """The largest number of records of one partition in the answer to a fetch, which brokers limit in bytes."""
        self.topics = ClusterTopics(self.config, self.random)
        self.transactions = Transactions(self.config, self)
        self.groups: dict[str, ConsumerGroup] = {}
        self._members = itertools.count(1)
        self._clients: list[tuple[ref[Background], Callable[[], bool]]] = []
        self._at_end = at_end
        self._away = away
        self._began_ms = clock.now_ms()
        self._done_ms: dict[str, int] = {}

    def ask(self, client_id: str, request: str, act: Callable[[], T]) -> T:
        """Pass a request on: the only way in, where faults happen."""
        with self.waiting:
            fault = self.faults.fault(client_id, request) or NO_FAULT
            if fault.delay_s:
                self.waiting.wait_until(lambda: False, fault.delay_s)
            if fault.is_lost_before:
                raise LostError(request)
            if fault.refusal is not None:
                raise RefusedError(fault.refusal)
            try:
                return self._answer(request, act, is_lost=fault.is_lost_after)
            finally:
                self.waiting.changed()

    def _answer(self, request: str, act: Callable[[], T], *, is_lost: bool) -> T:
        try:
            answer = act()
        except RefusedError:
            if is_lost:
                raise LostError(request) from None
            raise
        if is_lost:
            raise LostError(request)
        return answer

    def join_background(self, client: Background) -> None:
        """Let a client work in the background for as long as it, and its host, live."""
        self._clients = [known for known in self._clients if known[0]() is not None]
        joined = ref(client), self._away()
        self._clients.append(joined)

        def leave() -> None:
            self._clients = [known for known in self._clients if known is not joined]

        self._at_end(leave)

    def tick(self) -> None:
        """Do all that is due by the clock: background work of clients, time limits, retention, cleaning."""
        with self.waiting:
            for known, is_away in tuple(self._clients):
                client = known()
                if client is not None and not is_away():
                    client.work()
            now_ms = self.clock.now_ms()
            self.transactions.finish()
            for group in self.groups.values():
                group.tick(now_ms)
            if self._is_due("transaction.abort.timed.out.transaction.cleanup.interval.ms"):
                self.transactions.abort_overdue(now_ms)
            if self._is_due("transaction.remove.expired.transaction.cleanup.interval.ms"):
                self.transactions.forget_unused(now_ms)
            if self._is_due("offsets.retention.check.interval.ms"):
                self._expire_offsets(now_ms)
            if self._is_due("log.retention.check.interval.ms"):
                self._retain(now_ms)
            if self._is_due("log.cleaner.backoff.ms"):
                self._clean(now_ms)
            self.waiting.changed()

    def _is_due(self, interval: str) -> bool:
        now_ms = self.clock.now_ms()
        if now_ms - self._done_ms.get(interval, self._began_ms) < int(self.config[interval]):
            return False
        self._done_ms[interval] = now_ms
        return True

    def _retain(self, now_ms: int) -> None:
        silent_ms = now_ms - int(self.config["producer.id.expiration.ms"])
        for topic in self.topics:
            for log in topic.logs:
                cleaning.retain(log, topic.config, now_ms)
                log.forget_producers(silent_ms)

    def _clean(self, now_ms: int) -> None:
        for topic in self.topics:
            for log in topic.logs:
                cleaning.clean(log, topic.config, now_ms)

    # Logs

    def produce(
        self, tp: TopicPartition, records: Sequence[NewRecord], writer: BatchWriter, transactional_id: str | None
    ) -> Appended:
        """Append a batch."""
        log = self.topics.log(*tp)
        if transactional_id is not None and writer.producer_id != NO_PRODUCER:
            self.transactions.check_write(transactional_id, Owner(writer.producer_id, writer.epoch), tp)
        return log.append(records, writer, self.topics.topic(tp.topic).config, self.clock.now_ms())

    def delete_records(self, tp: TopicPartition, before: int) -> int:
        """Delete the records before an offset; -1 stands for the end. Return the first offset that is left."""
        log = self.topics.log(*tp)
        if "delete" not in self.topics.topic(tp.topic).config["cleanup.policy"]:
            raise RefusedError(KafkaError.POLICY_VIOLATION)
        log.delete_before(log.end if before == -1 else before)
        return log.start

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that are committed for it."""
        self.topics.delete(name)
        self.transactions.forget_topic(name)
        for group in self.groups.values():
            group.offsets.forget_topic(name)

    # Transactions

    def init_producer(self, transactional_id: str | None, timeout_ms: int, present: Owner | None) -> Owner:
        """Return a producer's id and epoch."""
        return self.transactions.init(transactional_id, timeout_ms, present, self.clock.now_ms())

    def add_partitions(self, transactional_id: str, owner: Owner, tps: Iterable[TopicPartition]) -> None:
        """Add partitions to a transaction."""
        partitions = list(tps)
        for tp in partitions:
            self.topics.log(*tp)
        self.transactions.add_partitions(transactional_id, owner, partitions, self.clock.now_ms())

    def add_offsets(self, transactional_id: str, owner: Owner, group: str) -> None:
        """Add a group's offsets to a transaction."""
        self.transactions.add_group(transactional_id, owner, group, self.clock.now_ms())

    def end_transaction(self, transactional_id: str, owner: Owner, *, commits: bool) -> None:
        """Commit or abort a transaction."""
        self.transactions.end(transactional_id, owner, self.clock.now_ms(), commits=commits)

    def mark(self, owner: Owner, tps: Iterable[TopicPartition], groups: Iterable[str], *, commits: bool) -> bool:
        """See `transactions.Ending`."""
        if (self.faults.fault(COORDINATOR, "WriteTxnMarkers") or NO_FAULT).is_lost_before:
            return False
        for tp in tps:
            if self.topics.has(*tp):
                self.topics.log(*tp).mark(owner.producer_id, owner.epoch, self.clock.now_ms(), commits=commits)
        for name in groups:
            if name in self.groups:
                self.groups[name].offsets.end(owner.producer_id, commits=commits)
        return True

    # Groups

    def join(self, name: str, request: JoinRequest) -> Pending[JoinAnswer]:
        """Take a member into a group."""
        if not name:
            raise RefusedError(KafkaError.INVALID_GROUP_ID)
        least, most = (int(self.config[f"group.{bound}.session.timeout.ms"]) for bound in ("min", "max"))
        if not least <= request.session_ms <= most:
            raise RefusedError(KafkaError.INVALID_SESSION_TIMEOUT)
        if request.member_id and name not in self.groups:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        prefix = request.instance or request.client_id
        return self._made(name).join(request, f"{prefix}-{next(self._members):08d}", self.clock.now_ms())

    def sync(self, name: str, caller: Caller, plans: Mapping[str, bytes], protocol: str | None) -> Pending[Synced]:
        """Take a leader's plans, or wait for them."""
        return self._group(name).sync(caller, plans, protocol, self.clock.now_ms())

    def heartbeat(self, name: str, caller: Caller) -> None:
        """Note that a member lives."""
        self._group(name).heartbeat(caller, self.clock.now_ms())

    def leave(self, name: str, member_id: str, instance: str | None) -> None:
        """Let a member go."""
        self._group(name).leave(member_id, instance, self.clock.now_ms())

    def commit_offsets(self, name: str, caller: Caller, offsets: Mapping[TopicPartition, NewOffset]) -> None:
        """Commit offsets of a group."""
        if name not in self.groups and caller.generation >= 0:
            raise RefusedError(KafkaError.ILLEGAL_GENERATION)
        group = self._made(name)
        group.check_commit(caller, is_transactional=False)
        group.offsets.commit(self._checked(offsets))

    def commit_offsets_in_transaction(
        self,
        transaction: tuple[str, Owner],
        name: str,
        caller: Caller,
        offsets: Mapping[TopicPartition, NewOffset],
    ) -> None:
        """Commit offsets of a group with a transaction."""
        transactional_id, owner = transaction
        self.transactions.check_offsets(transactional_id, owner, name)
        group = self._made(name)
        group.check_commit(caller, is_transactional=True)
        group.offsets.commit(self._checked(offsets), owner.producer_id)

    def fetch_offsets(
        self, name: str, tps: Sequence[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, Committed]:
        return self.groups[name].offsets.fetch(tps, stable=stable) if name in self.groups else {}

    def describe_group(self, name: str) -> ConsumerGroup:
        """Return a group that must exist."""
        if name not in self.groups or self.groups[name].state is State.DEAD:
            raise RefusedError(KafkaError.GROUP_ID_NOT_FOUND)
        return self.groups[name]

    def delete_group(self, name: str) -> None:
        """Delete a group without members."""
        if self.describe_group(name).state is not State.EMPTY:
            raise RefusedError(KafkaError.NON_EMPTY_GROUP)
        del self.groups[name]

    def _group(self, name: str) -> ConsumerGroup:
        if name not in self.groups:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        return self.groups[name]

    def _made(self, name: str) -> ConsumerGroup:
        if name not in self.groups:
            most, delay_ms = int(self.config["message.max.bytes"]), int(self.config["group.initial.rebalance.delay.ms"])
            self.groups[name] = ConsumerGroup(name, most, delay_ms, self.clock.now_ms())
        return self.groups[name]

    def _checked(self, offsets: Mapping[TopicPartition, NewOffset]) -> dict[TopicPartition, Committed]:
        most, now_ms = int(self.config["offset.metadata.max.bytes"]), self.clock.now_ms()
        for tp, new in offsets.items():
            self.topics.log(*tp)
            # The client library sends the NUL after it as well.
            if len(new.metadata) + 1 > most:
                raise RefusedError(KafkaError.OFFSET_METADATA_TOO_LARGE)
        return {tp: Committed(new.offset, new.metadata, now_ms) for tp, new in offsets.items()}

    def _expire_offsets(self, now_ms: int) -> None:
        before_ms = now_ms - int(self.config["offsets.retention.minutes"]) * 60_000
        for name, group in list(self.groups.items()):
            if group.state is State.EMPTY and group.protocol_type is not None:
                # While a group had members, its offsets did not age.
                if group.changed_ms <= before_ms:
                    group.offsets.expire(now_ms)
            elif group.state is State.EMPTY:
                group.offsets.expire(before_ms)
            elif group.state is State.STABLE:
                said = [member.metadata(group.protocol or "") for member in group.members.values()]
                group.offsets.expire(before_ms, keep=subscribed_topics(said))
            if group.state is State.EMPTY and not group.offsets:
                del self.groups[name]
