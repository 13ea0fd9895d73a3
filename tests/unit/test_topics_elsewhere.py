"""Other topics in the place of those that a topology names, as in environments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.topology.assembly import put_together

if TYPE_CHECKING:
    from riverrun import Topology

ROWS, OUT = Consumed(STRING, LONG), Produced(STRING, LONG)
ELSEWHERE = {topic: f"dev.{topic}" for topic in ("orders", "prices", "people", "sums", "sums-repartition", "late-1")}


def built() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", ROWS)
    orders.group_by(lambda key, _: key, Grouped(STRING, LONG, name="sums")).count(
        Materialized(name="sums")
    ).to_stream().to("sums", OUT)
    builder.table("prices", ROWS, Materialized(STRING, LONG, name="prices"))
    builder.global_table("people", ROWS)
    builder.stream(re.compile("late-[0-9]"), ROWS).to("others", OUT)
    return builder.build()


def test_sources_sinks_tables_and_global_tables_have_other_topics() -> None:
    found = built().elsewhere(ELSEWHERE)
    assert found.source_topics == ("dev.orders", "dev.prices")
    assert found.sink_topics == ("dev.sums", "others")
    assert [each.source.topics for each in found.global_stores] == [("dev.people",)]


def test_repartition_topics_keep_their_names_as_these_are_the_applications_own() -> None:
    assert built().elsewhere(ELSEWHERE).repartition_topics.keys() == {"sums-repartition"}


def test_a_pattern_matches_names_of_topics_and_reads_what_stands_for_them() -> None:
    found = put_together(built().elsewhere(ELSEWHERE).parts())
    read = ("dev.late-1", "dev.orders", "dev.prices", "late-2")
    assert found.resolved(["late-1", "late-2", "early-1"]).source_topics == read
    assert found.resolved(["dev.late-1", "late-2"]).source_topics == read, "as hosts name what they read"


def test_a_topology_with_no_other_topics_stays_as_it_is() -> None:
    assert built().elsewhere({}).describe() == built().describe()
