"""Functions that never return, in the stream threads of a worker: they are named, and end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, ProcessingError, Produced, Riverrun
from riverrun.worker import stuck_records
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

LIMIT_MS = 4000


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_records, "TRIES", 2)


@pytest.fixture
def new_app(broker: Broker, unique: str, tmp_path: Path) -> Callable[[Callable[[str], object], str], App]:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", value, 1) for value in (b"a", b"bad", b"c")])

    def made(function: Callable[[str], object], handler: str) -> App:
        def build(builder: StreamsBuilder) -> Topology:
            stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
            checked = stream.peek(lambda _key, value: function(value) if value == "bad" else None)
            checked.to(f"{unique}.out", Produced(STRING, STRING))
            return builder.build()

        config = {"max.poll.interval.ms": LIMIT_MS, "processing.exception.handler": handler}
        return Riverrun(kafka=broker.kafka, directory=tmp_path).app(unique, build, config=config)

    return made


def loops(_value: str) -> None:
    while True:
        pass


def waits(_value: str) -> None:
    threading.Event().wait()


def computes_in_c(_value: str) -> None:
    """Handle no signal, and let no other thread run."""
    sum(range(10**14))


def test_a_record_that_hangs_is_named_and_the_handler_decides_after_some_tries(
    broker: Broker, unique: str, new_app: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    with new_app(loops, "continue").worker() as worker:
        until(lambda: bool(worker.status().stuck), "named the record")
        (record,) = worker.status().stuck.values()
        assert (record.task, record.topic, record.partition, record.offset) == ("0_0", f"{unique}.in", 0, 1)
        assert record.node.startswith("KSTREAM-PEEK")
        until(lambda: [each.value for each in broker.read(f"{unique}.out")] == [b"a", b"c"], "skipped it")
        assert not worker.status().stuck
    assert f"its tasks wait: task 0_0, record {unique}.in-0@1, node KSTREAM-PEEK" in caplog.text
    assert caplog.text.count("replacing stream thread") == 1


@pytest.mark.parametrize(
    ("function", "text"),
    [(waits, r"not returned within .* partition 0, offset 1"), (computes_in_c, r"were silent .* had 0_0")],
)
def test_a_worker_without_a_handler_ends_with_the_record_that_hangs(
    function: Callable[[str], object], text: str, new_app: Callable[..., App]
) -> None:
    app = new_app(function, "fail")
    with pytest.raises(ProcessingError, match=rf"(?s){text}"), app.worker() as worker:
        worker.wait(timeout_s=DEADLINE_S)
