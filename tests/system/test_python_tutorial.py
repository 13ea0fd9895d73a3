"""The page about Riverrun in Python is run as a session, with a broker."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.brokers import Broker

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from-python.md"
_SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def test_the_session_of_the_page_shows_what_it_says(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "\n".join(_SESSION.findall(PAGE.read_text())).replace("127.0.0.1:19092", broker.bootstrap_servers)
    for name in "visits", "visit-counts":  # the broker is shared
        source = source.replace(f'"{name}"', f'"{unique}-{name}"')
    source = source.replace("'visits-v1'", f"'{unique}-visits-v1'").replace("mean 'visits'", f"mean '{unique}-visits'")
    source = source.replace('project.app("visit")', f'project.app("{unique}-visit")')
    test = doctest.DocTestParser().get_doctest(source, {"__name__": "tutorial"}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=report.append)
    assert not report, "".join(report)
