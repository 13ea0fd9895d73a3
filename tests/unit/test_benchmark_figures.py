"""Arithmetic of benchmarks: CPU and memory from `/proc`, percentiles, waits of records, spreads, equal work."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of the benchmarks, which are a program of their own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def write_process(proc: Path, pid: int, ticks: tuple[int, int, int, int], children: str = "", kib: int = 0) -> None:
    """Write what `/proc` has of a process with one thread."""
    thread = proc / str(pid) / "task" / str(pid)
    thread.mkdir(parents=True)
    (thread / "children").write_text(children)
    before = " ".join(["S", *["1"] * 10])
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b (c) {before} {' '.join(map(str, ticks))} 20 0 1\n")
    (proc / str(pid) / "smaps_rollup").write_text(f"Rss: 999 kB\nPss:  {kib} kB\nPss_Dirty: 7 kB\n")


def test_cpu_time_of_a_process_has_that_of_children_in_it(module: Any, tmp_path: Path) -> None:
    write_process(tmp_path, 10, (1, 2, 3, 4), "11 12 ", kib=2)
    write_process(tmp_path, 11, (10, 20, 30, 40), kib=5)
    write_process(tmp_path, 12, (100, 0, 0, 0), "13")
    write_process(tmp_path, 13, (0, 1000, 0, 0), kib=1)
    usage = module("usage")
    assert usage.family(10, tmp_path) == [10, 11, 12, 13]
    assert usage.cpu_seconds(10, tmp_path) == 1210 / TICKS
    assert usage.cpu_seconds(11, tmp_path) == 100 / TICKS
    assert usage.memory_bytes(10, tmp_path) == 8 * 1024
    assert usage.threads(10, tmp_path) == 4


def test_broker_has_a_share_of_the_cpu_time_of_both(module: Any) -> None:
    moment = module("measuring").Moment
    used = moment(14.0, 7.0, 103.0).since(moment(10.0, 6.0, 100.0))
    assert used.cores == 0.25
    assert used.of_broker == {"broker cores": 0.75, "broker share": 75.0}
    assert moment(1.0, 0.0, 0.0).of_broker["broker share"] == 0.0


@pytest.mark.parametrize(
    ("figures", "half", "nearly_all"),
    [(range(1, 101), 50, 99), (range(1, 1001), 500, 990), ([7], 7, 7), ([1, 9], 1, 9), ([1, 2, 9], 2, 9)],
)
def test_percentile_is_a_figure_that_so_many_do_not_exceed(
    module: Any, figures: Any, half: int, nearly_all: int
) -> None:
    percentile = module("measuring").percentile
    assert (percentile(figures, 50), percentile(figures, 99)) == (half, nearly_all)


def test_records_wait_until_a_count_with_them_in_it_is_published(module: Any) -> None:
    waiting = module("steady").Waiting({b"a": 2})
    waiting.produced(b"a", 10.0)
    waiting.produced(b"a", 11.0)
    waiting.produced(b"b", 11.5)
    waiting.published(b"a", 2, 10.5)  # without them
    waiting.published(b"a", 3, 12.0)
    assert not waiting.is_over()
    waiting.published(b"a", 3, 90.0)  # published again
    waiting.published(b"b", 1, 13.0)
    waiting.published(b"a", 4, 21.0)
    assert waiting.is_over()
    assert waiting.figures(10.0, 12.0, 21.0) == {
        "produced": 1.5,
        "in time": pytest.approx(100 * 2 / 3),
        "p50": 2_000.0,
        "p99": 10_000.0,
    }
    assert waiting.figures(10.5, 11.5, 21.0)["p50"] == 10_000.0


def test_records_that_are_never_published_have_waited_to_the_end(module: Any) -> None:
    waiting = module("steady").Waiting({b"a": 2})
    for at_s in (10.0, 11.0, 12.0):
        waiting.produced(b"a", at_s)
    waiting.published(b"a", 3, 10.5)
    figures = waiting.figures(10.0, 13.0, 20.0)
    assert (figures["produced"], figures["p50"], figures["p99"]) == (1.0, 8_000.0, 9_000.0)
    assert figures["in time"] == pytest.approx(100 / 3)


def test_rounds_of_a_side_that_fails_do_not_count(module: Any) -> None:
    class Failing:
        def measure(self, _row: Any, side: str, _guarantee: str, number: int) -> dict[str, float]:
            if (side, number) == ("Java", 1):
                message = "Ended with 3:\nout of memory"
                raise RuntimeError(message)
            return {"speed": float(number)}

    row = module("rows").GROUPS["windows"][0]
    runs, failed = module("bench").rounds(Failing(), row, ["Java", "Riverrun"], "exactly_once_v2", 3)
    assert runs == {"Riverrun": [{"speed": 0.0}, {"speed": 1.0}, {"speed": 2.0}]}
    assert failed == {"Java": "failed in round 2: Ended with 3"}


def test_spread_is_shown_of_many_rounds_that_differ(module: Any) -> None:
    spread = module("report").spread
    assert spread([5, 1, 2, 3, 4], 0) == "1 / 3 / 5"
    assert spread([1, 1, 1, 1, 3], 1) == "1.0 / 1.0 / 3.0"
    assert spread([2.01, 2.0, 2.02, 2.0, 2.0], 1) == "2.0"
    assert spread([1, 2, 3, 9], 0) == "2"


def test_figures_that_a_run_lacks_are_not_shown(module: Any) -> None:
    column = module("report").Column
    assert column("s", "seconds").cell([{"speed": 1.0}], [{"speed": 1.0}]) == "n/a"
    assert column("ratio", "seconds", is_ratio=True).cell([{"seconds": 1.0}], [{}]) == "n/a"


def test_rows_of_equal_work_are_measured_together(module: Any) -> None:
    rows, bench = module("rows"), module("bench")
    chosen = [(group, row) for group in ("windows", "scaling", "sql") for row in rows.GROUPS[group]]
    found = list(bench.works(chosen, {rows.EXACTLY_ONCE}))
    assert sorted(row.name for _, some in found for _, row in some) == sorted(row.name for _, row in chosen)
    together = next([row for _, row in some] for _, some in found if some[0][1].name == "windowed-count")
    assert [row.name for row in together] == ["windowed-count", "windowed-count, 1", "windowed-count in SQL"]
    sides = bench.sides_of(together)
    assert sides == ["Java", "Java -Xmx256m", "Riverrun", "bare loop", "Riverrun in SQL"]


def test_results_tell_of_equal_work_with_several_figures(module: Any) -> None:
    result, report = module("results").Result, module("report").report
    runs = {"Java": [{"speed": 10.0, "cpu": 1.0}], "Riverrun": [{"speed": 20.0, "cpu": 1.0}]}
    one = result("windowed-count", "exactly_once_v2", "here", 100, runs)
    other = result(
        "windowed-count, 1", "exactly_once_v2", "here", 200, {**runs, "Riverrun": [{"speed": 30.0, "cpu": 2.0}]}
    )
    text = report({"windows": [one], "scaling": [other]})
    assert "| exactly_once_v2 | Riverrun | windowed-count | 100 | 1 | 20 | 1.0 |" in text
    assert "| exactly_once_v2 | Riverrun | windowed-count, 1 | 200 | 1 | 30 | 2.0 |" in text
    assert "| exactly_once_v2 | Java | windowed-count" not in text
    assert "several times" not in report(
        {"windows": [one], "scaling": [msgspec.structs.replace(one, row="windowed-count, 1")]}
    )


def test_results_say_why_a_side_takes_no_part(module: Any) -> None:
    rows, result = module("rows"), module("results").Result
    runs = {side: [{"speed": 10.0, "cpu": 1.0}] for side in ("Java", "Riverrun")}
    one = result(
        "windowed-count of engines", rows.AT_LEAST_ONCE, "here", 100, runs, {rows.PATHWAY: "cannot be installed"}
    )
    text = module("report").report({"engines": [one]})
    assert "windowed-count of engines, at_least_once: Pathway takes no part, as it cannot be installed." in text
    assert "| windowed-count of engines | at_least_once | Pathway |" not in text
    assert "| row | guarantee | side | records/s | ratio | CPU |" in text, "columns that nothing has are left out"


def test_results_without_the_first_side_have_no_ratios(module: Any) -> None:
    runs = {"Riverrun": [{"speed": 10.0, "cpu": 1.0}]}
    one = module("results").Result(
        "stateless", "at_least_once", "here", 100, runs, {"Java": "failed in round 1: stuck"}
    )
    text = module("report").report({"stateless": [one]})
    assert "| stateless | at_least_once | Riverrun | 10 | n/a | 1.0 |" in text


def test_earlier_counts_that_pathway_takes_back_are_no_updates(module: Any) -> None:
    outputs, inputs = module("outputs"), module("inputs")
    back = b'{"user":"ann","start":60000,"n":1,"diff":-1,"time":4}'
    assert outputs.adapted("Pathway", "windowed-count", b"ann", back) is None
    found = outputs.adapted("Pathway", "windowed-count", b"ann", back.replace(b"-1", b"1").replace(b'"n":1', b'"n":2'))
    assert found == (inputs.window_key("ann", 60_000), (2).to_bytes(8, "big"))


def test_rows_of_latency_differ_in_partitions_and_rates_alone(module: Any) -> None:
    rows = module("rows").GROUPS["latency"]
    assert len({row.work for row in rows}) == len(rows) == 8
    assert len({replace(row.work, partitions=0, per_second=0) for row in rows}) == 1


def test_processes_that_end_meanwhile_hold_nothing(module: Any, tmp_path: Path) -> None:
    write_process(tmp_path, 10, (1, 2, 3, 4), "11 ", kib=2)
    usage = module("usage")
    assert (usage.memory_bytes(10, tmp_path), usage.threads(10, tmp_path)) == (2048, 1)
    with pytest.raises(FileNotFoundError):
        usage.cpu_seconds(12, tmp_path)
