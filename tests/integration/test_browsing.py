"""Topics and letters as an instance's HTTP interface shows them: bounded pages, whatever the records contain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from riverrun import JSON, LONG, STRING, Consumed, Produced
from riverrun.kafka.producer import IdempotentProducer
from riverrun.service.admission import Access
from riverrun.service.api import new_api
from riverrun.service.browsing import Browsing, browse
from riverrun.topics.pages import PageLimits
from tests.unit.service.test_api import FakeInstance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

HOSTILE = "<script>document.title='run'</script>"


def build_orders(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        orders = builder.stream(f"{name}.in", Consumed(STRING, JSON))
        orders.group_by_key().count().to_stream().to(f"{name}.out", Produced(STRING, LONG))
        large = orders.filter(lambda _key, order: order["amount"] / order["count"] > 0)
        large.to(f"{name}.large", Produced(STRING, JSON))
        return builder.build()

    return build


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    broker.create(2, f"{unique}.in", f"{unique}.out", f"{unique}.large", f"{unique}.dead", f"{unique}.private")
    config = {
        "processing.exception.handler": "continue",
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": f"{unique}.dead",
    }
    return broker.project(directory=tmp_path, by="ann@desk").app(unique, build_orders(unique), config=config)


def write(broker: Broker, topic: str, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
    producer = IdempotentProducer(broker.door)
    for number, (key, value) in enumerate(records):
        producer.send(
            topic, key, value, 1_000 * (number + 1), (("trace", b"\x00\xff"), ("by", b"ann"), ("no", None)), partition
        )
    producer.flush()
    producer.close()


def caller_of(app: App, **limits: Any) -> TestClient:
    instance = FakeInstance(application=app.loaded())
    if not limits:
        return TestClient(new_api(instance, Access(server=instance.server)), "http://127.0.0.1:8080")
    api = FastAPI()
    browse(api, Browsing(instance, PageLimits(**limits)))
    return TestClient(api)


def numbers(count: int) -> list[tuple[bytes, bytes]]:
    return [(f"k{number}".encode(), b'{"n": %d}' % number) for number in range(count)]


def offsets(page: dict[str, Any]) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in page["records"]]


def test_only_topics_that_the_application_shares_with_others_are_shown(broker: Broker, app: App) -> None:
    caller = caller_of(app)
    topics = {each["topic"]: each for each in caller.get("/topics").json()}
    assert sorted(topics) == [f"{app.name}.in", f"{app.name}.large", f"{app.name}.out"]
    assert topics[f"{app.name}.in"] == {
        "topic": f"{app.name}.in",
        "partitions": 2,
        "roles": ["input"],
        "key_serde": "string",
        "value_serde": "json",
    }
    for other in (f"{app.name}.private", "__consumer_offsets", "..%2fx", "riverrun-control"):
        answer = caller.get(f"/topics/{other}/records")
        assert answer.status_code == 404
    missing = caller_of(broker.project(directory=app.project.path.parent).app("gone", build_orders("gone")))
    answer = missing.get("/topics/gone.in/records")
    assert (answer.status_code, answer.json()["error"]) == (404, "no-such-topic")


@pytest.mark.broker
def test_records_are_shown_by_serdes_and_from_any_point(broker: Broker, app: App) -> None:
    write(broker, f"{app.name}.in", *numbers(5))
    write(broker, f"{app.name}.in", (b"other", b"[1]"), partition=1)
    caller, path = caller_of(app), f"/topics/{app.name}.in/records"
    found = caller.get(path).json()
    assert offsets(found) == [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (0, 4)], "the newest, by time"
    assert found["records"][0] == {
        "partition": 0,
        "offset": 0,
        "timestamp": 1000,
        "key": "k0",
        "value": {"n": 0},
        "headers": [["trace", "0x00ff"], ["by", "ann"], ["no", None]],
        "problems": {"key": None, "value": None},
    }
    assert (found["is_end"], found["next"]) == (True, f"{app.name}.in-0@5,{app.name}.in-1@1")
    assert offsets(caller.get(path, params={"from": f"{app.name}.in-0@3"}).json()) == [(0, 3), (0, 4)]
    assert offsets(caller.get(path, params={"from": "1970-01-01T00:00:04Z"}).json()) == [(0, 3), (0, 4)]
    assert offsets(caller.get(path, params={"limit": 2}).json()) == [(0, 3), (0, 4)]
    write(broker, f"{app.name}.in", (b"new", b"1"))
    after = caller.get(path, params={"from": found["next"]}).json()
    assert ([each["key"] for each in after["records"]], after["is_end"]) == (["new"], True)
    assert caller.get(path, params={"from": after["next"]}).json()["records"] == []


def test_a_filter_looks_at_keys_and_values_and_pages_go_on_without_gaps(broker: Broker, app: App) -> None:
    write(broker, f"{app.name}.in", *numbers(50))
    caller, path = caller_of(app), f"/topics/{app.name}.in/records"
    assert [each["key"] for each in caller.get(path, params={"contains": "k4", "limit": 3}).json()["records"]] == [
        "k47",
        "k48",
        "k49",
    ]
    assert [each["key"] for each in caller.get(path, params={"contains": '"n":7'}).json()["records"]] == ["k7"]
    start, seen = "earliest", []
    while True:
        page = caller.get(path, params={"from": start, "limit": 7}).json()
        seen += offsets(page)
        start = page["next"]
        if page["is_end"]:
            break
    assert seen == [(0, n) for n in range(50)]


def test_records_that_no_serde_reads_and_large_ones_are_shown_as_bytes(broker: Broker, app: App) -> None:
    deep = b"[" * 50_000
    write(
        broker,
        f"{app.name}.in",
        (b"\xff\xfe", b"{"),
        (HOSTILE.encode(), b'"' + HOSTILE.encode() + b'"'),
        (None, None),
        (b"deep", deep),
    )
    write(broker, f"{app.name}.out", (b"k", b"12345"))
    caller, path = caller_of(app), f"/topics/{app.name}.in/records"
    bad, hostile, nothing, nested = caller.get(path).json()["records"]
    assert (bad["key"], bad["value"]) == ("fffe", "7b")
    assert bad["problems"]["key"].startswith("not read by serde string: UnicodeDecodeError")
    assert bad["problems"]["value"].startswith("not read by serde json")
    assert (hostile["key"], hostile["value"]) == (HOSTILE, HOSTILE)
    assert (nothing["key"], nothing["value"], nothing["problems"]["value"]) == (None, None, None)
    assert len(nested["value"]) == 1000
    assert nested["problems"]["value"] is not None
    (short,) = caller.get(f"/topics/{app.name}.out/records").json()["records"]
    assert "not read by serde long" in short["problems"]["value"]


@pytest.mark.parametrize(
    ("limits", "shown"),
    [({"looked_at": 10}, 10), ({"read_bytes": 100}, None), ({"seconds": -1.0}, 100)],
    ids=["records", "bytes", "time"],
)
def test_a_page_ends_at_each_of_its_limits_and_the_next_goes_on(
    broker: Broker, app: App, limits: dict[str, Any], shown: int | None
) -> None:
    write(broker, f"{app.name}.in", *numbers(250))
    caller, path = caller_of(app, **limits), f"/topics/{app.name}.in/records"
    first = caller.get(path, params={"from": "earliest", "limit": 1000}).json()
    assert not first["is_end"]
    assert 0 < first["looked_at"] == len(first["records"]) < 250
    assert shown is None or first["looked_at"] == shown
    second = caller.get(path, params={"from": first["next"], "limit": 1000}).json()
    assert offsets(second)[0] == (0, first["looked_at"])


def test_what_is_asked_wrongly_is_explained(app: App) -> None:
    caller, path = caller_of(app), f"/topics/{app.name}.in/records"
    for wrong, status in (
        ({"from": "yesterday"}, 400),
        ({"from": "other-0@1"}, 400),
        ({"from": f"{app.name}.in-7@1"}, 400),
        ({"limit": 0}, 422),
        ({"limit": 1001}, 422),
        ({"contains": "x" * 1001}, 422),
        ({"form": "earliest"}, 422),
    ):
        answer = caller.get(path, params=wrong)
        assert answer.status_code == status, answer.text
        assert answer.json()["message"]


def test_so_many_pages_are_read_at_a_time(app: App) -> None:
    instance = FakeInstance(application=app.loaded())
    browsing = Browsing(instance)
    with browsing.turn() as first, browsing.turn() as second, browsing.turn() as third:
        assert (first, second, third) == (True, True, False)
    with browsing.turn() as again:
        assert again


@pytest.mark.broker
def test_letters_are_listed_filtered_and_shown_with_their_command(broker: Broker, app: App) -> None:
    write(
        broker,
        f"{app.name}.in",
        (b"a", b'{"amount": 6, "count": 0}'),
        (b"b", b"{"),
        (b"c", b'{"amount": 6, "count": 1}'),
    )
    app.catch_up()
    caller = caller_of(app)
    found = caller.get("/letters").json()
    assert (found["app"], found["topic"], found["is_end"]) == (app.name, f"{app.name}.dead", True)
    errors = {each["error"] for each in found["letters"]}
    assert errors == {"ZeroDivisionError", "DecodeError"} or len(errors) == 2
    (zero,) = caller.get("/letters", params={"error": "ZeroDivision"}).json()["letters"]
    assert (zero["origin"], zero["note"]) == (f"{app.name}.in-0@0", None)
    assert not caller.get("/letters", params={"limit": 1}).json()["is_end"]
    assert caller.get("/letters", params={"origin": f"{app.name}.in-1"}).json()["letters"] == []
    shown = caller.get(f"/letters/{zero['place']}").json()
    assert (shown["key_text"], shown["value_text"]) == ("a", '{"amount":6,"count":0}')
    assert "ZeroDivisionError" in shown["trace"]
    app.letters().discard(each for each in app.letters().list() if each.name == zero["place"])
    assert len(caller.get("/letters").json()["letters"]) == 1
    (decided,) = (each for each in caller.get("/letters", params={"decided": True}).json()["letters"] if each["note"])
    assert decided["note"]["state"] == "discarded"
    for place in (f"{app.name}.dead-0@999", f"{app.name}.dead-9@0", f"{app.name}.in-0@0", "nonsense", "a@b"):
        answer = caller.get(f"/letters/{place}")
        assert (answer.status_code, answer.json()["error"]) == (404, "no-such-letter")


def test_an_application_without_letters_says_so(broker: Broker, unique: str, tmp_path: Path) -> None:
    app = broker.project(directory=tmp_path).app(unique, build_orders(unique))
    caller = caller_of(app)
    assert caller.get("/letters").json() == {"app": unique, "topic": None, "letters": [], "is_end": True}
    answer = caller.get("/letters/x-0@1")
    assert (answer.status_code, answer.json()["error"]) == (404, "no-such-topic")
    assert "has no dead letter topic" in answer.json()["message"]
