"""Files for contributors: what they name exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = [path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def hooks() -> list[dict[str, Any]]:
    content = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    return [hook for repository in content["repos"] for hook in repository["hooks"]]


def test_hooks_run_tools_that_are_locked() -> None:
    locked = (ROOT / "requirements.lock").read_text()
    packages = {"lint-imports": "import-linter", "python": "pytest"}
    tools = [Path(hook["entry"].split()[0]).name for hook in hooks()]
    assert [tool for tool in tools if f"\n{packages.get(tool, tool)}==" not in locked] == []


def test_hooks_run_tests_that_exist() -> None:
    named = [word for hook in hooks() for word in hook["entry"].split() if word.startswith("tests/")]
    assert named != []
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_of_issues_can_be_read_and_has_distinct_fields(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    fields = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert content["name"]
    assert content["description"]
    assert len(fields) == len(set(fields))


def test_the_container_of_developers_has_the_python_and_the_java_of_the_project() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    least = re.search(r"3\.\d+", project["project"]["requires-python"])
    assert least is not None
    assert f":{least[0]}-" in container["image"]
    assert [feature["version"] for name, feature in container["features"].items() if "/java:" in name] == ["17"]


def test_the_template_of_pull_requests_names_targets_and_files_that_exist() -> None:
    text = (ROOT / ".github/pull_request_template.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in re.findall(r"`make (\w+)`", text) if f"\n{target}:" not in makefile] == []
    assert [name for name in re.findall(r"[A-Z]+\.md", text) if not (ROOT / name).exists()] == []


def test_both_distributions_and_the_list_of_changes_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    plugin = tomllib.loads((ROOT / "plugins/pyproject.toml").read_text())["project"]
    assert plugin["version"] == version
    # It calls what the command calls, which may change with any version.
    assert f"riverrun[airflow]=={version}" in plugin["dependencies"]
    listed = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert listed[0] == version


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_workflow_runs_targets_that_exist_and_actions_that_cannot_change(workflow: Path) -> None:
    text, makefile = workflow.read_text(), (ROOT / "Makefile").read_text()
    targets = [target for line in re.findall(r"run: make ([\w ]+)", text) for target in line.split()]
    assert targets != []
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    actions = re.findall(r"uses: (\S+)", text)
    assert [action for action in actions if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)] == []


def test_each_supported_version_of_python_is_tested() -> None:
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least, beyond = map(int, re.findall(r"3\.(\d+)", supported))
    versions = [f"3.{minor}" for minor in range(least, beyond)]
    assert f"\nPYTHONS ?= {' '.join(versions)}\n" in (ROOT / "Makefile").read_text()
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    assert checks["jobs"]["matrix"]["strategy"]["matrix"]["python"] == versions


def test_the_site_is_published_under_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    shown = subprocess.run(
        ["make", "--dry-run", "publish"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"mike deploy --update-aliases {version.rpartition('.')[0]} latest" in shown


def test_no_parameter_of_a_test_differs_between_processes() -> None:
    """Each process of a run collects all tests, and pytest-xdist ends the run where their names differ."""
    by_chance = {
        "uuid1",
        "uuid4",
        "random",
        "randrange",
        "randint",
        "choice",
        "token_hex",
        "now",
        "getpid",
        "id",
    }
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if "parametrize" in ast.unparse(decorator)
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in by_chance
    ]
    assert found == []
