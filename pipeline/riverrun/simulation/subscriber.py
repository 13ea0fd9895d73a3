"""A consumer that shares topics with the other members of its group, by Kafka's range assignor.

It takes part while it is polled. Its heartbeats are sent with each tick of the brokers, as the library sends them in a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka import librdkafka
from riverrun.simulation.groups import Caller, JoinRequest, State
from riverrun.simulation.line import as_kafka_error
from riverrun.simulation.refusals import RETRIED, LostError, RefusedError
from riverrun.simulation.subscriptions import assigned, range_plans, subscription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import TopicPartition
    from riverrun.simulation.brokers import Brokers
    from riverrun.simulation.groups import JoinAnswer, Pending, Synced

T = TypeVar("T")

OnRebalance = Callable[[Any, list[ClientTopicPartition]], None]

OUTSIDE = Caller("", -1)
"""A client that is no member."""
_PROTOCOL = "range"
_AGAIN = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})


class Subscriber:
    """The membership of one consumer."""

    def __init__(self, brokers: Brokers, client_id: str, group: str, settings: Mapping[str, Any]) -> None:
        self._brokers = brokers
        self._client_id = client_id
        self._group = group
        self._instance: str | None = settings.get("group.instance.id")
        self._session_ms = int(settings.get("session.timeout.ms", 45_000))
        self._rebalance_ms = int(settings.get("max.poll.interval.ms", 300_000))
        self._topics: list[str] = []
        self._callbacks: tuple[OnRebalance | None, OnRebalance | None, OnRebalance | None] = (None, None, None)
        self._member_id = ""
        self._joins: Pending[JoinAnswer] | None = None
        self._syncs: Pending[Synced] | None = None
        self._generation = -1
        self._given: list[TopicPartition] | None = None
        self._must_rejoin = False
        self.must_pause = False
        """True if the last request of `take_part` has to be repeated, which the library does after a pause."""
        brokers.join_background(self)

    @property
    def caller(self) -> Caller | None:
        """Return the member with its plan; None without one."""
        return None if self._given is None else Caller(self._member_id, self._generation, self._instance)

    @property
    def has_news(self) -> bool:
        """Return whether a poll would take part in the group."""
        if not self._topics:
            return False
        if self._must_rejoin or self._would_learn():
            return True
        waits = self._syncs if self._syncs is not None else self._joins
        return self._given is None if waits is None else waits.is_done

    def subscribe(
        self,
        topics: list[str],
        on_assign: OnRebalance | None,
        on_revoke: OnRebalance | None,
        on_lost: OnRebalance | None,
    ) -> None:
        """Join with the next polls."""
        self._must_rejoin = bool(self._topics)
        self._topics = list(topics)
        self._callbacks = (on_assign, on_revoke, on_lost)

    def unsubscribe(self, consumer: Any) -> None:
        """Give up all partitions, and leave; a static member stays."""
        if not self._topics:
            return
        self._give_up(consumer, is_lost=False)
        if self._member_id and self._instance is None:
            leave = self._member_id
            with contextlib.suppress(LostError, RefusedError):
                self._ask("LeaveGroup", lambda: self._brokers.leave(self._group, leave, None))
        self._topics, self._member_id, self._generation = [], "", -1
        self._joins = self._syncs = None
        self._must_rejoin = False

    def work(self) -> None:
        """Send a heartbeat. See `brokers.Background`."""
        if not self._member_id or self._generation < 0:
            return
        caller = Caller(self._member_id, self._generation, self._instance)
        try:
            self._ask("Heartbeat", lambda: self._brokers.heartbeat(self._group, caller))
        except LostError:
            self.must_pause = True
        except RefusedError as error:
            self._note(error)

    def take_part(self, consumer: Any) -> KafkaError | None:
        """Do what is due: give up partitions, join, take a plan. Return an error that must be reported."""
        self.must_pause = False
        if not self._topics:
            return None
        try:
            # The library would learn it with its next heartbeat, within seconds.
            if self._would_learn():
                self.work()
            if self._must_rejoin:
                self._must_rejoin = False
                self._joins = self._syncs = None
                self._give_up(consumer, is_lost=not self._member_id)
            self._advance(consumer)
        except LostError:
            self.must_pause = True
        except RefusedError as error:
            return self._refused(error)
        return None

    def _would_learn(self) -> bool:
        """Return whether a heartbeat would say that it must join again."""
        if self._given is None or self._must_rejoin:
            return False
        group = self._brokers.groups.get(self._group)
        return group is None or self._member_id not in group.members or group.state is State.JOINING

    def _advance(self, consumer: Any) -> None:
        if self._given is not None:
            return
        if self._joins is None:
            self._join()
        if self._joins is None or not self._joins.is_done:
            return
        joined = self._joins.result()
        if self._syncs is None:
            self._member_id, self._generation = joined.member_id, joined.generation
            plans = range_plans(joined.members, self._partitions) if joined.leader == joined.member_id else {}
            caller = Caller(self._member_id, self._generation, self._instance)
            self._syncs = self._ask("SyncGroup", lambda: self._brokers.sync(self._group, caller, plans, _PROTOCOL))
        if not self._syncs.is_done:
            return
        self._given = assigned(self._syncs.result().plan)
        self._joins = self._syncs = None
        given = [ClientTopicPartition(*tp) for tp in self._given]
        on_assign = self._callbacks[0]
        if on_assign is None:
            consumer.assign(given)
        else:
            on_assign(consumer, given)

    def _join(self) -> None:
        request = JoinRequest(
            member_id=self._member_id,
            instance=self._instance,
            client_id=self._client_id,
            session_ms=self._session_ms,
            rebalance_ms=self._rebalance_ms,
            protocol_type="consumer",
            protocols=((_PROTOCOL, subscription(self._topics)),),
        )
        try:
            self._joins = self._ask("JoinGroup", lambda: self._brokers.join(self._group, request))
        except RefusedError as error:
            if error.code != KafkaError.MEMBER_ID_REQUIRED:
                raise
            self._member_id = error.text or ""
            again = request._replace(member_id=self._member_id)
            self._joins = self._ask("JoinGroup", lambda: self._brokers.join(self._group, again))

    def _give_up(self, consumer: Any, *, is_lost: bool) -> None:
        given, self._given = self._given, None
        if given is None:
            return
        _on_assign, on_revoke, on_lost = self._callbacks
        call = on_lost if is_lost and on_lost is not None else on_revoke
        if call is None:
            consumer.unassign()
        else:
            call(consumer, [ClientTopicPartition(*tp) for tp in given])

    def _refused(self, error: RefusedError) -> KafkaError | None:
        self.must_pause = error.code in RETRIED
        if self.must_pause or self._note(error):
            return None
        self._joins = self._syncs = None
        is_final = error.code == KafkaError.FENCED_INSTANCE_ID
        if is_final:
            self._topics = []
        return as_kafka_error(RefusedError(librdkafka.FATAL) if is_final else error, fatal=is_final)

    def _note(self, error: RefusedError) -> bool:
        """Take note of a refusal after which it joins again. Return whether it is one."""
        if error.code not in _AGAIN:
            return False
        if error.code != KafkaError.REBALANCE_IN_PROGRESS:
            self._generation = -1
        if error.code == KafkaError.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._joins = self._syncs = None
        self._must_rejoin = True
        return True

    def _partitions(self, topic: str) -> int:
        found = self._brokers.topics.find(topic)
        return 0 if found is None else len(found.logs)

    def _ask(self, request: str, act: Callable[[], T]) -> T:
        return self._brokers.ask(self._client_id, request, act)
