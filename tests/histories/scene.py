"""The scene of a history of releases: the cluster, its hosts, and what has happened so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from riverrun.errors import (
    BrokerError,
    ForgottenOffsetsError,
    RangeError,
    ReleaseError,
    StreamsError,
    TopicError,
    UnknownOutcomeError,
)
from tests.histories.commands import quality
from tests.histories.history import WrongError
from tests.histories.versions import INPUT, LATER, Click, v1
from tests.histories.watch import Watch

if TYPE_CHECKING:
    from random import Random

    from riverrun.project.app import App
    from riverrun.simulation.cluster import Cluster, ClusterHost, ClusterWorker
    from tests.histories.failing import Failing
    from tests.histories.followers import Database

APP = "views"
_SESSION_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a whole history.

    Args:
        caches: Bytes of caches.
        gated: Whether bounded runs have a gate, which no worker may pass by.
        follows: Whether exports follow public topics into a database.
        archives: Whether the input is archived, and brokers delete what the archive has. Workers would need it.
    """

    guarantee: str
    caches: int
    gated: bool
    workers: bool
    runs: bool
    follows: bool = False
    archives: bool = False

    @classmethod
    def drawn(cls, random: Random) -> Kind:
        gated = random.random() < 0.25
        workers, runs = random.choice([(True, False), (True, True), (False, True)])
        return cls(
            random.choice([EXACTLY_ONCE_V2] * 4 + [AT_LEAST_ONCE]),
            random.choice([0, 10_000_000]),
            gated,
            workers and not gated,
            runs or gated,
            follows=random.random() < 0.3,
            archives=not workers and random.random() < 0.5,
        )


@dataclass
class Scene:
    """The state of a history.

    Args:
        said: What has happened, with the second of each event.
        clicks: All records of the input.
        was_harmed: Whether hosts have died or hung, or requests have failed, so that at least once may mean twice.
    """

    cluster: Cluster
    random: Random
    faults: Failing
    kind: Kind
    database: Database
    said: list[str] = field(default_factory=list)
    clicks: list[Click] = field(default_factory=list)
    workers: dict[str, ClusterWorker] = field(default_factory=dict)
    operators: dict[str, ClusterHost] = field(default_factory=dict)
    followers: dict[str, ClusterHost] = field(default_factory=dict)
    was_harmed: bool = False

    def __post_init__(self) -> None:
        self.began_ms = self.cluster.now_ms
        exactly_once = self.kind.guarantee == EXACTLY_ONCE_V2
        self.watch = Watch(self.cluster.brokers, APP, self.clicks, exactly_once)
        self.producer = self.cluster.kafka.producer({})

    def app(self, by: str = "main", version: str | None = None) -> App:
        """Return the application, as another process knows it."""
        project = self.cluster.project(machine=self.random.choice(["", "", "second"]), by=by)
        config: dict[str, Any] = {
            "processing.guarantee": self.kind.guarantee,
            "statestore.cache.max.bytes": self.kind.caches,
            "log.summary.interval.ms": 0,
            "node.sample.interval.ms": 0,
            "consumer.session.timeout.ms": _SESSION_SECONDS * 1000,
            "archive.url": self.archive_url,
        }
        app = project.app(
            APP, v1, versions=LATER, quality=quality if self.kind.gated else None, gate=self.kind.gated, config=config
        )
        return app if version is None else project.app(APP, version=version)

    @property
    def archive_url(self) -> str:
        """The place of the archive; empty if there is none."""
        return str(self.database.directory / "archive") if self.kind.archives else ""

    def say(self, what: str) -> None:
        self.said.append(f"{(self.cluster.now_ms - self.began_ms) / 1000:9.1f} s  {what}")

    def check(self) -> None:
        """Make sure that nothing wrong has become public so far."""
        if self.watch.wrong:
            raise WrongError("; ".join(self.watch.wrong[:5]))

    def write(self, user: str, page: str, time_ms: int) -> None:
        click = Click(len(self.clicks), user, page, time_ms)
        self.clicks.append(click)
        value = f"{page} {click.number}".encode()
        self.producer.produce(INPUT, key=user.encode(), value=value, partition=click.partition, timestamp=time_ms)

    def start(self, name: str, version: str | None) -> None:
        """Start a worker of a version, or of the live one."""
        threads = self.random.choice([1, 1, 2])
        self.workers[name] = self.cluster.start_worker(self.app(name, version), name, threads=threads)
        self.say(f"worker {name} of {version or 'the live version'} starts")

    def hosts(self) -> dict[str, ClusterHost]:
        return {**self.workers, **self.busy(), **self.followers}

    def busy(self) -> dict[str, ClusterHost]:
        return {name: host for name, host in self.operators.items() if host.is_alive}

    def some(self, hosts: dict[str, Any]) -> list[str]:
        return [self.random.choice(sorted(hosts))] if hosts else []

    def require_expected(self, error: BaseException) -> None:
        """Raise an error again that no command or worker may end with."""
        if isinstance(error, ForgottenOffsetsError):
            self.check()
            self.say("brokers have forgotten too much: a person decides where to continue")
            raise error
        is_expected = isinstance(error, ReleaseError | RangeError)
        # It has hung in the middle of a commit.
        is_expected = is_expected or (isinstance(error, UnknownOutcomeError) and self.was_harmed)
        # A worker has joined its group while its version is deleted: either may find what the other has done.
        is_expected = is_expected or (isinstance(error, BrokerError) and "group is not empty" in error.message)
        is_expected = is_expected or (isinstance(error, TopicError) and f"do not know topic {APP}-v" in error.message)
        if not is_expected and not (isinstance(error, BrokerError) and error.retriable):
            raise error

    def judge_end(self, name: str, host: ClusterHost) -> None:
        error = host.error
        if error is None:
            return
        self.say(f"{name} has ended: {type(error).__name__}: {error}"[:300])
        self.require_expected(error)

    def stop(self, name: str) -> bool:
        """Stop a worker, and kill it if it does not end. Return whether it has ended by itself."""
        worker = self.workers.pop(name)
        worker.resume()
        try:
            worker.stop(timedelta(minutes=2))
        except StreamsError as error:
            worker.kill()
            self.say(f"worker {name} is killed, as it does not end: {error}")
            self.judge_end(name, worker)
            return False
        self.say(f"worker {name} is stopped")
        return True

    def stop_all(self) -> None:
        for name in list(self.workers):
            if not self.stop(name):
                raise WrongError(self.said[-1])

    def drop_ended(self) -> bool:
        """Forget hosts that have ended, whose error must be an expected one. Return whether there were any."""
        has_ended = False
        for hosts in (self.workers, self.followers):
            for name, host in list(hosts.items()):
                if not host.is_alive:
                    del hosts[name]
                    self.judge_end(name, host)
                    has_ended = True
        return has_ended
