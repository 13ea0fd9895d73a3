"""Add-ons of other packages: their commands and loaders plug in, and what is wrong with them is said."""

from __future__ import annotations

import copy
import pydoc
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import pytest
from typer.testing import CliRunner

from riverrun import Riverrun
from riverrun.archive.manifest import ArchiveStore
from riverrun.cli.archive import url_of
from riverrun.cli.dev import files_in, watched_suffixes
from riverrun.cli.main import app, main
from riverrun.config import ProjectConfig
from riverrun.config.addons import loaded_others, loader_of
from riverrun.errors import ArchiveError, ConfigError, TopologyError
from riverrun.hosting.earlier_records import with_archive
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
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
        loaded_others.cache_clear()

    yield installed
    loaded_others.cache_clear()
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


def broken(install: Callable[..., None]) -> None:
    """Install an add-on that cannot be loaded."""
    install("acme-broken", {"broken": "acme_broken:ADD_ON"}, {"acme_broken.py": "raise ValueError"})


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
    assert tmp_path / "copies.routes" in files_in(tmp_path, watched_suffixes())
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
    known = "kafka, spark, schema_registry, console, logging, apps, exports, imports, archives, neighbours, routes"
    assert error.value.hint == f"Allowed: {known}. Did you mean 'routes'?"


def test_a_project_has_no_method_that_no_add_on_has(routes: ProjectConfig) -> None:
    project: Any = Riverrun(routes.path)
    with pytest.raises(AttributeError, match="'Riverrun' object has no attribute 'runs'"):
        _ = project.runs
    assert copy.copy(project).apps == ("copies",)


class Shop(Riverrun):
    """A project of a user's own class."""

    def run_export(self, spec: Any, **options: Any) -> Any:
        return spec, options, super().run_export

    def unread(self, *names: str) -> list[str]:
        found: list[str] = super().__getattr__("unread")(*names)  # type: ignore[misc]
        return found


def test_methods_of_riverruns_add_ons_are_methods_of_the_class(routes: ProjectConfig) -> None:
    project = Shop(routes)
    spec, options, inherited = project.run_export("spec", packages=())
    assert (spec, options, inherited.__self__) == ("spec", {"packages": ()}, project)
    assert project.unread("copies", "all") == ["returns"]  # a method of one's own may have the name of an add-on's
    assert Riverrun.run_import.__name__ == "run_import"
    with mock.patch.object(Riverrun, "export") as export:
        Riverrun(routes).export("totals")
    export.assert_called_once_with("totals")
    shown = pydoc.plain(pydoc.render_doc(Riverrun))
    for name in "archive", "declared_import", "export", "run_export", "run_import":
        assert name in dir(Riverrun)
        assert f" {name}(" in shown
    with pytest.raises(ConfigError, match="has no export 'total'"):
        Riverrun(routes).export("total")


def test_dir_lists_methods_of_add_ons(routes: ProjectConfig) -> None:
    assert {"unread", "app", "export"} <= set(dir(Riverrun(routes)))


def test_a_broken_add_on_makes_no_attribute_another_error(install: Callable[..., None], tmp_path: Path) -> None:
    broken(install)
    project: Any = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    assert not hasattr(project, "unread")
    assert "app" in dir(project)
    with pytest.raises(AttributeError, match=r"no attribute 'unread'.*'broken' of acme-broken 1.0 cannot be loaded"):
        _ = project.unread
    with mock.patch("importlib.metadata.entry_points", side_effect=AssertionError):
        assert not hasattr(project, "unread")  # the failure is kept


@pytest.mark.parametrize("work", ["raise ValueError", ""])
def test_a_section_whose_package_is_broken_stops_only_what_asks_for_it(
    routes: ProjectConfig, tmp_path: Path, work: str
) -> None:
    (tmp_path / "site" / "acme_routes_work.py").write_text(work)
    del sys.modules["acme_routes_work"]
    project = ProjectConfig.load(routes.path, {})
    assert list(project.apps) == ["copies"]
    with pytest.raises(ConfigError, match=r"Add-on 'routes' of acme-routes 1.0 cannot be loaded: Module"):
        project.declared("routes", "all")


