"""The values that a `quality` function may return."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.errors import ConfigError
from riverrun.quality import Expectations
from riverrun.quality.expectations import by_topic

ONE, OTHER = object(), object()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([ONE], {"sums": Expectations([ONE]), "alerts": Expectations([ONE])}),
        ([], {"sums": Expectations([]), "alerts": Expectations([])}),
        (Expectations([ONE], [OTHER]), {"sums": Expectations([ONE], [OTHER]), "alerts": Expectations([ONE])}),
        ({"sums": Expectations(difference=[ONE])}, {"sums": Expectations((), [ONE]), "alerts": Expectations()}),
        ({"alerts": [ONE]}, {"sums": Expectations(), "alerts": Expectations([ONE])}),
    ],
)
def test_expectations_are_of_each_output_or_by_topic(given: Any, expected: dict[str, Expectations]) -> None:
    assert by_topic("m:f", given, ["sums", "alerts"], ["alerts"]) == expected


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"sum": [ONE]}, r"m:f has expectations of 'sum', which is not an output\nHint: Did you mean 'sums'\?"),
        ({"alerts": Expectations(difference=[ONE])}, "difference of alerts, which is a log"),
        (None, "m:f returns None\nHint: It must return a list"),
        ({"sums": "text"}, "m:f returns 'text'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        by_topic("m:f", given, ["sums", "alerts"], ["alerts"])
