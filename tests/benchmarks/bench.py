"""`make bench`: groups of rows, in rounds, all sides in turn, on a broker of its own. Needs Linux.

    make bench BENCH="--groups tables joins --records 4000000"

measures two groups. Results of other groups stay in results/, and RESULTS.md is written from all of them. Rows of equal work
are measured once, together: a side has one figure in all tables that show it, if their groups are measured at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from laboratory import Laboratory
from report import SPREAD_ROUNDS, charts, machine, report
from results import Result, keep, kept
from rows import AT_LEAST_ONCE, EXACTLY_ONCE, GROUPS, NO_BROKER, WITH_SCHEMAS
from sides import HERE, absence, compile_java

from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.kafka.embedded.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from measuring import Figures
    from rows import Row


def main() -> None:
    options = _options()
    if options.report:
        print(written(options.output))
        return
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("Terminated"))  # the broker ends as well
    chosen = [
        (group, row)
        for group in options.groups
        for row in GROUPS[group]
        if not options.rows or row.name in options.rows
    ]
    compile_java(options.home)
    os.environ["RIVERRUN_HOME"] = str(options.home)
    subprocess.run([sys.executable, "-m", "riverrun.cli", "prepare-spark"], check=True)
    with tempfile.TemporaryDirectory() as scratch, _registry(row for _, row in chosen) as registry:
        directory = Path(scratch)
        broker = EmbeddedBroker(directory / "kafka", options.home, options.port)
        try:
            servers = broker.start().bootstrap_servers
            laboratory = Laboratory(
                broker,
                Admin(Kafka({"bootstrap.servers": servers})),
                servers,
                directory,
                options.home,
                options.records,
                options.soak_minutes * 60,
                options.steady_seconds,
                registry,
            )
            absent = absences({side for _, row in chosen for side in row.sides}, options.home)
            has_failed = False
            for side, reason in absent.items():
                print(f"{side} takes no part: it {reason}", flush=True)
            for guarantee, rows in works(chosen, {*options.guarantees, NO_BROKER}):
                sides = [side for side in sides_of(row for _, row in rows) if side not in absent]
                runs, failed = rounds(laboratory, rows[0][1], sides, guarantee, options.rounds)
                has_failed |= bool(failed)
                missing = {**absent, **failed}
                for group, row in rows:
                    own = {side: runs[side] for side in row.sides if side in runs}
                    reasons = {side: missing[side] for side in row.sides if side in missing}
                    result = Result(row.name, guarantee, machine(), laboratory.records_of(row), own, reasons)
                    keep(options.output / "results", group, result)
        finally:
            broker.stop()
            text = written(options.output)
    print(text)
    if has_failed:
        sys.exit("Some sides have failed: see what was printed above.")


@contextmanager
def _registry(rows: Iterable[Row]) -> Iterator[str]:
    """The address of a schema registry, if a row has records with schemas; else nothing."""
    if not any(row.kind == "stream" and side in WITH_SCHEMAS for row in rows for side in row.sides):
        yield ""
        return
    from tests.registries import running_registry  # noqa: PLC0415 - it needs more than most rows

    with running_registry() as url:
        yield url


def written(output: Path) -> str:
    """Write RESULTS.md and its charts from the stored results, and return its text."""
    results = kept(output / "results")
    text = report(results)
    (output / "RESULTS.md").write_text(text)
    (output / "charts").mkdir(exist_ok=True)
    for group, picture in charts(results).items():
        (output / "charts" / f"{group}.svg").write_text(picture)
    return text


def works(chosen: Iterable[tuple[str, Row]], guarantees: Container[str]) -> Iterator[tuple[str, list[tuple[str, Row]]]]:
    """Yield guarantees, with rows of equal work and their groups: each side of them is measured once."""
    rows: dict[tuple[str, Row], list[tuple[str, Row]]] = {}
    for group, row in chosen:
        for guarantee in row.guarantees:
            if guarantee in guarantees:
                rows.setdefault((guarantee, row.work), []).append((group, row))
    for (guarantee, _), found in rows.items():
        yield guarantee, found


def sides_of(rows: Iterable[Row]) -> list[str]:
    """Return all sides of rows, once each, in their order."""
    return list(dict.fromkeys(side for row in rows for side in row.sides))


def absences(sides: Iterable[str], libraries: Path) -> dict[str, str]:
    """Return why sides cannot take part, by side; of all others there is nothing."""
    reasons = {side: absence(side, libraries) for side in sorted(sides)}
    return {side: reason for side, reason in reasons.items() if reason}


def rounds(
    laboratory: Laboratory, row: Row, sides: Iterable[str], guarantee: str, number: int
) -> tuple[dict[str, list[Figures]], dict[str, str]]:
    """Return the results of each side in each round; the sides take turns. Then the reasons of sides that failed."""
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    failed: dict[str, str] = {}
    for n in range(number):
        for side in [side for side in runs if side not in failed]:
            try:
                figures = laboratory.measure(row, side, guarantee, n)
            except RuntimeError as error:  # other rows are measured all the same, and the report says so
                failed[side] = f"failed in round {n + 1}: {str(error).splitlines()[0].rstrip(':.')}"
                print(f"{row.name}, {guarantee}, {side} failed: {error}", flush=True)
                continue
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            print(f"{row.name}, {guarantee}, {side}: {shown}", flush=True)
            runs[side].append(figures)
    return {side: found for side, found in runs.items() if side not in failed}, failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these of the groups' rows, by their names")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--rounds", type=int, default=SPREAD_ROUNDS, help="fewer than five show no minimum and no maximum"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing; write RESULTS.md and charts anew")
    parser.add_argument("--soak-minutes", type=float, default=60.0)
    parser.add_argument("--steady-seconds", type=float, default=30.0, help="of rows of latency; as long before as well")
    parser.add_argument(
        "--guarantees", nargs="+", choices=(EXACTLY_ONCE, AT_LEAST_ONCE), default=[EXACTLY_ONCE, AT_LEAST_ONCE]
    )
    parser.add_argument("--port", type=int, default=19392, help="of the broker; the next one is taken as well")
    parser.add_argument(
        "--home", type=Path, default=Path("~/.cache/riverrun").expanduser(), help="where downloads are kept"
    )
    parser.add_argument("--output", type=Path, default=HERE, help="where results/ and RESULTS.md are")
    return parser.parse_args()


if __name__ == "__main__":
    main()
