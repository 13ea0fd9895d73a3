"""Polls the state of a project for the console: brokers, the control topic, the record of runs, and instances.

A thread polls while a page shows the state. A failure is reported in its place, and the rest is read regardless.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.config.secrets import redacted
from riverrun.console.needs import needs_of
from riverrun.console.shown import change_object, instance_object, lag_object, release_object, run_object
from riverrun.errors import ReleaseError, StreamsError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.continuing import expiry_warning
from riverrun.hosting.control_topic import ControlTopic, ReleaseRegistry, known_release
from riverrun.hosting.inputs import dropped_so_far, input_lags
from riverrun.hosting.process import SystemClock
from riverrun.hosting.release import CONTROL_TOPIC, ReleaseStep
from riverrun.project.graph_pictures import page_picture
from riverrun.project.members import graph_of
from riverrun.project.surprises import surprises
from riverrun.releases.topology import load_application
from riverrun.service.connections import scheme_of
from riverrun.service.history import KEPT_MS, Ring
from riverrun.service.peers import Members, NoAnswerError
from riverrun.spark.runs import RunLog
from riverrun.worker.group.protocol import servers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin
    from riverrun.project.app import App
    from riverrun.project.riverrun import Riverrun

log = logging.getLogger(__name__)

_MOST_ASKED = 64
"""Maximum number of workers that are asked; of further ones only the address is shown."""


class Instances:
    """The workers of one application, in all its versions."""

    def __init__(self, app: App, threads: Executor) -> None:
        self._streams = app.config.streams
        self._token = app.token
        self._threads = threads
        self._members: dict[str, Members] = {}

    @property
    def scheme(self) -> str:
        """The scheme of pages' addresses: `http` or `https`."""
        return scheme_of(self._streams)

    def found(self, application_id: str, servers: list[str]) -> list[dict[str, Any]]:
        """Return the status of the workers of a version, or the reason why one does not answer."""
        members = self._members_of(application_id)
        known = self._threads.map(lambda server: _asked(members, server), servers[:_MOST_ASKED])
        return [
            *known,
            *(_silent(server, "not queried: there are too many instances") for server in servers[_MOST_ASKED:]),
        ]

    def close(self) -> None:
        for members in self._members.values():
            members.close()

    def _members_of(self, application_id: str) -> Members:
        if application_id not in self._members:
            self._members[application_id] = Members(self._streams, self._token, application_id)
        return self._members[application_id]


def _asked(members: Members, server: str) -> dict[str, Any]:
    try:
        return instance_object(server, members.ask(server, "/status"))
    except NoAnswerError as error:
        return _silent(server, str(error))
    # Another program answers there, or another version of Riverrun.
    except (AttributeError, KeyError, TypeError):
        return _silent(server, "it does not answer like an instance")


def _silent(server: str, why: str) -> dict[str, Any]:
    return {"server": server, "state": "unknown", "error": why}


_AT_ONCE = 4
"""Maximum number of applications that are read concurrently."""
_ASKED_AT_ONCE = 16
_BROKER_SECONDS = 3.0
_MOST_RUNS = 300
_MOST_CHANGES = 100


class Looking:
    """Reads the state of a project, without changing anything."""

    def __init__(self, project: Riverrun) -> None:
        self._cluster = project.cluster
        self._clock = SystemClock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "look")
        self._asking = ThreadPoolExecutor(_ASKED_AT_ONCE, "ask")
        self._graph = _GraphLook(project)
        self._apps = {name: _AppLook(project, name, self._asking) for name in project.config.apps}
        self._refused = [
            {"name": name, "error": str(refused.error), "versions": []}
            for name, refused in project.config.refused.items()
        ]
        self._seen: dict[str, Any] = {
            "project": project.config.path.resolve().parent.name,
            "brokers": self._cluster.kafka.servers,
            "error": None,
            "seen_at": None,
            "apps": [*({"name": name, "error": None, "versions": []} for name in self._apps), *self._refused],
            "runs": [],
            "graph": "",
        }

    def look(self) -> dict[str, Any]:
        """Return the state of the project as a JSON object."""
        now_ms = self._clock.now_ms()
        try:
            admin = self._cluster.admin
            # A short question first: without brokers, each read would wait for its full timeout.
            if not admin.is_answered(_BROKER_SECONDS):
                admin.require_answer()
            notes, runs = ControlTopic(admin, CONTROL_TOPIC).read(), RunLog(admin).runs()[:_MOST_RUNS]
        # The last state stays visible, with its time.
        except StreamsError as error:
            return self._seen | {"at": now_ms, "error": _told(error)}
        apps = [*self._threads.map(lambda app: app.look(admin, notes), self._apps.values()), *self._refused]
        for app in apps:
            app["needs"] = needs_of(app, [run for run in runs if run.app == app["name"]])
        known = [run_object(run) for run in runs if run.app in self._apps]
        live = {app["name"]: app["release"]["live"] for app in apps if "release" in app}
        seen = {
            "at": now_ms,
            "seen_at": now_ms,
            "apps": apps,
            "runs": known,
            "graph": self._graph.look(live, self._loaded(live)),
        }
        self._seen = self._seen | seen
        return self._seen

    def _loaded(self, live: Mapping[str, str]) -> dict[str, Application]:
        found = {name: self._apps[name].loaded.get(version) for name, version in live.items()}
        return {name: application for name, application in found.items() if application is not None}

    def between(self) -> dict[str, Any]:
        """Return the picture of the graph at the last look, and what is surprising about it, as a JSON object."""
        return self._graph.document

    def close(self) -> None:
        for threads in (self._threads, self._asking):
            threads.shutdown(wait=False, cancel_futures=True)
        for app in self._apps.values():
            app.close()


