"""Archived topics and what brokers still have are one log: results are those of a run over everything."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.cli.main import app as commands
from riverrun.errors import ArchiveError, ConfigError, RangeError, StreamsError, TopicError
from riverrun.foreign_files import sealed
from riverrun.kafka.ranges import offsets_at_time, read_fields
from riverrun.project.archives import Archives
from riverrun.records import OffsetRange, TopicPartition
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

PARTITIONS = 2
WORDS = [f"w{number % 7}" for number in range(400)]


def counting(topic: str, output: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(topic, Consumed(STRING, STRING))
        counts = words.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(output, Produced(STRING, LONG))
        return builder.build()

    return build


def application(broker: Broker, directory: Path, topic: str, output: str, archive: Path | None = None) -> App:
    config: dict[str, Any] = {"bounded.engine": "local"}
    if archive is not None:
        config["archive.url"] = str(archive)
    return broker.project(directory=directory).app(output, counting(topic, output), config=config)


def write(broker: Broker, topic: str, words: list[str], first: int = 0) -> None:
    for partition in range(PARTITIONS):
        own = range(partition, len(words), PARTITIONS)
        broker.write(topic, [(b"k", words[n].encode(), 1_000 * (first + n)) for n in own], partition)


def latest(broker: Broker, topic: str) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in broker.read(topic)}


def forget(broker: Broker, topic: str, upto: int) -> None:
    """Delete the records before an offset of every partition, as retention does."""
    broker.admin().delete_records({TopicPartition(topic, n): upto for n in range(PARTITIONS)})


def forget_one(broker: Broker, tp: TopicPartition, upto: int) -> None:
    broker.admin().delete_records({tp: upto})


def run_worker(app: App) -> None:
    with app.worker() as worker:
        worker.wait()


def config_of(broker: Broker, directory: Path, archive: Path) -> Path:
    path = directory / "streams.toml"
    kafka = f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
    path.write_text(f'{kafka}[apps.any]\ntopology = "none:none"\n[apps.any.config]\n"archive.url" = "{archive}"\n')
    return path


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.broker
def test_a_run_over_archive_and_topic_is_one_over_everything(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-twin", f"{unique}-late")
    write(broker, topic, WORDS[:200])
    twin = application(broker, tmp_path / "twin", topic, f"{unique}-twin")
    archives = Archives(twin.cluster, str(archive))
    assert [done.records for done in archives.write([topic])] == [200]
    write(broker, topic, WORDS[200:], 200)
    twin.run()
    forget(broker, topic, 60)
    late = application(broker, tmp_path / "late", topic, f"{unique}-late", archive)
    assert late.run().processed == 2 * len(WORDS)  # through a repartition topic
    assert latest(broker, f"{unique}-late") == latest(broker, f"{unique}-twin")
    assert sum(done.records for done in archives.write([topic])) == 200
    assert [done.offsets for done in archives.write([topic])] == [0]


def test_a_run_over_a_damaged_archive_processes_nothing(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-out")
    write(broker, topic, WORDS)
    app = application(broker, tmp_path / "late", topic, f"{unique}-out", archive)
    Archives(app.cluster, str(archive)).write([topic])
    forget(broker, topic, 150)
    (path, *_) = sorted(archive.rglob("*.parquet"))
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    with pytest.raises(ArchiveError, match=f"{path.name} of the archive is not what its manifest says: its digest is"):
        app.run()
    assert latest(broker, f"{unique}-out") == {}
    path.write_bytes(data)
    app.run()
    assert latest(broker, f"{unique}-out") == {b"w%d" % n: WORDS.count(f"w{n}").to_bytes(8) for n in range(7)}


def test_times_are_looked_up_in_both(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-twin", f"{unique}-late")
    write(broker, topic, WORDS[:300])
    twin = application(broker, tmp_path / "twin", topic, f"{unique}-twin")
    Archives(twin.cluster, str(archive)).write([topic])
    write(broker, topic, WORDS[300:], 300)
    whole = {TopicPartition(topic, n): OffsetRange(0, 200) for n in range(PARTITIONS)}
    times = [-1, 0, 1_000, 1_001, 150_500, 299_000, 300_000, 350_001, 10**9]
    before = [offsets_at_time(broker.admin(), whole, time_ms) for time_ms in times]
    forget(broker, topic, 100)
    late = application(broker, tmp_path / "late", topic, f"{unique}-late", archive)
    admin = late._chosen.connected().admin
    assert [offsets_at_time(admin, whole, time_ms) for time_ms in times] == before
    run = late.runs.bounded("1970-01-01T00:01:00+00:00", "1970-01-01T00:05:30+00:00")
    assert str(run.range) == f"{topic}-0@30..165,{topic}-1@30..165"
    assert late.runs.bounded(to="1970-01-01T00:05:30+00:00").run().processed == 2 * 330


def test_gaps_are_kept_and_archived_records_are_those_of_the_topic(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(1, topic, f"{unique}-out")
    producer = broker.clients.producer({**broker.kafka, "transactional.id": unique})
    producer.init_transactions(DEADLINE_S)
    for number in range(6):
        producer.begin_transaction()
        headers: Any = [("h", None), ("i", b"x")]
        producer.produce(topic, b"%d" % number, b"k", 0, timestamp=number, headers=headers)
        producer.flush(DEADLINE_S)
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(DEADLINE_S)
    app = application(broker, tmp_path / "late", topic, f"{unique}-out", archive)
    archives = Archives(app.cluster, str(archive))
    (done,) = archives.write([topic])
    assert (done.records, done.offsets) == (4, 12)  # each transaction has a marker
    tp, whole = TopicPartition(topic, 0), OffsetRange(0, 12)
    before = [record for _, batch in read_fields(broker.admin(), {tp: whole}) for record in batch]
    admin = app._chosen.connected().admin
    for start in range(13):
        forget_one(broker, tp, start)
        found = [record for _, batch in read_fields(admin, {tp: whole}) for record in batch]
        assert found == before


def test_lost_records_are_refused_unless_that_is_accepted(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-out")
    write(broker, topic, WORDS[:100])
    app = application(broker, tmp_path / "late", topic, f"{unique}-out", archive)
    archives = Archives(app.cluster, str(archive))
    archives.write([topic])
    write(broker, topic, WORDS[100:200], 100)
    forget(broker, topic, 70)
    with pytest.raises(ArchiveError, match=rf"{topic} has lost 40 offsets since it was archived: {topic}-0 50\.\.70"):
        archives.write([topic])
    (done,) = archives.write([topic], may_skip=True)
    assert done.manifest.stretches(0) == [OffsetRange(0, 50), OffsetRange(70, 100)]
    forget(broker, topic, 80)
    assert str(app.runs.bounded("earliest").range) == f"{topic}-0@70..100,{topic}-1@70..100"
    with pytest.raises(RangeError, match=f"{topic}-0: offsets 10 to 70"):
        app.runs.bounded(f"{topic}-0@10,{topic}-1@90")


@pytest.mark.broker
def test_a_worker_does_not_begin_behind_what_only_the_archive_has(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-out")
    write(broker, topic, WORDS[:100])
    app = application(broker, tmp_path / "late", topic, f"{unique}-out", archive)
    Archives(app.cluster, str(archive)).write([topic])
    forget(broker, topic, 20)
    with pytest.raises(ConfigError, match=rf"records of {topic}-\d@0\.\.20 are in the archive alone"):
        run_worker(app)
    app.run()
    write(broker, topic, WORDS[100:200], 100)
    wanted = {b"w%d" % n: WORDS[:200].count(f"w{n}").to_bytes(8) for n in range(7)}
    with app.worker():
        until(lambda: latest(broker, f"{unique}-out") == wanted, "counted all words")


def test_an_archive_of_another_topic_is_refused(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    broker.create(PARTITIONS, topic, f"{unique}-out")
    write(broker, topic, WORDS[:100])
    app = application(broker, tmp_path / "late", topic, f"{unique}-out", archive)
    archives = Archives(app.cluster, str(archive))
    archives.write([topic])
    known = broker.admin().topic_ids([topic])[topic]
    broker.admin().delete_topics([topic])
    broker.create(PARTITIONS, topic)
    write(broker, topic, WORDS[100:200])
    for step in (lambda: archives.write([topic]), lambda: app.runs.bounded("earliest")):
        with pytest.raises(ArchiveError, match=f"is of an earlier topic {topic}"):
            step()
    now = broker.admin().topic_ids([topic])[topic].encode()
    changed = {path: path.read_bytes().replace(known.encode(), now) for path in archive.rglob("*.json")}
    for path, data in changed.items():
        path.write_bytes(data)
    with pytest.raises(ArchiveError, match="have another digest than it says"):
        archives.topic(topic)
    for path, data in changed.items():
        path.write_bytes(sealed(b"{" + data.partition(b",")[2]))
    again = application(broker, tmp_path / "again", topic, f"{unique}-out", tmp_path / "archive" / ".." / "archive")
    with pytest.raises(ArchiveError, match=f"has another record at {topic}-0@"):
        again.runs.bounded("earliest")


@pytest.mark.broker
def test_commands_write_list_verify_compact_and_drop(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-words", tmp_path / "archive"
    config = config_of(broker, tmp_path, archive)

    def ask(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, ["--config", str(config), "archive", *words])
        return done.exit_code, done.stdout + (str(done.exception) if isinstance(done.exception, StreamsError) else "")

    broker.create(1, topic)
    assert ask("list") == (0, "nothing is archived\n")
    assert "has no records of topic" in ask("verify", topic)[1]
    assert "no engine 'flink'" in ask("write", topic, "--engine", "flink")[1]
    for first in (0, 10):
        broker.write(topic, [(b"k", b"v", 1_000 * n) for n in range(first, first + 10)], 0)
        code, shown = ask("write", topic)
        assert (code, shown[: len(topic) + 19]) == (0, f"{topic}: 10 records added,")
    assert ask("write", topic) == (0, f"{topic}: nothing is new\n")
    assert "declares no archive" in ask("write")[1]
    line = f"{topic}-0@0..20: 20 records, 1970-01-01T00:00:00+00:00 to 1970-01-01T00:00:19+00:00"
    assert ask("list")[1].startswith(f"{line}, 2 files")
    assert ask("verify", topic) == (0, f"{topic}: 2 files verified, 0 damaged\n")
    assert ask("compact", topic) == (0, f"{topic}: 2 files became 1\n")
    assert ask("list")[1].startswith(f"{line}, 1 file,")
    file = next((archive / topic / "data").rglob("*.parquet"))
    left = file.with_name(f"{file.stem[:-8]}0badcafe.parquet")
    shutil.copy(file, left)
    code, shown = ask("verify", topic)
    assert (code, shown.count(f"{topic}: no manifest lists 00000/{left.name} of 20")) == (0, 1)
    assert ask("drop", topic, "--leftovers")[1] == f"{topic}: 0 leftover files dropped, 0.0 MiB\n"
    os.utime(left, (0, 0))
    assert ask("drop", topic, "--leftovers")[1] == f"{topic}: 1 leftover file dropped, 0.0 MiB\n"
    assert "and --before files that it has" in ask("drop", topic, "--leftovers", "--before", "2020-01-01")[1]
    assert file.exists()
    for path in archive.rglob("*.parquet"):
        path.write_bytes(b"x")
    code, shown = ask("verify", topic)
    assert code == 1
    assert "1 file verified, 1 damaged" in shown
    assert ask("drop", topic, "--before", "1970-01-01T00:00:19", "--yes")[1] == f"{topic}: 0 files dropped, 0 records\n"
    assert ask("drop", topic, "--yes")[1] == f"{topic}: 1 file dropped, 20 records\n"
    assert ask("list", "--url", str(archive)) == (0, "nothing is archived\n")


@pytest.mark.broker
def test_declared_archives_are_written_by_name_or_all(broker: Broker, tmp_path: Path, unique: str) -> None:
    config = config_of(broker, tmp_path, tmp_path / "archive")
    topics = [f"{unique}-{number}" for number in range(3)]
    broker.create(1, *topics)
    one, other, alone = topics
    with config.open("a") as file:
        file.write(f'[archives.shop]\ntopics = ["{one}", "{other}"]\nurl = "kept"\n')
        file.write(f'[archives.rest]\ntopics = ["{alone}"]\nurl = "elsewhere"\nskip_lost = true\n')

    def ask(*words: str) -> list[str]:
        done = CliRunner().invoke(commands, ["--config", str(config), "archive", *words], catch_exceptions=False)
        return [line.partition(",")[0] for line in done.stdout.splitlines()]

    for topic in topics:
        broker.write(topic, [(b"k", b"v", n) for n in range(5)], 0)
    assert ask("write", "shop") == [f"{one}: 5 records added", f"{other}: 5 records added"]
    for topic in topics:
        broker.write(topic, [(b"k", b"v", n) for n in range(2)], 0)
    assert ask("write") == [f"{one}: 2 records added", f"{other}: 2 records added", f"{alone}: 7 records added"]
    with pytest.raises(TopicError, match="rest"):  # with --url all names are those of topics
        ask("write", one, "rest", "--url", str(tmp_path / "third"))
    assert ask("list", "--url", str(tmp_path / "elsewhere")) == [f"{alone}-0@0..7: 7 records"]
    with pytest.raises(ConfigError, match=r"names .*archive, .*elsewhere, .*kept"):
        ask("list")
    for topic in topics:
        broker.write(topic, [(b"k", b"v", n) for n in range(3)], 0)
        forget_one(broker, TopicPartition(topic, 0), 8)
    with pytest.raises(ArchiveError, match=f"{one} has lost 1 offset"):
        ask("write", "shop")
    assert ask("write", "rest") == [f"{alone}: 2 records added"]


def totals(topic: str, output: str) -> Callable[[StreamsBuilder], Topology]:
    """Counts the rows of a table by their value."""

    def build(builder: StreamsBuilder) -> Topology:
        rows = builder.table(topic, Consumed(STRING, STRING), Materialized(name="rows"))
        counts = rows.group_by(lambda _key, value: (value, value), Grouped(STRING, STRING)).count()
        counts.to_stream().to(output, Produced(STRING, LONG))
        return builder.build()

    return build


def test_a_table_is_read_from_an_archive_that_is_compacted_by_key(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, archive = f"{unique}-rows", tmp_path / "archive"
    broker.create(1, topic, config={"cleanup.policy": "compact,delete"})
    broker.create(1, f"{unique}-whole", f"{unique}-compacted", f"{unique}-words")
    config = {"bounded.engine": "local", "archive.url": str(archive)}

    def app(kind: str) -> App:
        output = f"{unique}-{kind}"
        return broker.project(directory=tmp_path).app(output, totals(topic, output), config=config)

    archives = Archives(app("whole").cluster, str(archive))
    for first in (0, 20):
        rows = [(b"k%d" % (n % 9), b"v%d" % (n % 5) if n % 7 else None, n) for n in range(first, first + 20)]
        broker.write(topic, rows)
        archives.write([topic])
    app("whole").run()
    archives.compact_by_key(topic)
    kept = sum(file.records for file in archives.topic(topic).files)
    assert kept == 9
    forget_one(broker, TopicPartition(topic, 0), 40)
    compacted = app("compacted")
    compacted.run()
    assert latest(broker, f"{unique}-compacted") == {
        key: value for key, value in latest(broker, f"{unique}-whole").items() if value != bytes(8)
    }
    broker.write(topic, [(b"k0", b"v0", 41)])
    assert compacted.run().processed >= 1
    broker.write(f"{unique}-words", [(b"k", b"v", 0)])
    archives.write([f"{unique}-words"])
    with pytest.raises(ArchiveError, match=f"Each record of {unique}-words counts: its cleanup.policy is delete"):
        archives.compact_by_key(f"{unique}-words")


def twice(topic: str, output: str) -> Callable[[StreamsBuilder], Topology]:
    """The second version: every word counts twice."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(topic, Consumed(STRING, STRING)).flat_map_values(lambda word: [word, word])
        counts = words.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(output, Produced(STRING, LONG))
        return builder.build()

    return build


def test_a_release_begins_with_what_the_topic_has_lost(broker: Broker, tmp_path: Path, unique: str) -> None:
    topic, output, archive = f"{unique}-words", f"{unique}-out", tmp_path / "archive"
    broker.create(PARTITIONS, topic, output)
    write(broker, topic, WORDS)
    config = {"bounded.engine": "local", "archive.url": str(archive)}
    project = broker.project(directory=tmp_path)
    app = project.app(unique, counting(topic, output), versions={"v2": twice(topic, output)}, config=config)
    app.run()
    Archives(app.cluster, str(archive)).write([topic])
    forget(broker, topic, 150)
    plan = app.release("v2").plan()
    assert plan.lost == {}
    assert f"{topic}-0: the archive has 0..200, the topic begins at 150" in str(plan)
    app.release("v2").reprocess().gate().cut()
    assert latest(broker, output) == {b"w%d" % n: (2 * WORDS.count(f"w{n}")).to_bytes(8) for n in range(7)}
