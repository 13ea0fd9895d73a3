"""Restatements: a backfill of one application, and of all that follows from its tables, exactly once."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import msgspec
import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, TimeWindows
from riverrun.cli.main import main
from riverrun.errors import ApprovalNeededError, ConfigError, ReleaseError, UnderWayError
from riverrun.testing import Cluster
from riverrun_airflow import sessions
from riverrun_airflow.work_requests import RunRequest
from tests.depth import depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import KStream, KTable, Riverrun, StreamsBuilder, Topology
    from riverrun.project.restatement import Restatement
    from riverrun.simulation.cluster import ClusterWorker
    from tests.brokers import Broker

PARTITIONS = 2
MINUTE_MS = 60_000
ROWS, GROUPS, OUT = Consumed(STRING, LONG), Grouped(STRING, LONG), Produced(STRING, LONG)
LOCAL = {"bounded.engine": "local"}
PEOPLE = tuple(f"{letter}{number}" for letter in "abc" for number in range(3))
LONG_ENOUGH = timedelta(hours=2)

Table = dict[str, int]
"""The rows of a table."""


@dataclass(frozen=True)
class Step:
    """An application: a kind, the tables that it reads, and the one that it writes."""

    kind: str
    reads: tuple[str, ...]
    writes: str

    def build(self, builder: StreamsBuilder) -> Topology:
        """Build what `expected` computes."""
        source = self.reads[0]
        match self.kind:
            case "map":
                self._write(self._table(builder, source).map_values(lambda value: value + 1))
            case "filter":
                self._write(self._table(builder, source).filter(lambda _key, value: value % 3 > 0))
            case "copy":
                self._stream(builder, source).map_values(lambda value: value and value + 1).to(self.writes, OUT)
            case "to a table":
                self._write(self._stream(builder, source).to_table(self._stored("copied")))
            case "group":
                grouped = self._table(builder, source).group_by(lambda key, value: (key[0], value), GROUPS)
                # A group that has lost all its rows has a row nonetheless: a sum of 0.
                added = grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, self._stored("sums"))
                self._write(added.filter(lambda _key, value: value != 0))
            case "join":
                other = self._table(builder, self.reads[1])
                self._write(self._table(builder, source).join(other, lambda a, b: a * 1000 + b))
            case "foreign key":
                other = self._table(builder, self.reads[1])
                joined = self._table(builder, source).join(
                    other, lambda a, b: a * 1000 + b, foreign_key_extractor=lambda value: PEOPLE[value % len(PEOPLE)]
                )
                self._write(joined)
            case "count":
                counts = self._stream(builder, source).group_by_key(GROUPS).count(self._stored("counts"))
                self._write(counts)
            case "minutes":
                windows = TimeWindows.of_size_and_grace(timedelta(minutes=2), timedelta(minutes=1))
                of_key = self._stream(builder, source).group_by_key(GROUPS).windowed_by(windows)
                minutes = of_key.count(Materialized(name="minutes")).to_stream(lambda key, _count: str(key))
                minutes.to(self.writes, OUT)
        return builder.build()

    def expected(self, tables: dict[str, Table]) -> Table:
        """Compute the rows from those of the tables that it reads."""
        read = [tables[name] for name in self.reads]
        match self.kind:
            case "map" | "copy":
                return {key: value + 1 for key, value in read[0].items()}
            case "filter":
                return {key: value for key, value in read[0].items() if value % 3 > 0}
            case "to a table":
                return read[0]
            case "group":
                sums: Counter[str] = Counter()
                for key, value in read[0].items():
                    sums[key[0]] += value
                return {key: value for key, value in sums.items() if value}
            case "join":
                return {key: value * 1000 + read[1][key] for key, value in read[0].items() if key in read[1]}
            case "foreign key":
                found = ((key, value, read[1].get(PEOPLE[value % len(PEOPLE)])) for key, value in read[0].items())
                return {key: value * 1000 + other for key, value, other in found if other is not None}
        raise AssertionError(self.kind)

    def _table(self, builder: StreamsBuilder, topic: str) -> KTable[str, int]:
        return builder.table(topic, ROWS, self._stored(f"of-{topic}"))

    def _stream(self, builder: StreamsBuilder, topic: str) -> KStream[str, int]:
        return builder.stream(topic, ROWS)

    def _stored(self, name: str) -> Materialized[str, int]:
        return Materialized(STRING, LONG, name=name)

    def _write(self, table: KTable[str, int]) -> None:
        table.to_stream().to(self.writes, OUT)


OF_ONE = ("map", "filter", "copy", "to a table", "group", "count")
OF_TWO = ("join", "foreign key")


def payments(factor: int) -> Any:
    """The first application: a table without state, whose topic others may spoil."""

    def build(builder: StreamsBuilder) -> Topology:
        builder.stream("in", ROWS).map_values(lambda value: value * factor).to("t0", OUT)
        return builder.build()

    return build


@dataclass
class Scene:
    """Payments, and applications that read what follows from them, on a cluster in memory."""

    cluster: Cluster
    steps: tuple[Step, ...]
    partitions: int = PARTITIONS
    project: Riverrun = field(init=False)
    paid: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The last payment of each person, with its minute."""

    def __post_init__(self) -> None:
        self.project = self.cluster.project()
        for topic in ("in", "t0", *(step.writes for step in self.steps)):
            self.cluster.create_topic(topic, self.partitions)
        versions = {"v2": payments(5)}
        self.project.app("payments", payments(2), versions=versions, outputs={"t0": "table"}, config=LOCAL)
        for step in self.steps:
            self.project.app(f"to-{step.writes}", step.build, outputs={step.writes: "table"}, config=LOCAL)

    def pay(self, minutes: range, chosen: random.Random) -> None:
        topic = self.cluster.input_topic("in", STRING, LONG)
        for minute in minutes:
            for person in chosen.sample(PEOPLE, 4):
                value = chosen.randrange(1, 20)
                topic.pipe_input(person, value, timestamp=minute * MINUTE_MS)
                self.paid[person] = value, minute

    def run(self) -> None:
        for name in self.project.apps:
            self.project.app(name).run()

    def spoil(self, topic: str, person: str, value: int | None, minute: int) -> None:
        """Write a row as another program would."""
        self.cluster.input_topic(topic, STRING, LONG).pipe_input(person, value, timestamp=minute * MINUTE_MS)

    def table(self, topic: str) -> Table:
        return self.cluster.table(topic, STRING, LONG)

    def expected(self, by_other_code: set[str]) -> dict[str, Table]:
        """The rows of all tables that can be restated, if the code of `v2` computes payments of these people."""
        rows = {key: value * (5 if key in by_other_code else 2) for key, (value, _) in self.paid.items()}
        tables = {"t0": rows}
        for step in self.steps:
            if step.writes not in self.lost():
                tables[step.writes] = step.expected(tables)
        return tables

    def lost(self) -> set[str]:
        """The tables that cannot be restated: those that count a stream, and what follows from them."""
        found: set[str] = set()
        for step in self.steps:
            if step.kind == "count" or not found.isdisjoint(step.reads):
                found.add(step.writes)
        return found

    def restatement(self, minutes: range, **options: Any) -> Restatement:
        start, end = at(minutes.start), at(minutes.stop)
        without = [f"to-{name}" for name in sorted(self.lost())]
        return self.project.restatement("payments", start, end, **{"without": without, **options})


