"""Joins of two tables by a foreign key: a row subscribes to the key that its value names, and gets responses.

The primary table's task sends a `Subscription` to the task that holds the foreign key. That task keeps the subscription,
responds with the foreign value, and responds again whenever the value changes.

A response carries the hash of the row's value. If the row has changed since, the response is stale. Often another one
follows. None does if the later update had no result to delete: neither its row nor the row before it finds a foreign value.
Then the stale response was the one to delete the result of an even earlier row. `ResponseJoin` does so, or asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import RegistryError, SerializationError
from riverrun.processor.handlers import DropReason
from riverrun.records import ValueAndTimestamp
from riverrun.serde.foreign_key import Instruction, Subscription, SubscriptionResponse, combined_key, hash128
from riverrun.state.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Change, Headers
    from riverrun.state.store_types import KeyValueStore

    Bytes = Callable[[Any], bytes]


_ANSWERED = frozenset({Instruction.DELETE_KEY_AND_PROPAGATE, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE})


class Asking:
    """Knows which rows will be answered, and asks again; `SubscriptionSend` and `ResponseJoin` share it in a task.

    A cache may show rows that it has not forwarded yet, so the next update of the row ends what was asked for here. Until
    then a row takes the bytes of its key and its foreign key. A row that waits for its answer takes its key and a hash.
    """

    def __init__(self, key_bytes: Bytes) -> None:
        self._key_bytes = _writing("primary key", key_bytes)
        self._foreign_keys: dict[bytes, Any] = {}
        self._awaited: dict[bytes, bytes | None] = {}
        self._context: OperatorContext

    def begin(self, context: OperatorContext) -> None:
        """Send subscriptions as the node of this context does."""
        self._context = context

    def ask(self, foreign_key: Any, key: Any, hash_: bytes | None, timestamp: int, headers: Headers) -> None:
        """Subscribe a row to its foreign key, and ask for an answer in any case."""
        data = self._key_bytes(key)
        self._foreign_keys[data], self._awaited[data] = foreign_key, hash_
        instruction = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
        subscription = Subscription(hash_, instruction, key, self._context.task_id.partition)
        self._context.forward(foreign_key, subscription, timestamp, headers)

    def note(self, key: Any, hash_: bytes | None, sent: Sequence[tuple[Any, Instruction]]) -> None:
        """Note whether the subscriptions of a row's update will be answered in any case."""
        if any(instruction in _ANSWERED for _, instruction in sent):
            self._awaited[self._key_bytes(key)] = hash_
        else:
            self.end(key)

    def awaits(self, key: Any, hash_: bytes | None) -> bool:
        """Return whether the answer for this state of a row is still to come."""
        return self._awaited.get(self._key_bytes(key), b"") == hash_

    def end(self, key: Any) -> None:
        """Note that a row waits for no answer."""
        if self._awaited:
            self._awaited.pop(self._key_bytes(key), None)

    def taken(self, key: Any) -> Any:
        """Return the foreign key asked for since the last update of a row, and forget it; None if there is none."""
        return self._foreign_keys.pop(self._key_bytes(key), None) if self._foreign_keys else None