def test_a_broken_method_or_archive_names_its_add_on(install: Callable[..., None], tmp_path: Path) -> None:
    text = "from riverrun.config import AddOn\nADD_ON = AddOn(archives={'acme': 'acme_z:z'}, methods={'z': 'acme_z:z'})"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
    project: Any = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    with pytest.raises(AttributeError, match=r"no attribute 'z'.*Add-on 'x' of acme-x 1.0 cannot be loaded"):
        _ = project.z
    with pytest.raises(ConfigError, match=r"Add-on 'x' of acme-x 1.0 cannot be loaded"):
        with_archive(Admin(Kafka({"bootstrap.servers": "127.0.0.1:1"})), "acme+s3://broken")


def test_a_section_may_declare_none(install: Callable[..., None]) -> None:
    text = "from riverrun.config import AddOn\nADD_ON = AddOn(sections={'acme': 'acme_x:read'})\ndef read(*_): pass"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "acme": {"a": {}}}
    assert ProjectConfig.read(Path("streams.toml"), content, {}).declared("acme", "a") is None


def test_what_sections_of_add_ons_declare_is_not_printed(routes: ProjectConfig) -> None:
    assert "returns" in routes.declared("routes", "all")
    assert "returns" not in repr(routes)


def test_dev_watches_own_files_where_an_add_on_is_broken(
    install: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(install)
    suffixes = watched_suffixes()
    assert ".sql" in suffixes
    assert "Add-on 'broken' of acme-broken 1.0 cannot be loaded" in capsys.readouterr().err
    (tmp_path / "a.sql").touch()
    assert tmp_path / "a.sql" in files_in(tmp_path, suffixes)


def test_an_add_ons_archive_is_none_that_commands_write(install: Callable[..., None], tmp_path: Path) -> None:
    text = "from riverrun.config import AddOn\nADD_ON = AddOn(archives={'acme': 'acme_tiers:Tiers'})"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
    own = {"topology": "m:f", "config": {"archive.url": "/data/kept"}}
    others_ = {"topology": "m:f", "config": {"archive.url": "acme+s3://bucket"}}
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "apps": {"a": own, "b": others_}}
    config = ProjectConfig.read(tmp_path / "streams.toml", content, {})
    assert url_of(Riverrun(config), None) == "/data/kept"
    with pytest.raises(ArchiveError, match=r"no archive at acme\+s3://bucket") as error:
        ArchiveStore("acme+s3://bucket")
    assert error.value.hint == (
        "Is it of an add-on? Install its package on each machine that reads it; riverrun archive does not write there."
    )


def test_a_command_of_riverrun_looks_for_no_add_on(install: Callable[..., None]) -> None:
    broken(install)
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
        ("ADD_ON = AddOn(sections={'kafka': 'json:loads'})", "Add-on 'x' of acme-x 1.0 has a section 'kafka', as"),
        ("ADD_ON = AddOn(methods={'app': 'json:loads'})", "Add-on 'x' of acme-x 1.0 has a method 'app', as"),
        ("ADD_ON = AddOn(methods={'_x': 'json:loads'})", "Add-on 'x' of acme-x 1.0 has a method '_x'"),
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
    admin = Admin(Kafka({"bootstrap.servers": "127.0.0.1:1"}))
    assert vars(with_archive(admin, "acme+s3://bucket").earlier) == {"url": "acme+s3://bucket"}
    assert type(with_archive(admin, "/data/a+b").earlier).__name__ == "ArchivedLog"
    assert type(with_archive(admin, "s3://bucket").earlier).__name__ == "ArchivedLog"
    assert with_archive(admin, "") is admin


def test_help_lists_own_commands_where_an_add_on_is_broken(install: Callable[..., None]) -> None:
    broken(install)
    done = run("--help")
    assert done.code == 0
    assert "clean-up" in done.output
    assert done.output.count("Add-on 'broken' of acme-broken 1.0 cannot be loaded") == 1


