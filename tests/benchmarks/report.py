"""RESULTS.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import confluent_kafka
from charts import Bars, chart
from feeding import RECORDS_PER_SECOND, RELEASED_PER_SECOND
from rows import FEW_GATED, GROUPS, PATHWAY, QUIX, SOME
from sides import COMMIT_INTERVAL_MS, PATHWAY_VERSION, QUIX_VERSION, SESSION_TIMEOUT_MS
from steady import DRAINED_S, IN_TIME_S

from riverrun.kafka.embedded.artifacts import find_java
from riverrun.kafka.embedded.broker import KAFKA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from measuring import Figures
    from results import Result
    from rows import Row


SPREAD_ROUNDS = 5
"""Fewer rounds say nothing of a minimum and a maximum."""
_UNKNOWN = "n/a"
"""Shown for a figure that was not measured."""
_TELLING = ("records/s", "CPU")
_WHY_SEVERAL = """These rows do equal work, but were measured at different times: in other rounds, and some with other numbers
of records. Of fewer records, Java spends more of the time on code that it has not compiled yet. The machine is shared, and does
not always run at one speed: where Riverrun's CPU time per record differs as well, the machine was slower. A ratio of one round
compares two moments of such a machine, so the ratios of these rows differ too. Only figures of one table were measured in turn,
so only they can be compared. A run of all groups measures equal work once; then this section is gone."""


@dataclass(frozen=True)
class Column:
    """A figure, or its ratio to the first side's in the same round: the median, with minimum and maximum of many rounds."""

    title: str
    figure: str
    digits: int = 0
    is_ratio: bool = False

    def is_known(self, runs: Sequence[Figures]) -> bool:
        """Return whether every round has the figure."""
        return all(self.figure in figures for figures in runs)

    def cell(self, runs: Sequence[Figures], first: Sequence[Figures]) -> str:
        """Return the text of rounds of a side, given those of the first side."""
        if not self.is_known(runs) or (self.is_ratio and not (first and self.is_known(first))):
            return _UNKNOWN
        return spread(self.figures(runs, first), 2 if self.is_ratio else self.digits)

    def figures(self, runs: Sequence[Figures], first: Sequence[Figures]) -> list[float]:
        """Return a known figure of each round of a side, given the rounds of the first side."""
        own = [figures[self.figure] for figures in runs]
        if not self.is_ratio:
            return own
        return [mine / figures[self.figure] for mine, figures in zip(own, first, strict=True)]


def spread(figures: Sequence[float], digits: int) -> str:
    """Return the median, between minimum and maximum if there are rounds enough; equal texts once."""
    middle = statistics.median(figures)
    shown = (min(figures), middle, max(figures)) if len(figures) >= SPREAD_ROUNDS else (middle,)
    texts = [f"{figure:,.{digits}f}" for figure in shown]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


@dataclass(frozen=True)
class Kind:
    """How rows of a kind are shown.

    Args:
        text: How they are measured.
        columns: Their figures.
        charted: The title of the column that is drawn, if one is, and what the picture says of it.
    """

    text: str
    columns: tuple[Column, ...]
    charted: tuple[str, str] | None = None


def _broker(suffix: str = "", prefix: str = "") -> tuple[Column, Column]:
    """Columns of the broker's CPU: next to each CPU time of a side."""
    return (
        Column(f"broker cores{suffix}", f"{prefix}broker cores", 2),
        Column(f"broker %{suffix}", f"{prefix}broker share"),
    )


