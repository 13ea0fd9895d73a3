"""`riverrun release`: what it says, as text and as JSON, how it ends, and that a refusal or a rehearsal changes nothing."""

from __future__ import annotations

import importlib
import json
import linecache
import sys
from dataclasses import dataclass, make_dataclass, replace
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from riverrun import JSON, STRING, Consumed, Materialized, StreamsBuilder, Topology
from riverrun.cli import main as cli
from riverrun.cli import release as commands
from riverrun.cli.project import code_of
from riverrun.config import ProjectConfig
from riverrun.errors import (
    ApprovalNeededError,
    BrokerError,
    ConfigError,
    GateFailedError,
    NotReadyError,
    ReleaseError,
    StreamsError,
    UnderWayError,
    VersionConflictError,
)
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.gated import GateVerdict
from riverrun.hosting.release import ACTIONS, Release, ReleaseStep
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.releases import chain
from riverrun.releases.release_plan import ReleasePlan, readable_rows, statement_digests_of
from riverrun.releases.releaser import Releaser
from riverrun.releases.step_checks import Readiness
from riverrun.releases.topology import load_application
from riverrun.releases.verdicts import suite_digest
from riverrun.releases.versions import Versions, processing_application
from riverrun.spark.bounded_runs.job import RunSummary
from riverrun.spark.ranges import RunRange
from tests.presence import present
from tests.unit.releases.control_topic.notes import MemoryNotes

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
from riverrun import STRING, Consumed, Produced

def build(builder):
    builder.stream("clicks", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    return builder.build()

def build_v2(builder):
    builder.stream("clicks", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))
    return builder.build()
