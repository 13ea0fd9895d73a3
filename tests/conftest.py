"""Fixtures for all tests: a broker of the session's own, and names nobody else has."""

from __future__ import annotations

import os
import signal
import statistics
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from pipeline.kafka.embedded.broker import EmbeddedBroker
from tests.brokers import HOME, Broker, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdist.workermanage import WorkerController

# A change is judged by what it changes: new inputs are tried while developing. No test is judged by the machine's load.
settings.register_profile("millrace", derandomize=bool(os.environ.get("CI")), deadline=None)
settings.load_profile("millrace")

# Shells start background processes with SIGINT ignored, and these would hand that down to all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CRASHED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), HOME, free_port())
    embedded.start()
    yield Broker(embedded.bootstrap_servers)
    embedded.stop()


@pytest.fixture
def unique() -> str:
    """A name for the topics and the application of one test."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    node.config.stash[CRASHED] = error is not None or node.config.stash.get(CRASHED, False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the code of an interruption if a process has crashed: its other tests have not run, and pytest says `failed`."""
    if session.config.stash.get(CRASHED, False):
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
