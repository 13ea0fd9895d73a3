"""Types of streams, as users see them: checked by mypy (tests/unit/test_typing.py), and run."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, assert_type

import msgspec

from riverrun import (
    BYTES,
    DOUBLE,
    JSON,
    LONG,
    STRING,
    Branched,
    BranchedKStream,
    CachedLookup,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    GlobalKTable,
    Grouped,
    Joined,
    JoinWindows,
    KeyValueStore,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    Pattern,
    Printed,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    Repartitioned,
    Retry,
    StoreBuilder,
    Stores,
    StreamJoined,
    StreamsBuilder,
    ValueAndTimestamp,
    WindowStore,
    col,
)


class Order(msgspec.Struct, frozen=True):
    user: str
    amount: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    paid: float


builder = StreamsBuilder()

# Sources have the types of their serdes.
orders = builder.stream("orders", Consumed(STRING, JSON(Order)))
assert_type(orders, KStream[str, Order])
assert_type(builder.stream(["plain-1", "plain-2"], Consumed(STRING, JSON)), KStream[str, Any])
assert_type(builder.stream(re.compile("raw-.*"), Consumed(BYTES, BYTES)), KStream[bytes, bytes])

# Operators that keep the types.
assert_type(orders.filter(lambda _id, order: order.amount > 0), KStream[str, Order])
assert_type(orders.filter_not(lambda _id, order: order.user == ""), KStream[str, Order])


async def price_of(order: Order) -> float:
    return float(order.amount)


def user_of(order: Order) -> str:
    return order.user


async def prices_of(_id: str, order: Order) -> list[float]:
    return [float(order.amount)]


def users_of(orders: list[Order]) -> list[str]:
    return [order.user for order in orders]


async def amounts_of(_ids: list[str], orders: list[Order]) -> tuple[int, ...]:
    return tuple(order.amount for order in orders)


assert_type(orders.map_values_async(price_of), KStream[str, float])
assert_type(orders.map_values_async(user_of), KStream[str, str])
assert_type(orders.map_values_in_batches(users_of, max_records=9, max_wait=timedelta(1)), KStream[str, str])
assert_type(orders.map_values_in_batches(amounts_of), KStream[str, int])
assert_type(orders.flat_map_values_async(prices_of, retry=Retry(attempts=2)), KStream[str, float])
assert_type(CachedLookup(price_of, timedelta(1)), CachedLookup[Order, float])
first_orders = orders.deduplicate(timedelta(1), by=lambda _id, order: order.amount, materialized=Materialized(LONG))
assert_type(first_orders, KStream[str, Order])
large: Pattern[Order] = Pattern.begin("small", lambda order: order.amount < 9).next("large", col("amount") > 99)
found = orders.match(large.times(2), within=timedelta(1), grace=timedelta(0), late=lambda late: late.to("late"))
assert_type(found, KStream[str, dict[str, list[Order]]])
assert_type(found.map_values(lambda match: match["large"][0].amount), KStream[str, int])
assert_type(orders.peek(lambda _id, order: order.amount), KStream[str, Order])
assert_type(orders.merge(orders), KStream[str, Order])
assert_type(orders.repartition(Repartitioned(STRING, JSON(Order))), KStream[str, Order])

# Operators that change them.
assert_type(orders.map(lambda id_, order: (len(id_), order.amount / 2)), KStream[int, float])
assert_type(orders.map_values(lambda order: order.amount), KStream[str, int])
assert_type(orders.map_values(lambda id_, order: (id_, order)), KStream[str, tuple[str, Order]])
assert_type(orders.map_values(str), KStream[str, str])
assert_type(orders.flat_map(lambda id_, order: [(order.user, id_)] * order.amount), KStream[str, str])
assert_type(orders.flat_map_values(lambda order: range(order.amount)), KStream[str, int])
assert_type(orders.flat_map_values(lambda id_, order: [id_, order.user]), KStream[str, str])
assert_type(orders.select_key(lambda _id, order: order.amount), KStream[int, Order])
users = orders.map_values(lambda order: order.user)
assert_type(users.map_values(str.upper), KStream[str, str])
assert_type(users.map_values(len), KStream[str, int])
assert_type(users.flat_map_values(str.split), KStream[str, str])

# Branches.
split = orders.split()
assert_type(split, BranchedKStream[str, Order])
branches = split.branch(lambda _id, order: order.amount > 1, Branched("large")).default_branch()
assert_type(branches, dict[str, KStream[str, Order]])

# Ends.
orders.to("out", Produced(STRING, JSON(Order)))
orders.to(lambda id_, order, _timestamp: f"{order.user}-{id_}")
orders.print(Printed(mapper=lambda id_, order: f"{id_}: {order.amount}"))
orders.foreach(lambda _id, order: order.amount)
assert_type(orders.to_table(), KTable[str, Order])

# Grouping.
assert_type(orders.group_by_key(), KGroupedStream[str, Order])
orders.group_by(lambda order_id, order: order_id if order.amount else None, Grouped(STRING, JSON(Order))).count()
assert_type(orders.select_key(lambda order_id, order: order_id if order.amount else None), KStream[str, Order])
by_amount = orders.group_by(lambda _id, order: order.amount, Grouped(LONG, JSON(Order)))
assert_type(by_amount, KGroupedStream[int, Order])

# Joins.
payments = builder.stream("payments", Consumed(STRING, JSON(Payment)))
cities = builder.table("cities", Consumed(STRING, STRING), Materialized(name="cities"))
names = builder.global_table("names", Consumed(LONG, STRING))
assert_type(names, GlobalKTable[int, str])
near = JoinWindows.of(timedelta(minutes=1))

assert_type(orders.join(payments, lambda order, payment: order.amount - payment.paid, near), KStream[str, float])
assert_type(
    orders.join(payments, lambda id_, order, payment: (id_, order.user, payment.paid), near),
    KStream[str, tuple[str, str, float]],
)
assert_type(
    orders.left_join(
        payments,
        lambda order, payment: order.user if payment is None else payment.order,
        near,
        joined=StreamJoined(STRING, JSON(Order), JSON(Payment)),
    ),
    KStream[str, str],
)
assert_type(
    orders.outer_join(payments, lambda order, payment: (order is None, payment is None), near),
    KStream[str, tuple[bool, bool]],
)
assert_type(orders.join(cities, lambda order, city: (order, city)), KStream[str, tuple[Order, str]])
assert_type(
    orders.join(cities, lambda _id, order, city: len(city) * order.amount, joined=Joined(STRING, JSON(Order))),
    KStream[str, int],
)
assert_type(orders.left_join(cities, lambda order, city: city or order.user), KStream[str, str])
assert_type(
    orders.join(names, lambda order, name: (order.user, name), key_selector=lambda _id, order: order.amount),
    KStream[str, tuple[str, str]],
)
assert_type(
    orders.left_join(names, lambda _id, _order, name: name is None, key_selector=lambda _id, _order: None),
    KStream[str, bool],
)


# Processors.
class Lengths(Processor[str, Order]):
    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, Order]) -> None:
        self._context.forward(record.with_value(len(record.value.user)))


class Amounts(FixedKeyProcessor[str, Order]):
    def init(self, context: FixedKeyProcessorContext) -> None:
        self._context = context

    def process(self, record: FixedKeyRecord[str, Order]) -> None:
        self._context.forward(record.with_value(record.value.amount))


processed: KStream[str, int] = orders.process(Lengths)


class Totals(Processor[str, Order, bytes, int]):
    def init(self, context: ProcessorContext[bytes, int]) -> None:
        self.context = context

    def process(self, record: Record[str, Order]) -> None:
        self.context.forward(Record(record.key.encode(), record.value.amount, record.timestamp))


class Prices(FixedKeyProcessor[str, Order, float]):
    def init(self, context: FixedKeyProcessorContext[str, float]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, Order]) -> None:
        self.context.forward(record.with_value(record.value.amount / 100))


# Builders of stores know the types of their stores.
AMOUNTS = Stores.key_value_store("amounts", STRING, LONG)
LATEST = Stores.timestamped_key_value_store("latest", STRING, JSON(Order))
MINUTE = timedelta(minutes=1)
BY_MINUTE = Stores.window_store("by-minute", STRING, LONG, retention=MINUTE, window_size=MINUTE)


class Remembered(Processor[str, Order]):
    @staticmethod
    def stores() -> list[StoreBuilder]:
        return [AMOUNTS, LATEST, BY_MINUTE]

    def init(self, context: ProcessorContext) -> None:
        assert_type(context.get_state_store(AMOUNTS), KeyValueStore[str, int])
        assert_type(context.get_state_store(LATEST), KeyValueStore[str, ValueAndTimestamp[Order]])
        assert_type(context.get_state_store(BY_MINUTE), WindowStore[str, int])
        assert_type(context.get_state_store("amounts"), Any)
        self.amounts = context.get_state_store(AMOUNTS)

    def process(self, record: Record[str, Order]) -> None:
        self.amounts.put(record.key, record.value.amount)


remembered: KStream[str, Any] = orders.process(Remembered)


# A processor that names the types that it forwards determines those of the stream.
assert_type(orders.process(Totals), KStream[bytes, int])
assert_type(orders.process(lambda: Totals()), KStream[bytes, int])  # noqa: PLW0108 - a function that returns one
assert_type(orders.process_values(Prices), KStream[str, float])
amounts: KStream[str, int] = orders.process_values(Amounts)
assert_type(orders.process_values(Amounts), KStream[str, Any])
amounts.map_values(float).to("amounts", Produced(STRING, DOUBLE))
builder.build()
