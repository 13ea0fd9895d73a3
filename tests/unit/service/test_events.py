"""Streams of events: what they say, and when they end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from riverrun.records import TaskId
from riverrun.service.admission import Access
from riverrun.service.answering import MAX_STREAMS, Streams, as_events
from riverrun.service.api import new_api
from riverrun.service.connections import ConnectionLimits
from riverrun.service.instance import bound, serving
from riverrun.service.measuring import instance_events
from riverrun.worker.states import TaskFigures, WorkerSummary
from riverrun.worker.stream_thread.protocol import ThreadReport
from tests.unit.service.test_api import FakeInstance, client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BUSY = TaskId(0, 1)


class Working(FakeInstance):
    """Has processed ten records more whenever it is looked at."""

    done = 0

    def reports(self) -> Mapping[int, ThreadReport]:
        self.done += 10
        tasks = {BUSY: TaskFigures(self.done, {})}
        summary = WorkerSummary(self.done, 0, self.done, {})
        return {
            1: ThreadReport(
                active=self.active,
                standby=self.standby,
                positions={},
                lags={TaskId(0, 2): 7},
                summary=summary,
                obeyed=1,
                restoring={},
                commit_seconds=(self.done / 100, 0.2),
                tasks=tasks,
            )
        }


@contextmanager
def served(instance: FakeInstance, token: str = "", limits: ConnectionLimits | None = None) -> Iterator[int]:
    api = new_api(instance, Access(token, server=instance.server))
    with bound("127.0.0.1:0", wants_token=False) as listener, serving(api, listener, limits, api.state.events.end):
        yield listener.getsockname()[1]


def taken(events: Streams, count: int) -> list[dict[str, Any]]:
    async def take() -> list[dict[str, Any]]:
        found = []
        stream = events.stream()
        async for event in stream:
            head, data, *rest = event.decode().split("\n")
            assert (head, rest) == ("event: state", ["", ""])
            found.append(msgspec.json.decode(data.removeprefix("data: ")))
            if len(found) == count:
                await stream.aclose()  # type: ignore[attr-defined] # it is a generator
                break
        return found

    return asyncio.run(take())


def test_an_event_has_the_rates_lags_and_state_of_each_sub_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Working()
    directory = tmp_path / "0_1" / "counts"
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(b"x" * 100)
    monkeypatch.setattr(type(instance.application), "directory", tmp_path)
    first, second = taken(instance_events(instance, lambda: {"state": "running"}, 0.02), 2)
    assert (first["rate"], first["commit_ms"]) == (0, None), "nothing is known to compare with"
    assert second["state"] == "running"
    assert second["rate"] > 0
    own = {"rate": second["rate"], "processed": 20, "lag": 0, "latency_ms": None, "busy": 0}
    assert second["tasks"]["0_1"] == own
    assert second["commit_ms"] == pytest.approx(10)
    assert (second["lags"], second["copies_lag"]) == ({"0_2": 7}, 7)
    flow = second["sub_topologies"]["0"]
    assert (flow["rate"], flow["lag"], flow["state_bytes"]) == (second["rate"], 0, 100)
    assert second["state_bytes"] == {"0_1": 100}


def test_events_are_data_and_want_the_token() -> None:
    assert client(FakeInstance(), "secret").get("/events").status_code == 401
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client(FakeInstance()).get("/events", headers=foreign).status_code == 403


def test_there_are_only_so_many_streams_and_all_end_at_once_with_the_server() -> None:
    ended: list[bool] = []

    def read(port: int, begun: threading.Semaphore) -> None:
        with httpx.Client(timeout=30) as reader, reader.stream("GET", f"http://127.0.0.1:{port}/events") as answer:
            chunks = answer.iter_raw()
            first = next(chunks)
            begun.release()
            ended.append(b"event: state" in first + b"".join(chunks))

    begun = threading.Semaphore(0)
    with served(Working()) as port:
        threads = [threading.Thread(target=read, args=(port, begun)) for _ in range(MAX_STREAMS)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=30)
        one_more = httpx.get(f"http://127.0.0.1:{port}/events", timeout=30)
        assert (one_more.status_code, one_more.json()["error"]) == (503, "too-many-streams")
    for thread in threads:
        thread.join(30)
    assert ended == [True] * MAX_STREAMS, "whole answers, none cut off"


def test_of_readers_that_come_at_once_those_for_whom_there_is_no_room_are_refused() -> None:
    events = instance_events(Working(), dict, 0.01)

    async def read() -> list[int]:
        answers = await asyncio.gather(*(as_events(events) for _ in range(MAX_STREAMS + 2)))
        return [answer.status_code for answer in answers]

    assert sorted(asyncio.run(read())) == [200] * MAX_STREAMS + [503] * 2
    assert not events.open_streams


@pytest.mark.parametrize("path", ["/", "/page.css", "/health"])
def test_pages_and_checks_of_health_may_be_asked_for_without_their_content(path: str) -> None:
    with served(FakeInstance()) as port:
        whole, head = (httpx.request(method, f"http://127.0.0.1:{port}{path}") for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["Content-Length"] == whole.headers["Content-Length"]


def test_a_stream_that_its_reader_leaves_makes_room() -> None:
    events = instance_events(Working(), dict, 0.01)
    for _ in range(MAX_STREAMS + 1):
        taken(events, 1)
    assert not events.is_full


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    api = new_api(Working(id="x" * 8_000_000), Access(server="here:1"))
    events: Streams = api.state.events
    with (
        bound("127.0.0.1:0", wants_token=False) as listener,
        serving(api, listener, ConnectionLimits(slow_s=0.3), events.end),
        socket.create_connection(listener.getsockname(), timeout=30) as reader,
    ):
        reader.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert reader.recv(1)
        deadline = time.monotonic() + 30
        while events.open_streams:
            assert time.monotonic() < deadline, "it is open still"
            httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/health", timeout=30)
