"""Two people give one command at the same moment, each in a process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

DAY_MS = 86_400_000
REFUSED = 5
MODULE = """
from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder

def versions(change):
    def build(builder: StreamsBuilder):
        paid = builder.stream("{name}.payments", Consumed(STRING, LONG)).map_values(change)
        sums = paid.group_by_key(Grouped(STRING, LONG)).reduce(lambda a, b: a + b, Materialized(STRING, LONG, name="sums"))
        sums.to_stream().to("{name}.sums", Produced(STRING, LONG))
        return builder.build()
    return build

v1, v2 = versions(lambda value: max(0, value)), versions(lambda value: value)
"""
PROJECT = """
[kafka]
"bootstrap.servers" = "{servers}"
[apps.{name}]
topology = "{name}:v1"
[apps.{name}.versions]
v2 = "{name}:v2"
"""


def test_the_second_one_waits_or_is_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    (tmp_path / f"{unique}.py").write_text(MODULE.format(name=unique))
    (tmp_path / "streams.toml").write_text(PROJECT.format(name=unique, servers=broker.bootstrap_servers))
    broker.create(2, f"{unique}.payments", f"{unique}.sums")
    payments = [(f"u{number % 50}".encode(), LONG.serialize(number), DAY_MS + number) for number in range(5_000)]
    broker.write(f"{unique}.payments", payments)

    def started(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "riverrun.cli", *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def both(*command: str) -> list[tuple[int, str]]:
        found = [started(*command) for _ in range(2)]
        outputs = [each.communicate(timeout=300)[0] for each in found]
        return [(each.returncode, output) for each, output in zip(found, outputs, strict=True)]

    assert {code for code, _ in both("run", unique)} <= {0, REFUSED}
    computed = both("backfill", unique, "--from", "1970-01-02", "--to", "1970-01-03", "--from-beginning", "--yes")
    for code, output in computed:
        assert code == 0 or (code == REFUSED and "Hint: " in output), output
    assert 0 in {code for code, _ in computed}, "\n=====\n".join(output for _, output in computed)
    for code, output in both("release", "start", unique, "--to", "v2", "--through", "gate"):
        assert code == 0, output
    status = started("release", "status", unique, "--json").communicate(timeout=300)[0]
    assert json.loads(status.splitlines()[-1])["step"] == "gated"