def at(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).isoformat()


def drawn(chosen: random.Random) -> tuple[Step, ...]:
    """Applications in the order of the flow, each of which reads one or two of the tables before it."""
    steps: list[Step] = []
    for number in range(1, chosen.randint(2, 4) + 1):
        names = ["t0", *(step.writes for step in steps)]
        kind = chosen.choice([*OF_ONE, *(OF_TWO if len(names) > 1 else ())])
        reads = chosen.sample(names, 2 if kind in OF_TWO else 1)
        steps.append(Step(kind, tuple(reads), f"t{number}"))
    return tuple(steps)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=3) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(depth(4, 150)))
def test_whatever_follows_is_restated_wherever_the_command_is_killed(seed: int) -> None:
    chosen = random.Random(seed)
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, drawn(chosen))
        scene.pay(range(10), chosen)
        scene.run()
        minutes, spoiled = range(2, 9), chosen.sample(PEOPLE, 3)
        for person in spoiled:
            # A row that is gone has no time: its interval is that of the row which is computed.
            is_inside = person in scene.paid and scene.paid[person][1] in minutes
            scene.spoil("t0", person, chosen.choice([None, 7, 8] if is_inside else [7, 8]), chosen.choice(minutes))
        workers = start_some(scene, chosen)
        if chosen.random() < 0.5:
            # Readers have processed the wrong rows; or else they find them with the corrections.
            cluster.advance(timedelta(minutes=1))
        by_other_code = chosen.random() < 0.5
        options = {"version": "v2"} if by_other_code else {"from_beginning": chosen.random() < 0.5}
        left = restate(scene, minutes, chosen, options, workers)
        # Rows that others have spoiled are in the interval by that, and computed by the code that computes it.
        inside = {key for key, (_, minute) in scene.paid.items() if minute in minutes or key in spoiled}
        expected = scene.expected(inside if by_other_code else set())
        assert {name: scene.table(name) for name in expected} == expected, scene.steps
        for worker in left:
            worker.stop(timedelta(minutes=2))


