"""Stores come back from Parquet as they were, whatever their kind, and nothing is half done."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Materialized,
    Processor,
    Produced,
    Record,
    Serde,
    Stores,
    StreamsBuilder,
    Topology,
)
from riverrun.cli.main import app as main
from riverrun.errors import ConfigError, InvalidStateStoreError, StateError
from riverrun.project.store_imports import import_rows
from riverrun.spark.store_files import export_rows
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.hosting.connected import ConnectedApplication
    from tests.brokers import Broker

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclasses.dataclass(frozen=True)
class Visit:
    clicks: int
    names: dict[str, float]
    at: datetime | None = None
    note: str | None = None


STORES: dict[str, Callable[[Serde[Any]], Any]] = {
    "plain": lambda serde: Stores.key_value_store("plain", STRING, serde),
    "timed": lambda serde: Stores.timestamped_key_value_store("timed", STRING, serde),
    "windows": lambda serde: Stores.window_store("windows", STRING, serde, retention=HOUR, window_size=MINUTE),
    "timed-windows": lambda serde: Stores.timestamped_window_store(
        "timed-windows", STRING, serde, retention=HOUR, window_size=MINUTE
    ),
    "sessions": lambda serde: Stores.session_store("sessions", STRING, serde, retention=HOUR),
    "versions": lambda serde: Stores.versioned_key_value_store("versions", STRING, serde, history_retention=HOUR),
}
KEYS = st.text("abcxyz", min_size=1, max_size=2)
VISITS = st.builds(
    lambda clicks, names, at, note: {"clicks": clicks, "names": list(names.items()), "at": at, "note": note},
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.text(max_size=5),
)
MOMENTS = st.integers(0, 3_000_000).map(lambda ms: START + timedelta(milliseconds=ms))
MICROS, MILLIS = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
NAMES = pa.map_(pa.string(), pa.float64())
KIND = pa.struct([("clicks", pa.int64()), ("names", NAMES), ("at", MICROS), ("note", pa.string())])


class Silent(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


def all_kinds(name: str) -> Topology:
    builder = StreamsBuilder()
    for make in STORES.values():
        builder.add_state_store(make(JSON(Visit)))
    builder.stream(f"{name}.in", Consumed(STRING, STRING)).process(Silent, *STORES)
    return builder.build()


def connected(broker: Broker, name: str, state: Path, topology: Topology) -> ConnectedApplication:
    return broker.connected(broker.application(name, topology, state))


def columns(kind: str, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Rows of key, value, and two moments, as the columns of a store."""
    found = {"key": [row[0] for row in rows], "value": pa.array([row[1] for row in rows], KIND)}
    first, second = (pa.array([row[at] for row in rows], MILLIS) for at in (2, 3))
    if kind in {"windows", "timed-windows", "sessions"}:
        found["window_start"] = first
    if kind == "sessions":
        found["window_end"] = second
    if kind in {"timed", "timed-windows"}:
        found["timestamp"] = second
    if kind == "versions":
        found["valid_from"] = first
    return pa.table(found)


def distinct(kind: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """One row for each place in the store, with moments in order."""
    ordered = [(key, value, min(one, two), max(one, two)) for key, value, one, two in rows]
    if kind in {"plain", "timed"}:
        return list({row[0]: row for row in ordered}.values())
    return list({(row[0], row[2], row[3] if kind == "sessions" else 0): row for row in ordered}.values())


def content(app: ConnectedApplication, store: str, path: Path, *, raw: bool = False) -> list[Any]:
    export_rows(app, store, path, lambda _job: app.topology, raw=raw)
    return sorted(map(repr, pq.read_table(path).to_pylist()))


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries({kind: st.lists(st.tuples(KEYS, VISITS, MOMENTS, MOMENTS), max_size=6) for kind in STORES})
)
def test_a_store_that_is_exported_and_imported_is_what_it_was(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory, given_rows: dict[str, list[tuple[Any, ...]]]
) -> None:
    path = tmp_path_factory.mktemp("stores")
    name = f"t{path.name}{id(given_rows)}"
    broker.create(2, f"{name}.in")
    first, second, third = (connected(broker, f"{name}{n}", path, all_kinds(name)) for n in "abc")
    for kind, some in given_rows.items():
        rows = distinct(kind, some)
        file = path / f"{kind}.parquet"
        pq.write_table(columns(kind, rows), file)
        assert import_rows(first, kind, file, lambda _job: first.topology).rows == len(rows)
        typed = content(first, kind, path / f"{kind}-1.parquet")
        assert len(typed) == len(rows)
        bytes_ = content(first, kind, path / f"{kind}-2.parquet", raw=True)
        import_rows(second, kind, path / f"{kind}-1.parquet", lambda _job: second.topology)
        import_rows(third, kind, path / f"{kind}-2.parquet", lambda _job: third.topology)
        for number, app in enumerate((second, third)):
            assert content(app, kind, path / f"{kind}-typed{number}.parquet") == typed
            assert content(app, kind, path / f"{kind}-raw{number}.parquet", raw=True) == bytes_


