"""The history of checks, with which later ones are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest

from riverrun.quality.frames import write_frame
from riverrun.quality.gate import GateReport, Verdict, judge
from riverrun.releases.check_log import GATE_OF_RELEASE, GATE_OF_RUN, WHOLE, CheckLog, CheckRecord
from tests.unit.releases.control_topic.notes import MemoryNotes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Notes(MemoryNotes):
    def put(self, values: dict[str, bytes | None]) -> None:
        self.write("", values, lambda: None)


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Verdict]:
    """Judge rows by the history so far, and note the check in it."""
    log: Any = object.__new__(CheckLog)
    log._topic = Notes()

    def check(kind: str, rows: list[dict[str, Any]], *more: Any) -> Verdict:
        number = len(log._topic.values) + 1
        name = f"{number:020}"
        asked = [gxe.ExpectColumnValuesToBeBetween(column="n", min_value=0), *more]
        report = GateReport(earlier=log.earlier("app", kind, name))
        found = judge("out", write_frame(tmp_path / name, rows), asked, lambda: None, report=report)
        run = name if kind == GATE_OF_RUN else ""
        log.put(CheckRecord(name, "app", "v1", "ann", number, kind=kind, run=run).with_findings(found))
        return found

    return check


FULL, EMPTY = [{"n": 1}] * 5, [{"n": None}] * 5


@pytest.mark.parametrize("kind", [GATE_OF_RELEASE, GATE_OF_RUN, WHOLE])
def test_a_column_without_values_is_no_news_only_once_it_has_had_some(
    checked: Callable[..., Verdict], kind: str
) -> None:
    assert checked(kind, EMPTY).warnings == ()
    assert checked(kind, FULL).warnings == ()
    for _ in range(3):
        assert checked(kind, EMPTY).warnings == ("out: column n has values",), "nobody has corrected it"
    assert checked(kind, EMPTY, gxe.ExpectColumnValuesToBeNull(column="n")).warnings == ()
    assert checked(kind, FULL).warnings == ()
    assert checked(kind, EMPTY).warnings == ("out: column n has values",)
