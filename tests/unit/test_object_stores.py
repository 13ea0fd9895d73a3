"""S3: what is kept there is what was written, each file appears once, and no bucket is made for a name that is misspelt."""

from __future__ import annotations

import json
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced
from riverrun.archive.exclusive import creator
from riverrun.errors import ArchiveError, ConfigError
from riverrun.foreign_files import make_directories, store_at
from riverrun.project.archives import Archives
from riverrun.records import TopicPartition
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App

BUCKET = "lake"
TPS = [TopicPartition("clicks", number) for number in range(2)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def lake(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket that is empty."""
    settings = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1", "ENDPOINT_URL": server}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)
    yield f"s3://{BUCKET}"
    files.rm(BUCKET, recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def build(builder: StreamsBuilder, mark: str = "") -> Topology:
    clicks = builder.stream("clicks", Consumed(STRING, STRING))
    counts = clicks.group_by(lambda _user, page: page + mark, Grouped(STRING, STRING)).count(Materialized(name="views"))
    counts.to_stream().to("views", Produced(STRING, LONG))
    return builder.build()


def views(cluster: Cluster) -> dict[str, int]:
    return cluster.table("views", STRING, LONG)


def prepared(cluster: Cluster, **urls: str) -> App:
    """Return an application, 100 records in its input."""
    for topic in ("clicks", "views"):
        cluster.create_topic(topic, partitions=2)
    settings = {f"{kind}.url": url for kind, url in urls.items()}
    app = cluster.project().app("views", build, versions={"v2": partial(build, mark="!")}, config=settings)
    write(cluster, 100)
    return app


def write(cluster: Cluster, count: int) -> None:
    clicks = cluster.input_topic("clicks", STRING, STRING)
    clicks.pipe_key_value_list([(f"u{n % 7}", f"/{n % 5}") for n in range(count)])


def archives(cluster: Cluster, url: str) -> Archives:
    return Archives(cluster.project().cluster, url)


def test_a_release_reads_from_an_archive_what_brokers_have_deleted(lake: str) -> None:
    url = f"{lake}/kafka"
    with Cluster() as cluster:
        app = prepared(cluster, archive=url)
        app.run()
        kept = archives(cluster, url)
        for count in (0, 30, 20):
            write(cluster, count)
            kept.write(["clicks"])
        app.run()
        before = views(cluster)
        admin = app.cluster.admin
        admin.delete_records(dict(admin.end_offsets(TPS)))
        kept.compact("clicks", below=2**30)
        assert [list(kept.verify("clicks")), kept.drop_leftovers("clicks", hours=0)] == [[], []]
        app.release("v2").reprocess().gate().cut()
        assert views(cluster) == {f"{page}!": count for page, count in before.items()}


def test_another_machine_continues_from_a_snapshot(lake: str) -> None:
    with Cluster() as cluster:
        app = prepared(cluster, snapshot=f"{lake}/snapshots")
        app.run()
        other = cluster.project(machine="other").app("views", build, config={"snapshot.url": f"{lake}/snapshots"})
        write(cluster, 5)
        other.run()
        assert views(cluster) == {f"/{n}": 21 for n in range(5)}
        files, root = store_at(f"{lake}/snapshots")
        assert files.find(root)


def test_of_two_writers_of_a_file_one_is_refused(lake: str) -> None:
    files, root = store_at(lake)
    create = creator(files, lake)
    create(f"{root}/one", b"first")
    with pytest.raises(FileExistsError):
        create(f"{root}/one", b"second")
    assert files.cat_file(f"{root}/one") == b"first"


def declared(directory: Path, lake: str) -> None:
    """Declare an export to a bucket, and an import of its files."""
    sections: dict[str, dict[str, object]] = {
        "exports.out": {"app": "views", "topic": "clicks", "target": f"{lake}/out", "format": "json"},
        "imports.back": {
            "topic": "back",
            "source": f"{lake}/out",
            "format": "json",
            "key": ["_key"],
            "complete": "at_once",
        },
    }
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(given)}\n" for key, given in each.items())
        for name, each in sections.items()
    ]
    (directory / "streams.toml").write_text("\n".join(lines))


def test_files_are_exported_and_imported_again(lake: str, tmp_path: Path) -> None:
    declared(tmp_path, lake)
    with Cluster() as cluster:
        prepared(cluster)
        cluster.create_topic("back")
        project = cluster.project(tmp_path / "streams.toml")
        project.app("views", build)
        back = cluster.output_topic("back", STRING, STRING)
        project.declared_import("back").follow(until_caught_up=True)
        assert back.is_empty()
        for count in (0, 10):
            write(cluster, count)
            project.export("out").follow(until_caught_up=True)
            project.declared_import("back").follow(until_caught_up=True)
            assert back.queue_size() == 100 + count


@pytest.mark.parametrize("url", ["s3://laek/kafka", "s3://"])
def test_no_bucket_is_made_for_an_archive(lake: str, url: str) -> None:
    with Cluster() as cluster:
        prepared(cluster)
        with pytest.raises((ArchiveError, ConfigError), match="no bucket"):
            archives(cluster, url).write(["clicks"])
    files, _ = store_at(lake)
    assert files.ls("") == [BUCKET]


def test_no_bucket_is_made_for_snapshots(lake: str) -> None:
    with Cluster() as cluster:
        app = prepared(cluster, snapshot="s3://laek/snapshots")
        warnings = app.run().warnings
        assert sum(views(cluster).values()) == 100
    assert any("there is no bucket laek" in each for each in warnings)
    files, _ = store_at(lake)
    assert files.ls("") == [BUCKET]


def test_a_store_that_is_out_of_reach_is_not_taken_for_one_without_the_bucket(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        # Nobody listens there.
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(Exception, match="Could not connect to the endpoint"):
            make_directories(*store_at(f"{lake}/kafka"))
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("kind", ["export", "import"])
def test_a_follower_ends_where_there_is_no_bucket(lake: str, tmp_path: Path, kind: str) -> None:
    declared(tmp_path, lake.replace(BUCKET, "laek"))
    with Cluster() as cluster:
        prepared(cluster)
        cluster.create_topic("back")
        project = cluster.project(tmp_path / "streams.toml")
        project.app("views", build)
        follower = project.export("out") if kind == "export" else project.declared_import("back")
        with pytest.raises(ConfigError, match="there is no bucket laek"):
            follower.follow(until_caught_up=True)
