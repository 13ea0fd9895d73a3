"""Exports that are followed, on a real broker: into a real PostgreSQL and into files, whatever ends or pauses the followers."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import sqlalchemy as sa
from pyarrow import dataset
from pyiceberg.catalog import load_catalog

from riverrun.archive.manifest import ArchiveStore
from riverrun.archive.parquet import read_file
from riverrun.archive.upkeep import verify
from riverrun.errors import ConfigError, DeserializationError, SerializationError, StreamsError, TopicError
from riverrun.hosting.control_topic import ControlTopic, ReleaseRegistry
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer
from riverrun.project.riverrun import Riverrun
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark.ranges import RunRange
from riverrun.testing.sinks import SINK_CHECKS, SinkUnderTest, sink_table
from riverrun.transfers.batches import Batch, ExportBatch, Terms
from riverrun.transfers.exports import EXPORTS_TOPIC
from riverrun.transfers.import_progress import IMPORTS_TOPIC, ImportProgress
from riverrun.transfers.sql_sink import SqlSink
from tests.depth import depth
from tests.postgresql import PostgresServer, running_postgres
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun.transfers.follower import FollowReport
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

APP = """
from dataclasses import dataclass

from riverrun import JSON, LONG, Consumed, StreamsBuilder, Topology


@dataclass
class Total:
    n: int


@dataclass
class NamedTotal(Total):
    name: str | None = None


def build(builder: StreamsBuilder) -> Topology:
    builder.stream("{topic}", Consumed(LONG, JSON({first}))).foreach(print)
    return builder.build()


def build_named(builder: StreamsBuilder) -> Topology:
    builder.stream("{topic}", Consumed(LONG, JSON(NamedTotal))).foreach(print)
    return builder.build()
"""
ARCHIVE = ("archive", "write")
PARTITIONS = 4
KILLS = depth(2, 20)


@dataclass(frozen=True)
class Database:
    """A PostgreSQL, and what tests ask of it."""

    server: PostgresServer

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://test@127.0.0.1:{self.server.port}/postgres"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            found = connection.exec_driver_sql(sql)
            rows = [tuple(row) for row in found] if found.returns_rows else []
        engine.dispose()
        return rows

    def count(self, table: str) -> int:
        """Rows of a table; 0 as long as there is none."""
        if self.rows(f"SELECT to_regclass('{table}')") == [(None,)]:
            return 0
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])


@pytest.fixture(scope="module")
def database(new_port: Callable[[], int]) -> Iterator[Database]:
    with running_postgres(new_port(), "test") as server:
        yield Database(server)


@dataclass
class Project:
    """A `streams.toml` with exports of one topic."""

    directory: Path
    broker: Broker
    topic: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def declare(self, text: str) -> None:
        kafka = f'[kafka]\n"bootstrap.servers" = "{self.broker.bootstrap_servers}"\n'
        (self.directory / "streams.toml").write_text(kafka + text)

    def table(self, database: Database, **others: str) -> str:
        """An export into a table of the topic's name."""
        lines = [
            f"[exports.{self.topic}]",
            f'topic = "{self.topic}"',
            f'target = "{database.url}"',
            f'table = "{self.topic}"',
            '"consumer.session.timeout.ms" = 6000',
            *(f"{key} = {value}" for key, value in others.items()),
            f"[exports.{self.topic}.columns]",
            'n = "bigint"',
        ]
        return "\n".join(lines)

    def declare_totals(self, database: Database, *versions: str) -> None:
        """An export of typed values, which have a name from the first of the further versions on."""
        (self.directory / f"{self.topic}_app.py").write_text(
            APP.format(topic=self.topic, first="NamedTotal" if not versions else "Total")
        )
        listed = "".join(f'{version} = "{self.topic}_app:build_named"\n' for version in versions)
        self.declare(
            f'[apps.{self.topic}]\ntopology = "{self.topic}_app:build"\n[apps.{self.topic}.versions]\n{listed}'
            f'[exports.{self.topic}]\napp = "{self.topic}"\ntopic = "{self.topic}"\nmode = "upsert"\nkey = ["id"]\n'
            f'target = "{database.url}"\ntable = "{self.topic}"\n'
        )

    @property
    def riverrun(self) -> Riverrun:
        return Riverrun(self.directory / "streams.toml")

    def catch_up(self, name: str = "") -> FollowReport:
        return self.riverrun.export(name or self.topic).follow(until_caught_up=True)

    def start(self, name: str = "", words: Sequence[str] = ("export",)) -> subprocess.Popen[str]:
        config = str(self.directory / "streams.toml")
        command = [sys.executable, "-m", "riverrun.cli", "--config", config, *words, name or self.topic, "--follow"]
        with (self.directory / "log").open("a") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, text=True))
        return self.processes[-1]

    def log(self) -> str:
        return (self.directory / "log").read_text()


