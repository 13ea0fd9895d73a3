"""Projects on a cluster in memory: bounded runs, workers that are killed, releases, and weeks that pass."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import BrokerError, StreamsError
from riverrun.simulation import cluster as cluster_module
from riverrun.simulation.turns import StuckTurnError
from riverrun.testing import Cluster, Fault
from tests.unit.simulation.test_turns import interrupted_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.project.app import App
    from riverrun.testing import TestInputTopic, TestOutputTopic
    from riverrun.topology.topology import Topology

USERS = [f"user-{number}" for number in range(40)]
PAGES = [f"/{number % 7}" for number in range(40)]


def build(builder: StreamsBuilder, mark: str = "") -> Topology:
    """Count views per page: a repartition, a store, and a table as output."""
    clicks = builder.stream("clicks", Consumed(STRING, STRING))
    by_page = clicks.group_by(lambda _user, page: page + mark, Grouped(STRING, STRING))
    by_page.count(Materialized(name="views")).to_stream().to("view-counts", Produced(STRING, LONG))
    return builder.build()


def marked(builder: StreamsBuilder) -> Topology:
    return build(builder, "!")


class Views:
    """An application on a cluster, with what it should have counted."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.create_topic("clicks", 2)
        cluster.create_topic("view-counts", 2)
        self.app: App = cluster.project().app("views", build, versions={"v2": marked})
        self.clicks: TestInputTopic[str, str] = cluster.input_topic("clicks", STRING, STRING)
        self.counts: TestOutputTopic[str, int] = cluster.output_topic("view-counts", STRING, LONG)
        self.expected: Counter[str] = Counter()
        self.found: dict[str, int | None] = {}

    def write(self) -> None:
        self.clicks.pipe_key_value_list(zip(USERS, PAGES, strict=True))
        self.expected.update(PAGES)

    def published(self) -> dict[str, int]:
        self.found |= self.counts.read_key_values_to_map()
        return {key: value for key, value in self.found.items() if value is not None}

    def is_exact(self) -> bool:
        return self.published() == self.expected


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=1) as opened:
        yield opened


@pytest.fixture
def views(cluster: Cluster) -> Views:
    return Views(cluster)


def test_bounded_runs_follow_one_another(views: Views) -> None:
    for _ in range(2):
        views.write()
        assert views.app.run().processed > 0
        assert views.is_exact()


def test_a_worker_continues_after_a_run_and_a_run_after_a_worker(cluster: Cluster, views: Views) -> None:
    views.write()
    views.app.run()
    worker = cluster.start_worker(views.app)
    views.write()
    cluster.wait_until(views.is_exact, timedelta(minutes=5))
    worker.kill()
    cluster.advance(timedelta(minutes=2))
    views.write()
    views.app.run()
    assert views.is_exact()


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_worker_loses_nothing_and_counts_nothing_twice(seed: int) -> None:
    with Cluster(seed=seed) as cluster:
        views = Views(cluster)
        worker = cluster.start_worker(views.app, "first")
        views.write()
        cluster.advance(timedelta(seconds=seed))
        worker.kill()
        cluster.start_worker(views.app, "second")
        views.write()
        cluster.wait_until(views.is_exact, timedelta(minutes=5))