"""
DONE, FAILED, USAGE, NOT_READY, REFUSED, GATE_FAILED, NEEDS_APPROVAL = 0, 1, 2, 4, 5, 6, 7


@dataclass
class Shell:
    """Runs commands on a project whose control topic is in memory."""

    path: Path
    notes: MemoryNotes
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def declare(self, *versions: str) -> None:
        lines = "\n".join(f'{each} = "{self.path.stem}_shop:build_v2"' for each in versions)
        text = (
            f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[apps.clicks]\ntopology = "{self.path.stem}_shop:build"\n'
        )
        self.path.write_text(f"{text}[apps.clicks.versions]\n{lines}\n")

    def registry(self, by: str = "ann@desk") -> ReleaseRegistry:
        return ReleaseRegistry(self.notes, by)

    def releaser(self, *_: Any) -> Releaser:
        return Releaser(
            ProjectConfig.load(self.path, {}), "clicks", Admin(Kafka({})), lambda: None, registry=self.registry()
        )

    def at(self, step: ReleaseStep, **changes: Any) -> Release:
        digests = self.releaser()._checks.digests(Release("clicks", "v1", candidate="v2"))
        verdict = GateVerdict("7f3a", "clicks-0@9", suite_digest([]), digests, {"rows": "failed: 9"}, (), ("rows",))
        release = Release("clicks", "v1", step, "v2", verdict=verdict, digests=digests)
        return self.registry().write(replace(release, **changes))

    def module(self, text: str) -> None:
        """Change the code of the application, as for a process that starts now."""
        (self.path.parent / f"{self.path.stem}_shop.py").write_text(text)
        sys.modules.pop(f"{self.path.stem}_shop", None)
        importlib.invalidate_caches()
        linecache.clearcache()

    def processing(self) -> ReleaseError | None:
        """Load version 2 for a worker; return why that is refused."""
        try:
            processing_application(ProjectConfig.load(self.path, {}), Admin(Kafka({})), "clicks", "v2")
        except ReleaseError as error:
            return error
        return None

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["riverrun", "--config", str(self.path), "release", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = self.capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, output.out, output.err


@pytest.fixture
def shell(
    tmp_path: Path, unique_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    shell = Shell(tmp_path / f"{unique_name}.toml", MemoryNotes(), capsys, monkeypatch)
    (tmp_path / f"{unique_name}_shop.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a change of as many bytes within a second would be missed
    monkeypatch.setattr(cli, "interrupt_on_sigterm", lambda: None)
    monkeypatch.setattr(cli, "start_logging", lambda _style: None)
    monkeypatch.setattr(commands, "_releaser", shell.releaser)
    # These ask brokers whether anybody is at work.
    for looking in ("step_checks.require_nobody", "switch.Switch.check"):
        monkeypatch.setattr(f"riverrun.releases.{looking}", lambda *_: None)
    monkeypatch.setattr(Versions, "staged", lambda _versions, _version: SimpleNamespace(application=None))
    monkeypatch.setattr(Versions, "begun", lambda _versions, release, *_, **__: release)
    monkeypatch.setattr("riverrun.releases.versions.release_of", lambda *_: shell.registry().read("clicks", "v1"))
    monkeypatch.setattr(Versions, "has_begun", lambda *_: False)
    shell.declare("v2", "v3")
    return shell


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    return f"p{abs(hash(request.node.nodeid))}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StreamsError, FAILED),
        (ConfigError, FAILED),
        (BrokerError, FAILED),
        (NotReadyError, NOT_READY),
        (ReleaseError, REFUSED),
        (UnderWayError, REFUSED),
        (VersionConflictError, REFUSED),
        (GateFailedError, GATE_FAILED),
        (ApprovalNeededError, NEEDS_APPROVAL),
    ],
)
def test_scripts_tell_from_the_exit_code_what_has_to_happen_next(error: type[StreamsError], code: int) -> None:
    assert code_of(error("no")) == code


def test_status_names_the_command_that_comes_next(shell: Shell) -> None:
    gated = shell.at(ReleaseStep.GATED)
    code, out, _ = shell("status", "clicks")
    assert code == DONE
    assert "clicks: v1 is live; release: gated v2" in out
    assert "verdict 7f3a, at clicks-0@9: needs an approval\n  failed: rows: 9" in out
    assert out.endswith("Next: riverrun release approve clicks --verdict 7f3a\n")
    code, out, _ = shell("status", "clicks", "--json")
    found = json.loads(out)
    assert (code, found["step"], found["verdict"]["id"], found["revision"]) == (DONE, "gated", "7f3a", gated.revision)
    assert found["next"] == "riverrun release approve clicks --verdict 7f3a"


def test_each_step_has_one_next_action_and_each_action_is_a_method_and_a_command() -> None:
    for step in ReleaseStep:
        assert len([name for name, action in ACTIONS.items() if step in action.next_at]) == 1, step
    known: Any = get_command(commands.app)
    for name, action in ACTIONS.items():
        taken = signature(getattr(Releaser, name)).parameters
        assert ("carry" in taken) == action.carries, name
        options = {option for each in known.commands[name].params for option in each.opts}
        assert not action.option or f"--{action.option}" in options, name


def test_a_person_approves_a_verdict_and_the_cut_may_be_made(shell: Shell) -> None:
    shell.at(ReleaseStep.GATED)
    code, out, err = shell("cut", "clicks", "--json")
    answer = json.loads(out)
    assert (code, answer["exit_code"], answer["error"]) == (NEEDS_APPROVAL, NEEDS_APPROVAL, "ApprovalNeededError")
    assert "approve clicks --verdict 7f3a" in answer["hint"]
    assert "Error:" in err
    assert shell("approve", "clicks", "--verdict", "7f3b")[0] == REFUSED
    code, out, _ = shell("approve", "clicks", "--verdict", "7f3a")
    assert code == DONE
    assert "approved by ann@desk" in out
    assert out.endswith("Next: riverrun release cut clicks\n")
    code, out, _ = shell("cut", "clicks", "--dry-run")
    assert code == DONE
    assert "this would make v2 live in the place of v1" in out


@pytest.mark.parametrize(
    ("arguments", "step", "changes", "said"),
    [
        (("start", "clicks", "--to", "v2"), ReleaseStep.ABORTED, {}, "begin the release of v2"),
        (("reprocess", "clicks"), ReleaseStep.PLANNED, {}, "compute v2 up to where v1 stands"),
        (("gate", "clicks"), ReleaseStep.REPROCESSED, {}, "judge v2"),
        (("approve", "clicks", "--verdict", "7f3a"), ReleaseStep.GATED, {}, "approve the warnings of verdict 7f3a"),
        (("cut", "clicks"), ReleaseStep.GATED, {"verdict": None}, None),
        (
            ("rollback", "clicks"),
            ReleaseStep.LIVE,
            {"live": "v2", "previous": "v1"},
            "make v1 live again in the place of v2",
        ),
        (("rollback", "clicks"), ReleaseStep.LIVE, {"live": "v2", "previous": None}, None),
        (("abort", "clicks"), ReleaseStep.REPROCESSED, {}, "give up the release of v2"),
        (("restore", "clicks", "--live", "v2"), ReleaseStep.LIVE, {}, None),
        (("abort", "clicks"), ReleaseStep.LIVE, {}, None),
    ],
)
def test_a_rehearsal_says_what_a_step_would_do_and_changes_nothing(
    shell: Shell, arguments: tuple[str, ...], step: ReleaseStep, changes: dict[str, Any], said: str | None
) -> None:
    plan = ReleasePlan("clicks", "v1", "v2", {}, RunRange({}))
    shell.monkeypatch.setattr(Releaser, "plan", lambda _releaser, _to, **_: plan)
    shell.at(step, **changes)
    before = shell.notes.read()
    code, out, err = shell(*arguments, "--dry-run")
    assert shell.notes.read() == before
    if said is None:
        assert code == REFUSED, err
        assert shell(*arguments)[0] == REFUSED, "as the step itself"
        assert shell.notes.read() == before
        return
    assert (code, said in out) == (DONE, True), err
    code, out, _ = shell(*arguments, "--dry-run", "--json")
    assert (code, json.loads(out)["dry_run"]) == (DONE, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "clicks"),
        ("start", "clicks", "--to", "v2", "--through", "rollback"),
        ("cut", "clicks", "--accept-warnings"),
        ("approve", "clicks"),
        ("promote", "clicks"),
    ],
)
def test_a_command_line_that_is_not_understood_has_a_code_of_its_own(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell(*arguments)[0] == USAGE
    assert shell.notes.read() == {}


def test_the_log_shows_who_did_what(shell: Shell) -> None:
    planned = shell.registry("ann@desk").write(Release("clicks", "v1").to(ReleaseStep.PLANNED, candidate="v2"))
    shell.registry("airflow:clicks/manual_1").write(planned.to(ReleaseStep.ABORTED))
    code, out, _ = shell("log", "clicks")
    first, second = out.splitlines()
    assert code == DONE
    assert first.endswith("ann@desk  none -> planned: v1 is live, v2 is the candidate")
    assert "airflow:clicks/manual_1  planned -> aborted" in second
    changes = json.loads(shell("log", "clicks", "--json")[1])["changes"]
    assert [(each["revision"], each["step"]) for each in changes] == [(1, "planned"), (2, "aborted")]


def test_a_chain_of_steps_stops_where_a_person_is_asked(shell: Shell) -> None:
    shell.at(ReleaseStep.ABORTED, verdict=None)
    taken: list[str] = []
    has_workers, warnings = False, tuple[str, ...](("rows",))

    def reprocess(releaser: Releaser) -> RunSummary:
        taken.append("reprocess")
        releaser._registry.write(releaser.status().to(ReleaseStep.REPROCESSED))
        return RunSummary(RunRange({}), 1)

    def gate(releaser: Releaser) -> Release:
        taken.append("gate")
        warned = GateVerdict("7f3a", "clicks-0@9", "", {}, {}, (), warnings)
        return releaser._registry.write(releaser.status().to(ReleaseStep.GATED, verdict=warned))

    def cut(releaser: Releaser) -> Release:
        taken.append("cut")
        return releaser._registry.write(releaser.status().to(ReleaseStep.CUTTING).to(ReleaseStep.LIVE, live="v2"))

    def wait_ready(_releaser: Releaser) -> list[Readiness]:
        taken.append("await")
        return [Readiness(5000, 5000, 100.0, 0.0, is_ready=False), Readiness(3, 3, 100.0, 0.0, is_ready=True)]

    shell.monkeypatch.setattr(Releaser, "is_followed", lambda _releaser: has_workers)
    for step in (reprocess, wait_ready, gate, cut):
        shell.monkeypatch.setattr(Releaser, step.__name__, step)
    code, out, err = shell("start", "clicks", "--to", "v2", "--through", "cut", "--json")
    assert (code, taken) == (NEEDS_APPROVAL, ["reprocess", "gate"])
    assert "release approve clicks --verdict 7f3a, and riverrun release cut clicks" in json.loads(out)["hint"]
    assert [line.split(":")[0] for line in err.splitlines()[:4]] == ["start", "reprocess", "await", "gate"]
    has_workers, warnings = True, ()
    code, out, _ = shell("start", "clicks", "--to", "v2", "--through", "gate")
    assert (code, taken[2:]) == (DONE, ["await", "gate"]), "the candidate is computed already"
    assert "await: 5000 offsets behind" in out
    assert "await: ready: 3 offsets behind" in out
    code, out, _ = shell("start", "clicks", "--to", "v2", "--through", "cut")
    assert (code, taken[4:]) == (DONE, ["await", "gate", "cut"]), "the verdict is of other code"
    assert "cut: v2 is live, 0 corrections were published" in out


def test_a_chain_does_not_take_the_switch_from_another_process(shell: Shell) -> None:
    shell.at(ReleaseStep.GATED)
    cuts = []

    def cut(releaser: Releaser, *_arguments: Any, **_options: Any) -> Release:
        cuts.append(releaser._registry.write(releaser.status().to(ReleaseStep.CUTTING)))
        message = "The release has changed"
        raise VersionConflictError(message)

    shell.monkeypatch.setattr(Releaser, "cut", cut)
    shell.monkeypatch.setattr(chain, "_CUT_SECONDS", 0)
    code, out, _ = shell("start", "clicks", "--to", "v2", "--through", "cut")
    assert (code, len(cuts)) == (REFUSED, 1)
    assert "continuing from there" not in out


@pytest.mark.parametrize("conflicts", range(7))
@pytest.mark.parametrize("step", ["start", "reprocess", "gate"])
def test_a_chain_continues_where_another_process_has_moved_the_release(shell: Shell, step: str, conflicts: int) -> None:
    shell.at(ReleaseStep.ABORTED, verdict=None)
    left = conflicts
    start = Releaser.start

    def moved(releaser: Releaser, name: str, to: ReleaseStep, **more: Any) -> Release:
        nonlocal left
        seen = releaser.status()
        if name == step and left:
            left -= 1
            releaser._registry.write(replace(seen, failed_pause_ms=left))
        return releaser._registry.write(seen.to(to, **more))

    def started(releaser: Releaser, version: str, **more: Any) -> Release:
        nonlocal left
        if step == "start" and left:
            left -= 1
            start(releaser, version, **more)
            message = "The release has changed"
            raise VersionConflictError(message)
        return start(releaser, version, **more)

    def reprocess(releaser: Releaser) -> RunSummary:
        moved(releaser, "reprocess", ReleaseStep.REPROCESSED)
        return RunSummary(RunRange({}), 1)

    def gate(releaser: Releaser) -> Release:
        return moved(releaser, "gate", ReleaseStep.GATED, verdict=GateVerdict("7f3a", "clicks-0@9", "", {}, {}, (), ()))

    shell.monkeypatch.setattr(Releaser, "is_followed", lambda _releaser: False)
    shell.monkeypatch.setattr(Releaser, "start", started)
    shell.monkeypatch.setattr(Releaser, "reprocess", reprocess)
    shell.monkeypatch.setattr(Releaser, "gate", gate)
    code, out, _ = shell("start", "clicks", "--to", "v2", "--through", "gate")
    is_done = conflicts < 5 or step == "start"
    assert code == (DONE if is_done else REFUSED)
    assert (shell.releaser().status().step is ReleaseStep.GATED) == is_done
    assert ("continuing from there" in out) == bool(conflicts)


@pytest.mark.parametrize("polls", [0, 1, 3])
def test_a_chain_waits_for_the_run_of_another_one_and_continues_behind_it(shell: Shell, polls: int) -> None:
    shell.at(ReleaseStep.ABORTED, verdict=None)
    left, computed = polls, 0

    def reprocess(_releaser: Releaser) -> RunSummary:
        nonlocal computed
        computed += 1
        message = "shop-v2 is being processed by a run of bob@desk"
        raise UnderWayError(message)

    def is_computed(releaser: Releaser, candidate: str) -> bool:
        nonlocal left
        assert candidate == "v2"
        left -= 1
        if not left:
            releaser._registry.write(releaser.status().to(ReleaseStep.REPROCESSED))
        return left >= 0

    def gate(releaser: Releaser) -> Release:
        verdict = GateVerdict("7f3a", "clicks-0@9", "", {}, {}, (), ())
        return releaser._registry.write(releaser.status().to(ReleaseStep.GATED, verdict=verdict))

    shell.monkeypatch.setattr(chain, "_RUNS_LOOK_SECONDS", 0)
    shell.monkeypatch.setattr(Releaser, "is_followed", lambda _releaser: False)
    for step in (reprocess, is_computed, gate):
        shell.monkeypatch.setattr(Releaser, step.__name__, step)
    code, out, err = shell("start", "clicks", "--to", "v2", "--through", "gate")
    assert (code, computed) == ((DONE, 1) if polls else (REFUSED, 2))
    assert out.count("is being processed by a run of bob@desk: waiting for its end") == bool(polls)
    assert ("is being processed by a run of bob@desk" in err) != bool(polls)


def test_a_chain_does_not_begin_again_what_was_aborted_while_it_waited(shell: Shell) -> None:
    shell.at(ReleaseStep.ABORTED, verdict=None)
    looks: list[str] = []

    def reprocess(_releaser: Releaser) -> RunSummary:
        message = "shop-v2 is being processed by a run of bob@desk"
        raise UnderWayError(message)

    def is_computed(releaser: Releaser, candidate: str) -> bool:
        looks.append(candidate)
        if len(looks) == 2:
            message = "The brokers do not answer"
            raise BrokerError(message, retriable=True)
        if len(looks) == 4:
            releaser._registry.write(releaser.status().to(ReleaseStep.ABORTED))
        return len(looks) < 4

    shell.monkeypatch.setattr(chain, "_RUNS_LOOK_SECONDS", 0)
    shell.monkeypatch.setattr(chain, "_RUNS_LOOKS_PER_LINE", 2)
    for step in (reprocess, is_computed):
        shell.monkeypatch.setattr(Releaser, step.__name__, step)
    code, out, err = shell("start", "clicks", "--to", "v2", "--through", "gate")
    assert code == REFUSED
    assert "another process has moved v2 meanwhile: the release is aborted" in err
    assert ("The brokers do not answer: trying again" in out, "reprocess: waiting for" in out) == (True, True)
    assert shell.releaser().status().step is ReleaseStep.ABORTED


def test_a_chain_does_not_repeat_a_gate_that_something_else_holds_up(shell: Shell) -> None:
    shell.at(ReleaseStep.REPROCESSED, verdict=None)
    calls = 0

    def gate(_releaser: Releaser) -> Release:
        nonlocal calls
        calls += 1
        message = "clicks: v2 pauses at a barrier"
        raise UnderWayError(message)

    shell.monkeypatch.setattr(Releaser, "is_followed", lambda _releaser: False)
    shell.monkeypatch.setattr(Releaser, "gate", gate)
    shell.monkeypatch.setattr(chain, "_MOVES_SECONDS", 0)
    code, out, err = shell("start", "clicks", "--to", "v2", "--through", "gate")
    assert (code, calls) == (REFUSED, 1)
    assert "waiting for its end" not in out
    assert "v2 pauses at a barrier" in err


def test_a_look_for_runs_of_a_candidate_does_not_load_it(shell: Shell) -> None:
    shell.at(ReleaseStep.PLANNED, verdict=None)
    shell.monkeypatch.setattr(Versions, "application", lambda *_: pytest.fail("it was loaded"))
    shell.monkeypatch.setattr(Admin, "group", lambda *_: SimpleNamespace(members=()))
    assert not shell.releaser().is_computed("v2")


@pytest.mark.parametrize("has_begun", [True, False])
def test_runs_of_a_candidate_count_since_it_began_to_compute_what_is_kept(shell: Shell, has_begun: bool) -> None:
    shell.at(ReleaseStep.ABORTED, verdict=None, computing_since_ms=7)
    shell.monkeypatch.setattr(Versions, "has_begun", lambda *_: has_begun)
    assert (shell.releaser().start("v2").computing_since_ms == 7) == has_begun


def test_a_gate_that_asks_a_person_ends_with_a_code_of_its_own(shell: Shell) -> None:
    gated = shell.at(ReleaseStep.GATED)
    shell.monkeypatch.setattr(Releaser, "gate", lambda _releaser: gated)
    assert shell("gate", "clicks")[0] == NEEDS_APPROVAL
    clean = replace(gated, verdict=None)
    shell.monkeypatch.setattr(Releaser, "gate", lambda _releaser: clean)
    assert shell("gate", "clicks")[0] == DONE


def test_a_version_nobody_declared_is_named_with_the_nearest_that_is(shell: Shell) -> None:
    shell.at(ReleaseStep.ABORTED)
    before = shell.notes.read()
    code, _, err = shell("start", "clicks", "--to", "v22")
    assert code == FAILED
    assert "no version 'v22'" in err
    assert "Did you mean 'v2'?" in err
    assert shell("start", "clicks", "--to", "v1")[0] == REFUSED, "it is live already"
    assert shell.notes.read() == before


@pytest.mark.parametrize(
    ("arguments", "step", "changes", "role"),
    [
        (("start", "clicks", "--to", "v2"), ReleaseStep.LIVE, {"live": "v3"}, "v3 is live"),
        (("reprocess", "clicks"), ReleaseStep.PLANNED, {"candidate": "v3"}, "v3 is being released"),
        (("gate", "clicks"), ReleaseStep.REPROCESSED, {"live": "v3"}, "v3 is live"),
        (("cut", "clicks"), ReleaseStep.GATED, {"live": "v3"}, "v3 is live"),
        (
            ("rollback", "clicks"),
            ReleaseStep.LIVE,
            {"live": "v2", "previous": "v3"},
            "v3 is the version to roll back to",
        ),
    ],
)
def test_a_version_that_was_removed_from_the_file_is_asked_for_again(
    shell: Shell, arguments: tuple[str, ...], step: ReleaseStep, changes: dict[str, Any], role: str
) -> None:
    shell.at(step, **changes)
    shell.declare("v2")
    before = shell.notes.read()
    code, _, err = shell(*arguments)
    assert code == REFUSED
    assert f"clicks: {role}, but streams.toml does not declare it" in err
    assert 'Declare it again: [apps.clicks.versions] v3 = "module:function"' in err
    assert shell.notes.read() == before
    assert shell("status", "clicks")[0] == DONE, "where it stands can be seen"


CHANGES = {
    "a call": ("str.upper", "str.lower"),
    "another operator": (".map_values(str.upper)", ".filter(lambda _key, word: word)"),
    "another function": ("map_values(str.upper)", "map_values(shout)"),
    "a constant": ('return word + "!"', 'return word + "?"'),
}
"""Changes of version 2 after a release was planned: old and new text of its module."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("step", "at", "hint"),
    [
        ("reprocess", {"step": ReleaseStep.PLANNED, "live": "v1", "candidate": "v2"}, "--to v2 begins it again"),
        ("gate", {"step": ReleaseStep.REPROCESSED, "live": "v1", "candidate": "v2"}, "--to v2 begins it again"),
        ("cut", {"step": ReleaseStep.GATED, "live": "v1", "candidate": "v2"}, "--to v2 begins it again"),
        ("rollback", {"step": ReleaseStep.LIVE, "live": "v3", "candidate": "v3", "previous": "v2"}, "Restore its code"),
        ("work", {"step": ReleaseStep.GATED, "live": "v1", "candidate": "v2"}, "--to v2 begins it again"),
        ("work", {"step": ReleaseStep.LIVE, "live": "v3", "candidate": "v3", "previous": "v2"}, "Restore its code"),
        ("work", {"step": ReleaseStep.ROLLED_BACK, "live": "v1", "candidate": "v2"}, "Restore its code"),
        ("work", {"step": ReleaseStep.ABORTED, "live": "v1", "candidate": "v2"}, None),
    ],
)  # fmt: skip
def test_no_version_goes_on_with_other_code_than_was_planned(
    shell: Shell, change: str, step: str, at: dict[str, Any], hint: str | None
) -> None:
    module = shell.path.parent / f"{shell.path.stem}_shop.py"
    text = module.read_text() + '\ndef shout(word):\n    return word + "!"\n'
    if change == "a constant":
        text = text.replace("str.upper", "shout")
    shell.module(text)
    verdict = replace(present(shell.at(ReleaseStep.GATED).verdict), approved_by="ann@desk")
    shell.notes.values.clear()
    shell.at(**{"verdict": verdict, **at})
    before = shell.notes.read()
    if step == "work":
        assert shell.processing() is None
    else:
        assert shell(step, "clicks", "--dry-run")[0] == DONE
    shell.module(text.replace(*CHANGES[change]))
    if step == "work":
        refusal = shell.processing()
        assert (refusal is None) == (hint is None)
        assert refusal is None or ("the code of v2 has changed" in str(refusal) and str(hint) in str(refusal))
    else:
        for more in ((), ("--dry-run",)):
            code, _, err = shell(step, "clicks", *more)
            assert code == REFUSED
            assert "the code of v2 has changed since" in err
            assert str(hint) in err
    assert shell.notes.read() == before


