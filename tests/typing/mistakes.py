"""Mistakes that a type checker must find, each on its line; never run. `E:` names the error that is expected there."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    KStream,
    Materialized,
    Named,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    windowed,
)


class Order(msgspec.Struct, frozen=True):
    user: str
    amount: int


def count_letters(_user: str, word: str, total: int) -> int:
    return total + len(word)


def joined_amount(order: Order, size: int) -> int:
    return order.amount + size


builder = StreamsBuilder()
orders = builder.stream("orders", Consumed(STRING, JSON(Order)))
words = builder.stream("words", Consumed(STRING, STRING))
sizes = builder.table("sizes", Consumed(STRING, LONG))
by_number = builder.table("by-number", Consumed(LONG, LONG))
everywhere = builder.global_table("everywhere", Consumed(LONG, STRING))
near = JoinWindows.of(timedelta(minutes=1))

# Functions that do not fit the records.
orders.filter(lambda _id, order: order.price > 0)  # E: attr-defined
orders.filter(lambda order: order.amount > 0)  # E: arg-type misc
orders.map(lambda _id, order: order.amount)  # E: arg-type return-value
orders.select_key(lambda _id, order: order.name)  # E: attr-defined
orders.map_values(joined_amount)  # E: arg-type
orders.map_values(lambda a, _b, _c: a)  # E: arg-type misc
words.map_values(abs)  # E: arg-type
words.flat_map_values(len)  # E: arg-type

# Serdes of other types.
orders.to("out", Produced(STRING, STRING))  # E: arg-type
words.to_table(Materialized(STRING, LONG, name="table"))  # E: arg-type
words.group_by(lambda _key, word: len(word), Grouped(STRING, STRING))  # E: arg-type return-value
words.map_values(len).to("out", Produced(STRING, STRING))  # E: arg-type

# Streams and tables that do not fit each other.
orders.merge(words)  # E: arg-type
orders.join(sizes, lambda order, size: order.price + size)  # E: attr-defined
words.join(sizes, joined_amount)  # E: arg-type
orders.join(by_number, joined_amount)  # E: arg-type
orders.left_join(sizes, joined_amount)  # E: arg-type
orders.join(words, lambda _order, word: word)  # E: call-overload
orders.join(sizes, joined_amount, near)  # E: call-overload
orders.join(everywhere, lambda _order, name: name)  # E: call-overload
orders.join(everywhere, lambda _a, name: name, key_selector=lambda _id, order: order.user)  # E: arg-type return-value
orders.join(sizes, joined_amount, joined=Joined(LONG, JSON(Order)))  # E: arg-type
orders.outer_join(words, lambda _order, word: word.upper(), near)  # E: union-attr

# Tables.
sizes.map_values(str.upper)  # E: arg-type
sizes.left_join(sizes, lambda size, other: size + other)  # E: operator
sizes.join(by_number, lambda size, _other: size)  # E: arg-type
sizes.join(
    by_number,
    lambda size, _other: size,
    foreign_key_extractor=lambda size: f"{size}",  # E: arg-type return-value
)
sizes.join(sizes, lambda size, _other: size, named=Named("a"), table_joined=TableJoined(name="b"))  # E: call-overload
sizes.group_by(lambda _key, size: size)  # E: arg-type return-value

# Aggregations.
words.group_by_key().reduce(lambda _aggregate, word: len(word))  # E: arg-type return-value
words.group_by_key().aggregate(lambda: "", count_letters)  # E: misc
words.group_by_key().aggregate(lambda: 0, count_letters, Materialized(STRING, STRING))  # E: arg-type return-value
sessions = words.group_by_key().windowed_by(SessionWindows.of(timedelta(1)))
sessions.aggregate(lambda: 0, count_letters)  # E: call-overload
words.group_by_key().windowed_by(timedelta(minutes=1))  # E: call-overload
words.group_by_key().cogroup(count_letters).cogroup(orders.group_by_key(), count_letters)  # E: arg-type
words.group_by_key().windowed_by(TimeWindows.of(timedelta(1))).count().to_stream().to(
    "out",
    Produced(STRING, LONG),  # E: arg-type
)
sizes.suppress(Suppressed.until_window_closes())  # E: call-arg
wrong: KStream[str, int] = orders.map_values(lambda order: order.user)  # E: arg-type return-value
sizes.to_stream().to("out", Produced(windowed(STRING), LONG))  # E: arg-type


class Words(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None:
        """Nothing."""


orders.process(Words)  # E: arg-type


AMOUNTS = Stores.key_value_store("amounts", STRING, LONG)


class Kept(Processor[str, Order]):
    def init(self, context: ProcessorContext) -> None:
        self.amounts = context.get_state_store(AMOUNTS)

    def process(self, record: Record[str, Order]) -> None:
        self.amounts.put(record.key, record.value)  # E: arg-type
        self.amounts.fetch(record.key)  # E: attr-defined