def start_some(scene: Scene, chosen: random.Random) -> list[ClusterWorker]:
    """Start workers of some applications. The others are processed by bounded runs."""
    names = [name for name in scene.project.apps if name != "payments" and chosen.random() < 0.5]
    return [scene.cluster.start_worker(scene.project.app(name), name) for name in names]


def restate(
    scene: Scene, minutes: range, chosen: random.Random, options: dict[str, Any], workers: list[ClusterWorker]
) -> list[ClusterWorker]:
    """Restate, in processes that are killed, as some workers are, and at last in one that is not. Return the workers left."""
    left = list(workers)
    for _ in range(chosen.randint(0, 3)):
        host = scene.cluster.start("killed", scene.restatement(minutes, **options).run)
        scene.cluster.advance(timedelta(milliseconds=chosen.randrange(5_000)))
        if left and chosen.random() < 0.3:
            left.pop().kill()
        host.kill()
    for _ in range(5):
        host = scene.cluster.start("last", scene.restatement(minutes, **options).run)
        try:
            host.join(LONG_ENOUGH)
        except UnderWayError:
            # Brokers do not know yet that a host has died.
            scene.cluster.advance(timedelta(minutes=1))
        else:
            return left
    raise AssertionError


CHAIN = (Step("group", ("t0",), "sums"), Step("map", ("sums",), "more"), Step("count", ("t0",), "counts"))


@pytest.fixture
def scene(cluster: Cluster) -> Scene:
    """Applications of which one counts, all of which have processed everything, and a row that another program has spoiled."""
    found = Scene(cluster, (*CHAIN, Step("map", ("counts",), "of-counts")))
    found.pay(range(10), random.Random(1))
    found.run()
    found.spoil("t0", "a0", 99, 4)
    for name in ("to-sums", "to-more"):
        found.project.app(name).run()
    return found


