"""`riverrun reset` refuses before it says what it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from riverrun.cli import operations
from riverrun.errors import StreamsError
from riverrun.kafka.admin import TopicSpec
from riverrun.records import OffsetVector
from riverrun.worker.reset import Reset


@pytest.mark.parametrize("members", [(), ("w@h",), ("w@h", "run")])
@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reset_that_is_refused_deletes_nothing_and_does_not_say_so(
    members: tuple[str, ...], yes: bool, dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Reset("app-v1", ("app-v1-x-changelog",), (), OffsetVector({}), TopicSpec("kept", 1), members)
    done: list[Reset] = []
    app: Any = SimpleNamespace(state=SimpleNamespace(plan_reset=lambda _start: plan, reset=done.append))
    project = SimpleNamespace(app=lambda *_, **__: app)
    monkeypatch.setattr(operations, "settings_of", lambda _context: SimpleNamespace(project=lambda: project))
    command = typer.Typer()
    command.command()(operations.reset)
    options = [*(["--yes"] if yes else []), *(["--dry-run"] if dry_run else [])]
    found = CliRunner().invoke(command, ["app", *options])
    is_refused = not dry_run and (bool(members) or not yes)
    assert isinstance(found.exception, StreamsError) == is_refused
    assert ("delete topic" in found.output) != is_refused
    assert bool(done) == (not dry_run and not is_refused)
