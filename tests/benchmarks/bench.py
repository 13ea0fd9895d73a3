"""`make bench`: the rows, in rounds, both sides in turn, on a broker of its own. Needs Linux."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inputs import PARTITIONS, generate, partitions, result
from measuring import Measured, Progress, measure
from report import Line, report
from sides import AT_LEAST_ONCE, EXACTLY_ONCE, HERE, Run, Side

from pipeline.kafka.admin import Admin, TopicSpec
from pipeline.kafka.broker import EmbeddedBroker

if TYPE_CHECKING:
    from inputs import Expected, Output

ROWS = {"windowed-count": ("java", "millrace"), "stateless": ("java", "millrace", "bare loop")}
"""Who takes part in each row."""
SOURCE = "views"


@dataclass(frozen=True)
class Bench:
    """A running broker with the input in it."""

    admin: Admin
    servers: str
    directory: Path
    libraries: Path
    records: int

    def run(self, side: str, row: str, guarantee: str, number: int, expected: Output) -> Measured:
        """One run, in fresh topics and a fresh directory, which are gone afterwards."""
        name = f"{side}-{row}-{guarantee}-{number}".replace(" ", "-")
        target, kafka = f"{name}.out", {"bootstrap.servers": self.servers}
        run = Run(row, guarantee, self.servers, name, SOURCE, target, self.directory / name, self.libraries)
        self.admin.create_topics([TopicSpec(target, PARTITIONS)])
        with Side(side, run) as process, closing(Progress(kafka, run.group, partitions(SOURCE))) as progress:
            measured = measure(process, progress, self.records)
        if result(self.admin, kafka, row, target) != expected:
            message = f"{name} wrote something else than expected"
            raise RuntimeError(message)
        self.admin.delete_topics(self.admin.list_topics(name))
        shutil.rmtree(run.directory)
        print(
            f"{name}: {measured.records_per_second:,.0f} records/s, {measured.cpu_seconds_per_million:.1f} CPU s/million"
        )
        return measured

    def lines(self, row: str, guarantee: str, rounds: int, expected: Expected) -> list[Line]:
        """All rounds of one row: one line per side that is not Java."""
        runs: dict[str, list[Measured]] = {side: [] for side in ROWS[row]}
        output = expected.of(row)
        for number in range(rounds):
            for side, found in runs.items():
                found.append(self.run(side, row, guarantee, number, output))
        own = {row if side == "millrace" else side: found for side, found in runs.items() if side != "java"}
        return [Line(name, guarantee, runs["java"], found) for name, found in own.items()]


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        broker = EmbeddedBroker(directory / "kafka", options.home, options.port)
        try:
            servers = broker.start().bootstrap_servers
            admin = Admin({"bootstrap.servers": servers})
            admin.create_topics([TopicSpec(SOURCE, PARTITIONS)])
            expected = generate({"bootstrap.servers": servers}, SOURCE, options.records, options.users)
            bench = Bench(admin, servers, directory, options.home, options.records)
            lines = [
                line
                for row in options.rows
                for guarantee in options.guarantees
                for line in bench.lines(row, guarantee, options.rounds, expected)
            ]
        finally:
            broker.stop()
    text = report(lines, records=options.records, users=options.users, rounds=options.rounds)
    options.output.write_text(text)
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=1000, help="number of distinct keys")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--guarantees", nargs="+", choices=(EXACTLY_ONCE, AT_LEAST_ONCE), default=[EXACTLY_ONCE, AT_LEAST_ONCE]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=19392, help="of the broker; the next one is taken as well")
    parser.add_argument(
        "--home", type=Path, default=Path("~/.cache/millrace").expanduser(), help="where downloads are kept"
    )
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
