"""The pages' examples run: every Python block of README.md and docs, in order, each page in a namespace of its own."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import tomllib
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup

import riverrun
import riverrun.errors
import riverrun.testing
from riverrun.cli.main import app
from riverrun.config import AppConfig, ProjectConfig, StreamsConfig
from riverrun.config.streams import PREFIXED, dotted
from riverrun.demo import first_act
from riverrun.processor.handlers import DropReason
from tests.unit.page_tables import DOCS, ROOT, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IN_FILE = re.compile(r"`(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?riverrun (.+?)(?:  +#.*)?$|`riverrun ([-a-z][^`]*)`", re.MULTILINE)
_PLACEHOLDER = re.compile(r" [A-Z]+\b|\[|…")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


class Block(NamedTuple):
    """A Python block of a page, and the line it begins at, from 1."""

    source: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        yield Block(found[1], text.count("\n", 0, found.start(1)) + 1)


def run(page: Path, block: Block, names: dict[str, Any]) -> None:
    """Run a block: as a session, whose output is compared, if it has prompts."""
    if ">>> " in block.source:
        test = doctest.DocTestParser().get_doctest(block.source, names, page.name, str(page), block.line - 1)
        test.globs = names  # what a session defines, later blocks may use
        report: list[str] = []
        doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)
        return
    code = compile("\n" * (block.line - 1) + block.source, str(page), "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - it is our own


def code(cell: str) -> str:
    return cell.strip("`")


def text_of(value: object) -> str:
    """A default as TOML writes it."""
    match value:
        case str():
            return f'"{value}"'
        case ():
            return "[]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_do_what_it_says(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for found in _IN_FILE.finditer(page.read_text()):
        (tmp_path / found[1]).write_text(found[2])
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        run(page, block, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_can_be_parsed(page: Path) -> None:
    for found in _COMMAND.finditer(page.read_text().replace("\\\n", " ")):
        words = shlex.split(found[1] or found[2], comments=True)
        if not _PLACEHOLDER.search(found[0]) and len(words) > 1:
            parse(words)


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Let the command line read the words, and do nothing; raises what it would complain about."""
    command: Any = command_line()
    context = None
    while isinstance(command, TyperGroup):
        context = command.make_context(command.name, list(words), parent=context)
        words = [*context._protected_args, *context.args]
        if not words:  # a group with options of its own
            return
        _, command, words = command.resolve_command(context, words)
    command.make_context(command.name, list(words), parent=context)


@pytest.mark.parametrize("page", ["docs/tutorials/quick-start.md", "docs/configuration.md"])
def test_the_configuration_that_a_page_shows_can_be_loaded(page: str, tmp_path: Path) -> None:
    shown = next(found[1] for found in _FILE.finditer((ROOT / page).read_text()))
    path = tmp_path / "streams.toml"
    path.write_text(shown)
    project = ProjectConfig.load(path, {"KAFKA_PASSWORD": "secret"})
    assert list(project.apps) == ["clicks"]


def test_the_exports_that_the_guide_shows_can_be_declared(tmp_path: Path) -> None:
    shown = [found[1] for found in _FILE.finditer((DOCS / "how-to/follow.md").read_text())]
    names = {name for block in shown for name in re.findall(r"\[exports\.([\w-]+)\]", block)}
    assert names == {"analysis", "archive", "clicks-on", "customers", "lake", "orders", "shelf", "totals"}
    environ = {"SHOP_PASSWORD": "secret", "POD_NAME": "totals-1", "CATALOG_TOKEN": "secret"}
    content: dict[str, Any] = {"exports": {}}
    for block in map(tomllib.loads, shown):
        content |= {key: value for key, value in block.items() if key != "exports"}
        for name, table in block["exports"].items():
            content["exports"][name] = content["exports"].get(name, {}) | table
    project = ProjectConfig.read(tmp_path / "streams.toml", content, environ)
    assert all(project.declared("exports", name).topic for name in names)
    assert project.declared("exports", "totals").target == "postgresql+psycopg2://shop:secret@db/shop"
    assert project.declared("exports", "archive").consumer["group.instance.id"] == "totals-1"