class _GraphLook:
    """The graph of the live versions. It is made again when others go live."""

    def __init__(self, project: Riverrun) -> None:
        self._project = project
        self.document: dict[str, Any] = {"name": "", "picture": "", "surprising": [], "unknown": []}

    def look(self, live: Mapping[str, str], loaded: Mapping[str, Application]) -> str:
        """Return the name of the graph of these versions, by which a page knows that there is another picture."""
        name = ", ".join(f"{app} {version}" for app, version in live.items()) or "nothing is live"
        if name != self.document["name"]:
            try:
                found = self._drawn(live, loaded)
            # The state of the applications is shown without it.
            except Exception as error:
                log.exception("cannot draw the project")
                unknown = [redacted(f"the topics are not known: {type(error).__name__}: {error}")]
                found = {"picture": "", "surprising": [], "unknown": unknown}
            self.document = {"name": name, **found}
        return name

    def _drawn(self, live: Mapping[str, str], loaded: Mapping[str, Application]) -> dict[str, Any]:
        graph = graph_of(self._project.config, live, self._project.cluster.kafka, loaded)
        picture, lack = page_picture(graph)
        unknown = [redacted(f"{member} is not known: {why}") for member, why in graph.unknown.items()]
        return {
            "picture": picture,
            "surprising": [each.text for each in surprises(graph)],
            "unknown": [*unknown, *([lack] if lack else [])],
        }


class _Read:
    """The records of releases as they were read once for all applications (`Notes`)."""

    def __init__(self, notes: Mapping[str, bytes]) -> None:
        self._notes = notes

    def read(self) -> dict[str, bytes]:
        return dict(self._notes)

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:  # noqa: ARG002 - as `Notes`
        """Refuse: the console only reads."""
        raise ReleaseError("The console is read-only")


