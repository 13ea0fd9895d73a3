"""`make bench`: groups of rows, in rounds, all sides in turn, on a broker of its own. Needs Linux.

    make bench BENCH="--groups tables joins --records 4000000"

measures two groups. Results of other groups stay in results/, and RESULTS.md is written from all of them.
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
from report import charts, machine, report
from results import Result, keep, kept
from rows import AT_LEAST_ONCE, EXACTLY_ONCE, GROUPS, NO_BROKER, WITH_SCHEMAS
from sides import HERE, ROOT, compile_java

from riverrun.kafka.admin import Admin
from riverrun.kafka.embedded.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
                Admin({"bootstrap.servers": servers}),
                servers,
                directory,
                options.home,
                options.records,
                options.soak_minutes * 60,
                registry,
            )
            for group, row in chosen:
                for guarantee in [name for name in row.guarantees if name in {*options.guarantees, NO_BROKER}]:
                    runs = rounds(laboratory, row, guarantee, options.rounds)
                    result = Result(row.name, guarantee, machine(), options.records, runs)
                    keep(options.output / "results", group, result)
        finally:
            broker.stop()
            text = written(options.output)
    print(text)


@contextmanager
def _registry(rows: Iterable[Row]) -> Iterator[str]:
    """The address of a schema registry, if a row has records with schemas; else nothing."""
    if not any(row.kind == "stream" and side in WITH_SCHEMAS for row in rows for side in row.sides):
        yield ""
        return
    sys.path.append(str(ROOT))
    from tests.registries import running_registry  # noqa: PLC0415 - of the tests

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


def rounds(laboratory: Laboratory, row: Row, guarantee: str, number: int) -> dict[str, list[Figures]]:
    """The results of each side in each round; the sides take turns."""
    runs: dict[str, list[Figures]] = {side: [] for side in row.sides}
    for n in range(number):
        for side, found in runs.items():
            figures = laboratory.measure(row, side, guarantee, n)
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            print(f"{row.name}, {guarantee}, {side}: {shown}", flush=True)
            found.append(figures)
    return runs


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these of the groups' rows, by their names")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2, help="fewer than five say nothing of a minimum and a maximum")
    parser.add_argument("--report", action="store_true", help="measure nothing; write RESULTS.md and charts anew")
    parser.add_argument("--soak-minutes", type=float, default=60.0)
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
