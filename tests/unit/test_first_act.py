"""The demo's first act runs in memory, from what every installation has, and agrees with a plain loop."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from riverrun.demo.first_act import BEGINNING, FirstAct, continued, counted_by_hand, processed
from riverrun.demo.installing import CacheGrowth, installed
from riverrun.demo.steps import Steps, following, progress_of
from riverrun.errors import BrokerError, ProcessingError
from tests.architecture.test_imports import ENGINES_OF_EXTRAS
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CLICKS = 25_000
WITHOUT_EXTRAS = f"""
import sys
sys.modules |= dict.fromkeys({ENGINES_OF_EXTRAS!r})
from riverrun.cli.main import main
sys.argv = ["riverrun", "demo", "--quick"]
if __name__ == "__main__":
    main()
"""


def console() -> Console:
    return Console(file=StringIO(), width=80, emoji=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_quick_needs_no_broker_no_extra_and_no_project(tmp_path: Path) -> None:
    program = tmp_path / "quick.py"
    program.write_text(WITHOUT_EXTRAS)
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "checked against a plain loop: all equal" in done.stdout
    assert "riverrun init shop" in done.stdout
    assert done.stderr == ""


def test_the_act_shows_topology_results_and_what_a_late_record_does() -> None:
    told = console()
    assert FirstAct(told, CLICKS).tell()
    lines = [line.rstrip() for line in shown(told).splitlines()]
    assert "    counts = pages.group_by_key().windowed_by(windows).count()" in lines
    results = [line for line in lines if line.startswith("  10:")]
    assert [line.split("  ")[-1].strip() for line in results[3:]] == [
        "a new window begins",
        "out of order, within grace",
        "past 10:06, 10:00-10:05 closes",
        "late: dropped, and counted",
    ]
    assert ["ann 10:00-10:05: 3" in line for line in results].index(True) == 4, "an older window was updated"
    assert " - " in results[6], "a late record has no result"


@pytest.mark.parametrize("at", [1, 9_999, 10_000, 17_777])
def test_a_task_that_is_stopped_anywhere_and_continued_agrees_with_a_loop(at: int, tmp_path: Path) -> None:
    first = processed(at)
    assert first != BEGINNING
    for directory in None, tmp_path:
        rest = processed(CLICKS, first, directory)
        assert (rest.counts, rest.late) == counted_by_hand(CLICKS)


def test_another_process_continues_from_changelog_and_offsets() -> None:
    rest = continued(CLICKS, processed(CLICKS // 2))
    counts, late = counted_by_hand(CLICKS)
    assert late > 0
    assert (rest.counts, rest.late) == (counts, late)


def test_an_installation_runs_during_other_work_and_its_time_is_told(tmp_path: Path) -> None:
    steps, log = Steps(), tmp_path / "logs" / "install.log"
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", f"open({str(begun)!r}, 'w').write('1'); print('Resolved')"]

    def work() -> bool:
        return not begun.exists() or begun.read_text() in {"", "1"}

    assert installed(command, log, work, steps, console())
    assert log.read_text() == "Resolved\n"
    assert list(steps.seconds) == ["Installing the other packages"]


def test_an_installation_that_fails_tells_the_end_of_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no network'); raise SystemExit(3)"]
    with pytest.raises(ProcessingError, match=r"(?s)exit code 3.*no network") as failed:
        installed(command, tmp_path / "install.log", lambda: True, Steps(), console())
    assert "install.log" in (failed.value.hint or "")


def test_only_what_an_installation_adds_to_the_cache_counts(tmp_path: Path) -> None:
    old = tmp_path / "archive-v0" / "old"
    old.mkdir(parents=True)
    (old / "file").write_bytes(b"12345")
    growth = CacheGrowth(tmp_path, frozenset({old}))
    assert growth.bytes() == 0
    new, unpacked = tmp_path / "archive-v0" / "new", tmp_path / ".tmp1"
    for directory, content in (new, b"123"), (unpacked, b"1234"):
        directory.mkdir()
        (directory / "file").write_bytes(content)
    assert growth.bytes() == 7
    (unpacked / "file").unlink()
    unpacked.rmdir()
    assert growth.bytes() == 7, "what is gone was written"


def test_a_step_is_followed_while_it_runs_even_if_there_is_nothing_to_see_yet() -> None:
    looks: list[int] = []

    def done() -> int:
        looks.append(len(looks))
        if len(looks) == 1:
            message = "there is no such group yet"
            raise BrokerError(message)
        return len(looks)

    with following(console(), "Reading", 10, "records", done):
        until(lambda: len(looks) > 2, "looked three times")
    assert looks[:3] == [0, 1, 2]


def test_a_bar_shows_size_rate_and_remaining_time() -> None:
    told = Console(file=StringIO(), width=100, force_terminal=True, emoji=False)
    with progress_of(told, "MB") as bar:
        bar.add_task("Installing", total=3100, completed=1240)
    assert "1,240 of 3,100 MB" in shown(told)
    assert "--:--" in shown(told), "the remaining time is not known yet"


def test_the_seconds_of_steps_add_up() -> None:
    steps, told = Steps(), console()
    steps.seconds["Kafka"] = 2.25
    with steps.timed("Kafka"):
        pass
    steps.seconds.update({"Nothing to wait for": 0.01, "Spark": 40.0})
    told.print(steps.table())
    assert [line.split()[-1] for line in shown(told).splitlines() if line.strip()] == ["seconds", "2.3", "40.0", "42.3"]
