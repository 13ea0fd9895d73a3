"""Fixtures that unit tests share."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.browsers import chromium, emulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome


@pytest.fixture(autouse=True, scope="module")
def restored_handlers() -> Iterator[None]:
    """Fails where a file leaves a handler of Ctrl-C or SIGTERM behind, which would get the signals of other tests."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def recursion_limit() -> Iterator[int]:
    """Python's usual one: libraries raise it for a whole process (mypy 16 times), and chains that exceed it grow likewise."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    """One for all tests of a process: a start takes seconds."""
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser: Chrome) -> Iterator[Chrome]:
    """An empty page."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.set_window_size(1100, 1000)
    yield browser
    emulate(browser)
    browser.get("about:blank")
