"""A newcomer's first steps: the commands of README.md and of the tutorials, literally and in order, with the built wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.followed_pages import Shell, follow, home_of_a_newcomer
from tests.system.packages import build_packages, install_wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
TUTORIALS = [f"docs/tutorials/{name}.md" for name in ("quick-start", "first-hour", "sql")]
pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in whose environment the wheels are installed."""
    wheels = tmp_path_factory.mktemp("wheels")
    build_packages(wheels)
    return install_wheels(wheels, tmp_path_factory.mktemp("installed") / "environment")


@pytest.fixture
def shell(tmp_path: Path, new_port: Callable[[], int], python: Path) -> Iterator[Shell]:
    ports = {"19092": str(new_port()), "8090": str(new_port())}
    shell = Shell(tmp_path / "project", ports, home_of_a_newcomer(tmp_path / "home"), python)
    yield shell
    shell.run("riverrun broker stop")


@pytest.mark.parametrize("page", ["README.md", *TUTORIALS])
def test_the_commands_of_a_page_show_what_it_says(page: str, shell: Shell) -> None:
    follow((ROOT / page).read_text(), shell)