KINDS: Mapping[str, Kind] = {
    "stream": Kind(
        "Speed is counted from the first committed offset to the last, CPU seconds (user and system, all threads,\n"
        "per million records) between the same two moments: start-up is in neither. Both are given for the whole\n"
        "run and for the second half of the records, when Java has compiled what it runs. Memory is what is\n"
        "resident at the end.",
        (
            Column("records/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("records/s, 2nd half", "warm speed"),
            Column("ratio, 2nd half", "warm speed", is_ratio=True),
            Column("CPU", "cpu", 1),
            *_broker(),
            Column("CPU, 2nd half", "warm cpu", 1),
            *_broker(", 2nd half", "warm "),
            Column("MiB", "memory"),
        ),
        charted=("records/s", "records per second"),
    ),
    "latency": Kind(
        f"A windowed count of {SOME:,} keys, by partitions and records per second. These come at a steady rate, with the time\n"
        "of their production. Latency is the time from there until a consumer of committed records has read a count with\n"
        "that record in it; p50 and p99 are ms, of all records of the measured time. In time are those that take at most\n"
        f"{IN_TIME_S:g} s: a side that falls behind has few of them. Before, records come at that rate for as long, so that\n"
        "Java compiles what it runs. Produced is the rate that the machine reached. Cores are those that each kept busy in\n"
        "the measured time; the broker's have the requests of the producer and the consumer in them. Records that are not\n"
        f"published {DRAINED_S:.0f} s after the end count with the time until then.",
        (
            Column("produced/s", "produced"),
            Column("% in time", "in time", 1),
            Column("p50", "p50"),
            Column("p99", "p99"),
            Column("cores", "cores", 2),
            *_broker(),
            Column("threads", "threads"),
            Column("MiB", "memory"),
        ),
        charted=("p50", "ms until half of the records are published"),
    ),
    "task": Kind(
        "A task in memory: no broker, no client, stores in memory, records at hand, a commit after every 25,000 of them.\n"
        "CPU seconds are per million records, that is also µs per record. Operators call each other, or are lines of\n"
        "generated functions: rows that gain nothing by that are not worth generating.",
        (
            Column("records/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("CPU", "cpu", 2),
        ),
        charted=("records/s", "records per second"),
    ),
    "serde": Kind(
        "CPU time of one call, µs, without a broker and without a registry.",
        (Column("bytes", "bytes"), Column("read", "read", 2), Column("write", "write", 2)),
    ),
    "restore": Kind(
        "From the first rebalance to all tasks running, with no local state. Java's time has the join of the\n"
        "group in it; Riverrun takes the tasks over without a group. CPU seconds are per million records of the\n"
        "changelog.",
        (
            Column("records", "records"),
            Column("s", "seconds", 2),
            Column("records/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("CPU", "cpu", 1),
            *_broker(),
        ),
        charted=("records/s", "records per second"),
    ),
    "archive": Kind(
        "One process reads committed records until it has their fields in Python: from the topic with librdkafka, and from an\n"
        "archive of that topic in Parquet on the same disk. CPU seconds are per million records.",
        (
            Column("records/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("CPU", "cpu", 2),
        ),
        charted=("records/s", "records per second"),
    ),
    "flights": Kind(
        "A bounded run in one process, without Spark, from the first flight to the last: start-up, joins, state, its\n"
        "changelog, and the output are in the seconds. Flights come from the topic, or from an archive of it on the same\n"
        "disk. The output is compared with pandas. CPU seconds are those of this process, per million flights.",
        (
            Column("s", "seconds", 1),
            Column("flights/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("CPU", "cpu", 1),
        ),
        charted=("flights/s", "flights per second"),
    ),
    "carry": Kind(
        "Start and reprocess of a release in one process, without Spark, until the new version stands where the live one\n"
        "does. It computes everything, or carries state (`--carry`). CPU seconds are those of this process.",
        (
            Column("offsets read", "offsets"),
            Column("s", "seconds", 1),
            Column("ratio", "seconds", is_ratio=True),
            Column("CPU", "cpu", 1),
        ),
        charted=("s", "seconds"),
    ),
    "queries": Kind(
        "Latencies in ms: half of the queries (p50) and 99 % (p99) took no longer. Loaded: while the input is\n"
        "processed at full speed; idle: afterwards. In the process: `KafkaStreams.store(...).get(key)`, and\n"
        "`StreamsInstance.ask` (the stream thread that has the key is another one). HTTP: Riverrun's interface, and\n"
        "for Java the server of the JDK around the same call.",
        tuple(
            Column(f"{when}, {shown} {rank}", f"{when} {where} {rank}", 3)
            for when in ("idle", "loaded")
            for where, shown in (("inside", "in process"), ("http", "HTTP"))
            for rank in ("p50", "p99")
        ),
    ),
    "recovery": Kind(
        f"Two instances, of one stream thread or process each, to which {RECORDS_PER_SECOND:,} records/s come. Seconds from\n"
        "`kill -9` of all processes of one of them, or from when the broker that was killed answers again, until\n"
        "records that came in afterwards are committed in all partitions. On both sides the session timeout is\n"
        f"{SESSION_TIMEOUT_MS / 1000:g} s, and tasks are shared however far behind an instance is (`acceptable.recovery.lag`).",
        (
            Column("s", "seconds", 2),
            Column("ratio", "seconds", is_ratio=True),
        ),
        charted=("s", "seconds"),
    ),
    "soak": Kind(
        f"{RECORDS_PER_SECOND:,} records/s come in; at its end the counts are compared with a model. The figures are\n"
        "those of the instance that lives: MiB, open file handles and threads of its own process and its stream thread.\n"
        "Early is the second tenth of the time, late the last one; each figure is the median of its tenth.",
        (
            Column("minutes", "minutes"),
            Column("kills", "kills"),
            Column("records", "records"),
            *(
                Column(f"{name}, {when}", f"{name} {when}")
                for name in ("memory", "handles", "threads")
                for when in ("early", "late")
            ),
        ),
    ),
    "release": Kind(
        f"Both versions run, a worker of one stream thread each, and {RELEASED_PER_SECOND:,} records/s come in. Pauses in ms,\n"
        "for which nobody publishes: at the mark of a gate, as a stream thread tells it; at the cut, with the part that\n"
        "corrections take; and at the way back. Corrected is the number of records published, beside the keys that\n"
        "differ. At the end the table is compared with a model.",
        (
            Column("gate", "gate"),
            Column("cut", "cut"),
            Column("of it corrections", "corrections"),
            Column("corrected", "corrected"),
            Column("differ", "differ"),
            Column("rollback", "rollback"),
        ),
    ),
    "memory": Kind(
        "Resident memory in MiB of the process and its children at the end of the input (pages that several share\n"
        "count once), with a thousand keys and with a million (at most one per record); the difference per\n"
        "million keys. The JVM's heap has no limit but its default, a quarter of the machine.",
        (
            Column("a thousand keys", "few"),
            Column("a million", "many"),
            Column("per million keys", "per million"),
        ),
        charted=("a million", "MiB with a million keys"),
    ),
    "gate": Kind(
        f"The most resident memory in MiB of the process and its children, Spark's Java included, for {FEW_GATED:,} rows\n"
        "per version and for many. Seconds are those for the many: to read both topics into the index on disk, and to\n"
        "write and judge the frames, Spark's start included.",
        (
            Column("rows", "rows"),
            Column("differ, few", "few compared"),
            Column("differ, many", "many compared"),
            Column("gate, few", "few judged"),
            Column("gate, many", "many judged"),
            Column("s, differ", "seconds compared", 1),
            Column("s, gate", "seconds judged", 1),
        ),
    ),
    "bounded": Kind(
        "A fresh application from the beginning of its input to the end: until Java has committed everything,\n"
        "until Riverrun's run has returned. Start-up: until Java's tasks run, until the Spark session has run\n"
        "Python on its executors; Java loads Spark's classes from an archive (`riverrun prepare-spark`). Spark has\n"
        "two cores, Java two stream threads. CPU seconds are per million records, that is also µs per record.",
        (
            Column("s", "seconds", 2),
            Column("records/s", "speed"),
            Column("ratio", "speed", is_ratio=True),
            Column("CPU", "cpu", 1),
            *_broker(),
            Column("s with start-up", "whole seconds", 2),
            Column("records/s with start-up", "whole speed"),
            Column("ratio with start-up", "whole speed", is_ratio=True),
            Column("CPU with start-up", "whole cpu", 1),
            *_broker(" with start-up", "whole "),
        ),
        charted=("records/s", "records per second"),
    ),
}
"""By kind of row."""


def report(results: Mapping[str, Sequence[Result]]) -> str:
    """The whole file."""
    intervals = ", ".join(f"{guarantee} {interval} ms" for guarantee, interval in COMMIT_INTERVAL_MS.items())
    sections = "\n".join(_section(group, results[group]) for group in GROUPS if group in results)
    return f"""# Riverrun against Java Kafka Streams

Written by `make bench`. The sides run one after the other on the same embedded broker, which shares the machine with them;
their results are compared with the expected ones, record by record, before a run counts.

- Records are about 100 bytes of JSON in 4 partitions, one per ms of event time; a thousand keys where nothing else is said.
- Java is Kafka Streams {KAFKA_VERSION} with one stream thread, Riverrun is `riverrun worker` with one as well, each with
  its own defaults, where the row does not say otherwise. Commit interval: {intervals}.
- The bare loop is the same work written by hand in confluent-kafka, msgspec and rocksdict: the floor of what Python can do.
- {QUIX} {QUIX_VERSION} and {PATHWAY} {PATHWAY_VERSION} run in Python environments of their own.
- Figures are minimum / median / maximum of {SPREAD_ROUNDS} rounds or more, the median alone of fewer. A ratio is to the first
  side's figure in the same round.
- Broker cores are those that the broker's Java kept busy in the measured time, next to CPU time of the side. The percentage
  is the broker's part of the CPU time of both.

{sections}{_repeated(results)}"""


def _repeated(results: Mapping[str, Sequence[Result]]) -> str:
    """A section of rows whose equal work was measured at different times, with the difference; empty if there are none."""
    found: dict[tuple[Row, str, str], list[tuple[str, Result]]] = {}
    for row, result in _kept(results):
        for side in result.runs:
            found.setdefault((row.work, result.guarantee, side), []).append((row.name, result))
    lines = [
        f"| {' | '.join([guarantee, side, name, *_telling(work, result, side)])} |"
        for (work, guarantee, side), shown in found.items()
        if any(result.runs[side] != shown[0][1].runs[side] for _, result in shown)
        for name, result in shown
    ]
    if not lines:
        return ""
    table = "\n".join(lines)
    return f"""
## Equal work, measured several times

{_WHY_SEVERAL}

| guarantee | side | row | records | rounds | records/s | CPU |
|---|---|---|--:|--:|--:|--:|
{table}
"""


def _kept(results: Mapping[str, Sequence[Result]]) -> Iterator[tuple[Row, Result]]:
    """Yield the rows that have results, with these."""
    for group, rows in GROUPS.items():
        found = {row.name: row for row in rows}
        yield from ((found[result.row], result) for result in results.get(group, ()) if result.row in found)


def _telling(work: Row, result: Result, side: str) -> list[str]:
    """Cells of a row that can be compared with those of equal work."""
    runs = result.runs[side]
    columns = [column for column in KINDS[work.kind].columns if column.title in _TELLING]
    return [f"{result.records:,}", str(len(runs)), *(column.cell(runs, runs) for column in columns)]


def charts(results: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """Charts as SVG, by group: of those whose kind says what is drawn."""
    return {
        group: found
        for group, rows in GROUPS.items()
        if group in results and (found := _chart(group, rows, results[group])) is not None
    }


def _chart(group: str, rows: Sequence[Row], results: Sequence[Result]) -> str | None:
    kind = KINDS[rows[0].kind]
    if kind.charted is None:
        return None
    title, text = kind.charted
    (drawn,) = [column for column in kind.columns if column.title == title]
    found = {(result.row, result.guarantee): result for result in results}
    bars = [
        Bars(
            f"{row.name}, {guarantee}" if len(row.guarantees) > 1 else row.name,
            {
                side: statistics.median(run[drawn.figure] for run in result.runs[side])
                for side in row.sides
                if side in result.runs
            },
        )
        for row in rows
        for guarantee in row.guarantees
        if (result := found.get((row.name, guarantee))) is not None
    ]
    return chart(f"{group}: {text}", bars, drawn.digits)


def _rounds(result: Result) -> str:
    number = len(next(iter(result.runs.values())))
    return "1 round" if number == 1 else f"{number} rounds"


def machine() -> str:
    """The machine of a measurement."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    shown = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr
    java = re.search(r'version "([^"]+)"', shown)
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}; "
        f"Java {java[1] if java else '?'}; Python {platform.python_version()}, librdkafka {confluent_kafka.libversion()[0]}"
    )


def _section(group: str, results: Sequence[Result]) -> str:
    """A group: what was measured how, and a table."""
    rows = GROUPS[group]
    found = {(result.row, result.guarantee): result for result in results}
    kind = KINDS[rows[0].kind]
    columns = [c for c in kind.columns if any(c.is_known(runs) for r in results for runs in r.runs.values())]
    titles = ["row", "guarantee", "side", *(column.title for column in columns)]
    lines = [
        line
        for row in rows
        for guarantee in row.guarantees
        if (result := found.get((row.name, guarantee))) is not None
        for line in _lines(row, columns, result)
    ]
    absent = dict.fromkeys(
        f"{result.row}, {result.guarantee}: {side} takes no part, as it {reason}"
        for result in found.values()
        for side, reason in result.absent.items()
    )
    texts = [f"- {row.name}: {row.text}" for row in rows if row.text]
    measured = sorted({f"{r.records:,} records, {_rounds(r)}; {r.machine}" for r in found.values()})
    picture = [f"![{group}: {kind.charted[1]}](charts/{group}.svg)\n"] if kind.charted is not None else []
    return "\n".join(
        [
            f"## {group}\n",
            *(["\n".join(texts) + "\n"] if texts else []),
            f"{kind.text}\n",
            *(f"Measured: {one}.\n" for one in measured),
            *picture,
            f"| {' | '.join(titles)} |",
            f"|---|---|---{'|--:' * len(columns)}|",
            *lines,
            *(f"\n{one}." for one in absent),
            "",
        ]
    )


def _lines(row: Row, columns: Sequence[Column], result: Result) -> list[str]:
    """One per side that took part."""
    first = result.runs.get(row.sides[0], [])
    return [
        f"| {' | '.join([row.name, result.guarantee, side, *(c.cell(result.runs[side], first) for c in columns)])} |"
        for side in row.sides
        if side in result.runs
    ]
