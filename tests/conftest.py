"""Fixtures for all tests: a broker of the session's own, and names nobody else has."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import statistics
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import durations
from tests.brokers import Broker, embedded_broker, free_port, memory_broker
from tests.depth import DEEP, depth
from tests.leftovers import end_with_this_process
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from xdist.workermanage import WorkerController

# A change is judged by what it changes: new inputs are tried while developing. No test is judged by the machine's load.
settings.register_profile(
    "riverrun", derandomize=bool(os.environ.get("CI")) and not DEEP, max_examples=depth(100, 1000), deadline=None
)
settings.load_profile("riverrun")

# Shells start background processes with SIGINT ignored, and these would hand that down to all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("RIVERRUN_PREPARE_SPARK", "0")  # commands with a home of their own need no archive of classes

CRASHED = pytest.StashKey[bool]()
GUARD = pytest.StashKey[object]()


@pytest.fixture(autouse=True)
def level_of_logging() -> None:
    """Begin with Python's level: Airflow sets another one when it is imported, and tests look at what is logged."""
    logging.root.setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    embedded = embedded_broker(tmp_path_factory.mktemp("kafka"), free_port())
    embedded.start()
    yield Broker(embedded.bootstrap_servers)
    embedded.stop()


@pytest.fixture(scope="session")
def broker(real_broker: Broker) -> Broker:
    """A real broker. Files whose tests need none as a rule put `any_broker` in its place."""
    return real_broker


@pytest.fixture
def any_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker for tests that are marked `broker`, and a new one in memory for the others.

    Before a release, deep tests have a real one as well: processes die on it at each of their writes.
    """
    is_deep = DEEP and request.node.get_closest_marker("deep")
    if is_deep or request.node.get_closest_marker("broker"):
        yield request.getfixturevalue("real_broker")
    else:
        with memory_broker() as broker:
            yield broker


@pytest.fixture
def unique() -> str:
    """A name for the topics and the application of one test."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests, which last as long as the process.

    It would visit thousands of tests and their parameters again and again, and take longer than most of them. While tests run
    it looks as rarely as in workers.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> durations.ByGroup | None:
    return durations.ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where groups of tests are handed out to several processes."""
    if config.getoption("loadgroup", default=False):
        items[:] = durations.longest_first(items, durations.known())


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the trace of a process that crashes: what it prints itself is easily lost among the output of others."""
    if process := getattr(config, "workerinput", None):
        faulthandler.enable(crash_file(config, process["workerid"]).open("w"))
    else:
        config.stash[GUARD] = end_with_this_process()
        config.pluginmanager.register(durations.Noting(config))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    if error is not None:
        node.config.stash[CRASHED] = True
        trace = crash_file(node.config, node.gateway.id).read_text() or "It has left no trace: was it killed?"
        print(f"\nprocess {node.gateway.id} has crashed: {error}\n{trace}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the code of an interruption if a process has crashed: its other tests have not run."""
    if session.config.stash.get(CRASHED, default=False):
        session.exitstatus = pytest.ExitCode.INTERRUPTED


def crash_file(config: pytest.Config, process: str) -> Path:
    return present(config.cache).mkdir("crashes") / f"{process}.txt"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long instances took, at their start and after what tests did to them, until all their tasks ran."""
    ended = [report for report in terminalreporter.getreports("") if report.when == "teardown"]
    found = {report.nodeid: dict(report.user_properties).get("recovery_s") for report in ended}
    if any(found.values()):
        terminalreporter.section("seconds until all tasks of an instance ran, after a change of its tasks")
    for test, seconds in found.items():
        if seconds:
            shown = f"median {statistics.median(seconds):.1f}, maximum {max(seconds):.1f}, of {len(seconds)}"
            terminalreporter.line(f"{shown}: {test}")
    for report in ended:
        judged: dict[str, int] | None = dict(report.user_properties).get("wrong_inputs")
        if judged:
            everything = sum(judged.values())
            share = f"{judged.get('clear', 0) / everything:.1%} of {everything} wrong inputs have a clear answer"
            others = ", ".join(f"{number} {name}" for name, number in judged.items() if name != "clear")
            terminalreporter.line(f"{share}; {others or 'no other'}: {report.nodeid}")
