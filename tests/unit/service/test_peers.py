"""Peers that answer slowly, without end or with nonsense, and requests that do: each costs a limited time and memory."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, JSON, Consumed, Grouped, Materialized, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.service import admission, peers
from riverrun.service.admission import Access
from riverrun.service.api import new_api
from riverrun.service.instance import bound, serving
from riverrun.service.peers import NoAnswerError, Peers
from riverrun.service.reading import Bookmark, RefusalError, StoreReader, StoreRequest
from riverrun.service.routing import store_places
from riverrun.state.api import StoreKind
from riverrun.worker.answers import MAX_BYTES, look_up
from riverrun.worker.group.protocol import AssignmentInfo
from riverrun.worker.queries import AnswerPage, RangeQuery
from tests.unit.service.test_api import FakeInstance, client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

OK = b"HTTP/1.1 200 OK\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "headers, slowly": (OK, b"X"),
    "a header, slowly": (OK + b"X: ", b"x"),
    "a body, slowly": (OK + JSON_TYPE + b"Content-Length: 100000\r\n\r\n", b"["),
    "chunks, slowly": (OK + JSON_TYPE + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n"),
    "a body up to the end, slowly": (OK + JSON_TYPE + b"\r\n", b"["),
    "interim answers without end": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}
"""What a peer sends first, and then again and again. The last ones are sent without a pause."""
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "a body without end": (OK + JSON_TYPE + b"\r\n", b"[" * 65536),
    "chunks without end": (
        OK + JSON_TYPE + b"Transfer-Encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"[" * 65536 + b"\r\n",
    ),
    "headers without end": (OK, b"X: " + b"x" * 65536 + b"\r\n"),
    "a body that is longer than announced": (OK + b"Content-Length: 1\r\n\r\n", b"[" * 65536),
}
BROKEN: dict[str, bytes] = {
    "an encoded body": OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
    "deep JSON": OK + JSON_TYPE + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    "deep JSON that ends": OK + JSON_TYPE + b"Content-Length: 200000\r\n\r\n" + b"[" * 100_000 + b"]" * 100_000,
    "a long number": OK + JSON_TYPE + b"Content-Length: 5000\r\n\r\n" + b"9" * 5000,
    "no JSON": OK + b"Content-Length: 1\r\n\r\nx",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "a status that is none": b"HTTP/1.1 99999 x\r\n\r\n",
    "a length that is none": OK + b"Content-Length: -5\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "another server": b"HTTP/1.1 301 Moved\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
    "bytes": bytes(range(256)) * 100,
}


@contextmanager
def peer(first: bytes, again: bytes = b"", pause_s: float = 0.05) -> Iterator[str]:
    """Yield the address of a peer that sends this, and goes on until it is left."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(first)
                while not ended.wait(pause_s) and (again or pause_s):
                    if again:
                        connection.sendall(again)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        ended.set()


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_peer_that_trickles_is_left_in_time(kind: str) -> None:
    with peer(*ANSWERS[kind]) as server, closing(Peers(None, SystemClock(), within_s=0.5)) as asking:
        with pytest.raises(NoAnswerError, match=r"within 0\.5 s"):
            asking.get(server, "/status", {})
        with pytest.raises(NoAnswerError, match=r"within 0\.1 s"):
            asking.get(server, "/status", {}, 0.1)


@pytest.mark.parametrize("kind", FLOODS)
def test_a_peer_without_end_is_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MAX_ANSWER_BYTES", 4_000_000)
    first, again = FLOODS[kind]
    with peer(first, again, 0) as server, closing(Peers(None, SystemClock(), within_s=20)) as asking:
        with pytest.raises(NoAnswerError, match=r"does not answer|without JSON") as raised:
            asking.get(server, "/status", {})
        assert len(str(raised.value)) < 1000
        assert asking._held_bytes == 0


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_answer_is_none(kind: str) -> None:
    with peer(BROKEN[kind], pause_s=0) as server, closing(Peers(None, SystemClock(), within_s=5)) as asking:
        try:
            answer = asking.get(server, "/status", {})
        except NoAnswerError as error:
            assert len(str(error)) < 1000  # noqa: PT017 - some are answers, with another status
        else:
            assert answer.status in {200, 301}


