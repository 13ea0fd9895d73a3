"""Fixtures for all tests: a broker of the session's own, and names nobody else has."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.brokers import Broker, embedded_broker, free_port
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from xdist.workermanage import WorkerController

# A change is judged by what it changes: new inputs are tried while developing. No test is judged by the machine's load.
settings.register_profile("riverrun", derandomize=bool(os.environ.get("CI")), deadline=None)
settings.load_profile("riverrun")

# Shells start background processes with SIGINT ignored, and these would hand that down to all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("RIVERRUN_PREPARE_SPARK", "0")  # commands with a home of their own need no archive of classes

CRASHES = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    embedded = embedded_broker(tmp_path_factory.mktemp("kafka"), free_port())
    embedded.start()
    yield Broker(embedded.bootstrap_servers)
    embedded.stop()


@pytest.fixture
def unique() -> str:
    """A name for the topics and the application of one test."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests, which last as long as the process.

    It would visit thousands of tests and their parameters again and again, and take longer than most of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin no test behind the deadline of a run that has one: a machine may be too slow for all of them.

    Those left out are counted in the summary; without `TESTS_END_AT`, seconds since 1970, none is.
    """
    end = os.environ.get("TESTS_END_AT")
    if end and time.time() > float(end):
        pytest.skip("not begun: the run's deadline has passed")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the trace of a process that crashes: what it prints itself is easily lost among the output of others."""
    if process := getattr(config, "workerinput", None):
        faulthandler.enable(crash_file(config, process["workerid"]).open("w"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    if error is not None:
        config = node.config
        config.stash[CRASHES] = config.stash.get(CRASHES, 0) + 1
        trace = crash_file(config, node.gateway.id).read_text() or "It has left no trace: was it killed?"
        print(f"\nprocess {node.gateway.id} has crashed: {error}\n{trace}")
        forget_finished_files(config, node)


def forget_finished_files(config: pytest.Config, node: WorkerController) -> None:
    """Forget the files whose tests a crashed process had all run: pytest-xdist would wait for their tests without end.

    It assigns all files of the process again. One without tests left never ends, so nothing is assigned after it.
    """
    session: Any = config.pluginmanager.getplugin("dsession")
    files = getattr(session.sched, "assigned_work", {}).get(node, {})
    for name in [name for name, tests in files.items() if all(tests.values())]:
        del files[name]


def crash_file(config: pytest.Config, process: str) -> Path:
    return present(config.cache).mkdir("crashes") / f"{process}.txt"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the code of an interruption if crashed processes were not replaced: their other tests have not run."""
    if session.config.stash.get(CRASHES, 0) > int(session.config.getoption("maxworkerrestart", None) or 0):
        session.exitstatus = pytest.ExitCode.INTERRUPTED


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
