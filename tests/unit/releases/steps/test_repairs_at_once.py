"""Two repairs of one application at once: the second one is refused, and the first one is not disturbed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, StreamsBuilder
from riverrun.config import ProjectConfig
from riverrun.errors import ReleaseError, UnderWayError
from riverrun.hosting import alone
from riverrun.hosting.alone import RUN, SoleHost, group_of
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.kafka.door import Kafka
from riverrun.releases.repair import Repairer
from tests.unit.releases.control_topic.notes import MemoryNotes

if TYPE_CHECKING:
    from collections.abc import Callable

LIVING = SoleHost.new(RUN, "bob@desk")


class Brokers:
    """Brokers with the topics of a repair, and what computes it."""

    def __init__(self, *hosts: SoleHost) -> None:
        self.hosts = hosts

    def list_topics(self) -> list[str]:
        return ["clicks", "clicks-repair-0a1b-sums-changelog", "clicks-v1-sums-changelog"]

    def group(self, name: str) -> Any:
        of_repair = name == group_of("clicks-repair-0a1b")
        return SimpleNamespace(members=tuple(f"{host.name}@h" for host in self.hosts if of_repair))


def repairer(registry: ReleaseRegistry, *hosts: SoleHost) -> Repairer:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "apps": {"clicks": {"topology": "m:build"}}}
    project = ProjectConfig.read(Path("/project/streams.toml"), content, {})
    admin: Any = Brokers(*hosts)
    return Repairer(project, "clicks", admin, lambda: None, registry=registry)


@pytest.fixture(autouse=True)
def _short_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "SOLE_SESSION_MS", 0)
    monkeypatch.setattr(alone, "_MEMBERS_LOOK_SECONDS", 0.01)


def test_a_repair_that_another_one_computes_is_refused() -> None:
    registry = ReleaseRegistry(MemoryNotes(), "ann@desk")
    repairer(registry)._await_no_other()
    with pytest.raises(UnderWayError, match="clicks-repair-0a1b is being processed by a run of bob@desk"):
        repairer(registry, LIVING)._await_no_other()


def test_a_repair_waits_for_the_session_of_one_that_has_died() -> None:
    repairs, asked = repairer(ReleaseRegistry(MemoryNotes(), "ann@desk"), LIVING), 0

    def group(_name: str) -> Any:
        nonlocal asked
        asked += 1
        return SimpleNamespace(members=() if asked > 1 else (f"{LIVING.name}@h",))

    admin: Any = repairs._admin
    admin.group = group
    repairs._await_no_other()
    assert asked == 2


def test_a_repair_that_has_published_leaves_its_topics_to_another_host(tmp_path: Path) -> None:
    repairs = repairer(ReleaseRegistry(MemoryNotes(), "ann@desk"), LIVING)
    builder = StreamsBuilder()
    builder.stream("clicks", Consumed(STRING, STRING))
    own = Application(repairs._config, "repair-0a1b", builder.build(), Kafka({}), tmp_path)
    deleted: list[str] = []

    def discard(version: ConnectedApplication, check: Callable[[], object]) -> None:
        check()
        deleted.append(version.id)

    versions: Any = SimpleNamespace(discard=discard)
    repairs._discard_done(versions, ConnectedApplication(own, repairs._admin))
    assert deleted == []


@pytest.mark.parametrize("is_computed", [True, False])
def test_a_repair_that_begins_meanwhile_keeps_its_topics(tmp_path: Path, is_computed: bool) -> None:
    repairs = repairer(ReleaseRegistry(MemoryNotes(), "ann@desk"), *[LIVING][: int(is_computed)])
    builder = StreamsBuilder()
    builder.stream("clicks", Consumed(STRING, STRING))
    own = Application(repairs._config, "repair-7f3a", builder.build(), Kafka({}), tmp_path)
    discarded: list[str] = []
    versions: Any = SimpleNamespace(discard=lambda left, _check: discarded.append(left.id))
    refusal = pytest.raises(UnderWayError, match="is being processed by a run of bob@desk")
    with refusal if is_computed else nullcontext():
        repairs._discard_others(versions, ConnectedApplication(own, repairs._admin))
    assert discarded == ([] if is_computed else ["clicks-repair-0a1b"])


@pytest.mark.parametrize(
    ("changes", "continues"),
    [
        ({"repaired": "all: begun"}, True),
        ({"repaired": "all: begun", "live": "v1", "pause_ms": 5}, False),
        ({"published": {"x-0": 7}}, False),
    ],
)
def test_a_repair_continues_if_only_the_beginning_of_another_one_was_noted(
    changes: dict[str, Any], continues: bool
) -> None:
    registry = ReleaseRegistry(MemoryNotes(), "ann@desk")
    begun = registry.write(Release("clicks", "v1", repaired="some: begun"))
    assert repairer(registry)._unmoved(begun) == begun
    noted = ReleaseRegistry(registry._notes, "bob@desk").write(replace(begun, **changes))
    assert repairer(registry)._unmoved(begun) == (noted if continues else begun)


def test_a_repair_ends_if_a_release_has_begun() -> None:
    registry = ReleaseRegistry(MemoryNotes(), "ann@desk")
    begun = registry.write(Release("clicks", "v1", repaired="some: begun"))
    registry.write(begun.to(ReleaseStep.PLANNED, candidate="v2"))
    with pytest.raises(ReleaseError, match="v2 is being released"):
        repairer(registry)._unmoved(begun)