def test_a_plan_says_what_follows_in_which_order_and_changes_nothing(scene: Scene) -> None:
    before = {name: scene.table(name) for name in ("t0", "sums", "more", "counts")}
    plan = scene.restatement(range(2, 9)).plan()
    assert [each.app for each in plan.readers] == ["to-sums", "to-more"]
    told = re.sub(r"depends on \S+,", "depends on STORE,", str(plan))
    assert told.splitlines()[3:] == [
        "then, in this order:",
        "  to-sums: processes the corrections of t0",
        "    sums: follows; sums depends on STORE, a timestamped-key-value store, and so on all records before",
        "  to-more: processes the corrections of sums",
        "    more: follows; more depends on STORE, a timestamped-key-value store, and so on all records before",
        "left out:",
        "  to-counts: t0: KSTREAM-AGGREGATE-0000000001 counts corrections again",
        "  to-of-counts: counts: its writer to-counts cannot be restated",
    ]
    assert {name: scene.table(name) for name in before} == before


def test_what_cannot_be_restated_is_named_before_anything_begins(scene: Scene) -> None:
    spoiled = scene.table("t0")
    with pytest.raises(ReleaseError, match=r"to-counts \(t0: .* counts corrections again\); to-of-counts") as refused:
        scene.restatement(range(2, 9), without=[]).run()
    assert refused.value.hint == (
        "Leave them out, and their results stay as they are: --without to-counts --without to-of-counts"
    )
    assert scene.table("t0") == spoiled
    done = scene.restatement(range(2, 9)).run()
    assert (done.corrections, scene.table("t0")) == (1, scene.expected(set())["t0"])
    assert {name: scene.table(name) for name in ("sums", "more")}.items() <= scene.expected(set()).items()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("to-more", "it can be restated"),
        ("payments", "no correction reaches it"),
        ("nobody", "no correction reaches it"),
    ],
)
def test_only_what_cannot_be_restated_is_left_out(scene: Scene, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} need not be left out: {why}") as refused:
        scene.restatement(range(2, 9), without=[name]).plan()
    assert "to-counts, to-of-counts" in (refused.value.hint or "")


def test_sums_change_from_the_interval_on(scene: Scene) -> None:
    chosen = scene.restatement(range(2, 9), topics=["t0"], from_beginning=True).plan()
    assert {topic: str(times) for topic, times in chosen.readers[0].compared.items()} == {
        "sums": f"from {at(2).replace('+', '.000+')} on"
    }


def test_a_reader_without_inputs_of_its_own_has_nothing_to_process(cluster: Cluster) -> None:
    def known(builder: StreamsBuilder) -> Topology:
        builder.global_table("t0", ROWS, Materialized(STRING, LONG, name="known"))
        return builder.build()

    scene = Scene(cluster, ())
    scene.project.app("known", known, config=LOCAL)
    scene.pay(range(10), random.Random(1))
    scene.project.app("payments").run()
    scene.spoil("t0", "a0", 99, 4)
    done = scene.restatement(range(2, 9)).run()
    assert [(each.reader.app, each.run, each.repair) for each in done.readers] == [("known", None, None)]
    assert (done.corrections, scene.table("t0")) == (1, scene.expected(set())["t0"])


def test_rows_of_a_reader_that_others_have_spoiled_are_corrected_as_well(scene: Scene) -> None:
    scene.spoil("sums", "b", 1, 5)
    scene.project.app("to-more").run()
    done = scene.restatement(range(2, 9), from_beginning=True).run()
    assert [each.repair.corrections for each in done.readers if each.repair] == [1, 0]
    assert {name: scene.table(name) for name in ("sums", "more")}.items() <= scene.expected(set()).items()
    again = scene.restatement(range(2, 9), from_beginning=True).run()
    assert again.corrections == 0
    assert "to-sums: has processed the corrections of t0" in str(again)


def passed_on(*ways: tuple[str, str]) -> Callable[[StreamsBuilder], Topology]:
    """Return an application that maps tables to others."""

    def build(builder: StreamsBuilder) -> Topology:
        for source, target in ways:
            rows = builder.table(source, ROWS, Materialized(STRING, LONG, name=f"of-{source}"))
            rows.map_values(lambda value: value + 1).to_stream().to(target, OUT)
        return builder.build()

    return build


