"""Spark sessions: in this process, on a cluster, or of a Spark Connect server."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from riverrun.config.secrets import is_secret
from riverrun.errors import ConfigError
from riverrun.extras import require_extra
from riverrun.spark.failures import spark_failures
from riverrun.spark.java import archive_options, launch_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

# Two cores, and up to four attempts of a task: `local[2]` would never retry.
DEFAULT_MASTER = "local[2,4]"

# Spark's default of `spark.task.maxFailures`.
DEFAULT_ATTEMPTS = 4

_NAME = "riverrun"
_CONNECT = "sc://"
_LOCAL = re.compile(r"local(\[\s*(\d+|\*)\s*(,\s*(?P<attempts>\d+)\s*)?\])?")
_MASTERS = re.compile(r"local(\[.+\])?|(sc|spark|k8s|local-cluster|yarn|mesos)\b.*")
_OF_A_SESSION = "spark.sql."
_PYTHON, _PY_FILES, _ARCHIVES = "spark.pyspark.python", "spark.submit.pyFiles", "spark.archives"
_DAEMON = {"spark.python.daemon.module": "riverrun.spark.daemon"}
_PACKAGES = "spark.jars.packages"
# Database drivers read times without a zone in Java's own zone, whatever a session says.
_UTC = "-Duser.timezone=UTC"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOG_LEVEL = "spark.log.level"
_TELLING_OF_FAILURES = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    # Of writers, for each attempt and for the job.
    "org.apache.spark.sql.execution.datasources",
    # Logs listeners that fail on a query that cannot be planned.
    "org.apache.spark.sql.util.ExecutionListenerBus",
    "org.apache.spark.util.Utils",
)


@dataclass(frozen=True, slots=True)
class SessionOnDemand:
    """Makes a session when it is called.

    Args:
        master: The master of the session that it would make; None if a session was passed.
        attempts: Number of times that this master tries a task whose error may pass.
        ahead: Context in which Java starts in the background, as a session is probably needed soon.
    """

    make: Callable[[], Any]
    master: str | None = None
    attempts: int = DEFAULT_ATTEMPTS
    ahead: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self) -> Any:
        return self.make()

    @property
    def is_local(self) -> bool:
        """Return whether Spark would run on this machine alone."""
        return self.master is not None and _LOCAL.fullmatch(self.master) is not None


def on_demand(
    make: Callable[[], Any],
    master: str | None,
    settings: Mapping[str, str],
    ahead: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> SessionOnDemand:
    """Return a function that makes a session, with the master and the number of attempts that Spark would have.

    >>> [on_demand(dict, master, {}).attempts for master in (None, "local[2]", "local[*,3]", "spark://a:7077")]
    [4, 1, 3, 4]
    """
    chosen = chosen_master(master, settings)
    local = _LOCAL.fullmatch(chosen)
    if local is not None:
        # Local masters ignore `spark.task.maxFailures`: a task has one attempt unless the master names a number.
        attempts = max(1, int(local["attempts"] or 1))
    else:
        failures = settings.get("spark.task.maxFailures", "")
        attempts = int(failures) if failures.isdecimal() else DEFAULT_ATTEMPTS
    return SessionOnDemand(make, chosen, attempts, ahead)


def chosen_master(master: str | None, settings: Mapping[str, str]) -> str:
    """Return the master that a session has: the given one, or that of the settings, or two cores of this machine."""
    return master or settings.get("spark.remote") or settings.get("spark.master") or DEFAULT_MASTER


def lazily(spark: Any) -> Callable[[], Any]:
    """Return a function that returns the session, or makes it once when needed; `spark` is a session, or makes one."""
    # A start takes many seconds, and there may be nothing to do.
    return cache(spark) if callable(spark) else lambda: spark


def spark_session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    name: str = _NAME,
    packages: Sequence[str] = (),
    archive: Path | None = None,
    output: Callable[[], AbstractContextManager[int | None]] = nullcontext,
) -> Any:
    """Return a new session, or the existing one.

    `settings` are Spark's, by its own names, and override those that are set here. `packages` are Maven coordinates
    (`org.postgresql:postgresql:42.7.7`). Spark downloads them when the session begins, so an existing session ignores them.
    `archive` is one of Spark's classes (`classes_archive`); it need not exist.
    """
    require_extra("spark")
    given = dict(settings or {})
    if packages:
        given[_PACKAGES] = ",".join([*_listed(given, _PACKAGES), *packages])
    chosen = chosen_master(master, given)
    given = _without_master(given)
    if not _MASTERS.fullmatch(chosen):
        message = f"{chosen!r} is not a Spark master"
        raise ConfigError(
            message, hint="local[2,4], spark://host:7077, yarn, k8s://..., or sc://host:15002 for Spark Connect."
        )
    with spark_failures(f"start with the master {chosen}"):
        if chosen.startswith(_CONNECT):
            return _connected(chosen, given)
        return _started(chosen, given, name, archive, output)


def start_java(
    master: str | None,
    settings: Mapping[str, str],
    *,
    archive: Path | None = None,
    output: Callable[[], AbstractContextManager[int | None]] = nullcontext,
) -> None:
    """Start the Java that `spark_session` would start with these arguments; none if Spark Connect's server has it."""
    require_extra("spark")
    chosen = chosen_master(master, settings)
    if not chosen.startswith(_CONNECT):
        with spark_failures(f"start with the master {chosen}"):
            _launch(chosen, _all_settings(chosen, _without_master(settings), archive), _NAME, output)


