"""How each kind of row is measured, on a running broker."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from events import event_report
from feeding import RELEASED_PER_SECOND, feeding
from inputs import Input, generate, serializer
from measuring import Meter, Progress, measure, percentile, wait
from outputs import check
from published import PublishedCounts, PublishedProgress
from rows import (
    ARCHIVE,
    CARRIED,
    FEW,
    FEW_GATED,
    GATED_PER_RECORD,
    JAVA,
    JSON,
    MANY,
    PARTITIONS,
    RIVERRUN,
    SPARK,
    UNCOMMITTED,
    WITH_SCHEMAS,
)
from sides import Run, Side
from steady import DRAINED_S, steady
from topologies import table_sum, table_sum_more

from riverrun import Riverrun
from riverrun.apps.delays import FLIGHTS, build
from riverrun.archive.archiving import archive_topic, in_this_process
from riverrun.archive.manifest import ArchiveStore
from riverrun.config import ProjectConfig
from riverrun.demo.data import expected, load, published
from riverrun.hosting.earlier_records import archived_ranges, with_archive
from riverrun.hosting.release import staging_name
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_fields
from riverrun.records import OffsetRange
from riverrun.releases.releaser import Releaser
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from measuring import Figures
    from rows import Row

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.embedded.broker import EmbeddedBroker

_QUERY_SECONDS, _QUERIES = 2.0, 5_000
"""Queries are asked for so long, or so many."""
_PAUSE_SECONDS = 0.02
_HELD = re.compile(r"paused at barrier \w+ for (\d+\.\d+) s")
_SETTLED_SECONDS = 10.0
FLIGHTS_OF_A_YEAR = 336_776
_UNTIL_KILLED_SECONDS = 12.0
"""A killed instance is replaced at once, and the next kill comes so much later."""


INTERNAL: Mapping[str, tuple[str, ...]] = {
    "repartition-count": ("by-page-repartition",),
    "foreign-key-join": (
        "by-number-subscription-registration-topic",
        "by-number-subscription-response-topic",
    ),
}
"""Internal topics that a topology's records go through, by their names without the application's."""


@dataclass(frozen=True)
class Laboratory:
    """A running broker, and the inputs that have been written to it.

    Args:
        broker: It, to be killed.
        libraries: Where downloads are kept.
        directory: For everything that is gone afterwards.
        soak_seconds: How long an instance is watched while another one is killed again and again.
        steady_seconds: How long records come at a steady rate while that is measured, and before.
        registry: The schema registry's address; empty if no row needs one.
    """

    broker: EmbeddedBroker
    admin: Admin
    servers: str
    directory: Path
    libraries: Path
    records: int
    soak_seconds: float
    steady_seconds: float
    registry: str = ""
    inputs: dict[tuple[int, str], Input] = field(default_factory=dict)

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers}

    def measure(self, row: Row, side: str, guarantee: str, number: int) -> Figures:
        """One run of a row, in fresh topics and a fresh directory, which are gone afterwards.

        Raises:
            RuntimeError: If it dies, gets stuck, or writes something else than expected.
        """
        name = re.sub(r"\W+", "-", f"{row.name} {side} {guarantee} {number}")
        if row.kind in {"task", "serde", "flights"}:  # it makes its own
            source = Input(row.keys, name, 0, self.records)
        elif row.per_second:
            source = self._made(Input(row.keys, name, 0, partitions=row.partitions), row.keys)
        elif row.fault or row.released:
            source = self._made(Input(row.keys, name, 0), self.records)
        else:
            source = self.input(row.keys, side)
        directory, registry = self.directory / name, self.registry if side in WITH_SCHEMAS else ""
        run = Run(row, side, guarantee, self.servers, name, source, directory, self.libraries, registry=registry)
        return MEASURE[row.kind](self, run)

    def records_of(self, row: Row) -> int:
        """How many records the figures of a row are of."""
        if row.kind == "flights":
            return FLIGHTS_OF_A_YEAR
        return int(row.per_second * self.steady_seconds) if row.per_second else self.records

    def input(self, keys: int, side: str = JSON) -> Input:
        """The input with so many keys, in the side's format; written when it is first asked for."""
        format_ = side if side in WITH_SCHEMAS else JSON
        if (keys, format_) not in self.inputs:
            name = f"{keys}-{format_}".replace(" ", "-")
            made = Input(keys, name, 0, serialize=serializer(format_, self.registry))
            self.inputs[keys, format_] = self._made(made, self.records)
        return self.inputs[keys, format_]

    def _made(self, made: Input, records: int) -> Input:
        return generate(made, self.admin, self.kafka, records)

    @contextmanager
    def running(self, run: Run) -> Iterator[tuple[Side, Progress]]:
        """A side at work. When the block has ended, and with it the side, its output is checked."""
        self.admin.create_topics([TopicSpec(run.target, run.source.partitions)])
        with Side(run) as side, closing(self.progress(run)) as progress:
            yield side, progress
        if not progress.is_given_up:
            check(self.admin, run.row, run.side, run.target, run.source)
        self.clean(run)

    def progress(self, run: Run) -> Progress:
        topics = INTERNAL.get(run.row.topology, ())
        internal = [tp for topic in topics for tp in run.source.partitions_of(f"{run.group}-{topic}")]
        source = run.source.partitions_of(run.source.views)
        return Progress(self.admin, self.kafka, run.group, source, internal, run.source.records)

    def meter(self, side: Side) -> Meter:
        return Meter(side, self._broker)

    def _broker(self) -> int:
        pid = self.broker.status().pid
        assert pid is not None
        return pid

    def clean(self, run: Run) -> None:
        """Remove a run's topics and files."""
        self.admin.delete_topics([topic for topic in self.admin.list_topics() if run.name in topic])
        shutil.rmtree(run.directory)


