"""The commands around a bounded run, as a shell would call them: import, run, runs, snapshot, export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from riverrun import LONG
from riverrun.cli.main import app
from tests.presence import present

if TYPE_CHECKING:
    from tests.brokers import Broker

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [pytest.mark.broker, pytest.mark.spark]


def functions_of(page: str) -> dict[str, Any]:
    """The names that the Python of a documentation page defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
        if ">>> " not in block:
            exec(block, names)  # noqa: S102 - it is our own
    return names


def test_lines_are_imported_counted_recorded_kept_and_exported(broker: Broker, unique: str, tmp_path: Path) -> None:
    config = tmp_path / "streams.toml"
    config.write_text(
        f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{unique}]
topology = "riverrun.apps.word_count:build"
[apps.{unique}.config]
"snapshot.url" = "snapshots"
"""
    )
    broker.create(1, "lines", "word-counts")
    (tmp_path / "lines.csv").write_text("at,who,line\n1,ann,one two\n2000,bob,two\n")

    def riverrun(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--config", str(config), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    options = ("--option", "header=true", "--schema", "at long, who string, line string")
    columns = ("--key", "who", "--value", "line", "--timestamp", "at")
    source = str(tmp_path / "lines.csv")
    imported = riverrun("import", source, "lines", "--format", "csv", *options, *columns, "--name", unique)
    assert "2 rows read, 2 records written to lines in 1 batch" in imported
    records = {(r.key, r.value, r.timestamp) for r in broker.read("lines")}
    assert records == {(b"ann", b"one two", 1), (b"bob", b"two", 2000)}

    planned = riverrun("run", unique, "--plan")
    assert "1 slice, in each: 1 task (0_0)" in planned
    ran = riverrun(
        "run", unique, "--advance-stream-time-to", "1970-01-01T00:01:00", "--wall-clock-punctuation", "never"
    )
    assert "2 records processed in 1 slice;" in ran
    documented = functions_of("frames.md")
    assert documented["rows_of"](config, unique, "Counts").count() == 2
    assert documented["dry_outputs"](config, unique)["word-counts"].count() == 0  # nothing is left to process
    assert "rows in" in ran
    counts = {r.key: LONG.deserialize(present(r.value)) for r in broker.read("word-counts")}
    assert counts == {b"one": 1, b"two": 2}

    (recorded,) = [json.loads(line) for line in riverrun("runs", unique, "--json").splitlines()]
    assert (recorded["state"], recorded["records_in"]) == ("done", 2)
    assert recorded["snapshots"].keys() == {"0_0"}
    assert "done" in riverrun("runs", unique)
    assert recorded["snapshots"]["0_0"] in riverrun("snapshot", unique)

    exported = riverrun("export", "lines", str(tmp_path / "out"), "--format", "json", "--name", unique)
    assert "batch 1 is written" in exported
    assert "2 records read, 2 rows written" in exported
    assert "nothing is new" in riverrun("export", "lines", str(tmp_path / "out"), "--format", "json", "--name", unique)

    store = ("--store", "Counts", "--format", "json")
    assert f"Counts of {unique}: 2 rows written" in riverrun(
        "export", unique, str(tmp_path / "counts"), *store, "--at", recorded["id"]
    )
    rows = [json.loads(line) for file in (tmp_path / "counts").glob("*.json") for line in file.read_text().splitlines()]
    assert {row["key"]: row["value"] for row in rows} == {"one": 1, "two": 2}