@pytest.mark.parametrize(
    ("apps", "returning"),
    [
        ({"one": [("t0", "b")], "two": [("b", "c"), ("c", "b")]}, "two"),
        ({"one": [("t0", "b"), ("b", "c")]}, "one"),
        ({"one": [("t0", "b"), ("c", "d")], "two": [("b", "c")]}, "one, two"),
        ({"one": [("t0", "in")]}, "payments, one"),
    ],
    ids=["to its topic", "through another topic of the reader", "by another application", "to the first application"],
)
def test_corrections_that_return_to_a_member_are_refused(
    cluster: Cluster, apps: dict[str, list[tuple[str, str]]], returning: str
) -> None:
    scene = Scene(cluster, ())
    for topic in "bcd":
        cluster.create_topic(topic, PARTITIONS)
    for name, ways in apps.items():
        scene.project.app(name, passed_on(*ways), config=LOCAL)
    scene.pay(range(10), random.Random(1))
    scene.project.app("payments").run()
    with pytest.raises(ReleaseError, match=f"corrections return to members from which they follow: {returning}\n"):
        scene.restatement(range(2, 9)).plan()


def test_the_order_is_that_of_corrections_whatever_else_the_members_share(cluster: Cluster) -> None:
    scene = Scene(cluster, ())
    for topic in "bcde":
        cluster.create_topic(topic, PARTITIONS)
    # The last one is declared first; other topics make a cycle of both.
    scene.project.app("last", passed_on(("b", "c"), ("e", "d")), config=LOCAL)
    scene.project.app("first", passed_on(("t0", "b"), ("d", "e")), config=LOCAL)
    scene.pay(range(10), random.Random(1))
    scene.project.app("payments").run()
    assert [each.app for each in scene.restatement(range(2, 9)).plan().readers] == ["first", "last"]


def test_a_reader_that_cannot_be_compared_is_restated_nonetheless(cluster: Cluster) -> None:
    scene = Scene(cluster, CHAIN[:2])
    scene.project.cluster.admin.alter_topic_configs({"t0": {"cleanup.policy": "compact"}})
    scene.pay(range(10), random.Random(1))
    scene.run()
    scene.spoil("t0", "a0", 99, 4)
    done = scene.restatement(range(2, 9), from_beginning=True).run()
    assert [each.kept for each in done.readers] == [
        "t0 is compacted: it may lack the records from which rows of that time were computed",
        "",
    ]
    assert {name: scene.table(name) for name in ("sums", "more")}.items() <= scene.expected(set()).items()


def test_a_run_of_a_reader_that_is_held_back_is_decided_on(cluster: Cluster, tmp_path: Path) -> None:
    scene, step, limit = Scene(cluster, ()), Step("map", ("t0",), "more"), tmp_path / "limit"
    cluster.create_topic("more", PARTITIONS)
    limit.write_text("10000")

    def demands() -> dict[str, list[Any]]:
        highest = int(limit.read_text())
        return {"more": [gxe.ExpectColumnValuesToBeBetween(column="value", max_value=highest, severity="warning")]}

    app = scene.project.app("to-more", step.build, outputs={"more": "table"}, config=LOCAL, quality=demands, gate=True)
    scene.pay(range(10), random.Random(1))
    scene.run()
    right = scene.table("more")
    scene.spoil("t0", "a0", 99, 4)
    app.run()
    limit.write_text("0")
    with pytest.raises(ApprovalNeededError):
        scene.restatement(range(2, 9)).run()
    assert (scene.table("t0"), scene.table("more") == right) == (scene.expected(set())["t0"], False)
    held = app.runs.held.status()
    assert held is not None
    assert held.verdict is not None
    app.runs.held.publish(held.verdict.id)
    limit.write_text("10000")
    assert scene.restatement(range(2, 9)).run().corrections == 0
    assert scene.table("more") == right