def stream(laboratory: Laboratory, run: Run) -> Figures:
    """How fast a side works through its input."""
    with laboratory.running(run) as (side, progress):
        if run.side not in UNCOMMITTED:
            return measure(laboratory.meter(side), progress)
        counts = PublishedCounts(laboratory.kafka, run.side, run.source.partitions_of(run.target))
        with closing(PublishedProgress(counts, run.source.records)) as published:
            return measure(laboratory.meter(side), published)


def latency(laboratory: Laboratory, run: Run) -> Figures:
    """How long records wait that come at a steady rate, and what the side takes meanwhile. It may be too slow for the rate."""
    source, per_second = run.source, run.row.per_second
    with laboratory.running(run) as (side, progress):
        wait(side, progress)
        meter = laboratory.meter(side)
        with steady(source, laboratory.kafka, run.side, run.target, per_second) as coming:
            coming.feed(laboratory.steady_seconds)  # until Java has compiled what it runs
            first = meter.now()
            began_s, ended_s = coming.feed(laboratory.steady_seconds)
            used = meter.now().since(first)
            held = {"threads": float(side.threads()), "memory": side.memory_bytes() / 2**20}
            progress.total = source.records
            progress.is_given_up = not wait(side, progress, DRAINED_S)
            if not progress.is_given_up:
                coming.settle()
            until_s = time.time()
    return {
        **coming.waiting.figures(began_s, ended_s, until_s),
        "cores": used.cores,
        **used.of_broker,
        **held,
    }


def alone(_laboratory: Laboratory, run: Run) -> Figures:
    """Return the report of a process without a broker at its end."""
    with Side(run) as side:
        done = side.event("done")
    shutil.rmtree(run.directory)
    return {name: figure for name, figure in done.items() if name not in {"event", "at_ms"}}


def restore(laboratory: Laboratory, run: Run) -> Figures:
    """How long tasks without local state take until they run.

    Java's from its first restore on: before, it waits for the session of the process that has ended.
    """
    with laboratory.running(run) as (side, progress):
        wait(side, progress)
        side.stop()
        shutil.rmtree(run.state)
        script = "restored" if run.side == RIVERRUN else ""
        with Side(replace(run, script=script)) as again:
            began = again.event("restoring" if run.side == JAVA else "rebalancing")
            meter = laboratory.meter(again)
            first = meter.now()
            ended = again.event("running")
            used = meter.now().since(first)
    seconds, records = (ended["at_ms"] - began["at_ms"]) / 1000, ended["restored"]
    return {
        "seconds": seconds,
        "records": records,
        "speed": records / seconds,
        "cpu": used.cpu_s / records * 1_000_000,
        **used.of_broker,
    }


def queries(laboratory: Laboratory, run: Run) -> Figures:
    """How long a point query takes while the input is processed, and afterwards; in ms."""
    script = "queried" if run.side == RIVERRUN else ""
    run = replace(run, script=script, serves=True)
    figures: Figures = {}
    with laboratory.running(run) as (side, progress):
        port = side.event("answers")["port"]
        while _ask(_connection(port), 0) != HTTPStatus.OK:
            side.check()
            time.sleep(_PAUSE_SECONDS)
        figures |= _latencies("loaded", side, port, run.source.keys, 0)
        if progress.records() >= progress.total:
            message = f"{progress.total} records are too few: they were processed before all was asked"
            raise RuntimeError(message)
        wait(side, progress)
        figures |= _latencies("idle", side, port, run.source.keys, 1)
    return figures


