"""Add-ons of other packages: their commands and loaders plug in, and what is wrong with them is said."""

from __future__ import annotations

import copy
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from typer.testing import CliRunner

from riverrun import Riverrun
from riverrun.cli.dev import files_in
from riverrun.cli.main import app
from riverrun.config import ProjectConfig
from riverrun.config.addons import loader_of, others
from riverrun.errors import ConfigError, TopologyError
from riverrun.hosting.earlier_records import with_archive
from riverrun.kafka.admin import Admin
from riverrun.releases.release_plan import statement_digests_of
from riverrun.releases.topology import load_application

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PAGE = (Path(__file__).parents[2] / "docs/how-to/add-ons.md").read_text()
FILES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
TOML = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PACKAGE, PROJECT = (tomllib.loads(text) for text in TOML)
(COPIES,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Seen(NamedTuple):
    code: int
    output: str


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install distributions whose entry points name add-ons."""
    site = tmp_path / "site"
    modules = set(sys.modules)

    def installed(name: str, points: Mapping[str, str], files: Mapping[str, str]) -> None:
        about = site / f"{name.replace('-', '_')}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point} = {reference}\n" for point, reference in points.items()]
        (about / "entry_points.txt").write_text("[riverrun.addons]\n" + "".join(lines))
        for file, text in files.items():
            (site / file).write_text(text)
        monkeypatch.syspath_prepend(site)
        others.cache_clear()

    yield installed
    others.cache_clear()
    for module in set(sys.modules) - modules:
        if module.startswith("acme"):
            del sys.modules[module]


@pytest.fixture
def routes(install: Callable[..., None], tmp_path: Path) -> ProjectConfig:
    """The page's add-on, and its project."""
    install(PACKAGE["project"]["name"], PACKAGE["project"]["entry-points"]["riverrun.addons"], FILES)
    (tmp_path / "copies.routes").write_text(COPIES)
    (tmp_path / "streams.toml").write_text(f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n{TOML[1]}')
    return ProjectConfig.load(tmp_path / "streams.toml", {})


def run(*arguments: str) -> Seen:
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Seen(done.exit_code, done.output)


def test_the_pages_add_on_loads_a_topology(routes: ProjectConfig, tmp_path: Path) -> None:
    assert PROJECT["apps"]["copies"]["topology"] == "copies.routes"
    assert routes.app("copies").topology == str(tmp_path / "copies.routes")
    application = load_application(routes, "copies")
    assert "orders-copy" in application.topology.describe()
    assert tmp_path / "copies.routes" in files_in(tmp_path)
    assert list(statement_digests_of(application)) == COPIES.splitlines()


def test_the_pages_add_on_names_the_line_of_a_mistake(routes: ProjectConfig, tmp_path: Path) -> None:
    (tmp_path / "copies.routes").write_text("clicks to copy\n")
    with pytest.raises(TopologyError, match="line 1, has no arrow"):
        load_application(routes, "copies")
    (tmp_path / "copies.routes").unlink()
    with pytest.raises(ConfigError, match=r"copies.routes cannot be read: No such file"):
        load_application(routes, "copies")


def test_the_pages_add_on_has_a_command(routes: ProjectConfig) -> None:
    assert run("--config", str(routes.path), "routes", "copies") == (0, "clicks, orders\n")
    assert "routes" in run("--help").output


def test_the_pages_add_on_has_a_section_and_a_method(routes: ProjectConfig) -> None:
    project: Any = Riverrun(routes.path)
    assert project.unread("copies", "all") == PROJECT["routes"]["all"]["topics"][2:] == ["returns"]
    with pytest.raises(ConfigError, match="has no route 'al'") as error:
        project.unread("copies", "al")
    assert error.value.hint == "Declare it in [routes.al]. Did you mean 'all'?"
    assert routes.section("nothing") == {}


def test_a_mistake_in_a_section_of_an_add_on_stops_no_other(routes: ProjectConfig) -> None:
    text = routes.path.read_text() + "[routes.none]\n"
    routes.path.write_text(text)
    project = ProjectConfig.load(routes.path, {})
    assert project.declared("routes", "all")
    with pytest.raises(ConfigError, match=r"\[routes.none\] needs topics"):
        project.declared("routes", "none")
    routes.path.write_text(text.replace("[routes", "[router"))
    with pytest.raises(ConfigError, match="unknown key router") as error:
        ProjectConfig.load(routes.path, {})
    known = "kafka, spark, schema_registry, console, logging, apps, exports, imports, archives, routes"
    assert error.value.hint == f"Allowed: {known}. Did you mean 'routes'?"


def test_a_project_has_no_method_that_no_add_on_has(routes: ProjectConfig) -> None:
    project: Any = Riverrun(routes.path)
    with pytest.raises(AttributeError, match="'Riverrun' object has no attribute 'runs'"):
        _ = project.runs
    assert copy.copy(project).apps == ("copies",)


def test_a_command_of_riverrun_looks_for_no_add_on(install: Callable[..., None]) -> None:
    install("acme-broken", {"broken": "acme_broken:ADD_ON"}, {"acme_broken.py": "raise ValueError"})
    assert run("worker", "--help").code == 0
    assert loader_of("orders.sql") is not None
    assert loader_of("shop.orders:build") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no')", "Add-on 'x' of acme-x 1.0 cannot be loaded: .*ValueError: no"),
        ("import acme_y", "Add-on 'x' of acme-x 1.0 cannot be loaded: .*No module named 'acme_y'"),
        ("", "Add-on 'x' of acme-x 1.0 cannot be loaded: Module acme_x has no attribute 'ADD_ON'"),
        ("ADD_ON = 3", "Add-on 'x' of acme-x 1.0 cannot be loaded: acme_x:ADD_ON is of type int"),
        ("ADD_ON = AddOn(commands={'z': 'acme_z:z'})", "Add-on 'x' of acme-x 1.0 cannot be loaded: .*acme_z"),
        ("ADD_ON = AddOn(commands={'worker': 'json:loads'})", "Add-on 'x' of acme-x 1.0 has a command 'worker', as"),
        ("ADD_ON = AddOn(commands={'sql': 'json:loads'})", "Add-ons 'sql' and 'x' of acme-x 1.0 .*command, 'sql'"),
        (
            "ADD_ON = AddOn(archives={'': 'json:loads'})",
            "Add-ons 'archive' and 'x' of acme-x 1.0 .*prefix of archives, ''",
        ),
        ("ADD_ON = AddOn(topologies={'.sql': TopologyLoader('json:loads')})", "Add-ons 'sql' and 'x' .*suffix, '.sql'"),
    ],
)
def test_what_is_wrong_with_an_add_on_is_said(install: Callable[..., None], text: str, message: str) -> None:
    install(
        "acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": f"from riverrun.config import AddOn, TopologyLoader\n{text}"}
    )
    with pytest.raises(ConfigError, match=message):
        run("nothing")


