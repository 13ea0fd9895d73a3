"""Values of a control topic are those that it has now, however much of it was read before."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.hosting import control_topic
from riverrun.hosting.control_topic import ControlTopic
from riverrun.kafka.ranges import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

STEPS = 60


@pytest.mark.parametrize("seed", range(2))
def test_values_are_read_on_from_where_they_were_read_last(broker: Broker, unique: str, seed: int) -> None:
    chosen, admins = random.Random(seed), (broker.admin(), broker.admin())
    values: dict[str, bytes] = {}
    for step in range(STEPS):
        topic = ControlTopic(chosen.choice(admins), unique)  # whoever looks makes one
        name, value = f"n{chosen.randrange(5)}", chosen.choice([None, b"%d" % step])
        match chosen.choice(["write", "put", "read", "read", "create again"]):
            case "write":
                topic.write("lock", {name: value})
            case "put":
                topic.put({name: value})
            case "create again" if chosen.random() < 0.3 and values:
                admins[0].delete_topics([unique])
                topic.create()
                values.clear()
                admins = (broker.admin(), broker.admin())  # clients that live on can crash (docs/pitfalls.md)
                continue
            case _:
                assert list(topic.read().items()) == list(values.items())
                continue
        values.pop(name, None)
        if value is not None:
            values[name] = value
    for admin in admins:
        assert ControlTopic(admin, unique).read() == values


@pytest.mark.parametrize("later", [1, 5])
def test_a_topic_that_was_created_again_is_read_from_its_beginning(broker: Broker, unique: str, later: int) -> None:
    admin = broker.admin()
    topic = ControlTopic(admin, unique)
    topic.put({"a": b"1", "b": b"2"})
    assert topic.read() == {"a": b"1", "b": b"2"}
    admin.delete_topics([unique])
    topic.create()
    values = {f"n{number}": b"%d" % number for number in range(later)}
    topic.put(values)
    assert topic.read() == values


def test_nothing_is_read_twice(broker: Broker, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(admin: Any, ranges: Any) -> Iterator[Any]:
        for tp, records in read_range(admin, ranges):
            read.extend(record.offset for record in records)
            yield tp, records

    monkeypatch.setattr(control_topic, "read_range", counted)
    admin = broker.admin()
    for number in range(3):
        ControlTopic(admin, unique).put({"a": b"%d" % number})
        for _ in range(2):
            assert ControlTopic(admin, unique).read() == {"a": b"%d" % number}
    assert read == [0, 1, 2]
