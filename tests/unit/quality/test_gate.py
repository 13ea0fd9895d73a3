"""The gate: expectations over frames, judged by Great Expectations."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import great_expectations.expectations as gxe
import pytest
from great_expectations.checkpoint import ValidationAction

from riverrun.config import ProjectConfig
from riverrun.quality import gate
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import INFO, GateReport, Verdict, judge

ROWS: list[dict[str, Any]] = [
    {"flights": 3, "_key": "ann"},
    {"flights": 500, "_key": "bob"},
    {"flights": None, "_key": "cy"},
]
MISSING = "failed: 33.333 % unexpected, such as _key cy, flights <NA>"


def judged(directory: Path, *expectations: Any, rows: list[dict[str, Any]] = ROWS, **options: Any) -> Verdict:
    return judge("delays", write_frame(directory / "frame", rows), expectations, _no_spark, **options)


def _no_spark() -> Any:
    raise AssertionError


def test_severities_decide_what_a_failure_does_and_failures_name_rows(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path,
        gxe.ExpectColumnValuesToNotBeNull(column="_key", severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="flights", max_value=200, severity="critical"),
        gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="warning"),
        gxe.ExpectTableRowCountToBeBetween(min_value=4, severity="info"),
        keys=["_key"],
    )
    between = "delays: expect_column_values_to_be_between(column=flights, max_value=200.0)"
    not_null = "delays: expect_column_values_to_not_be_null(column=flights)"
    assert dict(verdict.outcomes) == {
        "delays: it has rows": "passed: 3",
        "delays: expect_column_values_to_not_be_null(column=_key)": "passed",
        between: "failed: 50.000 % unexpected, such as _key bob, flights 500",
        not_null: "failed: 33.333 % unexpected, such as _key cy, flights <NA>",
        "delays: expect_table_row_count_to_be_between(min_value=4)": "noted: 3",
    }
    assert (verdict.critical, verdict.warnings) == ((between,), (not_null,))


def test_an_expectation_without_a_finding_blocks_whatever_its_severity(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path,
        gxe.ExpectColumnValuesToNotBeNull(column="flihgts", severity="info"),
        gxe.ExpectColumnPairValuesToBeEqual(column_A="flights", column_B="keys", severity="info"),
        gxe.ExpectColumnValuesToBeBetween(column="_key", max_value=200, severity="info"),
        gxe.ExpectColumnToExist(column="carrier", severity="info"),
    )
    assert len(verdict.critical) == 3
    misspelt, pair, text = (verdict.outcomes[name] for name in verdict.critical)
    assert misspelt == "failed: there is no column 'flihgts'. Did you mean 'flights'?"
    assert pair.startswith("failed: there is no column 'keys'")
    assert text.startswith("failed: it cannot be evaluated: ")


def test_a_cluster_that_cannot_read_the_files_leaves_large_frames_to_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate, "ROWS_IN_MEMORY", 2)
    session = SimpleNamespace(conf={"spark.master": "spark://host:7077"})
    frame = write_frame(tmp_path / "frame", ROWS)
    expectation = gxe.ExpectColumnValuesToNotBeNull(column="_key", severity="critical")
    assert not judge("delays", frame, [expectation], lambda: session).critical
    assert "judging them in memory" in caplog.text


def test_no_rows_fail_unless_they_may_be_missing(tmp_path: Path) -> None:
    expectation = gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="critical")
    assert judged(tmp_path, expectation, rows=[]).critical == ("delays: it has rows",)
    verdict = judged(tmp_path, expectation, rows=[], if_empty=INFO)
    assert list(verdict.outcomes.values()) == ["noted: it is empty", "noted: it was not judged, as there are no rows"]
    assert not verdict.critical


def test_a_result_format_and_a_description_are_those_of_the_expectation(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    verdict = judged(
        tmp_path,
        gxe.ExpectColumnValuesToBeBetween(column="flights", max_value=2, result_format="BOOLEAN_ONLY"),
        gxe.ExpectColumnValuesToBeBetween(
            column="flights",
            max_value=1,
            result_format={"result_format": "COMPLETE", "partial_unexpected_count": 1},
            description="Few flights",
            meta={"owner": "ann"},
            notes="why",
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="flights"),
        keys=["_key"],
        report=GateReport("c1", docs),
    )
    between = "expect_column_values_to_be_between(column=flights, max_value"
    assert dict(verdict.outcomes) == {
        "delays: it has rows": "passed: 3",
        f"delays: {between}=2.0)": "failed: its result format shows no details",
        f"delays: Few flights ({between}=1.0))": "failed: 100.000 % unexpected, such as _key ann, flights 3",
        "delays: expect_column_values_to_not_be_null(column=flights)": MISSING,
    }
    assert list(verdict.pages) == ["delays", "delays, COMPLETE", "delays, SUMMARY"]
    assert "Few flights" in (docs / verdict.pages["delays, COMPLETE"]).read_text()
    assert "500" not in (docs / verdict.pages["delays"]).read_text()
    results = [json.loads(path.read_text()) for path in (docs / "results").rglob("*.json")]
    (own,) = [each for found in results for each in found["results"] if each["expectation_config"].get("description")]
    assert (own["expectation_config"]["meta"], own["expectation_config"]["notes"]) == ({"owner": "ann"}, "why")
    assert own["result"]["unexpected_list"] == [3, 500]


@pytest.mark.parametrize("kind", ["directory", "url"])
def test_unexpected_rows_are_kept_with_all_their_columns(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "rows") if kind == "directory" else (tmp_path / "rows").as_uri()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"_key": f"k{n}", "_window_start": at, "n": n, "price": Decimal(n), "none": None} for n in range(9)]
    verdict = judged(
        tmp_path,
        gxe.ExpectColumnValuesToBeBetween(column="n", max_value=3, severity="warning"),
        gxe.ExpectColumnMaxToBeBetween(column="n", max_value=3),
        gxe.ExpectColumnValuesToNotBeNull(column="none", result_format="BOOLEAN_ONLY"),
        gxe.ExpectColumnValuesToNotBeNull(column="_key"),
        rows=rows,
        keys=["_key"],
        report=GateReport("c1", tmp_path / "docs", rows=place, rows_limit=4),
    )
    (between,) = verdict.warnings
    path = f"{place}/delays/1-expect_column_values_to_be_between.jsonl"
    assert verdict.outcomes[between].endswith(
        f"unexpected, such as _key k4, n 4; _key k5, n 5; _key k6, n 6; 4 rows in {path}"
    )
    files = sorted((tmp_path / "rows").rglob("*.jsonl"))
    kept = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [[row["n"] for row in each] for each in kept] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert kept[0][0] == {"_key": "k4", "_window_start": "2026-01-01T00:00:00Z", "n": 4, "price": "4", "none": None}
    assert not any("price" in page.read_text() for page in (tmp_path / "docs").rglob("*.html")), "pages have keys only"


@pytest.mark.parametrize("kind", ["directory", "url"])
def test_unexpected_rows_of_the_oldest_checks_are_deleted(tmp_path: Path, kind: str) -> None:
    others = tmp_path / "rows" / "app"
    for name in ("notes", "20260101T000000-of somebody else"):
        (others / name).mkdir(parents=True)
    place = "rows" if kind == "directory" else (tmp_path / "rows").as_uri()
    declared = f'[apps.app]\ntopology = "a:b"\nunexpected_rows = "{place}"\nunexpected_rows_checks = 2\n'
    (tmp_path / "streams.toml").write_text(f'[kafka]\n"bootstrap.servers" = "h:1"\n{declared}')
    config = ProjectConfig.load(tmp_path / "streams.toml", {}).app("app")
    expectation = gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="warning")
    for check in ("zoe", "bob", "ann", "cy"):
        judged(tmp_path, expectation, report=GateReport.of(config, check, (), {}))
    left = sorted(each.name.rpartition("-")[2] for each in others.iterdir())
    assert left == ["ann", "cy", "notes", "of somebody else"]


def test_rows_that_cannot_be_kept_change_no_finding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expectation = gxe.ExpectColumnValuesToNotBeNull(column="flights", severity="warning")
    for place in ("/proc/none", "nowhere://bucket"):
        verdict = judged(tmp_path, expectation, report=GateReport("c1", rows=place))
        assert verdict.outcomes[verdict.warnings[0]].startswith("failed: 33.333 %")
        assert f"unexpected rows of delays cannot be kept at {place}" in caplog.text


class ResultFile(ValidationAction):
    """Writes the result to a file, or fails."""

    type: Literal["file"] = "file"
    name: str = "file"
    path: str

    def run(self, checkpoint_result: Any, action_context: Any = None) -> dict[str, Any]:  # noqa: ARG002 - as theirs
        Path(self.path).write_text(str(checkpoint_result.success))
        return {}


def test_data_docs_have_a_page_of_each_check_and_actions_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs = tmp_path / "docs"
    actions = [ResultFile(path=str(tmp_path / "gone" / "result")), ResultFile(path=str(tmp_path / "result"))]
    expectation = gxe.ExpectColumnValuesToBeBetween(column="flights", max_value=200, severity="warning")
    misspelt = gxe.ExpectColumnValuesToNotBeNull(column="flihgts", severity="warning")
    pages = list[str]()
    for check in ("c1", "c2"):
        report = GateReport(check, docs, actions)
        verdict = judged(tmp_path / check, expectation, misspelt, report=report, keys=["_key"])
        assert len(verdict.critical) == len(verdict.warnings) == 1
        pages += verdict.pages.values()
    assert len(set(pages)) == 2
    for page in pages:
        shown = (docs / page).read_text()
        assert "500" in shown
        assert "flihgts" in shown
    index = (docs / "site" / "index.html").read_text()
    assert all(f"validations/delays/{check}" in index for check in ("c1", "c2"))
    assert list((docs / "results").rglob("*.json"))
    assert (tmp_path / "result").read_text() == "False"
    assert "the action file of a check failed" in caplog.text


def test_the_id_of_a_check_is_not_taken_for_a_time(tmp_path: Path) -> None:
    expectation = gxe.ExpectColumnValuesToBeBetween(column="flights", max_value=200, severity="warning")
    before = datetime.now(UTC)
    verdict = judged(tmp_path, expectation, report=GateReport("dec6a250", tmp_path / "docs"), keys=["_key"])
    (page,) = verdict.pages.values()
    at = datetime.strptime(page.split("/dec6a250/")[1].split("/")[0], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    assert before - timedelta(milliseconds=1) <= at <= datetime.now(UTC)


@pytest.mark.parametrize("mode", [0o770, 0o750])
def test_data_docs_and_kept_rows_are_shared_as_the_directory_above_is(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    frame = write_frame(tmp_path / "frame", [{"n": 1}, {"n": None}])
    asked = gxe.ExpectColumnValuesToNotBeNull(column="n", severity="warning")
    report = GateReport("c1", tmp_path / "docs" / "app", rows=str(tmp_path / "rows"))
    found = judge("out", frame, [asked], spark=lambda: None, report=report)
    assert found.pages
    made = [*(tmp_path / "docs").rglob("*"), *(tmp_path / "rows").rglob("*")]
    assert len(made) > 20
    assert {bool(path.stat().st_mode & 0o020) for path in made} == {mode == 0o770}