def test_the_imports_that_the_guide_shows_can_be_declared(tmp_path: Path) -> None:
    shown = [tomllib.loads(found[1]) for found in _FILE.finditer((DOCS / "how-to/poll.md").read_text())]
    tables = {name: table for block in shown for name, table in block["imports"].items()}
    assert tables.keys() == {"clicks", "orders", "prices", "users"}
    content = {**shown[0], "imports": tables}
    project = ProjectConfig.read(tmp_path / "streams.toml", content, {"SHOP_PASSWORD": "secret"})
    assert all(project.declared("imports", name).topic == name for name in {*tables} - {"users"})
    assert project.declared("imports", "orders").source == "postgresql+psycopg2://shop:secret@db/shop"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = [match[1] for match in _LINK.finditer(page.read_text())]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_places_in_docker_that_a_page_names_exist(page: Path) -> None:
    named = {name.rstrip("./") for name in re.findall(r"\bdocker/[\w./-]+", page.read_text())}
    secrets = {name for name in named if name.startswith("docker/secrets")}
    assert [name for name in sorted(named - secrets) if not (ROOT / name).exists()] == []


def test_the_readme_leads_to_few_pages() -> None:
    linked = {match[1] for match in _LINK.finditer((ROOT / "README.md").read_text())}
    assert len({page for page in linked if page.startswith("docs/") and page.endswith(".md")}) <= 25


def test_the_readme_fits_in_three_screens_and_shows_the_topology_of_the_first_act() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    assert inspect.getsource(first_act.build) in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_metrics_that_a_page_names_exist(page: Path) -> None:
    source = (ROOT / "pipeline/riverrun/service/metrics.py").read_text()
    prefixes = re.findall(r'^_[A-Z]+ = "(kafka_streams_\w+_)"$', source, re.MULTILINE)
    names = {f"{prefix}{name}" for prefix in prefixes for name in re.findall(r'f"\{_[A-Z]+\}(\w+)"', source)}
    named = set(re.findall(r"kafka_streams_\w+_metrics_\w+[a-z]", page.read_text()))
    own = {name for name in named if name.startswith(tuple(prefixes))}
    assert {name.removesuffix("_total") for name in own} <= names


def test_every_key_of_an_application_is_documented_with_its_default() -> None:
    documented = {code(row[0]): code(row[1]) for row in rows("configuration.md", "## `[apps.<name>]`")}
    expected = {
        field.name: "required"
        if field.default is MISSING
        else "none"
        if field.default is None
        else text_of(field.default)
        for field in fields(AppConfig)
        if field.name
        not in {"name", "versions", "outputs", "carry", "streams", "schema_registry", "logging", "elsewhere"}
    }
    assert documented == expected


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {code(row[0]): code(row[1]) for row in rows("configuration.md", "## `[apps.<name>.config]`")}
    expected = {
        field.name.replace("_", "."): text_of(field.default)
        for field in fields(StreamsConfig)
        if dotted(field.name) not in PREFIXED
    }
    assert documented == expected


def test_every_prefix_is_documented() -> None:
    documented = {code(row[0]) for row in rows("configuration.md", "### Prefixes")}
    assert documented == {f"{prefix}.*" for prefix in PREFIXED}


def test_every_reason_for_dropping_a_record_is_documented() -> None:
    assert {code(row[0]) for row in rows("errors.md", "## Records that are dropped")} == set(DropReason)


def test_the_messages_that_troubleshooting_explains_are_those_of_the_code() -> None:
    code_of = "".join(path.read_text() for path in (ROOT / "pipeline/riverrun").rglob("*.py"))
    messages = [code(row[0]) for row in rows("troubleshooting.md", "## Messages")]
    rendered = {
        "streams.toml does not exist": "{path} does not exist",
        "needs pyspark, which": "needs {package}, which",
    }
    for shown, written in rendered.items():
        messages = [message.replace(shown, written) for message in messages]
    assert len(messages) > 15
    assert [message for message in messages if message not in code_of] == []


def test_every_error_is_documented() -> None:
    documented = {code(row[0]) for row in rows("errors.md", "## Errors")}
    classes = {name for name, found in vars(riverrun.errors).items() if isinstance(found, type)}
    assert documented == classes


def test_the_names_that_java_names_are_translated_to_exist() -> None:
    translated, _, _ = (DOCS / "coming-from-kafka-streams.md").read_text().partition("\n## Running\n")
    names = re.findall(r"^\| .+ \| `([A-Za-z_.]+)[^|]*` \|", translated, re.MULTILINE)
    assert len(names) > 50
    missing = []
    for name in names:
        found: Any = riverrun.testing if name.startswith(("TopologyTestDriver", "Test", "Mock")) else riverrun
        for part in name.split("."):
            found = getattr(found, part, found.__dataclass_fields__.get(part) if _is_option(found) else None)
        if found is None:
            missing.append(name)
    assert missing == []


def _is_option(found: object) -> bool:
    return hasattr(found, "__dataclass_fields__")
