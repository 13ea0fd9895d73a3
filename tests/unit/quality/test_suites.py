"""Suites of expectations in files, as Great Expectations writes them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pytest
from great_expectations.expectations.expectation import BatchExpectation

from riverrun import STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import ConfigError
from riverrun.quality.expectations import checks_of, declared, read_suites
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import judge
from riverrun.releases.verdicts import suite_digest

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import Topology

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "flights"}, "severity": "warning"}


class ExpectColumnToBeEven(BatchExpectation):  # type: ignore[misc] # the library has no types
    """A user's own expectation."""

    column: str
    metric_dependencies = ("column.max",)
    domain_keys = ("batch_id", "column")

    def _validate(self, metrics: Any, *_more: Any, **_options: Any) -> dict[str, Any]:
        odd = metrics["column.max"] % 2
        return {"success": not odd, "result": {"observed_value": odd}}


def suite(directory: Path, name: str, *expectations: Any) -> Path:
    path = directory / f"{name}.json"
    path.write_text(json.dumps({"name": name, "expectations": expectations}))
    return path


def counting() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", Consumed(STRING, STRING))
    words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    return builder.build()


def test_suites_are_about_what_they_are_called_after(tmp_path: Path) -> None:
    for name in ("sums", "difference.sums", "store.counts", "runs", "workers"):
        suite(tmp_path, name, NOT_NULL)
    found = read_suites(tmp_path)
    expected = gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="warning")
    assert found.outputs["sums"].table == found.outputs["sums"].difference == [expected]
    assert (found.stores, found.runs, found.workers) == ({"counts": [expected]}, [expected], [expected])
    assert suite_digest(found) == suite_digest(declared(str(tmp_path)))


def test_suites_that_great_expectations_itself_has_saved_are_read(tmp_path: Path) -> None:
    context = gx.get_context(mode="file", project_root_dir=tmp_path)
    expected = gxe.ExpectColumnMaxToBeBetween(column="flights", max_value=3, severity="info")
    context.suites.add(gx.ExpectationSuite("late.sums", expectations=[expected.copy()]))
    (found,) = read_suites(tmp_path / "gx" / "expectations").outputs["late.sums"].table
    assert (found.configuration.kwargs, found.severity) == (expected.configuration.kwargs, expected.severity)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            {"type": "expect_column_value_to_not_be_null", "kwargs": {}},
            "Did you mean 'expect_column_values_to_not_be_n",
        ),
        ({"type": NOT_NULL["type"], "kwargs": {"colum": "a"}}, "colum extra fields not(.|\n)*Did you mean 'column'"),
        ({"type": NOT_NULL["type"], "kwargs": {}}, "cannot be used: .*column field required"),
        ({"type": NOT_NULL["type"]}, "'kwargs' is missing"),
        ({"type": NOT_NULL["type"], "kwargs": []}, r"kwargs is \[\]"),
        ("x", "'x' is not an object"),
        ({**NOT_NULL, "severity": "fatal"}, "cannot be used: .*fatal"),
        ({**NOT_NULL, "severities": "info"}, "there is no 'severities'(.|\n)*Did you mean 'severity'"),
        ({"type": "no_such:Thing", "kwargs": {}}, "Module 'no_such' cannot be imported"),
        ({"type": f"{__name__}:ExpectColumnToBeEvn", "kwargs": {}}, "Did you mean 'ExpectColumnToBeEven'"),
        ({"type": f"{__name__}:suite", "kwargs": {}}, "not a class of expectations"),
        ({"type": f"{__name__}:ExpectColumnToBeEven", "kwargs": {"columns": "a"}}, "Did you mean 'column'"),
        (
            {"type": "expect_table_row_count_to_be_near_last_runs", "kwargs": {"runs": 0}},
            "greater than or equal to 1",
        ),
    ],
)
def test_suites_that_cannot_be_used_are_named(content: Any, complaint: str, tmp_path: Path) -> None:
    path = suite(tmp_path, "sums", NOT_NULL, content)
    with pytest.raises(ConfigError, match=complaint) as refused:
        read_suites(tmp_path)
    assert f"{path}: expectation 2" in refused.value.message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", r"cannot be read: .*line 1 column 2"), ("[]", "is not a suite of expectations")],
)
def test_files_that_are_no_suites_are_named(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "sums.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=complaint) as refused:
        read_suites(tmp_path)
    assert str(path) in refused.value.message


def test_suites_may_have_expectations_of_ones_own_and_descriptions(tmp_path: Path) -> None:
    own = {"type": f"{__name__}:ExpectColumnToBeEven", "kwargs": {"column": "flights"}, "severity": "warning"}
    suite(tmp_path, "sums", {**own, "description": "Flights come in pairs", "meta": {"owner": "ann"}, "notes": "why"})
    (found,) = read_suites(tmp_path).outputs["sums"].table
    assert isinstance(found, ExpectColumnToBeEven)
    assert (found.description, found.meta, found.notes) == ("Flights come in pairs", {"owner": "ann"}, "why")
    frame = write_frame(tmp_path / "frame", [{"flights": 2}, {"flights": 3}])
    verdict = judge("sums", frame, [found], lambda: None)
    name = "sums: Flights come in pairs (expect_column_to_be_even(column=flights))"
    assert verdict.outcomes[name] == "failed: 1"
    assert verdict.warnings == (name,)


def test_a_directory_without_suites_and_a_store_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There are no suites of expectations at"):
        declared(str(tmp_path / "gone"))
    suite(tmp_path, "store.count", NOT_NULL)
    with pytest.raises(
        ConfigError, match=r"expectations of 'count', which is not a state store\nHint: Did you mean 'counts'"
    ):
        checks_of("suites", read_suites(tmp_path), counting())
    suite(tmp_path, "store.count").unlink()
    suite(tmp_path, "input.word", NOT_NULL)
    with pytest.raises(ConfigError, match=r"expectations of 'word', which is not an input\nHint: Did you mean 'words'"):
        checks_of("suites", read_suites(tmp_path), counting())


def test_a_pattern_makes_an_input_of_each_topic_that_it_may_find(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("words-.*"), Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    topology = builder.build()
    suite(tmp_path, "input.words-later", NOT_NULL)
    assert checks_of("suites", read_suites(tmp_path), topology).inputs.keys() == {"words-later"}
    suite(tmp_path, "input.word-later", NOT_NULL)
    with pytest.raises(ConfigError, match="expectations of 'word-later', which is not an input"):
        checks_of("suites", read_suites(tmp_path), topology)
