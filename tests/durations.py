"""How long tests take: each run notes it, and the next ones begin with what takes longest.

`python -m tests.durations` writes what the last runs have noted into `durations.json`, and prints the dearest tests.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pytest

KNOWN = Path(__file__).with_name("durations.json")
"""Seconds by test, as committed. Quick tests are left out."""
_NOTED = "riverrun/durations"
"""Place in pytest's cache, with an entry for each way in which tests are handed out."""
_CACHE = Path(".pytest_cache/v", _NOTED)

_QUICK_S = 0.5
_DEAREST = 10


class Noting:
    """A plugin of the process that hands tests out: it notes how long each took, and shows a failure when it happens."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a phase of a test."""
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            what = str(getattr(crash, "message", "")).partition("\n")[0]
            sys.stdout.write(f"\n{report.when} of {report.nodeid} failed: {what}\n")

    def pytest_sessionfinish(self) -> None:
        """Note them, next to those of earlier runs."""
        if (cache := getattr(self._config, "cache", None)) is not None:  # none with `-p no:cacheprovider`
            place = f"{_NOTED}/{self._config.getoption('dist', 'no')}"
            cache.set(place, {**(cache.get(place, None) or {}), **self._seconds})


def known() -> dict[str, float]:
    """Return the committed seconds by test."""
    found: dict[str, float] = json.loads(KNOWN.read_text())
    return found


class ByGroup(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]  # pytest-xdist says to derive from it
    """Hands out groups of tests. `loadgroup` itself finds none: pytest 9.2 ignores the names that pytest-xdist 3.8 appends."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


_SPARK = ("tests/integration/", "tests/system/test_spark_", "tests/conformance/")


def group_of(test: str) -> str:
    """Return the name of what runs in one process: all of Airflow, all of Spark, a file whose tests share a fixture, or a test.

    Airflow and Spark keep a core busy. What waits, for sessions that end and brokers that die, runs next to them.
    """
    path = test.partition("::")[0]
    if path.startswith("tests/airflow/"):
        return "airflow"
    if path.startswith(_SPARK) and ("[spark" in test or _says(path, "spark_sessions|spark.session import|session_of")):
        return "spark"
    return path if _says(path, 'scope="module"|broker_clusters import') else test


@cache
def _says(path: str, pattern: str) -> bool:
    return re.search(pattern, (KNOWN.parents[1] / path).read_text()) is not None


def longest_first(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Return tests by the time of their group, so that processes end at about the same time; a group keeps its order."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[group_of(item.nodeid)].append(item)

    def weight(tests: Iterable[pytest.Item]) -> float:
        return sum(seconds.get(test.nodeid, _QUICK_S) for test in tests)

    return [item for group in sorted(groups.values(), key=weight, reverse=True) for item in group]


def main() -> None:
    """Commit what was noted to the file, and print the dearest tests."""
    noted: dict[str, float] = {}
    for file in sorted(_CACHE.iterdir()):
        noted |= json.loads(file.read_text())
    slow = {test: round(seconds, 1) for test, seconds in sorted(noted.items()) if seconds >= _QUICK_S}
    KNOWN.write_text(json.dumps(slow, indent=0) + "\n")
    for test in sorted(slow, key=lambda each: -slow[each])[:_DEAREST]:
        sys.stdout.write(f"{slow[test]:6.1f} s  {test}\n")


if __name__ == "__main__":
    main()