def _started(
    master: str,
    given: Mapping[str, str],
    name: str,
    archive: Path | None,
    output: Callable[[], AbstractContextManager[int | None]],
) -> Any:
    """Return a session whose driver is this process."""
    from pyspark.sql import SparkSession

    is_there = SparkSession.getActiveSession() is not None
    builder = SparkSession.builder.master(master).appName(name)
    settings = _all_settings(master, given, archive)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _ctrl_c_as_before():
        _launch(master, settings, name, output)
        session = builder.getOrCreate()
    # An existing session is its maker's: nothing of it is changed.
    if not is_there:
        _choose_interpreter(session, master, given)
        _end_without_trace(session)
        if _LOG_LEVEL not in given:
            _hush(session)
    return session


def _launch(
    master: str, settings: Mapping[str, str], name: str, output: Callable[[], AbstractContextManager[int | None]]
) -> None:
    # Without secrets: all users of this machine can read Java's arguments.
    shown = {key: value for key, value in settings.items() if not is_secret(key)}
    launch_java({"spark.master": master, "spark.app.name": name, **shown}, output)


def _without_master(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key not in {"spark.remote", "spark.master"}}


def _all_settings(master: str, given: Mapping[str, str], archive: Path | None) -> dict[str, str]:
    return {**_defaults(), **_virtual_machine(master, archive), **_interpreter(master, given), **given}


def _hush(session: Any) -> None:
    """Silence Java about failed queries and attempts of tasks: it logs traces of two languages; errors are raised anyway."""
    log4j = session._jvm.org.apache.logging.log4j  # noqa: SLF001 - the only way there
    for name in _TELLING_OF_FAILURES:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _end_without_trace(session: Any) -> None:
    """Silence pyspark's server of accumulators when Java dies."""
    # It would print a traceback, and the call of Spark under way fails as well.
    server = session.sparkContext._accumulatorServer  # noqa: SLF001 - the only way there
    print_trace = server.handle_error

    def handle_error(*request: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            print_trace(*request)

    server.handle_error = handle_error


@contextmanager
def _ctrl_c_as_before() -> Iterator[None]:
    """Disable Spark's handling of Ctrl-C, also while Spark starts."""
    from pyspark.core import context

    # Its handler cancels jobs over the connection on which this thread waits for their results. That connection cannot be
    # entered twice, so the result is a connection error instead of a `KeyboardInterrupt`. Without the handler the command
    # ends, and Spark with it. pyspark sets it by calling `signal.signal` through its own module.
    theirs: Any = context
    signals, theirs.signal = theirs.signal, SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_handler: None)
    try:
        yield
    finally:
        theirs.signal = signals


def _defaults() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        # By default 200, each of them a Python task: that takes minutes.
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.showConsoleProgress": "false",
        # Times without a zone mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        _LOG_LEVEL: "ERROR",
    }


def _virtual_machine(master: str, archive: Path | None) -> dict[str, str]:
    """Return Java's options: UTC and, with a local master, a quick start."""
    # On other machines, Java runs as the cluster's settings say.
    if not master.startswith("local"):
        return {"spark.driver.defaultJavaOptions": _UTC, "spark.executor.defaultJavaOptions": _UTC}
    # The optimising compiler and the parallel collector take half of the CPU time of a session's start. They hardly pay here,
    # as Java does little but hand tasks to Python.
    return {"spark.driver.defaultJavaOptions": f"{_UTC} {_QUICK} {archive_options(archive)}".strip()}


def _interpreter(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return settings by which executors run this interpreter with its modules, unless the settings name another one."""
    if _PYTHON in given:
        return {}
    # Machines of a cluster may have no Riverrun before its files are sent there.
    daemon = _DAEMON if master.startswith("local") else {}
    search_path = ":".join(entry for entry in sys.path if entry and Path(entry).is_dir())
    return {
        _PYTHON: sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": search_path,
        **daemon,
    }


def _choose_interpreter(session: Any, master: str, given: Mapping[str, str]) -> None:
    """Have Spark run the interpreter of the settings."""
    # A driver in this process ignores the setting: it runs PYSPARK_PYTHON, or else `python3`.
    context = session.sparkContext
    if _PYTHON in given:
        context.pythonExec = given[_PYTHON]
    elif master.startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable


def _connected(remote: str, given: Mapping[str, str]) -> Any:
    """Return a session of a Spark Connect server. Modules of its executors are installed there, or sent to them from here."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    for key, value in {**_defaults(), **given}.items():
        # A server refuses settings that do not belong to a session: they are its own.
        if key.startswith(_OF_A_SESSION):
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if files := _listed(given, _PY_FILES):
        session.addArtifacts(*files, pyfile=True)
    if archives := _listed(given, _ARCHIVES):
        session.addArtifacts(*archives, archive=True)
    return session


def _listed(given: Mapping[str, str], key: str) -> list[str]:
    return [path.strip() for path in given.get(key, "").split(",") if path.strip()]
