"""Types of tables and aggregations, as users see them: checked by mypy (tests/unit/test_typing.py), and run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import msgspec

from riverrun import (
    JSON,
    LONG,
    STRING,
    BufferConfig,
    CogroupedKStream,
    Consumed,
    Count,
    EmitStrategy,
    Grouped,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    Max,
    ProcessorContext,
    Produced,
    RollingWindows,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Sum,
    Suppressed,
    TableJoined,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
    TimeWindows,
    Windowed,
    windowed,
)


class Person(msgspec.Struct, frozen=True):
    city: str
    age: int


class Seen(msgspec.Struct, frozen=True):
    clicks: int = 0
    orders: float = 0.0


def clicked(_user: str, click: str, seen: Seen) -> Seen:
    return Seen(seen.clicks + len(click), seen.orders)


def ordered(_user: str, order: int, seen: Seen) -> Seen:
    return Seen(seen.clicks, seen.orders + order)


def merged(_user: str, seen: Seen, other: Seen) -> Seen:
    return Seen(seen.clicks + other.clicks, seen.orders + other.orders)


builder = StreamsBuilder()
people = builder.table("people", Consumed(STRING, JSON(Person)))
assert_type(people, KTable[str, Person])

# Operators.
assert_type(people.filter(lambda _name, person: person.age > 17), KTable[str, Person])
assert_type(people.filter_not(lambda name, _person: name == "", Materialized(name="kept")), KTable[str, Person])
assert_type(people.map_values(lambda person: person.age), KTable[str, int])
assert_type(people.map_values(lambda name, person: f"{name} of {person.city}"), KTable[str, str])
assert_type(people.map_values(lambda person: person.age, Materialized(STRING, LONG, name="ages")), KTable[str, int])
assert_type(people.to_stream(), KStream[str, Person])
assert_type(people.to_stream(lambda _name, person: person.age), KStream[int, Person])


class Length:
    def init(self, context: ProcessorContext) -> None:
        """Do nothing."""

    def transform(self, key: str, value: Person | None) -> int | None:
        return None if value is None else len(key)

    def close(self) -> None:
        """Do nothing."""


assert_type(people.transform_values(Length), KTable[str, int])

# Suppression.
limited = people.suppress(Suppressed.until_time_limit(timedelta(minutes=1), BufferConfig.unbounded()))
assert_type(limited, KTable[str, Person])

# Joins by key.
ages = builder.table("years", Consumed(STRING, LONG))
assert_type(people.join(ages, lambda person, age: person.age + age), KTable[str, int])
assert_type(people.left_join(ages, lambda person, age: (person.city, age)), KTable[str, tuple[str, int | None]])
assert_type(
    people.outer_join(
        ages, lambda person, age: person is None and age is None, Materialized(name="both", value_serde=JSON(bool))
    ),
    KTable[str, bool],
)

# Joins by a foreign key.
cities = builder.table("cities", Consumed(STRING, LONG))
assert_type(
    people.join(cities, lambda person, size: (person, size), foreign_key_extractor=lambda person: person.city),
    KTable[str, tuple[Person, int]],
)
assert_type(
    people.left_join(
        cities,
        lambda _person, size: size or 0,
        foreign_key_extractor=lambda name, person: person.city if name else None,
        table_joined=TableJoined(name="sizes"),
    ),
    KTable[str, int],
)

# Aggregations of tables.
people.group_by(lambda name, person: (name if person.age else None, person.age), Grouped(STRING, LONG)).count()
by_city = people.group_by(lambda _name, person: (person.city, person.age), Grouped(STRING, LONG))
assert_type(by_city, KGroupedTable[str, int])
assert_type(by_city.count(), KTable[str, int])
assert_type(by_city.reduce(lambda total, age: total + age, lambda total, age: total - age), KTable[str, int])
assert_type(
    by_city.aggregate(
        lambda: 0.0,
        lambda _city, age, total: total + age,
        lambda _city, age, total: total - age,
        Materialized(name="totals", value_serde=JSON(float)),
    ),
    KTable[str, float],
)

# Aggregations of streams.
clicks = builder.stream("clicks", Consumed(STRING, STRING)).group_by_key()
assert_type(clicks.count(), KTable[str, int])
assert_type(clicks.aggregate(n=Count(), longest=Max(len)), KTable[str, dict[str, Any]])
assert_type(clicks.aggregate(n=Count(), materialized=Materialized(name="named")), KTable[str, dict[str, Any]])
assert_type(
    clicks.aggregate(age=Count(), city=Max(), materialized=Materialized(STRING, JSON(Person))), KTable[str, Person]
)
assert_type(
    by_city.aggregate(n=Count(), total=Sum(), materialized=Materialized(name="sums")), KTable[str, dict[str, Any]]
)
assert_type(clicks.count(Materialized(STRING, name="counts")), KTable[str, int])
assert_type(clicks.top(3, len), KTable[str, list[str]])
assert_type(by_city.top(3), KTable[str, list[int]])
assert_type(clicks.reduce(max), KTable[str, str])
assert_type(clicks.aggregate(Seen, clicked, Materialized(STRING, JSON(Seen), name="seen")), KTable[str, Seen])
assert_type(
    clicks.aggregate(
        lambda: 0, lambda _user, click, total: total + len(click), Materialized(STRING, LONG, name="lengths")
    ),
    KTable[str, int],
)

# Windows.
minutes = clicks.windowed_by(TimeWindows.of(timedelta(minutes=1)))
assert_type(minutes, TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(SlidingWindows.of(timedelta(minutes=1))), TimeWindowedKStream[str, str])
assert_type(minutes.late(lambda late: late.map_values(str.upper).to("late")), TimeWindowedKStream[str, str])
assert_type(minutes.emit_strategy(EmitStrategy.on_window_close()), TimeWindowedKStream[str, str])
assert_type(minutes.count(), KTable[Windowed[str], int])
assert_type(minutes.top(3, len, largest=False), KTable[Windowed[str], list[str]])
assert_type(minutes.reduce(lambda one, other: one + other), KTable[Windowed[str], str])
assert_type(minutes.aggregate(Seen, clicked, Materialized(value_serde=JSON(Seen))), KTable[Windowed[str], Seen])
sessions = clicks.windowed_by(SessionWindows.of(timedelta(minutes=1)))
assert_type(sessions, SessionWindowedKStream[str, str])
assert_type(sessions.count(), KTable[Windowed[str], int])
assert_type(
    sessions.aggregate(Seen, clicked, merged, Materialized(value_serde=JSON(Seen))), KTable[Windowed[str], Seen]
)
final = minutes.count().suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream()
assert_type(final, KStream[Windowed[str], int])
assert_type(final.select_key(lambda window, _count: window.window.start), KStream[int, int])
final.to("final", Produced(windowed(STRING), LONG))

rolling = clicks.windowed_by(RollingWindows.of(timedelta(minutes=1)))
assert_type(rolling.late(lambda late: late.foreach(print)).reduce(max), KStream[str, str])
assert_type(rolling.aggregate(n=Count(), longest=Max(len)), KStream[str, dict[str, Any]])
assert_type(
    rolling.aggregate(age=Count(), city=Max(), materialized=Materialized(STRING, JSON(Person))), KStream[str, Person]
)
assert_type(rolling.aggregate(Seen, clicked), KStream[str, Seen])
assert_type(rolling.top(3, len), KStream[str, list[str]])
assert_type(rolling.apply(lambda _user, records: len(records[-1].value)), KStream[str, int])
assert_type(rolling.apply(lambda _user, records: records[-1].timestamp - records[0].timestamp), KStream[str, int])

# Several streams into one table.
orders = builder.stream("orders", Consumed(STRING, LONG)).group_by_key()
profiles = clicks.cogroup(clicked).cogroup(orders, ordered)
assert_type(profiles, CogroupedKStream[str, Seen])
assert_type(profiles.aggregate(Seen, Materialized(STRING, JSON(Seen), name="profiles")), KTable[str, Seen])
by_minute = profiles.windowed_by(TimeWindows.of(timedelta(minutes=1)))
assert_type(by_minute, TimeWindowedCogroupedKStream[str, Seen])
assert_type(by_minute.aggregate(Seen, Materialized(value_serde=JSON(Seen))), KTable[Windowed[str], Seen])
by_session = profiles.windowed_by(SessionWindows.of(timedelta(minutes=1)))
assert_type(by_session, SessionWindowedCogroupedKStream[str, Seen])
assert_type(by_session.aggregate(Seen, merged, Materialized(value_serde=JSON(Seen))), KTable[Windowed[str], Seen])
builder.build()