def test_an_add_on_has_records_in_front_of_topics(install: Callable[..., None]) -> None:
    text = "from riverrun.config import AddOn\nADD_ON = AddOn(archives={'acme': 'acme_tiers:Tiers'})"
    tiers = "class Tiers:\n    def __init__(self, url):\n        self.url = url"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text, "acme_tiers.py": tiers})
    admin = Admin({"bootstrap.servers": "127.0.0.1:1"})
    assert vars(with_archive(admin, "acme+s3://bucket").earlier) == {"url": "acme+s3://bucket"}
    assert type(with_archive(admin, "/data/a+b").earlier).__name__ == "ArchivedLog"
    assert type(with_archive(admin, "s3://bucket").earlier).__name__ == "ArchivedLog"
    assert with_archive(admin, "") is admin


def test_help_lists_own_commands_where_an_add_on_is_broken(install: Callable[..., None]) -> None:
    install("acme-broken", {"broken": "acme_broken:ADD_ON"}, {"acme_broken.py": "raise ValueError"})
    done = run("--help")
    assert done.code == 0
    assert "clean-up" in done.output
    assert done.output.count("Add-on 'broken' of acme-broken 1.0 cannot be loaded") == 1


def test_two_add_ons_with_one_name_are_refused(install: Callable[..., None]) -> None:
    text = "from riverrun.config import AddOn, TopologyLoader\nADD_ON = AddOn(topologies={'.x': TopologyLoader('json:loads')})"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
    install("acme-y", {"x": "acme_y:ADD_ON"}, {"acme_y.py": text})
    with pytest.raises(
        ConfigError, match=r"Add-ons 'x' of acme-\w 1.0 and 'x' of acme-\w 1.0 have the same suffix, '.x'"
    ):
        loader_of("orders.x")
