"""Expectations of the records that a bounded run reads, each of which has an outcome."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import great_expectations.expectations as gxe

from riverrun import STRING, Consumed, Produced
from riverrun.quality.expectations import Checks
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from riverrun import StreamsBuilder, Topology


def build(builder: StreamsBuilder) -> Topology:
    builder.stream(re.compile("in.*"), Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    return builder.build()


def quality() -> Checks:
    has_keys = gxe.ExpectColumnValuesToNotBeNull(column="_key")
    return Checks(inputs={"in": [has_keys], "in-later": [has_keys]})


def test_an_input_that_no_pattern_has_found_yet_is_said_not_to_be_judged() -> None:
    with Cluster(seed=1) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, 1)
        app = cluster.project().app("app", build, quality=quality, gate=True)
        cluster.input_topic("in", STRING, STRING).pipe_input("key", "value")
        app.run()
        (check,) = app.checks.history()
    judged = {name: outcome for name, outcome in check.outcomes.items() if name.startswith("input.")}
    assert judged == {
        "input.in: expect_column_values_to_not_be_null(column=_key)": "passed",
        "input.in: it has rows": "passed: 1",
        "input.in-later: it has rows": "noted: nothing was judged, as there is no such topic",
    }
