"""Processes that die at any moment, on a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

SCRIPT = """
import sys, os
sys.path[:0] = sys.argv[1].split(os.pathsep)
from pathlib import Path
from riverrun import *
from riverrun.config import AppConfig, StreamsConfig
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.worker.worker import Worker
import signal
unique, servers, state = sys.argv[2:]
builder = StreamsBuilder()
counts = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by(lambda k, v: v, Grouped(STRING, STRING)).count(
    Materialized(name="counts"))
counts.to_stream().to(f"{unique}.out", Produced(STRING, LONG))
config = AppConfig(unique, "x:y", streams=StreamsConfig(commit_interval_ms=20))
application = Application(config, "v1", builder.build(), Kafka({"bootstrap.servers": servers}), Path(state))
worker = Worker(application, on_state=lambda s: print(s.value, flush=True))
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
worker.run()
"""


def test_kill_9_at_any_moment_loses_and_duplicates_nothing(broker: Broker, unique: str, tmp_path: Path) -> None:
    words, records = [f"w{n}" for n in range(7)], 60_000
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"%d" % n, words[n % 7].encode(), n + 1) for n in range(records)])
    command = [sys.executable, "-c", SCRIPT, ":".join(filter(None, sys.path)), unique, broker.bootstrap_servers]

    def counted() -> int:
        return sum({r.key: LONG.deserialize(r.value or b"") for r in broker.read(f"{unique}.out")}.values())

    total = 0
    for kill in range(4):
        process = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert any(line.strip() == "running" for line in iter(process.stdout.readline, ""))
        wanted = min(records, total + records // 4)
        until(lambda: counted() >= wanted or process.poll() is not None, "counted a quarter more")  # noqa: B023 - now
        total = counted()
        process.send_signal(signal.SIGTERM if kill == 3 else signal.SIGKILL)
        assert process.wait(DEADLINE_S) == (0 if kill == 3 else -signal.SIGKILL)
    written = broker.read(f"{unique}.out")
    assert {r.key: LONG.deserialize(r.value or b"") for r in written} == {
        word.encode(): len(range(n, records, 7)) for n, word in enumerate(words)
    }
    for word in words:
        counts = [LONG.deserialize(r.value or b"") for r in written if r.key == word.encode()]
        assert counts == sorted(set(counts)), "a count went back or came twice"
