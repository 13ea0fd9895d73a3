"""Members that are no instances, in the group of a live worker: it goes on, whether it leads them or they lead it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from riverrun import STRING, Consumed, Produced, Riverrun
from riverrun.kafka.door import Kafka
from riverrun.kafka.membership import GroupMember, MemberConfig
from riverrun.worker.group.protocol import assignment_info_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

FOREIGN: list[bytes] = [
    b"",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"positions": [' + b"9" * 5000 + b"]}",
    *(
        json.dumps({"instance": "rogue", "fingerprint": "F", "capacity": 1, **change}).encode()
        for change in (
            {"positions": [1]},
            {"active": "zz"},
            {"active": "0:0-999999999"},
            {"capacity": 10**9},
            {"topics": {"../../x": 3}},
            {"server": "http://evil/"},
            {"tags": 7},
        )
    ),
]


class Broken:
    """Encodes to bytes that are no message of the group's protocol."""

    user_data = b""

    def encode(self) -> bytes:
        return b"\x00\x03\x00\x00\x00\x02\x00\x01a"


class Rogue:
    """A member that says and assigns anything."""

    def __init__(self, broker: Broker, group: str) -> None:
        self.says = b""
        self.assigned: bytes | None = b""
        self.plans: list[bytes] = []
        self.led = 0
        self._ends = threading.Event()
        self._place = GroupMember(
            Kafka(broker.kafka),
            group,
            client_id="rogue",
            describe=lambda: self.says,
            assign=self._lead,
            on_plan=self.plans.append,
            config=MemberConfig(10_000, 300),
        )
        self._thread = threading.Thread(target=self._take_part)
        self._thread.start()

    def _lead(self, said: Mapping[str, bytes]) -> dict[str, bytes]:
        self.led += len(said) > 1
        return dict.fromkeys(said, self.assigned or b"")

    def _take_part(self) -> None:
        while not self._ends.is_set():
            self._place.poll(0.5)
        self._place.close()

    def rejoin(self) -> None:
        self._place.rejoin()

    def leave(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    broker.create(2, f"{unique}.in", f"{unique}.out")

    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(f"{unique}.out", Produced(STRING, STRING))
        return builder.build()

    config = {"consumer.heartbeat.interval.ms": 300, "consumer.session.timeout.ms": 10_000}
    return Riverrun(kafka=broker.kafka, directory=tmp_path).app(unique, build, config=config)


@pytest.fixture
def rogue(broker: Broker, app: App) -> Iterator[Rogue]:
    rogue = Rogue(broker, f"{app.name}-v1")
    yield rogue
    rogue.leave()


def processes(broker: Broker, app: App, count: int) -> None:
    broker.write(f"{app.name}.in", [(b"%d" % count, b"x", 1)])
    until(lambda: len(broker.read(f"{app.name}.out")) == count, "processed the record")


def test_members_that_cannot_be_understood_are_refused_by_a_leader_that_goes_on(
    broker: Broker, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.worker() as worker:
        worker.wait_for()
        processes(broker, app, 1)
        rogue = Rogue(broker, f"{app.name}-v1")
        try:
            for number, said in enumerate(FOREIGN, 2):
                known = len(rogue.plans)
                rogue.says = said
                rogue.rejoin()
                until(lambda known=known: len(rogue.plans) > known, f"was refused: {said[:60]!r}")  # type: ignore[misc]
                assert assignment_info_of(rogue.plans[-1]).refusal
                processes(broker, app, number)
            known = len(rogue.plans)
            _says_bytes(monkeypatch, rogue._place)
            rogue.rejoin()
            until(lambda: len(rogue.plans) > known, "was refused for a broken subscription")
            processes(broker, app, len(FOREIGN) + 2)
        finally:
            rogue.leave()
    assert worker.wait().processed == len(FOREIGN) + 2


def _says_bytes(monkeypatch: pytest.MonkeyPatch, member: GroupMember) -> None:
    """Let a member join with bytes that are no subscription."""
    original = member._join_request

    def request(said: bytes) -> Any:
        found = original(said)
        found.protocols[0].metadata = Broken().encode()
        return found

    monkeypatch.setattr(member, "_join_request", request)


def test_a_worker_keeps_its_place_under_a_leader_that_cannot_be_understood(
    broker: Broker, app: App, rogue: Rogue
) -> None:
    until(lambda: "stable" in broker.admin().group(f"{app.name}-v1").state, "led")
    wrong = [
        b"\xff",
        b"[" * 50_000,
        b'{"active": "zz"}',
        b'{"active": "77:0"}',
        b'{"topics": {"%s.in": 100000}, "active": "0:99999"}' % app.name.encode(),
        b'{"topics": {"other": 1}}',
        b'{"format": 7}',
        b'{"active": "0:0-999999999"}',
    ]
    with app.worker() as worker:
        until(lambda: rogue.led > 0, "led the worker")
        for assigned in wrong:
            led, rogue.assigned = rogue.led, assigned
            rogue.rejoin()
            until(lambda led=led: rogue.led > led, f"assigned {assigned[:50]!r}")  # type: ignore[misc]
        assert not worker.state.name.startswith("ERROR")
        rogue.leave()
        worker.wait_for()
        processes(broker, app, 1)
    assert worker.wait().processed == 1


def test_bytes_of_the_protocol_are_as_these_tests_say() -> None:
    """Otherwise the library would read what `Broken` encodes."""
    with pytest.raises(Exception, match=r"."):
        ConsumerProtocolSubscription.decode(Broken().encode())
    with pytest.raises(Exception, match=r"."):
        ConsumerProtocolAssignment.decode(b"\x00")
