"""The documentation as a site: each page is listed, and each link leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("index", "running/index", "architecture/index", "internals/releases/index", "reference/pipeline/index")


def test_the_site_is_built_without_a_warning_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, f"List new pages under nav in mkdocs.yml, mend links.\n{built.stdout}{built.stderr}"
    for page in PAGES:
        text = (tmp_path / f"{page}.html").read_text()
        assert not [part for part in ('src="http', 'rel="stylesheet" href="http') if part in text], page
    reference = (tmp_path / "reference/pipeline/index.html").read_text()
    assert all(f'id="pipeline.{name}"' in reference for name in ("StreamsBuilder", "KStream.map", "Millrace"))
