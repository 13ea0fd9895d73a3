"""The options of a bounded run are declared once, and the command line has an option for each."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from riverrun.cli.gathering import gathering
from riverrun.errors import ConfigError
from riverrun.project.runs import AppRuns
from riverrun.spark.options import DEFAULTS, RunOptions

RUNNER = CliRunner()


def test_every_option_of_a_run_is_a_keyword_of_its_method_with_its_default() -> None:
    keywords = inspect.signature(AppRuns.bounded).parameters.values()
    found = {each.name: each.default for each in keywords if each.kind is each.KEYWORD_ONLY}
    of_the_range = {"may_be_passed": False}
    assert found == {each.name: each.default for each in fields(RunOptions)} | of_the_range


def test_a_command_gets_the_options_of_a_dataclass_as_one_value() -> None:
    given: list[tuple[RunOptions, str, bool]] = []

    @gathering
    def command(*, options: RunOptions, name: str = "none", is_dry: bool = False) -> None:
        given.append((options, name, is_dry))

    app = typer.Typer()
    app.command()(command)
    for arguments in [], ["--engine", "local", "--no-gate", "--name", "b", "--is-dry"]:
        assert RUNNER.invoke(app, arguments).exit_code == 0
    assert given == [(DEFAULTS, "none", False), (RunOptions(engine="local", gate=False), "b", True)]
    assert RUNNER.invoke(app, ["--max-records-per-slice", "0"]).exit_code == 2


@pytest.mark.parametrize("number", [0, 1_000_000_001, True])
def test_a_slice_has_a_sensible_number_of_records(number: int) -> None:
    with pytest.raises(ConfigError, match="max_records_per_slice is"):
        RunOptions(max_records_per_slice=number)