def test_a_task_of_airflow_restates_and_says_what_follows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "front_door", lambda *_: scene.project)
    wanted = RunRequest("payments", "committed", at(9), recompute_from=at(2), downstream=True)
    with pytest.raises(ReleaseError, match="cannot be restated: to-counts"):
        sessions.recompute(scene.project.config, wanted)
    without = ("to-counts", "to-of-counts")
    done = sessions.recompute(scene.project.config, msgspec.structs.replace(wanted, without=without))
    assert done == {"compared": 4, "corrections": 1, "corrected": done["corrected"]}
    assert {name: scene.table(name) for name in ("sums", "more")}.items() <= scene.expected(set()).items()


CODE = """
from riverrun import LONG, STRING, Consumed, Materialized, Produced

ROWS, OUT = Consumed(STRING, LONG), Produced(STRING, LONG)


def build(builder):
    builder.stream("{name}.in", ROWS).map_values(lambda value: value * 2).to("{name}.paid", OUT)
    return builder.build()


def more(builder):
    paid = builder.table("{name}.paid", ROWS, Materialized(name="paid"))
    paid.map_values(lambda value: value + 1).to_stream().to("{name}.more", OUT)
    return builder.build()


def counts(builder):
    builder.stream("{name}.paid", ROWS).group_by_key().count(Materialized(name="counts"))
    return builder.build()
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "restated_code:build"
outputs = {{ "{name}.paid" = "table" }}
config = {{ "bounded.engine" = "local" }}

[apps."{name}-more"]
topology = "restated_code:more"
config = {{ "bounded.engine" = "local" }}

[apps."{name}-counts"]
topology = "restated_code:counts"
config = {{ "bounded.engine" = "local" }}
"""


@pytest.mark.broker
def test_the_command_names_first_what_cannot_be_restated_and_restates_the_rest(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The applications are those of a file, as for users."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "restated_code.py").write_text(CODE.format(name=unique))
    (tmp_path / "streams.toml").write_text(FILE.format(name=unique, servers=broker.bootstrap_servers))
    broker.create(1, *(f"{unique}.{topic}" for topic in ("in", "paid", "more")))

    def riverrun(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["riverrun", *arguments])
        try:
            main()
        except SystemExit as ended:
            output = capsys.readouterr()
            return int(ended.code or 0), output.out, output.err
        raise AssertionError

    def table(topic: str) -> dict[bytes, int]:
        records = broker.read(f"{unique}.{topic}")
        return {each.key or b"": LONG.deserialize(each.value) for each in records if each.value is not None}

    broker.write(f"{unique}.in", [(b"ann", LONG.serialize(4), 3 * MINUTE_MS)])
    assert [riverrun("run", name)[0] for name in (unique, f"{unique}-more")] == [0, 0]
    broker.write(f"{unique}.paid", [(b"ann", LONG.serialize(99), 3 * MINUTE_MS)])
    backfill = ["backfill", unique, "--from", at(2), "--to", at(5)]
    assert riverrun(*backfill, "--without", f"{unique}-counts")[0] == 2, "it is about --downstream"
    code, out, _ = riverrun(*backfill, "--downstream", "--plan")
    assert (code, f"cannot be restated:\n  {unique}-counts: {unique}.paid: KSTREAM-AGGREGATE" in out) == (0, True), out
    code, _, error = riverrun(*backfill, "--downstream", "--yes")
    assert (code, f"--without {unique}-counts" in error) == (5, True), error
    assert table("paid") == {b"ann": 99}
    wanted = [*backfill, "--downstream", "--without", f"{unique}-counts", "--yes", "--json"]
    code, out, _ = riverrun(*wanted)
    told = json.loads(out)
    assert (code, told["corrections"], [each["app"] for each in told["readers"]]) == (0, 1, [f"{unique}-more"]), out
    assert (table("paid"), table("more")) == ({b"ann": 8}, {b"ann": 9})
    code, out, _ = riverrun(*wanted)
    again = json.loads(out)
    assert (code, again["corrections"], again["restated"][f"{unique}-more"]["corrections"]) == (0, 0, 0), out