def test_all_answers_together_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MAX_HELD_BYTES", 1_000_000)
    first, again = FLOODS["a body without end"]
    with (
        peer(first, again, 0) as server,
        closing(Peers(None, SystemClock(), within_s=20)) as asking,
        pytest.raises(NoAnswerError, match="1000000 in all answers"),
    ):
        asking.get(server, "/status", {})


def test_a_question_over_many_partitions_has_one_deadline() -> None:
    with peer(*ANSWERS["a body, slowly"]) as server, closing(Peers(None, SystemClock(), within_s=60)) as asking:
        servers = {f"0_{number}": server for number in range(3)}
        instance = FakeInstance(active=frozenset(), assignment=AssignmentInfo(servers=servers))
        place = store_places(instance.application.topology, instance.layout, "app-v1")["counts"]
        wanted = StoreRequest(
            place, RangeQuery(None, None), "/stores/counts", {}, 10, allows_standby=False, until=time.monotonic() + 0.5
        )
        with pytest.raises(RefusalError, match="within 0"):
            StoreReader(instance, asking).read(wanted, [0, 1, 2], Bookmark(0))
        with pytest.raises(RefusalError, match="could not be read in time"):
            StoreReader(instance, asking).read(wanted, [0, 1, 2], Bookmark(0))


# Requests


def of_json(tmp_path: Path) -> FakeInstance:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(JSON, JSON)).group_by_key(Grouped(JSON, JSON)).count(Materialized(name="counts"))
    return FakeInstance(application=Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), tmp_path))


@pytest.mark.parametrize(
    "key", ["[" * 20_000, '{"a":' * 5000, "9" * 5000, "x", '"%ED%A0%80"', "[" * 900 + "]" * 900, "NaN", ""]
)
@pytest.mark.parametrize(
    "path", ["/stores/counts/{}", "/metadata/counts/{}", "/stores/counts?from={}", "/stores/counts?prefix={}"]
)
def test_a_key_of_any_form_is_a_short_answer(
    tmp_path: Path, path: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = client(of_json(tmp_path)).get(path.replace("{}", key))
    assert answer.status_code < 500
    assert len(answer.content) < 5000
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("page", ["[" * 20_000, "9" * 5000, "AAAA", "ä", "W1tbW1tbW1s"])
def test_a_page_of_any_form_is_a_short_answer(page: str) -> None:
    answer = client(FakeInstance()).get("/stores/counts", params={"page": page})
    assert (answer.status_code, len(answer.content) < 2000) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"sql":' * 9000,
        b'{"sql": ' + b"9" * 50_000 + b"}",
        b"\xff",
        b"",
        b"null",
        b'{"sql": 1, "x": 2}',
        b"NaN",
    ],
)
def test_a_body_of_any_form_is_a_short_answer(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        answer = client(FakeInstance()).post("/query", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 5000
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_mistake_of_ours_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    instance = FakeInstance()
    instance.layouts = None  # type: ignore[attr-defined]

    def fail() -> Any:
        message = "x" * 100_000 + "\n"
        raise RuntimeError(message)

    instance.status = fail  # type: ignore[method-assign]
    answer = client(instance).get("/status")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal-error")
    (said,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(said.getMessage()) < 1000
    assert "\n" not in said.getMessage()
    assert said.exc_info is None


@pytest.mark.parametrize("sent", [b"", b"{", b'{"sql": "SELECT'])
def test_a_body_that_does_not_arrive_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_BODY_SECONDS", 0.3)
    instance = FakeInstance()
    with (
        bound("127.0.0.1:0", wants_token=False) as listener,
        serving(new_api(instance, Access(server="x:1")), listener),
    ):
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 20) as asking:
            asking.sendall(
                f"POST /query HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 5000\r\n\r\n".encode() + sent
            )
            assert asking.recv(65536).startswith(b"HTTP/1.1 408")


class Large:
    """A store of large values."""

    def range(self, *_: Any) -> Any:
        """All of them."""
        return ((str(number), b"x" * (MAX_BYTES // 4)) for number in range(1000))


def test_a_page_of_large_values_ends_early() -> None:
    (builder,) = [each for sub in FakeInstance().application.topology.sub_topologies() for each in sub.stores]
    table = replace(builder, kind=StoreKind.KEY_VALUE, value_serde=BYTES)
    page = look_up(Large(), table, RangeQuery(None, None), 1000, None)
    assert isinstance(page, AnswerPage)
    assert 1 <= len(page.rows) <= 5
    assert page.after is not None