class SubscriptionSend:
    """Turns updates of the primary table into subscriptions (`SubscriptionSendProcessorSupplier`).

    Args:
        extract: `(key, value) -> foreign key`, or None if the row has none.
        open_asking: Opens what it shares with `ResponseJoin` in a task.
        left_join: Whether the result includes rows without a foreign value.
        is_versioned: Whether the table is versioned; then updates older than the latest of their key are dropped.
    """

    def __init__(
        self,
        extract: Callable[[Any, Any], Any],
        foreign_key_bytes: Bytes,
        value_bytes: Bytes,
        *,
        open_asking: Callable[[OperatorContext], Asking],
        left_join: bool,
        is_versioned: bool,
    ) -> None:
        self._open_asking = open_asking
        self._asking: Asking
        self._extract = extract
        self._foreign_key_bytes = _writing("foreign key", foreign_key_bytes)
        self._value_bytes = _writing("row", value_bytes)
        self._left_join = left_join
        self._is_versioned = is_versioned
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._asking = self._open_asking(context)
        self._asking.begin(context)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        if self._is_versioned and not value.is_latest:
            self._context.drop(DropReason.OUT_OF_ORDER)
            return
        # Serialized first: the extractor may change its argument, and Kafka Streams then finds every response stale.
        hash_ = None if value.new is None else hash128(self._value_bytes(value.new))
        old = None if value.old is None else self._extract(key, value.old)
        new = None if value.new is None else self._extract(key, value.new)
        wanted = self._left_instructions(value, old, new) if self._left_join else self._instructions(value, old, new)
        asked = self._asking.taken(key)
        if asked is not None:
            wanted += self._instructions_after(asked, new)
        self._asking.note(key, hash_, wanted)
        partition = self._context.task_id.partition
        for foreign_key, instruction in wanted:
            self._context.forward(foreign_key, Subscription(hash_, instruction, key, partition), timestamp, headers)

    def _left_instructions(self, value: Change[Any], old: Any, new: Any) -> list[tuple[Any, Instruction]]:
        if value.old is None and value.new is None:
            return []
        # Rows without a foreign key are results too: such a row asks under a null key.
        asked = (new, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
        if old is not None and self._changed(old, new):
            return [(old, Instruction.DELETE_KEY_NO_PROPAGATE), asked]
        return [asked]

    def _instructions(self, value: Change[Any], old: Any, new: Any) -> list[tuple[Any, Instruction]]:
        if value.new is not None and new is None:
            self._context.drop(DropReason.NULL_FOREIGN_KEY)
        if new is None:
            return [] if old is None else [(old, Instruction.DELETE_KEY_AND_PROPAGATE)]
        if old is None or not self._changed(old, new):
            return [(new, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE)]
        return [
            (old, Instruction.DELETE_KEY_NO_PROPAGATE),
            (new, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE),
        ]

    def _instructions_after(self, asked: Any, new: Any) -> list[tuple[Any, Instruction]]:
        """Return further instructions for a row that was subscribed to a foreign key since its last update."""
        if new is None:
            return [(asked, Instruction.DELETE_KEY_AND_PROPAGATE)]
        answered = (new, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
        return [(asked, Instruction.DELETE_KEY_NO_PROPAGATE), answered] if self._changed(asked, new) else [answered]

    def _changed(self, old: Any, new: Any) -> bool:
        return new is None or self._foreign_key_bytes(old) != self._foreign_key_bytes(new)


class SubscriptionReceive:
    """Keeps the subscriptions to one task's foreign keys, and forwards them (`SubscriptionReceiveProcessorSupplier`)."""

    def __init__(self, store: str, foreign_key_bytes: Bytes, primary_key_bytes: Bytes) -> None:
        self._store_name = store
        self._foreign_key_bytes = _writing("foreign key", foreign_key_bytes)
        self._primary_key_bytes = _writing("primary key", primary_key_bytes)
        self._store: KeyValueStore[bytes, ValueAndTimestamp[Subscription]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        """Keep or forget one subscription; a null key has nothing to keep."""
        if key is not None:
            store_key = combined_key(self._foreign_key_bytes(key), self._primary_key_bytes(value.primary_key))
            # The two lower instructions delete.
            keeps = value.instruction >= Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
            self._store.put(store_key, ValueAndTimestamp(value, timestamp) if keeps else None)
        elif value.instruction is not Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE:
            self._context.drop(DropReason.NULL_FOREIGN_KEY)
            return
        self._context.forward(key, value, timestamp, headers)


class SubscriptionJoin:
    """Responds to a subscription with the current foreign value (`SubscriptionJoinProcessorSupplier`).

    The response's timestamp is the later one of subscription and value.
    """

    def __init__(self, open_foreign: Callable[[OperatorContext], ValueGetter]) -> None:
        self._open_foreign = open_foreign
        self._forward: Callable[[Any, Any, int, Headers], None]
        self._lookup: ValueGetter

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        self._lookup = self._open_foreign(context)

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        found = None if key is None else self._lookup(key)
        if found is not None:
            timestamp = max(timestamp, found.timestamp)
        match value.instruction:
            case Instruction.DELETE_KEY_NO_PROPAGATE:
                return
            case Instruction.DELETE_KEY_AND_PROPAGATE:
                found = None
            case Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE if found is None:
                return
            case _:
                pass
        foreign_value = None if found is None else found.value
        response = SubscriptionResponse(value.hash, foreign_value, value.primary_partition)
        self._forward(value.primary_key, response, timestamp, headers)


class ForeignTableJoin:
    """Responds to all subscriptions to a foreign key whose value has changed (`ForeignTableJoinProcessorSupplier`)."""

    def __init__(self, store: str, foreign_key_bytes: Bytes, *, is_versioned: bool) -> None:
        self._store_name = store
        self._foreign_key_bytes = _writing("foreign key", foreign_key_bytes)
        self._is_versioned = is_versioned
        self._store: KeyValueStore[bytes, ValueAndTimestamp[Subscription]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if self._is_versioned and not value.is_latest:
            self._context.drop(DropReason.OUT_OF_ORDER)
            return
        for _, (subscription, _) in self._store.prefix_scan(combined_key(self._foreign_key_bytes(key))):
            response = SubscriptionResponse(subscription.hash, value.new, subscription.primary_partition)
            self._context.forward(subscription.primary_key, response, timestamp, headers)


class ResponseJoin:
    """Joins a response with its row, unless the row has changed (`ResponseJoinProcessorSupplier`).

    A row that no longer has a result is deleted, even if it never had one.

    Args:
        joiner: `(value, foreign_value) -> result`; in left joins, either may be None.
    """

    def __init__(
        self,
        open_primary: Callable[[OperatorContext], ValueGetter],
        extract: Callable[[Any, Any], Any],
        value_bytes: Bytes,
        joiner: Callable[[Any, Any], Any],
        *,
        open_asking: Callable[[OperatorContext], Asking],
        left_join: bool,
    ) -> None:
        self._open_primary = open_primary
        self._extract = extract
        self._value_bytes = _writing("row", value_bytes)
        self._joiner = joiner
        self._open_asking = open_asking
        self._left_join = left_join
        self._context: OperatorContext
        self._lookup: ValueGetter
        self._asking: Asking

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._lookup = self._open_primary(context)
        self._asking = self._open_asking(context)

    def process(self, key: Any, value: SubscriptionResponse, timestamp: int, headers: Headers) -> None:
        found = self._lookup(key)
        current = self._hash(found)
        if current != value.hash:
            self._context.drop(DropReason.STALE_RESPONSE)
            if not self._asking.awaits(key, current):
                self._settle(key, value, found, current, timestamp, headers)
            return
        self._asking.end(key)
        if value.foreign_value is None and (found is None or not self._left_join):
            result = None
        else:
            result = self._joiner(None if found is None else found.value, value.foreign_value)
        self._context.forward(key, result, timestamp, headers)

    def _settle(
        self,
        key: Any,
        stale: SubscriptionResponse,
        row: ValueAndTimestamp[Any] | None,
        hash_: bytes | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Delete an earlier row's result, or ask for that of the current row: no response may follow the stale one."""
        # If bytes change with every call of the serde, all answers would be stale: asking would never end.
        is_stable = self._hash(row) == hash_
        foreign_key = None if row is None else self._extract(key, row.value)
        if row is None or (foreign_key is None and not self._left_join):
            self._context.forward(key, None, timestamp, headers)
            return
        deletes = stale.foreign_value is None and (stale.hash is None or not self._left_join)
        if deletes and is_stable:
            self._asking.ask(foreign_key, key, hash_, timestamp, headers)

    def _hash(self, row: ValueAndTimestamp[Any] | None) -> bytes | None:
        return None if row is None else hash128(self._value_bytes(row.value))


def _writing(part: str, serialize: Bytes) -> Bytes:
    """Return a serde's function whose errors name the part of the join."""

    def written(value: Any) -> bytes:
        try:
            return serialize(value)
        # A schema registry did not answer: the value is not to blame.
        except RegistryError:
            raise
        # A serde may raise anything.
        except Exception as error:
            why = f"its serde refuses it ({type(error).__name__}: {error})"
            message = f"A join by a foreign key cannot write the {type(value).__name__} {part} {shown(value)}: {why}"
            raise SerializationError(message, hint="Give the tables serdes for such keys and values.") from error

    return written