EXITS = {
    "sys.exit(7)": 7,
    "raise SystemExit(7)": 7,
    "raise typer.Exit(7)": 7,
    "sys.exit()": 0,
    "argparse.ArgumentParser().parse_args(['--unknown'])": 2,
    "acme_library.leave(7)": 7,
    "acme_sister.leave(7)": 7,
    "decorated(lambda: sys.exit(7))()": 7,
}
OF_A_CALLBACK = "next(readiness(lambda: sys.exit(7), max_lag=0, looks=1))"
# Whether the project is installed or not, Riverrun calls its code.
USER_CODE = [
    "next(readiness(acmes_user.sink, max_lag=0, looks=1))",
    "next(readiness(acme_installed.sink, max_lag=0, looks=1))",
]


@pytest.fixture
def ended(install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int | None]:
    """Run a command of an add-on, and return the code with which `riverrun` ends."""

    def run_main(body: str, command: str = "leave", decorator: str = "") -> int | None:
        imports = "import argparse, sys, typer, acme_library, acme_sister, acme_installed, acmes_user\n"
        imports += "from acme_library import decorated\nfrom riverrun.releases.step_checks import readiness"
        text = f"{imports}\nfrom riverrun.config import AddOn\n\n{decorator}\ndef leave() -> None:\n    {body}\n"
        text += "app = typer.Typer()\napp.command('one')(leave)\napp.command('two')(leave)\n"
        text += "ADD_ON = AddOn(commands={'leave': 'acme_x:leave', 'acme': 'acme_x:app'})\n"
        install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
        libraries = tmp_path / "site-packages"
        libraries.mkdir()
        leaving = "import functools, sys\ndef leave(code): sys.exit(code)\n"
        wrapping = "def decorated(f): return functools.wraps(f)(lambda *args: f(*args))\n"
        (libraries / "acme_library.py").write_text(leaving + wrapping)
        (tmp_path / "acme_sister.py").write_text(leaving)
        for place in (libraries / "acme_installed.py", tmp_path / "acmes_user.py"):
            place.write_text("import sys, acme_library\ndef sink(): acme_library.leave(0)\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), str(libraries), *sys.path])
        monkeypatch.setattr(sys, "argv", ["riverrun", *command.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return cast("int | None", end.value.code)

    return run_main


@pytest.mark.parametrize("decorator", ["", "@decorated"])
@pytest.mark.parametrize("command", ["leave", "acme two"])
@pytest.mark.parametrize(("body", "code"), EXITS.items())
def test_a_command_of_an_add_on_ends_with_its_own_code(
    ended: Callable[[str, str, str], int | None], body: str, code: int, command: str, decorator: str
) -> None:
    assert (ended(body, command, decorator) or 0) == code


def test_a_command_of_an_add_on_may_end_in_what_riverrun_calls(ended: Callable[[str], int | None]) -> None:
    assert ended(OF_A_CALLBACK) == 7


@pytest.mark.parametrize("body", USER_CODE)
def test_an_exit_of_code_that_riverrun_calls_for_an_add_on_is_an_error(
    ended: Callable[[str], int | None], body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(body) == 1
    assert "Error: sys.exit(0) was called" in capsys.readouterr().err


def test_two_add_ons_with_one_name_are_refused(install: Callable[..., None]) -> None:
    text = "from riverrun.config import AddOn, TopologyLoader\nADD_ON = AddOn(topologies={'.x': TopologyLoader('json:loads')})"
    install("acme-x", {"x": "acme_x:ADD_ON"}, {"acme_x.py": text})
    install("acme-y", {"x": "acme_y:ADD_ON"}, {"acme_y.py": text})
    with pytest.raises(
        ConfigError, match=r"Add-ons 'x' of acme-\w 1.0 and 'x' of acme-\w 1.0 have the same suffix, '.x'"
    ):
        loader_of("orders.x")
