"""How the registry reaches the topology of an application, wherever that is built."""

from __future__ import annotations

import pickle
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from riverrun import STRING, Avro, ConfigError, Consumed, Materialized, Produced, Riverrun, StreamsBuilder, Topology
from riverrun.releases.topology import build_topology
from riverrun.spark.columns import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KAFKA = {"bootstrap.servers": "127.0.0.1:1"}


class Flight(msgspec.Struct):
    carrier: str
    delay: int | None = None


def copying(name: str) -> Callable[[StreamsBuilder], Topology]:
    """A topology that no other process could import."""

    def build(builder: StreamsBuilder) -> Topology:
        table = builder.table(f"{name}.in", Consumed(STRING, Avro(Flight)), Materialized(name="flights"))
        table.to_stream().to(f"{name}.out", Produced(STRING, Avro(Flight)))
        return builder.build()

    return build


def project(tmp_path: Path, url: str | None) -> Riverrun:
    registry = None if url is None else {"url": url}
    return Riverrun(kafka=KAFKA, schema_registry=registry, directory=tmp_path)


def test_another_process_builds_the_topology_with_the_registry(tmp_path: Path) -> None:
    app = project(tmp_path, f"mock://test-{uuid.uuid4()}").app("copies", copying("copies"))
    config: Any = pickle.loads(pickle.dumps(app.config))  # noqa: S301 - our own
    topology = build_topology(SimpleNamespace(config=config, version="v1"))
    sink = topology.sink_of("copies.out")
    assert sink is not None
    data = sink.value_serde.serialize(Flight("UA", 3))
    store = topology.stores["flights"].value_serde
    assert store.deserialize(data) == Flight("UA", 3)
    (rows,) = columns_of("value", store).arrays([data], lambda _: {})
    assert rows.to_pylist() == [{"carrier": "UA", "delay": 3}]


def test_a_placed_topology_is_the_same_topology(tmp_path: Path) -> None:
    url = f"mock://test-{uuid.uuid4()}"
    app = project(tmp_path, url).app("copies", copying("copies"))
    topology = build_topology(SimpleNamespace(config=app.config, version="v1"))
    unplaced = copying("copies")(StreamsBuilder())
    assert topology.fingerprint() == unplaced.fingerprint()
    assert topology.describe() == unplaced.describe()


def test_without_a_registry_the_first_record_says_what_is_missing(tmp_path: Path) -> None:
    app = project(tmp_path, None).app("copies", copying("copies"))
    sink = build_topology(SimpleNamespace(config=app.config, version="v1")).sink_of("copies.out")
    assert sink is not None
    with pytest.raises(ConfigError, match="none is configured") as refused:
        sink.value_serde.serialize(Flight("UA"))
    assert "[schema_registry]" in (refused.value.hint or "")


def test_a_registry_is_not_given_beside_a_file() -> None:
    with pytest.raises(ConfigError, match="cannot be combined with a file"):
        Riverrun("streams.toml", schema_registry={"url": "http://127.0.0.1:8081"})