@pytest.fixture
def project(broker: Broker, unique: str, tmp_path: Path) -> Iterator[Project]:
    broker.create(PARTITIONS, unique)
    made = Project(tmp_path, broker, unique)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(DEADLINE_S)


class Writer:
    """Writes numbered records to a topic, in transactions that are committed, each with one after it that is aborted."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._producer = TransactionalProducer(Kafka(broker.kafka), f"{topic}-writer")
        self._producer.init()
        self._topic = topic
        self.count = 0

    def write(self, number: int) -> None:
        for n in range(self.count, self.count + number):
            self._send(n)
        self._producer.commit({}, "")
        self.count += number
        self._send(-1)
        self._producer.flush()
        self._producer.abort()

    def _send(self, n: int) -> None:
        value = json.dumps({"n": n}).encode()
        self._producer.send(self._topic, b"k%d" % (n % 97), value, SystemClock().now_ms(), (), None)


class Following:
    """A follower in a thread."""

    def __init__(self, project: Project, name: str = "") -> None:
        self.ends = threading.Event()
        self.error: StreamsError | None = None
        self._export = project.riverrun.export(name or project.topic)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._export.follow(ends=self.ends.is_set)
        except StreamsError as error:
            self.error = error

    def end(self) -> StreamsError | None:
        self.ends.set()
        return self.wait()

    def wait(self) -> StreamsError | None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.error


def test_a_table_of_postgresql_keeps_the_contract(database: Database) -> None:
    for number, check in enumerate(SINK_CHECKS):
        table, name = replace(sink_table(), export=check.__name__), f"checked_{number}"

        def places(name: str = name) -> list[Any]:
            return database.rows(f"SELECT _partition, _offset FROM {name}")

        check(SinkUnderTest(partial(SqlSink, table, database.url, name), places))


@pytest.mark.deep
def test_kills_at_any_moment_lose_and_double_nothing(project: Project, database: Database) -> None:
    files = f'[exports.files]\ntopic = "{project.topic}"\ntarget = "files"\nformat = "json"\ncommit_seconds = 1\n'
    static = '"consumer.group.instance.id" = "only"\n'  # whose partitions need not wait for the end of a session
    often = 'commit_seconds = 1\nmetrics_server = "127.0.0.1:0"\n'
    archive = f'[archives.kept]\ntopics = ["{project.topic}"]\nurl = "kept"\nnamespace = "raw"\n{often}'
    shown_in = '[archives.kept.catalog]\ntype = "sql"\nuri = "sqlite:///kept.db"\nwarehouse = "raw"\n'
    lake = f'[exports.lake]\ntopic = "{project.topic}"\ntable = "lake.rows"\n{often}'
    catalog = '[exports.lake.catalog]\ntype = "sql"\nuri = "sqlite:///lake.db"\nwarehouse = "lake"\n'
    table = project.table(database, **{'"consumer.group.instance.id"': '"only"'})
    project.declare(files + static + archive + static + shown_in + lake + static + catalog + table)
    writer = Writer(project.broker, project.topic)

    def has_more(before: int) -> bool:
        return database.count(project.topic) > before

    for _ in range(KILLS):
        followers = [project.start(name) for name in ("", "files", "lake")] + [project.start("kept", ARCHIVE)]
        before = database.count(project.topic)
        writer.write(2_000)
        until(partial(has_more, before), "written on", project.log)
        writer.write(random.randrange(4_000))
        for process in followers:
            process.kill()
            process.wait(DEADLINE_S)
    project.catch_up()
    project.catch_up("files")
    project.riverrun.archive("kept").follow(until_caught_up=True)
    assert archived(project, "kept") == list(range(writer.count))
    project.catch_up("lake")
    config = project.riverrun.config
    table_of_archive = f"raw.{project.topic.replace('-', '_')}"
    for properties, name in (
        (config.declared("exports", "lake").catalog, "lake.rows"),
        (config.declared("archives", "kept").catalog, table_of_archive),
    ):
        values = load_catalog("default", **properties).load_table(name).scan().to_arrow()["value"].to_pylist()
        assert sorted(json.loads(value)["n"] for value in values) == list(range(writer.count))
    assert database.rows(f"SELECT n FROM {project.topic} ORDER BY n") == [(n,) for n in range(writer.count)]
    lines = [json.loads(line) for path in project.directory.glob("files/*-*.json") for line in path.open()]
    assert sorted(line["value"]["n"] for line in lines) == list(range(writer.count))


def archived(project: Project, name: str) -> list[int]:
    """The numbers in the archive of the topic, in order; its files are intact, and none is missing."""
    url = str(project.directory / name)
    store = ArchiveStore(url)
    manifest = store.manifest(project.topic)
    if manifest is None:
        return []
    assert list(verify(store, manifest)) == []
    found = [batch for file in manifest.files for batch in read_file(store, project.topic, file, file.range)]
    return sorted(json.loads(record[1] or b"")["n"] for batch in found for record in batch)


def test_two_archivers_share_the_partitions_and_end_when_they_are_asked_to(project: Project) -> None:
    project.declare(f'[archives.shared]\ntopics = ["{project.topic}"]\nurl = "shared"\ncommit_seconds = 1\n')
    writer = Writer(project.broker, project.topic)
    archivers = [project.start("shared", ARCHIVE) for _ in range(2)]
    group = "riverrun-archive-shared"
    until(lambda: len(project.broker.admin().group(group).members) == 2, "joined by two", project.log)
    writer.write(1_000)
    until(lambda: archived(project, "shared") == list(range(writer.count)), "archived", project.log)
    for process in archivers:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, project.log()
    assert project.log().count(" commit") >= 2


def test_two_followers_share_the_partitions_and_a_paused_one_writes_nothing_twice(
    project: Project, database: Database
) -> None:
    project.declare(project.table(database))
    writer = Writer(project.broker, project.topic)

    def owners() -> dict[int, int]:
        """The epochs of the partitions, which each owner raises."""
        return dict(database.rows(f"SELECT partition, epoch FROM riverrun_offsets WHERE export = '{project.topic}'"))

    def everything() -> bool:
        return database.count(project.topic) == writer.count

    paused = project.start()
    writer.write(1_000)
    until(everything, "written by one", project.log)
    other = project.start()
    until(lambda: len(project.riverrun.export(project.topic).status().members) == 2, "joined by two", project.log)
    writer.write(1_000)
    until(everything, "written by two", project.log)
    before = owners()
    paused.send_signal(signal.SIGSTOP)
    writer.write(1_000)
    until(everything, "taken over", project.log)
    assert sum(owners()[tp] > epoch for tp, epoch in before.items()) >= PARTITIONS // 2
    writer.write(1_000)
    paused.send_signal(signal.SIGCONT)
    until(everything, "written after the pause", project.log)
    until(lambda: len(project.riverrun.export(project.topic).status().members) == 2, "joined again", project.log)
    writer.write(1_000)
    until(everything, "written by two again", project.log)
    for process in (paused, other):
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, project.log()
    assert database.rows(f"SELECT n FROM {project.topic} ORDER BY n") == [(n,) for n in range(writer.count)]


def test_a_follower_waits_for_a_database_that_restarts(
    project: Project, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    project.declare(project.table(database))
    writer = Writer(project.broker, project.topic)
    writer.write(1_000)
    following = Following(project)
    until(lambda: database.count(project.topic) == writer.count, "written")
    for _ in range(2):
        caplog.clear()
        database.server.stop()
        writer.write(1_000)
        until(lambda: "retrying in" in caplog.text, "told that the database is away")
        database.server.start()
        until(lambda: database.count(project.topic) == writer.count, "written after the restart")
    until(lambda: "recovered after" in caplog.text, "told that it answers")
    assert following.end() is None
    assert database.rows(f"SELECT n FROM {project.topic} ORDER BY n") == [(n,) for n in range(writer.count)]


def test_a_dropped_table_and_a_type_that_does_not_fit_end_the_follower(project: Project, database: Database) -> None:
    project.declare(project.table(database, mode='"upsert"'))
    writer = Writer(project.broker, project.topic)
    writer.write(500)
    project.catch_up()
    assert database.count(project.topic) == 97
    database.rows(f"ALTER TABLE {project.topic} ALTER n TYPE smallint")
    writer.count = 40_000
    writer.write(1)
    with pytest.raises(
        ConfigError, match=rf"refuses record {project.topic}-\d@\d+ for table .*: smallint out of range"
    ):
        project.catch_up()
    assert database.rows(f"SELECT max(n) FROM {project.topic}") == [(499,)]
    database.rows(f"ALTER TABLE {project.topic} ALTER n TYPE bigint")
    assert project.catch_up().records == 1
    following = Following(project)
    database.rows(f"DROP TABLE {project.topic}")
    writer.write(1)
    error = following.wait()
    assert isinstance(error, ConfigError)
    assert f"Table {project.topic} at " in error.message
    assert "is gone, but export" in error.message


def test_tombstones_delete_rows_of_typed_values_of_an_application(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.declare_totals(database)
    monkeypatch.syspath_prepend(str(project.directory))
    keys = [n.to_bytes(8, "big") for n in range(3)]
    project.broker.write(project.topic, [(key, b'{"n":%d,"name":"x"}' % n, 1_000) for n, key in enumerate(keys)])
    project.catch_up()
    project.broker.write(project.topic, [(keys[1], None, 2_000), (keys[2], b'{"n":7}', 2_000)])
    project.catch_up()
    shown = f"SELECT id, n, name, extract(epoch FROM _timestamp)::int FROM {project.topic} ORDER BY id"
    assert database.rows(shown) == [(0, 0, "x", 1), (2, 7, None, 2)]
    project.broker.write(project.topic, [(keys[0], b'{"n":"many"}', 3_000)])
    with pytest.raises(
        DeserializationError, match=rf"A value cannot be read: .*topic {project.topic}, partition \d, offset"
    ):
        project.catch_up()


def test_a_follower_takes_the_columns_of_the_version_that_goes_live(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.declare_totals(database, "v2")
    monkeypatch.syspath_prepend(str(project.directory))
    following = Following(project)
    key, value = bytes(8), b'{"n":1,"name":"x"}'
    project.broker.write(project.topic, [(key, value, 1_000)])
    until(lambda: database.count(project.topic) == 1, "written")
    registry = ReleaseRegistry.at(project.broker.admin())
    registry.write(replace(registry.read(project.topic, "v1"), live="v2"))
    added = f"SELECT 1 FROM information_schema.columns WHERE table_name = '{project.topic}' AND column_name = 'name'"
    until(lambda: database.rows(added) == [(1,)], "added the column")
    assert database.rows(f"SELECT n, name FROM {project.topic}") == [(1, None)]
    project.broker.write(project.topic, [(key, value, 2_000)])
    until(lambda: database.rows(f"SELECT n, name FROM {project.topic}") == [(1, "x")], "written by the new version")
    assert following.end() is None


def test_a_follower_goes_on_behind_the_last_batch_of_spark(project: Project, database: Database) -> None:
    admin, topic = project.broker.admin(), project.topic
    for partition in range(PARTITIONS):
        rows = [(b"k", b'{"n":%d}' % (10 * partition + number), 1_000) for number in range(3)]
        project.broker.write(topic, rows, partition)
    done = RunRange({TopicPartition(topic, n): OffsetRange(0, 2) for n in range(PARTITIONS - 1)})
    batch = ExportBatch(1, str(done), is_done=False, topic_id=admin.topic_ids([topic])[topic], target="elsewhere")

    def note(written: ExportBatch) -> None:
        ControlTopic(admin, EXPORTS_TOPIC).write(topic, {topic: msgspec.json.encode(asdict(written))})

    note(batch)
    project.declare(project.table(database))
    with pytest.raises(ConfigError, match=f"Export {topic} has batches that Spark has written"):
        project.catch_up()
    project.declare(project.table(database, continues=f'"{topic}"'))
    with pytest.raises(ConfigError, match=f"Batch 1 of export {topic} is not complete"):
        project.catch_up()
    note(replace(batch, is_done=True))
    assert project.catch_up().records == PARTITIONS - 1 + 3
    project.broker.write(topic, [(b"k", b'{"n":99}', 1_000)], 0)
    assert project.catch_up().records == 1
    assert database.rows(f"SELECT n FROM {topic} ORDER BY n") == [(n,) for n in (2, 12, 22, 30, 31, 32, 99)]
    project.declare(project.table(database, continues='"nothing"'))
    with pytest.raises(ConfigError, match=f"There is no batch export nothing of topic {topic}"):
        project.catch_up()


def riverrun(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the project."""
    command = [sys.executable, "-m", "riverrun.cli", "--config", str(project.directory / "streams.toml"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def test_the_commands_of_the_guide_write_files_and_show_the_lag(project: Project) -> None:
    files = f'topic = "{project.topic}"\nformat = "parquet"\n'
    parts = 'partition_by = ["day(_timestamp)"]\n'
    project.declare(f'[exports.archive]\n{files}target = "archive"\n[exports.days]\n{files}target = "days"\n{parts}')
    Writer(project.broker, project.topic).write(100)

    def export(*words: str) -> subprocess.CompletedProcess[str]:
        return riverrun(project, "export", *words)

    assert export("archive").stdout.splitlines()[-1] == "archive: 100 records in 1 commit"
    shown = export("archive", "--status").stdout.splitlines()
    assert shown[0] == "group riverrun-export-archive is empty, 0 followers"
    assert shown[-1] == "0 offsets behind"
    assert len(list((project.directory / "archive").glob(f"{project.topic}-*.parquet"))) == PARTITIONS
    assert export("days").stdout.splitlines()[-1] == "days: 100 records in 1 commit"
    days = dataset.dataset(project.directory / "days", partitioning="hive").to_table(columns=["day"])
    assert (days.num_rows, days["day"].null_count) == (100, 0)
    wrong = export("archive2", "--follow")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "has no export 'archive2'" in wrong.stderr
    assert "Did you mean 'archive'?" in wrong.stderr
    both = export(project.topic, "out", "--follow")
    assert "--follow takes the name of an export in streams.toml, and no target" in both.stderr


def test_unreadable_records_become_dead_letters_and_the_rest_are_rows(project: Project, tmp_path: Path) -> None:
    letters, file = f"{project.topic}-letters", tmp_path / "shop.db"
    project.declare(
        f'[exports.totals]\ntopic = "{project.topic}"\ntarget = "sqlite:///{file}"\ntable = "totals"\n'
        'deserialization_exception_handler = "continue"\n'
        f'errors_dead_letter_queue_topic_name = "{letters}"\n[exports.totals.columns]\nn = "bigint"\n'
    )
    project.broker.write(project.topic, [(b"k", value, 5) for value in (b'{"n": 1}', b'{"n": "x"}', b"{", b'{"n": 2}')])
    with pytest.raises(TopicError, match=letters):
        project.catch_up("totals")
    project.broker.create(1, letters)
    report = project.catch_up("totals")
    assert (report.records, report.skipped) == (4, 2)
    assert "4 records in 1 commit (2 unreadable ones skipped)" in str(report)
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        assert [tuple(row) for row in connection.exec_driver_sql("SELECT n FROM totals ORDER BY n")] == [(1,), (2,)]
    engine.dispose()
    found = project.broker.read(letters)
    assert [record.value for record in found] == [b'{"n": "x"}', b"{"]
    assert {dict(record.headers)["__streams.errors.topic"] for record in found} == {project.topic.encode()}
    assert (project.catch_up("totals").records, len(project.broker.read(letters))) == (0, 2)


def shown(page: str, kind: str) -> list[str]:
    """The blocks of a recipe."""
    text = (Path(__file__).parents[2] / "docs/recipes" / page).read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def as_shown(project: Project, page: str, topic: str) -> None:
    """Declare what a recipe shows, with the broker and the topic of the test."""
    (declared,) = shown(page, "toml")
    declared = declared.replace("127.0.0.1:19092", project.broker.bootstrap_servers)
    declared = declared.replace(f'topic = "{topic}"', f'topic = "{project.topic}"')
    (project.directory / "streams.toml").write_text(declared)


def test_the_recipe_of_iceberg_finds_the_last_row_of_each_key(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_shown(project, "iceberg.md", "orders")
    orders = [(b"a", 150, b"new"), (b"b", 20, b"new"), (b"a", 160, b"paid"), (b"c", 300, b"new")]
    values = [(key, b'{"amount":%d,"state":"%s"}' % (amount, state), 1_000) for key, amount, state in orders]
    project.broker.write(project.topic, [*values, (b"c", None, 1_000)])
    assert project.catch_up("orders").records == 5
    assert project.catch_up("orders").records == 0
    monkeypatch.chdir(project.directory)
    names: dict[str, Any] = {}
    for block in shown("iceberg.md", "py"):
        exec(block, names)  # noqa: S102 - it is our own
    assert sorted(names["large"]["amount"].to_pylist()) == [150, 160, 300]
    found = {row["_key"]: (row["amount"], row["state"]) for row in names["current"].to_pylist()}
    assert found == {"a": (160, "paid"), "b": (20, "new")}
    assert sum(names["reached"].values()) == 5


def test_the_recipe_of_postgresql_has_rows_and_offsets_of_one_moment(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_shown(project, "postgresql.md", "totals")
    monkeypatch.setenv("SHOP_DATABASE", f"test@127.0.0.1:{database.server.port}/postgres")
    totals = [(b"pear", 2, 6.0), (b"fig", 1, 5.0), (b"pear", 3, 9.0)]
    values = [(key, b'{"pieces":%d,"revenue":%f}' % (pieces, revenue), 1_000) for key, pieces, revenue in totals]
    project.broker.write(project.topic, [*values, (b"fig", None, 1_000), (b"kiwi", b'{"pieces":1,"revenue":1}', 1_000)])
    project.catch_up("totals")
    (sql,) = shown("postgresql.md", "sql")
    queries = [line for line in sql.split(";") if "SELECT" in line]
    rows, offsets = (database.rows(query) for query in queries)
    assert rows == [("pear", 3, 9.0), ("kiwi", 1, 1.0)]
    assert sum(offset or 0 for _, offset in offsets) == 5


def imported(project: Project, field: str = "n") -> list[int]:
    """The numbers in the topic, in order."""
    return sorted(json.loads(record.value or b"")[field] for record in project.broker.read(project.topic))


@pytest.mark.deep
def test_kills_of_an_import_of_a_table_lose_and_double_no_row(project: Project, database: Database) -> None:
    table = f"{project.topic}_rows"
    database.rows(
        f"CREATE TABLE {table} (n bigserial PRIMARY KEY, word text, at timestamptz DEFAULT clock_timestamp())"
    )
    project.declare(
        f'[imports.{project.topic}]\ntopic = "{project.topic}"\nsource = "{database.url}"\ntable = "{table}"\n'
        'incremental = ["n"]\nkey = ["word"]\ntimestamp = "at"\nlag_seconds = 1\npoll_seconds = 1\ncommit_records = 50\n'
    )
    insert = f"INSERT INTO {table} (word) SELECT 'w' || mod(g, 7) FROM generate_series(1, %s) g"
    engine = sa.create_engine(database.url)

    def has_more(before: int) -> bool:
        return len(project.broker.read(project.topic)) > before

    for _ in range(KILLS):
        process = project.start(words=("import",))
        before = len(project.broker.read(project.topic))
        with engine.begin() as late:  # takes its numbers before the others, and commits behind them
            late.exec_driver_sql(insert % 20)
            database.rows(insert % 2_000)
        until(partial(has_more, before), "imported on", project.log)
        database.rows(insert % random.randrange(1, 3_000))
        process.kill()
        process.wait(DEADLINE_S)
    first, second = project.start(words=("import",)), project.start(words=("import",))

    def is_one_fenced() -> bool:
        database.rows(insert % 1)  # the first of both notices when it writes
        return [first.poll(), second.poll()].count(None) == 1

    until(is_one_fenced, "fenced one of two", project.log)
    assert "also runs elsewhere" in project.log()
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
    last = project.riverrun.declared_import(project.topic).follow(until_caught_up=True)
    engine.dispose()
    assert imported(project) == [n for (n,) in database.rows(f"SELECT n FROM {table} ORDER BY n")]
    status = project.riverrun.declared_import(project.topic).status()
    assert status.upto == str(database.count(table)) == last.place.removeprefix("n ")


@pytest.mark.deep
def test_kills_of_an_import_of_files_lose_and_double_no_line(project: Project) -> None:
    project.declare(
        f'[imports.{project.topic}]\ntopic = "{project.topic}"\nsource = "in"\nformat = "json"\nkey = ["n"]\n'
        "poll_seconds = 1\ncommit_records = 100\n"
    )
    count = 0

    def written(files: int, lines: int) -> int:
        nonlocal count
        for _ in range(files):
            path = project.directory / "in" / f"{random.randrange(10**9):09}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f'{{"n":{count + line}}}\n' for line in range(lines)))
            count += lines
        return count

    def has_more(before: int) -> bool:
        return len(project.broker.read(project.topic)) > before

    for _ in range(KILLS):
        written(3, 2_000)
        before = len(project.broker.read(project.topic))
        process = project.start(words=("import",))
        until(partial(has_more, before), "imported on", project.log)
        written(random.randrange(1, 4), random.randrange(1, 1_000))
        process.kill()
        process.wait(DEADLINE_S)
    status = project.riverrun.declared_import(project.topic).status()
    assert status.batches
    project.riverrun.declared_import(project.topic).follow(until_caught_up=True)
    assert imported(project) == list(range(count))


def test_an_import_goes_on_behind_a_batch_of_spark_and_writes_letters(project: Project) -> None:
    admin, topic, path = project.broker.admin(), project.topic, project.directory / "shop.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    project.broker.create(1, f"{topic}-bad")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (n INTEGER PRIMARY KEY, word TEXT)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'x'), (4, '5'), (5, 'y')")
    done = Batch(1, PARTITIONS, terms=Terms("orders", "jdbc", incremental="n"), upto="2")
    done = replace(done, topic_id=admin.topic_ids([topic])[topic])

    def note(batch: Batch) -> None:
        ControlTopic(admin, IMPORTS_TOPIC).write(topic, {topic: msgspec.json.encode(asdict(batch))})

    def declare(**others: str) -> None:
        lines = {"topic": f'"{topic}"', "source": '"sqlite:///shop.db"', "table": '"orders"', "lag_seconds": "0"}
        lines |= {"incremental": '["n"]', "key": '["word"]', "key_serde": '"long"'} | others
        project.declare("\n".join([f"[imports.{topic}]", *(f"{key} = {value}" for key, value in lines.items())]))

    def catch_up() -> FollowReport:
        return project.riverrun.declared_import(topic).follow(until_caught_up=True)

    declare()
    note(replace(done, is_done=False))
    with pytest.raises(ConfigError, match=f"Batch 1 of import {topic} is not complete"):
        catch_up()
    note(done)
    with pytest.raises(SerializationError, match="The row of table orders with n 3 cannot become a record"):
        catch_up()
    declare(deserialization_exception_handler='"continue"', errors_dead_letter_queue_topic_name=f'"{topic}-bad"')
    assert (catch_up().skipped, imported(project)) == (2, [4])
    assert [record.key for record in project.broker.read(topic)] == [(5).to_bytes(8, "big")]
    assert [json.loads(letter.value or b"")["word"] for letter in project.broker.read(f"{topic}-bad")] == ["x", "y"]
    assert catch_up().records == 0
    assert ImportProgress(admin, topic).last().upto == "5"
    shown = riverrun(project, "import", topic, "--status").stdout.splitlines()
    assert shown == ["2 commits from orders", "  up to 5"]
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (6, '7')")
    assert riverrun(project, "import", topic).stdout.splitlines()[-1] == f"{topic}: 1 record in 1 commit"
    declare(table='"others"')
    with pytest.raises(ConfigError, match=f"Import {topic} has read orders so far, up to 6, not others"):
        catch_up()
    engine.dispose()