def counting(name: str) -> Topology:
    builder = StreamsBuilder()
    counts = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key().count(Materialized(name="counts"))
    counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
    return builder.build()


@pytest.fixture
def counts(broker: Broker, unique: str, tmp_path: Path) -> ConnectedApplication:
    broker.create(3, f"{unique}.in", f"{unique}.out")
    return connected(broker, unique, tmp_path / "state", counting(unique))


def written(path: Path, **values: Any) -> Path:
    pq.write_table(pa.table(values), path)
    return path


def imported(app: ConnectedApplication, path: Path, **options: Any) -> Any:
    return import_rows(app, "counts", path, lambda _job: app.topology, **options)


def outputs(broker: Broker, unique: str) -> dict[bytes | None, int]:
    return {record.key: int.from_bytes(record.value or b"", "big") for record in broker.read(f"{unique}.out")}


def test_an_application_goes_on_from_a_seeded_store(
    broker: Broker, unique: str, tmp_path: Path, counts: ConnectedApplication
) -> None:
    keys = [f"k{number}" for number in range(50)]
    file = written(tmp_path / "seed.parquet", key=keys, value=pa.array(range(50), pa.int32()))
    assert imported(counts, file).rows == 50
    broker.write(f"{unique}.in", [(key.encode(), b"", 1) for key in keys])
    Worker(counts.application).run(until_caught_up=True)
    assert outputs(broker, unique) == {f"k{number}".encode(): number + 1 for number in range(50)}


def test_replacing_deletes_the_rows_that_are_not_in_the_file(
    broker: Broker, unique: str, tmp_path: Path, counts: ConnectedApplication
) -> None:
    broker.write(f"{unique}.in", [(key, b"", 1) for key in (b"a", b"b", b"c")])
    Worker(counts.application).run(until_caught_up=True)
    file = written(tmp_path / "repaired.parquet", key=["b"], value=[10])
    with pytest.raises(StateError, match=r"counts of .* has rows"):
        imported(counts, file)
    done = imported(counts, file, replaces=True)
    assert (done.rows, done.replaced) == (1, 3)
    broker.write(f"{unique}.in", [(key, b"", 2) for key in (b"a", b"b")])
    Worker(counts.application).run(until_caught_up=True)  # with the local state from before
    assert outputs(broker, unique) == {b"a": 1, b"b": 11, b"c": 1}


WRONG: dict[str, tuple[Callable[[Path], Path], type[Exception], str]] = {
    "no file": (lambda path: path / "none.parquet", ConfigError, "cannot be read as Parquet"),
    "no rows' file": (lambda path: path, ConfigError, "has no files"),
    "no value": (lambda path: written(path / "x.parquet", key=["a"]), ConfigError, "lacks value"),
    "another column": (
        lambda path: written(path / "x.parquet", key=["a"], value=[1], more=[1]),
        ConfigError,
        "has unknown more",
    ),
    "no time": (
        lambda path: written(path / "x.parquet", key=["a"], value=[1], timestamp=[1]),
        ConfigError,
        "not timestamps",
    ),
    "null": (
        lambda path: written(path / "x.parquet", key=["a", None], value=[1, 2]),
        StateError,
        "Row 2 of .*key is null",
    ),
    "text": (
        lambda path: written(path / "x.parquet", key=["a"], value=["1"]),
        StateError,
        "Row 1 of .*value does not fit",
    ),
    "another partition": (
        lambda path: written(path / "x.parquet", key=["a", "b", "c"], value=[1, 2, 3], partition=[0, 0, 0]),
        StateError,
        "belongs to partition",
    ),
    "truncated": (
        lambda path: truncated(written(path / "x.parquet", key=["a"], value=[1])),
        ConfigError,
        "cannot be read",
    ),
    "foreign": (lambda path: foreign(path / "x.parquet"), ConfigError, "cannot be read as Parquet"),
}


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-20])
    return path