class _AppLook:
    """Reads the state of one application; threads of `Looking` call it one at a time."""

    def __init__(self, project: Riverrun, name: str, asking: ThreadPoolExecutor) -> None:
        self._project = project.config
        self._kafka = project.cluster.kafka
        self._name = name
        self._config = project.app(name).config
        self._instances = Instances(project.app(name), asking)
        # Loaded once: loading runs users' code, which may be slow or have effects.
        self.loaded: dict[str, Application] = {}

    def look(self, admin: Admin, notes: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the state of the application as a JSON object."""
        registry = ReleaseRegistry(_Read(notes))
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
            application = self._application(version).reading(release.elsewhere(version))
            connected = ConnectedApplication(application, admin)
            found |= lag_object(input_lags(connected))
            found["dropped"] = dict(dropped_so_far(connected.resolved()))
            found["error"] = found["error"] or expiry_warning(admin, self._config, version)
        except StreamsError as error:
            found["error"] = _told(error)
        return found

    def _application(self, version: str) -> Application:
        if version not in self.loaded:
            self.loaded[version] = load_application(self._project, self._name, version=version, kafka=self._kafka)
        return self.loaded[version]


def _versions(release: Release, config: AppConfig) -> list[str]:
    """Return the versions that may run: the live one, and those of candidate and previous one that are still declared."""
    others = {ReleaseStep.ABORTED: (), ReleaseStep.NONE: ()}.get(release.step, (release.candidate, release.previous))
    declared = {config.version, *config.versions}
    return list(dict.fromkeys([release.live, *(other for other in others if other in declared)]))


def _told(error: StreamsError) -> str:
    return redacted(f"{error.message}. {error.hint}" if error.hint else error.message)


EVERY_SECONDS = 5.0
# The pause is this multiple of the CPU time of a poll, up to the longest pause, so that polling takes about a fifth of a core.
# Time spent waiting for brokers does not count: it is no load.
_SHARE = 4
_LONGEST_PAUSE_SECONDS = 10.0
_UNWATCHED_SECONDS = 30.0
_MOST_APPS = 200
"""Maximum number of applications whose lag and rate are remembered."""
_SERIES_OF_AN_APP = 2
_END_SECONDS = 2.0


class ProjectWatch:
    """Keeps the last state of a project, and polls for it while it is wanted.

    Args:
        look: Returns the state; may take any time.
        every_s: Least time between two polls, s.
    """

    def __init__(self, look: Callable[[], dict[str, Any]], every_s: float = EVERY_SECONDS) -> None:
        self._look = look
        self._every_s = every_s
        self._wanted_at = float("-inf")
        self._is_wanted, self._ends = threading.Event(), threading.Event()
        self._ring = Ring(KEPT_MS // int(EVERY_SECONDS * 1000), _SERIES_OF_AN_APP * _MOST_APPS)
        self._latest: dict[str, Any] = {"at": None}
        self._encoded = _event(self._latest)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> dict[str, Any]:
        """Return the last state; its `at` is None before the first. Each call keeps the polling going."""
        self._wanted_at = time.monotonic()
        self._is_wanted.set()
        return self._latest

    async def event(self) -> bytes:
        """Return the last state as a server-sent event."""
        _ = self.latest
        return self._encoded

    def since(self, at_ms: int) -> dict[str, Any]:
        """Return lags and rates of live versions at the polls after a time (ms since the epoch), as a JSON object."""
        looked_ms = self._latest["at"] or 0
        every_ms = int(self._latest.get("every_s", self._every_s) * 1000)
        return {"looked_at": looked_ms, "every_ms": every_ms, "kept_ms": KEPT_MS, **self._ring.since(at_ms)}

    def close(self) -> None:
        self._ends.set()
        # The thread may be waiting for a page.
        self._is_wanted.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._ends.is_set():
            if time.monotonic() - self._wanted_at > _UNWATCHED_SECONDS:
                self._is_wanted.clear()
                self._is_wanted.wait()
                continue
            begun, used = time.monotonic(), time.process_time()
            found = self._with_rates(self._looked())
            took, load = time.monotonic() - begun, time.process_time() - used
            pause = min(max(self._every_s, _SHARE * load), max(self._every_s, _LONGEST_PAUSE_SECONDS))
            if not found.get("error") and found["at"] is not None:
                self._ring.add(found["at"], _lags(found) | _rates(found))
            self._latest = found | {"took_s": round(took, 2), "every_s": round(took + pause, 1)}
            self._encoded = _event(self._latest)
            self._ends.wait(pause)

    def _with_rates(self, found: dict[str, Any]) -> dict[str, Any]:
        """Add to each application how many offsets its live version has committed per second since the last poll."""
        before = {app["name"]: app for app in self._latest.get("apps", ())}
        elapsed_ms = (found["at"] or 0) - (self._latest["at"] or 0)
        # A failed poll repeats what was seen before, which is no standstill.
        if found.get("error") or self._latest.get("error") or elapsed_ms <= 0:
            return found
        for app in found.get("apps", ()):
            app["rate"] = _rate(app, before.get(app["name"], {}), elapsed_ms)
        return found

    def _looked(self) -> dict[str, Any]:
        try:
            return self._look()
        # The thread must go through: without it, the page would stand still without an explanation.
        except Exception as error:
            log.exception("cannot inspect the project")
            return self._latest | {"error": f"{type(error).__name__}: {error}"}


def _lags(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the lag of the live version of each application."""
    live = {app["name"]: _live(app) for app in found.get("apps", ())}
    return {f"lag/{name}": version["lag"] for name, version in live.items() if "lag" in version}


def _rates(found: Mapping[str, Any]) -> dict[str, float]:
    return {f"rate/{app['name']}": app["rate"] for app in found.get("apps", ()) if app.get("rate") is not None}


def _rate(app: Mapping[str, Any], before: Mapping[str, Any], elapsed_ms: int) -> float | None:
    """Return the offsets per second that the live version of an application has committed; None if that is unknown."""
    now, then = _live(app), _live(before)
    if now.get("id") != then.get("id") or "committed" not in now or "committed" not in then:
        return None
    # Offsets go back if an operator sets them, or a topic is created again.
    committed: int = now["committed"] - then["committed"]
    return max(0.0, committed * 1000 / elapsed_ms)


def _live(app: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((version for version in app.get("versions", ()) if version.get("live")), {})


def _event(found: dict[str, Any]) -> bytes:
    return b"event: state\ndata: " + msgspec.json.encode(found) + b"\n\n"
