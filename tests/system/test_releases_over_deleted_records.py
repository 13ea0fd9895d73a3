"""Releases over inputs whose first records were deleted: nothing becomes public without a person who knows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Named, Produced
from riverrun.errors import ApprovalNeededError
from riverrun.records import TopicPartition
from riverrun.releases.chain import Through
from tests.presence import present

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker


def build(name: str, changed: str, builder: StreamsBuilder) -> Topology:
    """Count records of two inputs, each in a table, one of which a version computes in another way."""
    for each in ("one", "two"):
        stream = builder.stream(f"{name}.{each}", Consumed(STRING, STRING, name=f"read-{each}"))
        if each == changed:
            stream = stream.map_values(str.upper, named=Named(f"upper-{each}"))
        counts = stream.group_by_key(Grouped(STRING, STRING)).count(
            Materialized(STRING, LONG, name=f"counts-{each}"), named=Named(f"count-{each}")
        )
        rows = counts.to_stream(named=Named(f"rows-{each}"))
        rows.to(f"{name}.{each}-counts", Produced(STRING, LONG, name=f"to-{each}"))
    return builder.build()


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    """An application that has counted ten records of each input, five of which are deleted from one partition."""
    broker.create(2, *(f"{unique}.{each}{suffix}" for each in ("one", "two") for suffix in ("", "-counts")))
    for each in ("one", "two"):
        broker.write(f"{unique}.{each}", [(b"ann", b"a", n) for n in range(10)], 1)
    versions: dict[str, Any] = {f"v{n}": partial(build, unique, each) for n, each in ((2, "one"), (3, "two"))}
    project = broker.project(directory=tmp_path, by="ann@desk")
    config = {"bounded.engine": "local"}
    declared = project.app(unique, partial(build, unique, ""), versions=versions, config=config)
    declared.run()
    broker.admin().delete_records({TopicPartition(f"{unique}.one", 1): 5})
    return declared


def counts(broker: Broker, topic: str) -> dict[bytes | None, int]:
    return {record.key: LONG.deserialize(present(record.value)) for record in broker.read(topic)}


def test_a_release_that_lacks_deleted_records_asks_a_person(app: App, broker: Broker, unique: str) -> None:
    release, told = app.release("v2"), list[str]()
    with pytest.raises(ApprovalNeededError, match="deleted records of inputs"):
        release.take_through(Through.CUT, told.append)
    lacks = f"v2 began at offset 5 of {unique}.one-1"
    assert [line.split(":")[0] for line in told if lacks in line] == ["start", "gate"]
    assert lacks in str(release.status)
    assert "archive.url" in str(release.status.verdict)
    assert counts(broker, f"{unique}.one-counts") == {b"ann": 10}

    release.approve(present(release.status.verdict).id).cut()
    assert counts(broker, f"{unique}.one-counts") == {b"ann": 5}


@pytest.mark.parametrize(("version", "is_complete"), [("v2", False), ("v3", True)])
def test_a_release_with_carried_state_needs_the_records_of_the_rest_only(
    app: App, broker: Broker, unique: str, version: str, *, is_complete: bool
) -> None:
    release = app.release(version)
    try:
        release.take_through(Through.CUT, carry=True)
    except ApprovalNeededError:
        assert not is_complete
    else:
        assert is_complete
    assert counts(broker, f"{unique}.one-counts") == counts(broker, f"{unique}.two-counts") == {b"ann": 10}