def foreign(path: Path) -> Path:
    path.write_text("key,value\na,1\n")
    return path


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_refused_and_nothing_is_written(
    broker: Broker, unique: str, tmp_path: Path, counts: ConnectedApplication, case: str
) -> None:
    make, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        imported(counts, make(tmp_path))
    topic = f"{unique}-v1-counts-changelog"
    assert topic not in broker.admin().list_topics(unique) or not broker.read(topic)


def test_rows_that_the_store_would_not_keep_are_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in")
    app = connected(broker, unique, tmp_path, all_kinds(unique))
    late = [("a", {"clicks": 1, "names": []}, START + day * timedelta(days=1), START) for day in (1, 0)]
    pq.write_table(columns("windows", late), tmp_path / "x.parquet")
    with pytest.raises(StateError, match=r"Row 2 of .*store windows keeps 3600000 ms"):
        import_rows(app, "windows", tmp_path / "x.parquet", lambda _job: app.topology)
    assert not broker.read(f"{unique}-v1-windows-changelog")


def test_stores_that_are_no_tables_of_their_own_are_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    kept: Any = Materialized(name="counts", logging=False)
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by_key().count(kept)
    broker.create(1, f"{unique}.in")
    app = connected(broker, unique, tmp_path, builder.build())
    file = written(tmp_path / "x.parquet", key=["a"], value=[1])
    with pytest.raises(InvalidStateStoreError, match="no changelog"):
        imported(app, file)
    with pytest.raises(InvalidStateStoreError, match="no changelog"):
        export_rows(app, "counts", tmp_path / "y.parquet", lambda _job: app.topology)
    with pytest.raises(InvalidStateStoreError, match="no store count"):
        import_rows(app, "count", file, lambda _job: app.topology)


@pytest.mark.broker
def test_commands_export_import_and_list_the_stores_of_sql(broker: Broker, unique: str, tmp_path: Path) -> None:
    (tmp_path / "counts.sql").write_text(
        "CREATE STREAM words (word STRING KEY) WITH (KAFKA_TOPIC = 'NAME-in', VALUE_FORMAT = 'JSON');"
        "CREATE TABLE counts WITH (KAFKA_TOPIC = 'NAME-out') AS SELECT word, COUNT(*) AS n FROM words GROUP BY word;".replace(
            "NAME", unique
        )
    )
    config = tmp_path / "streams.toml"
    config.write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n[apps.{unique}]\ntopology = "counts.sql"\n'
        f'[apps.{unique}.config]\n"state.dir" = "{tmp_path}"\n'
    )
    broker.create(2, f"{unique}-in", f"{unique}-out")
    broker.write(f"{unique}-in", [(b"a", b"{}", 1), (b"b", b"{}", 2), (b"a", b"{}", 3)])

    def told(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["--config", str(config), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    told("run", unique, "--engine", "local")
    listed = told("state", "schemas", unique)
    (store,) = (line.removeprefix("Store ") for line in listed.splitlines() if line.startswith("Store "))
    before = tmp_path / "before.parquet"
    assert f"2 rows of {store} in 1 file" in told("state", "export", unique, store, "--to", str(before), "--raw")
    broker.write(f"{unique}-in", [(b"a", b"{}", 4)])
    told("run", unique, "--engine", "local")
    assert f"2 rows in {store}, in place of 2" in told("state", "import", unique, store, str(before), "--replace")
    broker.write(f"{unique}-in", [(b"a", b"{}", 5)])
    told("run", unique, "--engine", "local")
    assert [record.value for record in broker.read(f"{unique}-out") if record.key == b"a"][-1] == b'{"N":3}'
    assert "takes all rows" in told("state", "accept", unique, store)
    with pytest.raises(ConfigError, match="already exists"):
        told("state", "export", unique, store, "--to", str(before))