@pytest.mark.parametrize("command", ["status", "reprocess", "gate", "cut", "rollback", "abort"])
def test_a_control_topic_that_cannot_be_read_is_refused_by_every_command(shell: Shell, command: str) -> None:
    shell.at(ReleaseStep.GATED)
    shell.notes.values["clicks"] = b'{"app": "clicks", "live": "v1", "step": "sideways"}'
    before = shell.notes.read()
    code, _, err = shell(command, "clicks")
    assert code == REFUSED
    assert "The control topic riverrun-releases holds a record of clicks that cannot be read" in err
    assert shell.notes.read() == before


def test_of_two_operators_at_once_the_second_is_told_and_changes_nothing(shell: Shell) -> None:
    gated = shell.at(ReleaseStep.GATED)

    def abort() -> None:
        shell.registry("bob@desk").write(gated.to(ReleaseStep.ABORTED))

    shell.notes.before_write = abort
    code, _, err = shell("approve", "clicks", "--verdict", "7f3a")
    assert code == REFUSED
    assert "revision 2 was written meanwhile, 1 expected" in err
    assert "riverrun release status" in err
    release = shell.registry().read("clicks", "v1")
    assert (release.step, release.changed_by) == (ReleaseStep.ABORTED, "bob@desk")


def test_a_plan_names_statements_that_change_instead_of_nodes_with_other_numbers(shell: Shell) -> None:
    changed = {"KSTREAM-FILTER-0000000002": "added", "KSTREAM-SINK-0000000003": "changed"}
    statements = {"CREATE STREAM LARGE": "changed"}
    plan = ReleasePlan("clicks", "v1", "v2", changed, RunRange({}), statements=statements)
    shell.monkeypatch.setattr(Releaser, "plan", lambda _releaser, _to, **_: plan)
    code, out, _ = shell("plan", "clicks", "--to", "v2")
    assert (code, "  changed: CREATE STREAM LARGE\n" in out, "KSTREAM" in out) == (DONE, True, False)
    document = json.loads(shell("plan", "clicks", "--to", "v2", "--json")[1])
    assert (document["changed"], document["statements"]) == (changed, statements)


