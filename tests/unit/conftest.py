"""What unit tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browsers import chromium, emulate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests of a process: a start takes seconds."""
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.set_window_size(1100, 1000)
    yield browser
    emulate(browser)
    browser.get("about:blank")