def recovery(laboratory: Laboratory, run: Run) -> Figures:
    """The time that two instances take until they process all partitions after a fault, while records keep coming.

    It begins with the death of an instance, or with the first answer of a broker that died. It ends when newer records of
    every partition are committed.
    """
    with laboratory.running(run) as (side, progress), Side(replace(run, directory=run.directory / "second")) as second:
        wait(side, progress)
        _until_shared(laboratory, run)
        with feeding(run.source, laboratory.kafka) as until_grown:
            until_grown()
            if run.row.fault == "broker":
                laboratory.broker.kill()
                laboratory.broker.start()
            else:
                second.kill()
            since = time.monotonic()
            until_grown()
            ends = laboratory.admin.end_offsets(run.source.partitions_of(run.source.views))
            while not progress.covers(ends):
                side.check()
                time.sleep(_PAUSE_SECONDS)
            seconds = time.monotonic() - since
        progress.total = run.source.records
        wait(side, progress)
    return {"seconds": seconds}


def _until_shared(laboratory: Laboratory, run: Run) -> None:
    """Wait until the tasks of two instances have stayed where they are for a while; standbys have caught up by then."""
    since = time.monotonic()
    while time.monotonic() - since < _SETTLED_SECONDS:
        found = laboratory.admin.group(run.group)
        if (found.state, len(found.members)) != ("stable", 2):
            since = time.monotonic()
        time.sleep(_PAUSE_SECONDS)


