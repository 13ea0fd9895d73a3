"""One look at a project: the present state of brokers, the control topic, the record of runs, and instances.

A failure is reported in its place, and the rest is read regardless.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from riverrun.config.secrets import redacted
from riverrun.console.instances import Instances
from riverrun.console.shown import change_object, lag_object, release_object, run_object
from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import ReleaseError, StreamsError
from riverrun.hosting.application import load_application
from riverrun.hosting.clock import SystemClock
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.control.control_topic import ControlTopic
from riverrun.hosting.control.publication import CONTROL_TOPIC
from riverrun.hosting.inputs.lags import input_lags
from riverrun.kafka.reaching import require_answer
from riverrun.releases.control_topic.registry import Registry, Step, known_release
from riverrun.spark.planning.runs import RunLog
from riverrun.worker.group.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.project.riverrun import Riverrun
    from riverrun.releases.control_topic.registry import Release

_AT_ONCE = 4
"""Maximum number of applications that are read concurrently."""
_ASKED_AT_ONCE = 16
_BROKER_SECONDS = 3.0
_MOST_RUNS = 300
_MOST_CHANGES = 100


class Looking:
    """Reads the state of a project, without changing anything.

    Args:
        project: The project.
    """

    def __init__(self, project: Riverrun) -> None:
        self._cluster = project.cluster
        self._clock = SystemClock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "look")
        self._asking = ThreadPoolExecutor(_ASKED_AT_ONCE, "ask")
        self._apps = {name: _AppLook(project, name, self._asking) for name in project.config.apps}
        self._refused = [
            {"name": name, "error": str(refused.error), "versions": []}
            for name, refused in project.config.refused.items()
        ]
        self._seen: dict[str, Any] = {
            "project": project.config.path.resolve().parent.name,
            "brokers": self._cluster.kafka["bootstrap.servers"],
            "error": None,
            "seen_at": None,
            "apps": [*({"name": name, "error": None, "versions": []} for name in self._apps), *self._refused],
            "runs": [],
        }

    def look(self) -> dict[str, Any]:
        """Return the state of the project, as JSON shows it."""
        now_ms = self._clock.now_ms()
        try:
            admin = self._cluster.admin
            if not admin.is_answered(_BROKER_SECONDS):
                require_answer(self._cluster.kafka)
            notes, runs = ControlTopic(admin, CONTROL_TOPIC).read(), RunLog(admin).runs()[:_MOST_RUNS]
        except StreamsError as error:  # the last state stays visible, with its time
            return self._seen | {"at": now_ms, "error": _told(error)}
        apps = [*self._threads.map(lambda app: app.look(admin, notes), self._apps.values()), *self._refused]
        known = [run_object(run) for run in runs if run.app in self._apps]
        self._seen = self._seen | {"at": now_ms, "seen_at": now_ms, "apps": apps, "runs": known}
        return self._seen

    def close(self) -> None:
        """Close all connections."""
        for threads in (self._threads, self._asking):
            threads.shutdown(wait=False, cancel_futures=True)
        for app in self._apps.values():
            app.close()


class _Read:
    """The records of releases as they were read once, for all applications."""

    def __init__(self, notes: Mapping[str, bytes]) -> None:
        self._notes = notes

    def read(self) -> dict[str, bytes]:
        """Return the records."""
        return dict(self._notes)

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:  # noqa: ARG002 - as `Notes`
        """Refuse.

        Raises:
            ReleaseError: Always: the console only reads.
        """
        message = "The console writes nothing"
        raise ReleaseError(message)


class _AppLook:
    """Reads the state of one application."""

    def __init__(self, project: Riverrun, name: str, asking: ThreadPoolExecutor) -> None:
        self._project = project.config
        self._name = name
        self._config = project.app(name).config
        self._instances = Instances(project.app(name), asking)
        self._loaded: dict[str, Application] = {}

    def look(self, admin: Admin, notes: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the state of the application, as JSON shows it."""
        registry = Registry(_Read(notes))
        found: dict[str, Any] = {"name": self._name, "schedule": self._config.schedule, "error": None, "versions": []}
        try:
            release = known_release(registry, self._config, admin)
            found["release"] = release_object(release)
            found["history"] = [change_object(each) for each in registry.history(self._name)[-_MOST_CHANGES:]][::-1]
        except StreamsError as error:
            return found | {"error": _told(error)}
        return found | {
            "versions": [self._version(admin, version, release) for version in _versions(release, self._config)]
        }

    def close(self) -> None:
        """Close connections to instances."""
        self._instances.close()

    def _version(self, admin: Admin, version: str, release: Release) -> dict[str, Any]:
        application_id = self._config.application_id(version)
        found: dict[str, Any] = {
            "version": version,
            "id": application_id,
            "live": version == release.live,
            "error": None,
        }
        try:
            group = admin.group(application_id)
            servers = servers_of(admin, application_id) if group.members else []
            found |= {"group": group.state, "members": len(group.members), "scheme": self._instances.scheme}
            found["instances"] = self._instances.found(application_id, servers)
            found |= lag_object(input_lags(ConnectedApplication(self._application(version), admin)))
        except StreamsError as error:
            found["error"] = _told(error)
        return found

    def _application(self, version: str) -> Application:
        """Return the application with its topology. It is loaded once, and user code is not run again."""
        if version not in self._loaded:
            self._loaded[version] = load_application(self._project, self._name, StreamsBuilder, version=version)
        return self._loaded[version]


def _versions(release: Release, config: AppConfig) -> list[str]:
    """Return the versions that may run: the live one, and those of candidate and previous one that are still declared."""
    others = {Step.ABORTED: (), Step.NONE: ()}.get(release.step, (release.candidate, release.previous))
    declared = {config.version, *config.versions}
    return list(dict.fromkeys([release.live, *(other for other in others if other in declared)]))


def _told(error: StreamsError) -> str:
    return redacted(f"{error.message}. {error.hint}" if error.hint else error.message)
