"""Verdicts: an approval is of one verdict, which holds of the code, the expectations and the data that were judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import ApprovalNeededError, ReleaseError
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.gated import GateVerdict
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.processor.handlers import DropReason
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.verdicts import (
    Now,
    approve,
    compare_dropped,
    dropped_of,
    inputs_since,
    require_valid,
    suite_digest,
)
from riverrun.spark.runs import DONE, FAILED, RunRecord
from tests.unit.releases.control_topic.notes import MemoryNotes

WARNED = GateVerdict(
    "7f3a", "in-0@7", "suite", {"v1": "a", "v2": "b"}, {"rows differ": "failed: 9"}, (), ("rows differ",)
)
CLEAN = replace(WARNED, outcomes={"rows differ": "passed"}, warnings=())
NOW = Now("v2", "suite", {"v1": "a", "v2": "b"})


@dataclass
class Configuration:
    """As an expectation of Great Expectations has it."""

    type: str
    kwargs: dict[str, Any]
    severity: str = "critical"


@dataclass
class Expectation:
    """The parts of an expectation that count for its digest."""

    configuration: Configuration


def configured(arguments: dict[str, Any], severity: str = "critical") -> Expectation:
    return Expectation(Configuration("expect_between", {"column": "n", **arguments}, severity))


def expectation(highest: int = 9, severity: str = "critical", **more: Any) -> Expectation:
    return configured({"max_value": highest, **more}, severity)


def judged(verdict: GateVerdict | None) -> Release:
    return Release("clicks", "v1", ReleaseStep.GATED, "v2", verdict=verdict)


def test_a_verdict_that_passed_clean_or_was_approved_lets_a_candidate_go_live() -> None:
    require_valid(judged(CLEAN), NOW)
    require_valid(judged(replace(WARNED, approved_by="ann")), NOW)


@pytest.mark.parametrize(
    ("verdict", "now", "refusal"),
    [
        (None, NOW, r"no gate has passed v2\nHint: .*release gate clicks"),
        (replace(CLEAN, critical=("nulls",)), NOW, "no gate has passed v2"),
        (
            CLEAN,
            replace(NOW, digests={"v1": "a", "v2": "c"}),
            r"code of v2 has changed since verdict 7f3a\nHint: .*start",
        ),
        (
            CLEAN,
            replace(NOW, digests={"v1": "c", "v2": "b"}),
            r"code of v1 has changed since verdict 7f3a\nHint: .*gate",
        ),
        (CLEAN, replace(NOW, suite="other"), "the expectations have changed since verdict 7f3a"),
        (CLEAN, replace(NOW, inputs=8, bound=7), "7f3a is 8 inputs old, max_inputs_since_gate is 7"),
        (replace(WARNED, approved_by="ann"), replace(NOW, suite="other"), "the expectations have changed"),
    ],
)
def test_a_cut_is_refused_where_a_verdict_does_not_hold_any_more(
    verdict: GateVerdict | None, now: Now, refusal: str
) -> None:
    with pytest.raises(ReleaseError, match=refusal):
        require_valid(judged(verdict), now)


def test_without_a_bound_a_verdict_may_be_of_any_age() -> None:
    require_valid(judged(CLEAN), replace(NOW, inputs=10**9))
    require_valid(judged(CLEAN), replace(NOW, inputs=7, bound=7))


def test_warnings_nobody_approved_name_the_command_that_approves_that_verdict() -> None:
    with pytest.raises(ApprovalNeededError, match=r"rows differ\nHint: .*release approve clicks --verdict 7f3a"):
        require_valid(judged(WARNED), NOW)


def test_an_approval_notes_who_and_when_and_is_of_one_verdict() -> None:
    registry = ReleaseRegistry(MemoryNotes(), "ann@desk")
    gated = registry.write(Release("clicks", "v1", ReleaseStep.GATED, "v2", verdict=WARNED))
    approved = approve(registry, gated, "7f3a")
    assert approved.verdict is not None
    assert (approved.verdict.approved_by, approved.verdict.needs_approval) == ("ann@desk", False)
    assert approved.verdict.approved_ms > 0
    assert approve(registry, approved, "7f3a") == approved
    assert [each.verdict for each in registry.history("clicks")] == ["7f3a", "7f3a"]
    judged_again = registry.write(replace(approved, verdict=replace(WARNED, id="8e21")))
    with pytest.raises(ReleaseError, match="7f3a cannot be approved: the last gate's verdict is 8e21"):
        approve(registry, judged_again, "7f3a")
    with pytest.raises(ApprovalNeededError):
        require_valid(judged_again, NOW)


def test_a_verdict_that_blocks_cannot_be_approved() -> None:
    registry = ReleaseRegistry(MemoryNotes())
    failed = registry.write(
        Release("clicks", "v1", ReleaseStep.REPROCESSED, "v2", verdict=replace(WARNED, critical=("nulls",)))
    )
    with pytest.raises(ReleaseError, match="7f3a cannot be approved: it fails critically: nulls"):
        approve(registry, failed, "7f3a")
    with pytest.raises(ReleaseError, match="no gate has judged the candidate"):
        approve(registry, replace(failed, verdict=None), "7f3a")


def test_the_digest_of_expectations_is_that_of_what_they_ask_for() -> None:
    digest = suite_digest([expectation()])
    assert suite_digest([expectation()]) == digest
    changed = [
        [expectation(10)],
        [expectation(severity="warning")],
        [expectation(), expectation()],
        [],
        {"out": [expectation()]},
    ]
    assert digest not in {suite_digest(each) for each in changed}
    assert len({suite_digest(each) for each in changed}) == len(changed)


def test_the_digest_of_expectations_does_not_depend_on_the_process() -> None:
    assert suite_digest([expectation(among={"b", "a"}, by=object())]) == suite_digest(
        [expectation(by=object(), among={"a", "b"})]
    )


@pytest.mark.parametrize("name", ["regex_list", "value_set"])
def test_the_digest_of_expectations_does_not_depend_on_the_order_of_a_set(name: str) -> None:
    # Great Expectations makes lists of sets, whose order differs between processes.
    one, other = ({name: [*letters]} for letters in ("ab", "ba"))
    assert suite_digest([configured(one)]) == suite_digest([configured(other)])


def test_the_digest_of_expectations_depends_on_the_order_of_columns() -> None:
    one, other = expectation(column_list=["a", "b"]), expectation(column_list=["b", "a"])
    assert suite_digest([one]) != suite_digest([other])


def test_expectations_may_have_numbers_and_texts_of_numpy() -> None:
    derived = expectation(min_value=np.float64(0.5), value_set=[np.str_("a"), np.int64(1)])
    assert suite_digest([derived]) == suite_digest([expectation(min_value=0.5, value_set=["a", "1"])])


def test_inputs_since_a_gate_count_new_partitions_and_no_other_topics() -> None:
    judged = OffsetVector.parse("in-0@7,in-1@3")
    now = {
        TopicPartition("in", 0): 9,
        TopicPartition("in", 1): 3,
        TopicPartition("in", 2): 5,
        TopicPartition("owed", 0): 8,
    }
    assert inputs_since(judged, now) == 7


COUNTS = st.dictionaries(st.sampled_from([str(reason) for reason in DropReason]), st.integers(0, 5))


def a_run(version: str, started_ms: int, records: int, state: str = DONE, **dropped: int) -> RunRecord:
    return RunRecord(
        str(started_ms), "clicks", version, "ann", started_ms, "", state, records_in=records, dropped=dropped
    )


@given(COUNTS, COUNTS)
def test_a_candidate_that_drops_more_for_any_reason_is_a_warning(
    candidate: dict[str, int], live: dict[str, int]
) -> None:
    outcomes, warnings = compare_dropped(candidate, live)
    more = {reason for reason in candidate if candidate[reason] > live.get(reason, 0)} - {"stale-response"}
    assert warnings == (("records dropped",) if more else ())
    word, _, found = outcomes["records dropped"].partition(": ")
    assert word == ("failed" if more else "noted")
    ours, theirs = found.split("; by the live version: ")
    for counts, text in ((candidate, ours), (live, theirs)):
        assert text == (", ".join(f"{r} {n:,}" for r, n in sorted(counts.items()) if n) or "none")


def test_a_gate_notes_what_the_runs_of_a_candidate_have_dropped_since_it_began() -> None:
    runs = [
        a_run("v2", 900, 7_000, late=5_000),
        a_run("v1", 1_100, 10, late=1),
        a_run("v2", 1_000, 1_000, late=3),
        a_run("v2", 1_200, 400, FAILED, late=9),
        a_run("v2", 1_300, 234, late=2, skipped=1),
    ]
    assert dropped_of(runs, "v2", 1_000) == {"records of bounded runs": "noted: 1,234 read; dropped: late 5, skipped 1"}
    assert dropped_of(runs[2:3], "v2", 1_000) == {"records of bounded runs": "noted: 1,000 read; dropped: late 3"}
    assert dropped_of([a_run("v2", 1, 9)], "v2", 1) == {"records of bounded runs": "noted: 9 read; dropped: none"}
    assert dropped_of(runs, "v3", 0) == {}, "workers have computed it"