def soak(laboratory: Laboratory, run: Run) -> Figures:
    """Compare what an instance holds early and late, while the other one of its group is killed again and again."""
    second = replace(run, directory=run.directory / "second")
    held: list[tuple[float, int, int]] = []
    kills, end = 0, time.monotonic() + laboratory.soak_seconds
    with laboratory.running(run) as (side, progress):
        wait(side, progress)
        with feeding(run.source, laboratory.kafka) as until_grown:
            while time.monotonic() < end:
                with Side(second) as other:
                    time.sleep(_UNTIL_KILLED_SECONDS)
                    until_grown()
                    other.check()
                    other.kill()
                kills += 1
                side.check()
                held.append((side.memory_bytes() / 2**20, side.handles(), side.threads()))
        progress.total = run.source.records
        wait(side, progress)
    tenth = max(1, len(held) // 10)
    early, late = (
        [statistics.median(figures) for figures in zip(*part, strict=True)]
        for part in (held[tenth : 2 * tenth], held[-tenth:])
    )
    named = {
        f"{name} {when}": figure
        for when, figures in (("early", early), ("late", late))
        for name, figure in zip(("memory", "handles", "threads"), figures, strict=True)
    }
    return {"minutes": laboratory.soak_seconds / 60, "kills": kills, "records": run.source.records, **named}


def release(laboratory: Laboratory, run: Run) -> Figures:
    """How long nobody publishes at a gate, a cut and a rollback, while records keep coming and both versions run; in ms."""
    source, second = run.source, replace(run, directory=run.directory / "second", version="v2")
    names = {"BENCH_INPUT": source.views, "BENCH_TABLE": source.users, "BENCH_OUTPUT": run.target}
    with laboratory.running(run) as (side, progress):
        wait(side, progress)
        os.environ.update(names)  # the release builds the topologies as well
        project = ProjectConfig.load(run.directory / "streams.toml", {})
        releaser = Releaser(project, run.name, laboratory.admin, _no_spark)
        releaser.start("v2")
        with Side(second) as other, feeding(source, laboratory.kafka, RELEASED_PER_SECOND) as until_grown:
            while laboratory.admin.group(second.group).state != "stable":
                other.check()
                time.sleep(_PAUSE_SECONDS)
            releaser.reprocess()
            for _ in releaser.wait_ready(max_lag=5 * RELEASED_PER_SECOND):
                other.check()
            releaser.gate()
            until_grown()
            cut = releaser.cut()
            until_grown()
            back = releaser.rollback()
            until_grown()
        progress.total = source.records
        wait(side, progress)
        held = _HELD.findall(side.log())
    return {
        "gate": float(held[0]) * 1000,
        "cut": cut.pause_ms,
        "corrections": cut.corrections_ms,
        "corrected": cut.corrections,
        "differ": sum((key or b"").endswith(b"0") for key, _ in source.expected(run.row.topology)),
        "rollback": back.pause_ms,
    }


def _no_spark() -> Any:
    message = "a release between workers needs no Spark"
    raise AssertionError(message)


def memory(laboratory: Laboratory, run: Run) -> Figures:
    """How much more memory a million keys need than a thousand."""
    few, many = (
        measured_memory(laboratory, replace(run, source=laboratory.input(keys), name=f"{run.name}-{keys}"))
        for keys in (FEW, MANY)
    )
    keys = laboratory.input(MANY).keys - laboratory.input(FEW).keys
    return {"few": few, "many": many, "per million": (many - few) / keys * 1_000_000}


def measured_memory(laboratory: Laboratory, run: Run) -> float:
    """MiB at the end of the input."""
    with laboratory.running(run) as (side, progress):
        wait(side, progress)
        return side.memory_bytes() / 2**20


def bounded(laboratory: Laboratory, run: Run) -> Figures:
    """How long a fresh application takes from the beginning of its input to the end."""
    run = replace(run, script="bounded" if run.side == SPARK else "")
    with laboratory.running(run) as (side, progress):
        meter = laboratory.meter(side)
        started = meter.now()
        began_ms = side.event("running")["at_ms"]
        began = meter.now()
        if run.side == JAVA:
            wait(side, progress)
            ended_ms = time.time() * 1000
        else:
            ended_ms = side.event("done")["at_ms"]
        ended = meter.now()
    used, whole = ended.since(began), ended.since(started)
    seconds, whole_seconds = (ended_ms - began_ms) / 1000, (ended_ms - side.started_ms) / 1000
    records = run.source.records
    return {
        "seconds": seconds,
        "whole seconds": whole_seconds,
        "speed": records / seconds,
        "whole speed": records / whole_seconds,
        "cpu": used.cpu_s / records * 1_000_000,
        "whole cpu": ended.cpu_s / records * 1_000_000,
        **used.of_broker,
        **{f"whole {name}": figure for name, figure in whole.of_broker.items()},
    }


def archive(laboratory: Laboratory, run: Run) -> Figures:
    """How fast this process reads all records of the input: from the topic, or from its archive."""
    topic, admin = run.source.views, laboratory.admin
    tps = run.source.partitions_of(topic)
    ranges = {tp: OffsetRange(0, end) for tp, end in admin.settled_end_offsets(tps).items()}
    if run.side == ARCHIVE:
        url = str(laboratory.directory / "archive")
        archive_topic(ArchiveStore(url), admin, topic, in_this_process(url, admin))
        admin = with_archive(admin, url)
    began, began_cpu = time.perf_counter(), time.process_time()
    count = sum(len(batch) for _, batch in read_fields(admin, ranges))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    if count != run.source.records:
        message = f"{count} records were read, and {run.source.records} are there"
        raise RuntimeError(message)
    return {"seconds": seconds, "speed": count / seconds, "cpu": cpu_seconds / count * 1_000_000}


def flights(laboratory: Laboratory, run: Run) -> Figures:
    """How long a year of the demo's flights takes: from their topic, or from its archive."""
    url = str(laboratory.directory / "archive-of-flights") if run.side == ARCHIVE else ""
    config = {"bounded.engine": "local", "state.dir": "state", "archive.url": url}
    app = Riverrun(kafka=laboratory.kafka, directory=run.directory).app(run.name, build, config=config)
    admin = laboratory.admin
    load(admin, app.config, lambda *_: None)
    if url:
        archive_topic(ArchiveStore(url), admin, FLIGHTS, in_this_process(url, admin))
        ends = admin.settled_end_offsets(run.source.partitions_of(FLIGHTS))
        archived = archived_ranges(url, admin, ends)
        if any(archived[tp] != OffsetRange(0, end) for tp, end in ends.items()):
            message = f"The archive has {archived}, and the topic ends at {ends}"
            raise RuntimeError(message)
    began, began_cpu = time.perf_counter(), time.process_time()
    app.run()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    if published(admin) != expected(cancelled_count_as_on_time=True):
        message = "the published delays are not those of pandas"
        raise RuntimeError(message)
    laboratory.clean(run)
    return {
        "seconds": seconds,
        "speed": FLIGHTS_OF_A_YEAR / seconds,
        "cpu": cpu_seconds / FLIGHTS_OF_A_YEAR * 1_000_000,
    }


def carry(laboratory: Laboratory, run: Run) -> Figures:
    """How long a version takes that writes one more output, until it stands where the live one does."""
    names = {"BENCH_INPUT": run.source.views, "BENCH_TABLE": run.source.users, "BENCH_OUTPUT": run.target}
    os.environ.update(names)
    topics = (run.target, f"{run.target}.high")
    laboratory.admin.create_topics([TopicSpec(topic, PARTITIONS) for topic in topics])
    project = Riverrun(kafka=laboratory.kafka, directory=run.directory)
    app = project.app(
        run.name, table_sum, versions={"v2": table_sum_more}, config={"bounded.engine": "local", "state.dir": "state"}
    )
    app.run()
    release, carries = app.release("v2"), run.side == CARRIED
    plan = release.plan(carry=carries)
    began, began_cpu = time.perf_counter(), time.process_time()
    release.start(carry=carries).reprocess()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    release.gate().cut()
    if (corrections := release.status.corrections) >= run.source.keys * 2:
        message = f"{corrections} corrections were published: the tables should be equal"
        raise RuntimeError(message)
    return {"offsets": plan.range.size, "seconds": seconds, "cpu": cpu_seconds}


def gate(laboratory: Laboratory, run: Run) -> Figures:
    """How much memory the differ and the gate need for few rows and for many, and how long they take for many."""
    figures: Figures = {}
    many = laboratory.records * GATED_PER_RECORD
    for size, rows in (("few", min(FEW_GATED, many)), ("many", many)):
        each = replace(run, name=f"{run.name}-{rows}", directory=run.directory / size, script="gate")
        differing = _two_tables(laboratory, each, rows)
        with Side(each) as side:
            compared = _watched(side, "compared")
            judged = _watched(side, "judged")
            times = [side.event(name)["at_ms"] / 1000 for name in ("running", "compared", "judged")]
            found, critical = side.event("compared")["differing"], side.event("judged")["critical"]
            if found != differing or critical:
                message = f"{found} of {differing} differing rows were found; blocked by {critical}"
                raise RuntimeError(message)
        laboratory.clean(each)
        figures |= {f"{size} compared": compared, f"{size} judged": judged}
        figures |= {"rows": rows, "seconds compared": times[1] - times[0], "seconds judged": times[2] - times[1]}
    return figures


def _two_tables(laboratory: Laboratory, run: Run, rows: int) -> int:
    """Write a public table and a candidate's, which differ in every tenth row; returns in how many."""
    staging = staging_name(f"{run.name}-v2", run.target)
    laboratory.admin.create_topics([TopicSpec(name, PARTITIONS) for name in (run.target, staging)])
    producer = IdempotentProducer(Kafka(laboratory.kafka))
    for n in range(rows):
        key, value, number = b"user-%09d" % n, LONG.serialize(n), n % PARTITIONS
        producer.send(run.target, key, value, n, (), number)
        producer.send(staging, key, LONG.serialize(n + 1) if n % 10 == 0 else value, n, (), number)
    producer.flush()
    return len(range(0, rows, 10))


def _watched(side: Side, event: str) -> float:
    """The most memory that it takes until it tells of an event, MiB."""
    most = 0.0
    while event_report(side.log(), event) is None:
        side.check()
        most = max(most, side.memory_bytes() / 2**20)
        time.sleep(_PAUSE_SECONDS)
    return most


MEASURE: Mapping[str, Callable[[Laboratory, Run], Figures]] = {
    "stream": stream,
    "latency": latency,
    "task": alone,
    "serde": alone,
    "restore": restore,
    "queries": queries,
    "recovery": recovery,
    "soak": soak,
    "release": release,
    "memory": memory,
    "gate": gate,
    "bounded": bounded,
    "archive": archive,
    "flights": flights,
    "carry": carry,
}
"""By kind of row."""


def _latencies(when: str, side: Side, port: int, keys: int, after: int) -> Figures:
    """Half and 99 % of queries took no longer; asked in the process itself, then over HTTP."""
    side.say(f"{_QUERY_SECONDS} {_QUERIES} {keys}")
    inside = side.event("asked", after)["micros"]
    random_of, over_http, end = random.Random(1), list[float](), time.perf_counter() + _QUERY_SECONDS
    with closing(_connection(port)) as connection:
        while len(over_http) < _QUERIES and time.perf_counter() < end:
            number, started = random_of.randrange(keys), time.perf_counter()
            _ask(connection, number)
            over_http.append((time.perf_counter() - started) * 1e6)
    return {
        f"{when} {where} p{percent}": percentile(sorted(found), percent) / 1000
        for where, found in (("inside", inside), ("http", over_http))
        for percent in (50, 99)
    }


def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port, timeout=30)


def _ask(connection: HTTPConnection, number: int) -> int:
    connection.request("GET", f"/stores/sums/user-{number:06}")
    response = connection.getresponse()
    response.read()
    return response.status
