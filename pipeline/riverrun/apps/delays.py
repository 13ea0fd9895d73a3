"""Delay statistics per origin, airline and hour for the flights that left New York in 2013.

Flights are joined with their planes (a table, co-partitioned by tail number) and with the airlines (a global table). They are
regrouped by origin and airline, and aggregated in tumbling hours.

`build` is version 1 and has a realistic bug: a cancelled flight has no delay, and counts as one that left on time. `build_v2`
fixes it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from riverrun import JSON, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows, windowed
from riverrun.quality import Expectations

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

FLIGHTS, PLANES, AIRLINES, OUTPUT = "flights", "planes", "airlines", "delays"
STORE = "delays-per-hour"
HOUR = timedelta(hours=1)
# A worker that catches up reads each partition at its own speed, and Kafka Streams' rule drops what comes later than
# grace behind the fastest. With a year's grace a backlog of a year loses nothing.
GRACE = timedelta(days=366)
LATE_MINUTES = 15


class Flight(msgspec.Struct, frozen=True):
    """One scheduled flight; `dep_delay` (minutes) is missing if it was cancelled."""

    carrier: str
    number: int
    origin: str
    dest: str
    departed_ms: int
    tailnum: str | None = None
    dep_delay: int | None = None


class Plane(msgspec.Struct, frozen=True):
    """One plane."""

    tailnum: str
    manufacturer: str
    seats: int


class Departure(msgspec.Struct, frozen=True):
    """A flight with the seats of its plane and the name of its airline, where they are known."""

    origin: str
    airline: str
    seats: int = 0
    delay: int | None = None


class Stats(msgspec.Struct, frozen=True):
    """Statistics of one origin, one airline and one hour.

    Args:
        flights: Number of flights.
        cancelled: Number of flights that never left (version 2 only).
        delay_minutes: Sum of delays; early departures count negative.
        late: Number of flights more than 15 minutes late.
        seats: Number of seats of the known planes.
    """

    flights: int = 0
    cancelled: int = 0
    delay_minutes: int = 0
    late: int = 0
    seats: int = 0

    def add(self, departure: Departure) -> Stats:
        delay = departure.delay or 0
        return Stats(
            self.flights + 1,
            self.cancelled,
            self.delay_minutes + delay,
            self.late + (delay > LATE_MINUTES),
            self.seats + departure.seats,
        )

    def cancel(self) -> Stats:
        """Add a flight that never left."""
        return Stats(self.flights, self.cancelled + 1, self.delay_minutes, self.late, self.seats)


def with_plane(flight: Flight, plane: Plane | None) -> tuple[Flight, int]:
    return flight, plane.seats if plane is not None else 0


def with_airline(flight_and_seats: tuple[Flight, int], airline: str) -> Departure:
    flight, seats = flight_and_seats
    return Departure(flight.origin, airline, seats, flight.dep_delay)


def count_all(_key: str, departure: Departure, stats: Stats) -> Stats:
    """Version 1: every flight counts; one without a delay counts as on time."""
    return stats.add(departure)


def count_departed(_key: str, departure: Departure, stats: Stats) -> Stats:
    """Version 2: a flight without a delay was cancelled."""
    return stats.cancel() if departure.delay is None else stats.add(departure)


def build(builder: StreamsBuilder) -> Topology:
    """Build version 1."""
    return _build(builder, count_all)


def build_v2(builder: StreamsBuilder) -> Topology:
    """Build version 2."""
    return _build(builder, count_departed)


def expectations() -> dict[str, Expectations]:
    """Return the conditions that Great Expectations checks before a version goes live."""
    import great_expectations.expectations as gxe

    table = [
        gxe.ExpectTableRowCountToBeBetween(min_value=1000, severity="critical"),
        gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="flights", min_value=0, max_value=200, severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="late", min_value=0, max_value=200, severity="critical"),
    ]
    difference = [gxe.ExpectColumnValuesToBeInSet(column="change", value_set=["same"], mostly=0.9, severity="critical")]
    return {OUTPUT: Expectations(table, difference)}


def _build(builder: StreamsBuilder, count: Callable[[str, Departure, Stats], Stats]) -> Topology:
    flights = builder.stream(
        FLIGHTS, Consumed(STRING, JSON(Flight), timestamp_extractor=lambda record, _: record.value.departed_ms)
    )
    planes = builder.table(PLANES, Consumed(STRING, JSON(Plane)))
    airlines = builder.global_table(AIRLINES, Consumed(STRING, STRING))
    (
        flights.left_join(planes, with_plane)
        .join(airlines, with_airline, key_selector=lambda _key, value: value[0].carrier)
        .group_by(lambda _key, departure: f"{departure.origin} {departure.airline}", Grouped(STRING, JSON(Departure)))
        .windowed_by(TimeWindows.of(HOUR, grace=GRACE))
        .aggregate(Stats, count, Materialized(STRING, JSON(Stats), name=STORE))
        .to_stream()
        .to(OUTPUT, Produced(windowed(STRING, HOUR), JSON(Stats)))
    )
    return builder.build()
