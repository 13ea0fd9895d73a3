"""Fixtures that unit tests share."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun.cli import main as cli
from tests.browsers import chromium, emulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@pytest.fixture
def riverrun_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a command in this process and its test's directory; returns its exit code, and what it has printed."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["riverrun", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        code: object = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        shown = capsys.readouterr()
        assert isinstance(code, int)
        return code, shown.out + shown.err

    return run


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
