"""The documentation as a site: each page is listed, each link leads somewhere, and no page fetches anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durations import known

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pipeline/riverrun"
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]*\bsrc="http|<link[^>]*\brel="(?:stylesheet|preload|icon)"[^>]*href="http'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NO_MKDOCS_2_WARNING", "1")
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, f"List new pages under nav in mkdocs.yml, mend links.\n{built.stdout}{built.stderr}"
    return directory


def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text() for path in sorted(site.rglob("*.html"))}


def test_every_document_has_a_page(site: Path) -> None:
    found = pages(site)
    documents = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(name) for name in documents if f"{name}/index.html" not in found] == []
    assert "index.html" in found


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    assert [(name, each) for name, text in pages(site).items() for each in FETCHED.findall(text)] == []


def test_settings_are_shown_with_their_types_alone(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", pages(site)["reference/riverrun.config/index.html"])
    assert "commit_interval_ms: int" in text
    assert "Annotated[" not in text


def test_no_page_shows_markdown_that_was_not_understood(site: Path) -> None:
    raw = re.compile(r"^\|\s*-{3,}|<p>```|\]\([^)\s]+\.md", re.MULTILINE)
    shown = {name: re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL) for name, text in pages(site).items()}
    assert [(name, each) for name, text in shown.items() for each in raw.findall(text)] == []


@pytest.mark.parametrize(
    "words",
    [
        "backfill", "backpressure", "blue/green", "breakpoints", "canary", "cron", "databricks", "dedup", "dlq", "enrich",
        "exactly once postgres", "fastapi", "gdpr", "interactive queries", "macos", "oom", "poison pill", "rebalance",
        "rename field", "replay", "reprocess one day", "sizing", "timer", "ttl", "watermarks",
    ],
)  # fmt: skip
def test_a_title_has_the_words_by_which_people_search(site: Path, words: str) -> None:
    titles = [each["title"].lower() for each in json.loads((site / "search/search_index.json").read_text())["docs"]]
    assert [title for title in titles if all(word in title for word in words.split())] != []


def test_the_reference_has_the_public_names(site: Path) -> None:
    reference = pages(site)["reference/riverrun/index.html"]
    assert all(f'id="riverrun.{name}"' in reference for name in ("StreamsBuilder", "KStream.map", "Riverrun"))


def modules_named_in(page: Path) -> list[str]:
    """Names that a page writes like `room.module` or `riverrun.room.module`, perhaps with a name in the module behind it."""
    rooms = "|".join(path.stem for path in CODE.iterdir() if not path.name.startswith("__"))
    return re.findall(rf"`(?:riverrun\.)?((?:{rooms})(?:\.[A-Za-z_]+)+)", page.read_text())


def exists(named: str) -> bool:
    place, [*names] = CODE, named.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").exists():
        place /= f"{names.pop(0)}.py"
    else:
        place /= "__init__.py"
    return not names or (place.exists() and re.search(rf"\b{names[0]}\b", place.read_text()) is not None)


@pytest.mark.parametrize(
    "page",
    [
        *(ROOT / "docs/internals").glob("*.md"),
        ROOT / "docs/pitfalls.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
    ],
    ids=lambda page: page.stem,
)
def test_modules_that_a_page_about_the_code_names_exist(page: Path) -> None:
    settings = {
        "archive.url",
        "state.dir",
        "topology.optimization",
        "spark.python.daemon.module",
        "state.cleanup.delay.ms",
    }
    assert [each for each in modules_named_in(page) if not exists(each) and each not in settings] == []


def test_the_dearest_tests_are_those_that_the_page_explains() -> None:
    """The first ten, if durations vary a little between runs."""
    named = re.findall(r"^\| `(test_\w+)`", (ROOT / "docs/internals/dear-tests.md").read_text(), re.MULTILINE)
    longest = sorted(known().items(), key=lambda each: -each[1])[:20]
    assert len(named) >= 10
    assert {*named} <= {test.rpartition("::")[2].partition("[")[0] for test, _ in longest}
