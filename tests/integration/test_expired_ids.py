"""Brokers forget the transactional ids of workers that have written nothing for a week: these go on, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, Riverrun
from riverrun.kafka.embedded import broker as broker_module
from tests.brokers import Broker, embedded_broker
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology

pytestmark = pytest.mark.broker

FORGETFUL = """
transactional.id.expiration.ms=500
transaction.remove.expired.transaction.cleanup.interval.ms=100
producer.id.expiration.ms=500
producer.id.expiration.check.interval.ms=100
"""


@pytest.fixture
def forgetful(tmp_path: Path, new_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that soon forgets producers that do not write."""
    monkeypatch.setattr(broker_module, "_PROPERTIES", broker_module._PROPERTIES + FORGETFUL)
    embedded = embedded_broker(tmp_path / "broker", new_port())
    yield Broker(embedded.start().bootstrap_servers)
    embedded.kill()


def counting(builder: StreamsBuilder) -> Topology:
    words = builder.stream("words.in", Consumed(STRING, STRING)).group_by(lambda _k, v: v, Grouped(STRING, STRING))
    counts = words.count(Materialized(STRING, LONG, name="counts"))
    counts.to_stream().to("words.out", Produced(STRING, LONG))
    return builder.build()


def total(broker: Broker) -> int:
    last = {record.key: int.from_bytes(record.value or b"", "big") for record in broker.read("words.out")}
    return sum(last.values())


def test_a_worker_whose_transactional_ids_have_expired_goes_on_exactly_once(
    forgetful: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    forgetful.create(2, "words.in", "words.out")
    app = Riverrun(kafka=forgetful.kafka, directory=tmp_path).app("words", counting, config={"commit.interval.ms": 100})
    written, log = 0, ""

    def expired() -> bool:
        nonlocal written, log
        forgetful.write("words.in", [(b"%d" % n, b"word-%d" % (n % 3), n) for n in range(10)])
        written += 10
        until(lambda: total(forgetful) >= written, "counted them")
        assert total(forgetful) == written
        log += capfd.readouterr().err
        return "start over from their last commit" in log

    with app.worker() as worker:
        worker.wait_for()
        until(expired, "expired")
    assert total(forgetful) == written
    assert "or nothing was written for transactional.id.expiration.ms" in log
