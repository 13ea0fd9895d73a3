"""A stateful model of releases: whatever happens between and in their steps, the public topics are right, record by record."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from riverrun.hosting import barrier_coordinator
from tests.depth import depth
from tests.system.release_model import WORDS, World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.only_deep, pytest.mark.timeout(7200)]

EXAMPLES = depth(1, 10)
"""How many courses of events are tried."""
STEPS = depth(8, 15)
"""How many events there are in each, at most."""
MOMENTS = 30
"""More than a step of a release has: at each it reads or writes the control topic, or has done something."""

EVENTS = [
    *(
        f"{kind} {version}"
        for kind in ("crash", "restart", "start", "sleep", "doze", "deafen")
        for version in ("v1", "v2")
    ),
    *("wake", "hear", "assign", "write"),
]
FAULTS = st.sampled_from(["nothing", *["coordinator"] * 6, *EVENTS])


class Releases(RuleBasedStateMachine):
    """Takes steps of releases; in the middle of each something happens, and between them as well."""

    broker: Broker
    directory: Path

    @initialize(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=20), is_gated=st.booleans())
    def begin(self, words: list[str], is_gated: bool) -> None:
        directory = self.directory / uuid.uuid4().hex[:8]
        directory.mkdir()
        name = f"m{uuid.uuid4().hex[:10]}"
        self.world = World(self.broker, name, self.directory)
        self.world.write(words)
        for version in ("v1", "v2"):
            self.world.start(version)
        for _ in range(3 if is_gated else 0):
            self.world.take(self.world.next_step())

    @rule(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=10))
    def inputs_come(self, words: list[str]) -> None:
        self.world.write(words)

    @rule(event=st.sampled_from(EVENTS))
    def something_happens(self, event: str) -> None:
        self.world.happened.append(event)
        self.world.fault(event)

    @rule(event=FAULTS, at=st.integers(0, MOMENTS))
    def the_release_goes_on(self, event: str, at: int) -> None:
        self.world.take(self.world.next_step(), event, at)

    @rule(event=FAULTS, at=st.integers(0, MOMENTS))
    def versions_change_places(self, event: str, at: int) -> None:
        self.world.recover()
        for _ in range(4):
            step = self.world.next_step()
            if step in {"cut", "rollback"}:
                self.world.take(step, event, at)
                break
            self.world.take(step)

    @rule(
        step=st.sampled_from(["start", "gate", "cut", "rollback", "abort", "retire"]),
        stopped=st.sampled_from(["", "v1", "v2"]),
        at=st.integers(0, MOMENTS),
    )
    def a_step_is_tried(self, step: str, stopped: str, at: int) -> None:
        for _ in range(2 if stopped else 0):
            self.world.crash(stopped)
        self.world.take(step, "coordinator", at)

    @rule()
    def all_settles(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.settle()
        finally:
            print("\n".join(self.world.happened))
            self.world.close()


def test_whatever_happens_in_releases_public_topics_are_right_record_by_record(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    # Silent members are known soon, and holds of dead ones end soon.
    monkeypatch.setattr(barrier_coordinator, "_ANSWER_SECONDS", 4.0)
    monkeypatch.setattr(barrier_coordinator, "_TIMEOUT_MS", 8_000)
    monkeypatch.setattr(barrier_coordinator, "_TIMEOUT_OF_RUNS_MS", 8_000)
    machine = type("Machine", (Releases,), {"broker": broker, "directory": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