def test_a_plan_tells_whether_the_candidate_could_read_the_rows_of_the_live_version() -> None:
    def visits(value: Any) -> Topology:
        builder = StreamsBuilder()
        builder.table("visits", Consumed(STRING, value), materialized=Materialized(name="visits"))
        return builder.build()

    longer: Any = JSON(make_dataclass("Visit", [("clicks", float), ("country", str)]))
    visit: Any = JSON(make_dataclass("Visit", [("clicks", int)]))
    assert readable_rows(visits(longer), visits(longer), "v2") == {}
    assert readable_rows(visits(longer), visits(JSON), "v2") == {"visits": "v2 can read its rows"}
    assert readable_rows(visits(JSON), visits(visit), "v2") == {
        "visits": "its rows alone tell whether v2 can read them"
    }
    rows = readable_rows(visits(visit), visits(longer), "v2")
    assert (
        "  store visits: v2 cannot read its rows: Object missing required field `country`"
        in str(ReleasePlan("clicks", "v1", "v2", {}, RunRange({}), rows=rows)).splitlines()
    )


def test_versions_of_statements_have_digests_and_others_none(shell: Shell, tmp_path: Path) -> None:
    text = """
    CREATE STREAM clicks (who STRING KEY, page STRING) WITH (KAFKA_TOPIC = 'clicks', VALUE_FORMAT = 'JSON');
    CREATE STREAM pages AS SELECT who, page FROM clicks;
    """
    (tmp_path / "pages.sql").write_text(text)
    shell.path.write_text(shell.path.read_text() + 'v4 = "pages.sql"\n')
    project = ProjectConfig.load(shell.path, {})
    found = [statement_digests_of(load_application(project, "clicks", version=each)) for each in ("v2", "v4")]
    assert [list(each) for each in found] == [[], ["CREATE STREAM CLICKS", "CREATE STREAM PAGES"]]