def a_past() -> weakref.ref[Cluster]:
    """A cluster that has been left, with runs, a killed host, and a host that ended with an error that was looked at."""
    with Cluster(seed=1) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        cluster.start_worker(views.app).kill()
        failing = cluster.start("failing", lambda: 1 // len(views.found))
        cluster.wait_until(lambda: not failing.is_alive, timedelta(minutes=5))
        assert failing.error is not None
        views.app.run()
    return weakref.ref(cluster)


def test_an_error_is_told_that_keeps_a_cluster_from_being_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "Admin", lambda _kafka: 1 // 0)
    with pytest.raises(ZeroDivisionError), Cluster():
        pass


def test_nothing_is_left_of_clusters_that_were_left() -> None:
    past = a_past()
    gc.collect()
    assert past() is None


def test_a_worker_that_was_suspended_for_long_does_not_count_again(cluster: Cluster, views: Views) -> None:
    worker = cluster.start_worker(views.app, "first")
    views.write()
    cluster.wait_until(views.is_exact, timedelta(minutes=5))
    views.write()
    worker.suspend()
    cluster.start_worker(views.app, "second")
    cluster.wait_until(views.is_exact, timedelta(minutes=10))
    worker.resume()
    views.write()
    cluster.wait_until(views.is_exact, timedelta(minutes=10))
    cluster.advance(timedelta(minutes=1))
    assert views.is_exact()


def test_a_release_is_switched_to_under_a_running_worker_and_rolled_back(cluster: Cluster, views: Views) -> None:
    views.write()
    views.app.run()
    release = views.app.release("v2")
    release.reprocess().gate().cut()
    assert views.published() == {f"{page}!": count for page, count in views.expected.items()}
    cluster.start_worker(views.app)
    views.write()
    cluster.wait_until(lambda: sum(views.published().values()) == 2 * len(PAGES), timedelta(minutes=5))


def test_equal_seeds_have_equal_histories() -> None:
    def history(seed: int) -> tuple[int, int]:
        with Cluster(seed=seed) as cluster:
            views = Views(cluster)
            cluster.start_worker(views.app)
            views.write()
            cluster.wait_until(views.is_exact, timedelta(minutes=5))
            return cluster.turns.count, cluster.turns.trace

    assert history(5) == history(5)
    assert history(5) != history(6)


def test_a_condition_that_never_holds_is_an_error_with_the_seed(cluster: Cluster) -> None:
    with pytest.raises(StreamsError, match=r"1 day, 0:00:00, with seed 1"):
        cluster.wait_until(lambda: False, timedelta(days=1))


def test_a_project_of_a_file_runs_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(
        '[kafka]\n"bootstrap.servers" = "never-asked:9092"\n'
        f'[apps.views]\ntopology = "{__name__}:build"\nconfig."bounded.engine" = "spark"\n'
    )
    cluster.create_topic("clicks")
    cluster.create_topic("view-counts")
    cluster.input_topic("clicks", STRING, STRING).pipe_input("ann", "/")
    assert cluster.project(file).app("views").run().processed > 0
    assert cluster.output_topic("view-counts", STRING, LONG).read_key_values_to_map() == {"/": 1}
    assert not (tmp_path / ".riverrun").exists()


def tried(test: Callable[[Cluster], object], seed: int = 0) -> None:
    """Let a test of a user use a cluster."""
    with Cluster(seed=seed) as cluster:
        test(cluster)


def fail() -> None:
    message = "it has failed"
    raise ValueError(message)


def has_a_failed_host(cluster: Cluster) -> None:
    cluster.start("faulty", fail)
    cluster.advance(timedelta(seconds=1))


def test_an_interrupt_leaves_a_cluster_as_it_is() -> None:
    def test(cluster: Cluster) -> None:
        def work() -> None:
            while True:
                time.sleep(0.01)
                cluster.advance(timedelta(seconds=1))

        cluster.start("busy", work)
        with interrupted_after(0.1):
            cluster.advance(timedelta(days=100))

    with pytest.raises(KeyboardInterrupt):
        tried(test)


def test_a_host_that_keeps_the_turn_is_reported_once() -> None:
    real = threading.Event()

    def test(cluster: Cluster) -> None:
        cluster.turns._stuck_s = 0.5
        cluster.start("outsider", real.wait)
        cluster.advance(timedelta(days=1))

    began = time.monotonic()
    with pytest.raises(StuckTurnError, match="outsider keeps the turn") as raised:
        tried(test)
    assert raised.value.__context__ is None
    assert time.monotonic() - began < 5
    real.set()


def test_a_host_that_has_failed_ends_a_wait() -> None:
    def test(cluster: Cluster) -> None:
        cluster.start("faulty", fail)
        cluster.wait_until(lambda: False, timedelta(days=1))

    with pytest.raises(StreamsError, match="'faulty' has failed, with seed 3: ValueError: it has failed") as raised:
        tried(test, seed=3)
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_host_that_has_failed_fails_the_test() -> None:
    with pytest.raises(StreamsError, match="'faulty' has failed"):
        tried(has_a_failed_host)


def test_brokers_that_have_failed_fail_the_test() -> None:
    def test(cluster: Cluster) -> None:
        cluster.brokers.tick = fail  # type: ignore[method-assign]
        cluster.advance(timedelta(minutes=1))

    with pytest.raises(StreamsError, match="'brokers' has failed"):
        tried(test)


def test_an_error_of_a_test_comes_before_those_of_hosts() -> None:
    def test(cluster: Cluster) -> None:
        has_a_failed_host(cluster)
        raise KeyError

    with pytest.raises(KeyError):
        tried(test)


def test_an_error_that_a_test_has_looked_at_does_not_fail_it(cluster: Cluster) -> None:
    host = cluster.start("faulty", fail)
    assert host.error is None
    cluster.wait_until(lambda: not host.is_alive, timedelta(minutes=1))
    assert isinstance(host.error, ValueError)
    joined = cluster.start("joined", fail)
    with pytest.raises(ValueError, match="it has failed"):
        joined.join(timedelta(minutes=1))


def test_a_host_that_was_killed_has_no_error(cluster: Cluster) -> None:
    host = cluster.start("sleeper", lambda: cluster.advance(timedelta(days=9)))
    with pytest.raises(StreamsError, match="'sleeper' has not ended after 1:00:00, with seed 1"):
        host.join(timedelta(hours=1))
    host.kill()
    host.join(timedelta(hours=1))
    assert host.error is None


def test_modules_next_to_the_file_of_a_project_can_be_imported(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "next_to_the_file.py").write_text(f"from {__name__} import build\n")
    file = tmp_path / "streams.toml"
    file.write_text('[apps.views]\ntopology = "next_to_the_file:build"\n')
    Views(cluster).write()
    assert cluster.project(file).app("views").run().processed > 0


def test_the_variables_of_a_file_are_those_of_the_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PASSWORD", "secret")
    file = tmp_path / "streams.toml"
    file.write_text(
        '[kafka]\n"bootstrap.servers" = "${NOT_SET_IN_TESTS}"\n"sasl.password" = "${NOT_SET_EITHER}"\n'
        f'[apps.views]\ntopology = "{__name__}:build"\nconfig."consumer.client.rack" = "${{A_PASSWORD}}"\n'
    )
    config = cluster.project(file).config
    assert config.kafka == cluster.kafka.properties
    assert config.app("views").streams.consumer == {"client.rack": "secret"}


def test_records_have_the_time_at_which_they_are_written(cluster: Cluster) -> None:
    cluster.create_topic("in")
    topic = cluster.input_topic("in", STRING, STRING)
    began_ms = cluster.now_ms
    topic.pipe_input("a", "first")
    cluster.advance(timedelta(days=1))
    topic.pipe_input("a", "second")
    topic.advance_time(timedelta(minutes=36))
    topic.pipe_input("a", "third")
    fixed = cluster.input_topic("in", STRING, STRING, start_ms=7, auto_advance=timedelta(seconds=1))
    fixed.pipe_value_list(["fourth", "fifth"])
    times = [record.timestamp for record in cluster.output_topic("in", STRING, STRING).read_records_to_list()]
    days = [round((at - began_ms) / timedelta(days=1).total_seconds() / 1000, 3) for at in times[:3]]
    assert (days, times[3:]) == ([0, 1, 1.025], [7, 1007])


def test_faults_return_nothing_for_a_request_that_passes() -> None:
    class OneLost:
        left = 1

        def fault(self, _client_id: str, request: str) -> Fault | None:
            if request != "Produce" or not self.left:
                return None
            self.left -= 1
            return Fault(is_lost_after=True)

    faults = OneLost()
    with Cluster(faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        assert views.is_exact()
    assert not faults.left


def test_a_host_without_a_connection_is_told_that_a_later_attempt_may_succeed() -> None:
    class Cut:
        def fault(self, _client_id: str, _request: str) -> Fault | None:
            return Fault(is_lost_before=True) if opened.turns.host.name == "cut off" else None

    with Cluster(faults=Cut()) as opened:
        views = Views(opened)
        host = opened.start("cut off", lambda: opened.project().app("views", build).run())
        with pytest.raises(BrokerError) as raised:
            host.join(timedelta(minutes=5))
        assert raised.value.retriable
        assert "resolved" not in raised.value.message
        views.app.run()


def test_a_worker_is_scaled_and_stopped(cluster: Cluster, views: Views) -> None:
    worker = cluster.start_worker(views.app, threads=1)
    views.write()
    worker.scale(2)
    cluster.wait_until(views.is_exact, timedelta(minutes=5))
    worker.stop(timedelta(minutes=2))
    assert (worker.is_alive, worker.error) == (False, None)
    views.write()
    views.app.run()
    assert views.is_exact()


def test_a_worker_that_hangs_does_not_stop(cluster: Cluster, views: Views) -> None:
    worker = cluster.start_worker(views.app)
    cluster.advance(timedelta(minutes=1))
    worker.suspend()
    with pytest.raises(StreamsError, match="'worker' has not ended after"):
        worker.stop(timedelta(minutes=2))


def test_a_suspended_worker_sleeps_through_a_week_and_a_release(cluster: Cluster, views: Views) -> None:
    views.write()
    worker = cluster.start_worker(views.app)
    cluster.wait_until(views.is_exact, timedelta(minutes=5))
    worker.suspend()
    cluster.advance(timedelta(days=6))
    views.app.release("v2").reprocess().gate().cut()
    worker.resume()
    cluster.advance(timedelta(minutes=10))
    views.write()
    views.app.run()
    assert views.published() == {f"{page}!": count for page, count in views.expected.items()}


def test_a_release_is_continued_on_another_machine(cluster: Cluster, views: Views) -> None:
    views.write()
    views.app.run()
    views.app.release("v2").reprocess().gate()
    other = cluster.project(machine="other", by="someone else").app("views", build, versions={"v2": marked})
    views.write()
    views.app.run()
    assert other.release().cut().status.changed_by == "someone else"
    views.app.release().rollback()
    assert views.is_exact()


def test_a_cluster_is_entered_once(cluster: Cluster) -> None:
    with pytest.raises(StreamsError, match="A cluster is entered once"):
        cluster.__enter__()


def test_a_cluster_that_was_left_is_not_entered_again() -> None:
    with Cluster() as left:
        pass
    with pytest.raises(StreamsError, match="A cluster is entered once"):
        left.__enter__()


def test_clusters_are_not_nested(cluster: Cluster) -> None:
    with pytest.raises(StreamsError, match="Another cluster is open"):
        Cluster().__enter__()
    cluster.create_topic("still-open")


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.create_topic("in"),
        lambda cluster: cluster.project(),
        lambda cluster: cluster.input_topic("in", STRING, STRING).pipe_input("a", "b"),
        lambda cluster: cluster.output_topic("in", STRING, STRING).queue_size(),
        lambda cluster: cluster.table("in", STRING, STRING),
        lambda cluster: cluster.advance(timedelta(seconds=1)),
        lambda cluster: cluster.wait_until(lambda: True, timedelta(seconds=1)),
        lambda cluster: cluster.start("host", fail),
    ],
)
def test_a_cluster_does_nothing_outside_of_with(call: Callable[[Cluster], object]) -> None:
    unopened = Cluster()
    with pytest.raises(StreamsError, match="The cluster is not open"):
        call(unopened)
    with Cluster() as left:
        pass
    with pytest.raises(StreamsError, match="The cluster is not open"):
        call(left)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_client_of_a_host_that_takes_no_turns_sends_nothing(cluster: Cluster, *, hangs: bool) -> None:
    cluster.create_topic("in")
    written = cluster.output_topic("in", STRING, STRING)

    def write() -> None:
        producer = cluster.kafka.producer({"linger.ms": 0})
        producer.produce("in", key=b"a", value=b"1")
        cluster.turns.hang(cluster.turns.host, 60) if hangs else cluster.turns.suspend(cluster.turns.host)
        cluster.advance(timedelta(seconds=1))
        producer.flush(10)

    host = cluster.start("writer", write)
    cluster.advance(timedelta(seconds=50))
    assert written.queue_size() == 0
    host.resume()
    cluster.advance(timedelta(seconds=20))
    assert written.queue_size() == 1
