"""Joins by foreign key: the scenarios of Kafka Streams' KTableKTableForeignKeyJoin tests, results and protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from riverrun import (
    STRING,
    Consumed,
    Grouped,
    KTable,
    Materialized,
    Named,
    Produced,
    StreamsBuilder,
    TableJoined,
    TopologyError,
    ValueAndTimestamp,
)
from riverrun.serde.foreign_key import (
    Instruction,
    Subscription,
    SubscriptionResponse,
    combined_key,
    hash128,
    response_serde,
    subscription_serde,
)
from riverrun.testing import TopologyTestDriver
from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS: Consumed[str, str] = Consumed(STRING, STRING)
OUT: Produced[str, str] = Produced(STRING, STRING)
STORED: Materialized[str, str] = Materialized(STRING, STRING, name="results")
REGISTRATION = "test-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic"
RESPONSE = "test-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic"


def foreign_key(value: str) -> str | None:
    return value.partition("|")[2] or None


def pair(left: str | None, right: str | None) -> str:
    return f"({left},{right})"


class Case:
    """A join running in memory."""

    def __init__(self, driver: TopologyTestDriver) -> None:
        self.driver = driver
        self._left = driver.input_topic("left", STRING, STRING)
        self._right = driver.input_topic("right", STRING, STRING)
        self._out = driver.output_topic("out", STRING, STRING)

    def left(self, key: str, value: str | None, timestamp: int = 0) -> list[tuple[str | None, str | None]]:
        self._left.pipe_input(key, value, timestamp=timestamp)
        return self._out.read_key_values_to_list()

    def right(self, key: str, value: str | None, timestamp: int = 0) -> list[tuple[str | None, str | None]]:
        self._right.pipe_input(key, value, timestamp=timestamp)
        return self._out.read_key_values_to_list()

    def subscriptions(self) -> list[tuple[str | None, str, bool]]:
        """Foreign key, instruction, and whether there is a hash, of what was sent since the last call."""
        serde = subscription_serde(STRING)
        read = ((r.key, serde.deserialize(r.value or b"")) for r in self.driver.read_raw(REGISTRATION))
        return [(None if k is None else k.decode(), s.instruction.name, s.hash is not None) for k, s in read]


def joined(kind: str, materialized: Materialized[str, str] | None = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.table("left", ROWS), builder.table("right", ROWS)
    table: KTable[str, str] = getattr(left, kind)(right, pair, materialized, foreign_key_extractor=foreign_key)
    table.to_stream().to("out", OUT)
    return builder


@pytest.fixture(params=[None, STORED], ids=["virtual", "stored"])
def materialized(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def inner(materialized: Any) -> Iterator[Case]:
    with TopologyTestDriver(joined("join", materialized).build()) as driver:
        yield Case(driver)


@pytest.fixture
def left_joined(materialized: Any) -> Iterator[Case]:
    with TopologyTestDriver(joined("left_join", materialized).build()) as driver:
        yield Case(driver)


def test_rows_join_the_foreign_row_they_name_and_leave_with_their_deletion(inner: Case) -> None:
    for number in (1, 2, 3):
        assert inner.right(f"rhs{number}", f"rhsValue{number}") == []
    assert inner.left("lhs1", "lhsValue1|rhs1") == [("lhs1", "(lhsValue1|rhs1,rhsValue1)")]
    assert inner.left("lhs2", "lhsValue2|rhs2") == [("lhs2", "(lhsValue2|rhs2,rhsValue2)")]
    assert inner.left("lhs3", "lhsValue3|rhs1") == [("lhs3", "(lhsValue3|rhs1,rhsValue1)")]
    assert inner.left("lhs1", None) == [("lhs1", None)]
    assert inner.right("rhs1", "changed") == [("lhs3", "(lhsValue3|rhs1,changed)")]


def test_a_foreign_row_reaches_all_rows_that_name_it(inner: Case) -> None:
    assert inner.left("lhs1", "lhsValue1|rhs1") == []
    assert inner.left("lhs2", "lhsValue2|rhs1") == []
    both = [("lhs1", "(lhsValue1|rhs1,rhsValue1)"), ("lhs2", "(lhsValue2|rhs1,rhsValue1)")]
    assert inner.right("rhs1", "rhsValue1") == both
    assert inner.right("rhs2", "rhsValue2") == []
    assert inner.right("rhs1", None) == [("lhs1", None), ("lhs2", None)]


def test_a_left_join_keeps_rows_whose_foreign_row_is_missing(left_joined: Case) -> None:
    assert left_joined.left("lhs1", "lhsValue1|rhs1") == [("lhs1", "(lhsValue1|rhs1,None)")]
    assert left_joined.right("rhs1", "rhsValue1") == [("lhs1", "(lhsValue1|rhs1,rhsValue1)")]
    assert left_joined.right("rhs1", None) == [("lhs1", "(lhsValue1|rhs1,None)")]
    assert left_joined.left("lhs1", None) == [("lhs1", None)]
    assert left_joined.left("lhs1", None) == []


def test_a_left_join_keeps_rows_without_a_foreign_key(left_joined: Case) -> None:
    assert left_joined.left("lhs1", "lhsValue1|rhs1") == [("lhs1", "(lhsValue1|rhs1,None)")]
    assert left_joined.left("lhs1", "lhsValue1") == [("lhs1", "(lhsValue1,None)")]
    assert left_joined.right("rhs1", "rhsValue1") == []
    assert left_joined.subscriptions() == [
        ("rhs1", "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE", True),
        ("rhs1", "DELETE_KEY_NO_PROPAGATE", True),
        (None, "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE", True),
    ]


def test_an_inner_join_drops_rows_without_a_foreign_key_and_deletes_their_result(inner: Case) -> None:
    inner.right("rhs1", "rhsValue1")
    assert inner.left("lhs1", "lhsValue1") == []
    assert inner.left("lhs1", "lhsValue1|rhs1") == [("lhs1", "(lhsValue1|rhs1,rhsValue1)")]
    assert inner.left("lhs1", "lhsValue1") == [("lhs1", None)]
    assert inner.driver.dropped()["null-foreign-key"] == 2
    assert inner.subscriptions() == [
        ("rhs1", "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE", True),
        ("rhs1", "DELETE_KEY_AND_PROPAGATE", True),
    ]


def test_a_row_that_names_another_foreign_row_leaves_the_old_one(inner: Case) -> None:
    inner.right("rhs1", "rhsValue1")
    inner.right("rhs2", "rhsValue2")
    inner.left("lhs1", "lhsValue1|rhs1")
    assert inner.left("lhs1", "lhsValue1|rhs2") == [("lhs1", "(lhsValue1|rhs2,rhsValue2)")]
    assert inner.right("rhs1", "deleted") == []
    assert inner.right("rhs2", "new") == [("lhs1", "(lhsValue1|rhs2,new)")]
    assert inner.subscriptions() == [
        ("rhs1", "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE", True),
        ("rhs1", "DELETE_KEY_NO_PROPAGATE", True),
        ("rhs2", "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE", True),
    ]


def test_a_row_that_now_names_nothing_known_loses_its_result() -> None:
    with TopologyTestDriver(joined("join").build()) as driver:
        case = Case(driver)
        case.right("rhs1", "rhsValue1")
        case.left("lhs1", "lhsValue1|rhs1")
        assert case.left("lhs1", "lhsValue1|rhs9") == [("lhs1", None)]
        assert case.left("lhs1", None) == [("lhs1", None)]  # as in Kafka Streams: nobody knows that it has none
        assert case.left("lhs1", None) == []


def test_an_update_that_names_the_same_foreign_row_asks_once(inner: Case) -> None:
    inner.left("lhs1", "lhsValue1|rhs1")
    assert inner.left("lhs1", "lhsValue2|rhs1") == []
    inner.right("rhs1", "rhsValue1")
    assert inner.left("lhs1", "lhsValue3|rhs1") == [("lhs1", "(lhsValue3|rhs1,rhsValue1)")]
    assert inner.left("lhs1", None) == [("lhs1", None)]
    assert inner.subscriptions() == [
        ("rhs1", "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE", True),
        ("rhs1", "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE", True),
        ("rhs1", "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE", True),
        ("rhs1", "DELETE_KEY_AND_PROPAGATE", False),
    ]


def test_results_have_the_later_timestamp() -> None:
    with TopologyTestDriver(joined("join").build()) as driver:
        case = Case(driver)
        out = driver.output_topic("out", STRING, STRING)
        driver.input_topic("left", STRING, STRING).pipe_input("lhs1", "v|rhs1", timestamp=7)
        for timestamp in (5, 9):
            driver.input_topic("right", STRING, STRING).pipe_input("rhs1", f"at{timestamp}", timestamp=timestamp)
        driver.input_topic("left", STRING, STRING).pipe_input("lhs1", "w|rhs1", timestamp=3)
        assert [r.timestamp for r in out.read_records_to_list()] == [5, 9, 9]
        assert case.driver.dropped()["stale-response"] == 0


def test_an_answer_to_a_value_that_has_changed_since_is_dropped(inner: Case) -> None:
    inner.left("lhs1", "lhsValue1|rhs1")
    stale = SubscriptionResponse(hash128(b"something else|rhs1"), "rhsValue1", None)
    inner.driver._pipe(RESPONSE, b"lhs1", response_serde(STRING).serialize(stale), 0, ())
    assert inner.right("rhs2", "x") == []
    assert inner.driver.dropped()["stale-response"] == 1


def test_the_foreign_key_may_come_from_the_key() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", ROWS), builder.table("right", ROWS)
    by_key = left.join(right, pair, foreign_key_extractor=lambda key, _value: key.split(":")[0])
    by_key.to_stream().to("out", OUT)
    with TopologyTestDriver(builder.build()) as driver:
        case = Case(driver)
        case.left("producer1:product1", "product1-data")
        case.left("producer1:product2", "product2-data")
        assert case.right("producer1", "producer1-data") == [
            ("producer1:product1", "(product1-data,producer1-data)"),
            ("producer1:product2", "(product2-data,producer1-data)"),
        ]


def test_rows_of_a_table_may_name_rows_of_the_same_table() -> None:
    builder = StreamsBuilder()
    staff = builder.table("left", ROWS)
    staff.left_join(staff, pair, foreign_key_extractor=foreign_key).to_stream().to("out", OUT)
    topology = builder.build()
    assert [is_cyclic(level) for level in topology.levels()] == [True]
    with TopologyTestDriver(topology) as driver:
        topic, out = driver.input_topic("left", STRING, STRING), driver.output_topic("out", STRING, STRING)
        topic.pipe_key_value_list([("boss", "B"), ("worker", "W|boss"), ("boss", "B2")])
        assert out.read_key_values_to_list() == [
            ("boss", "(B,None)"),
            ("worker", "(W|boss,B)"),
            ("worker", "(W|boss,B2)"),
            ("boss", "(B2,None)"),
        ]


def test_a_result_can_be_joined_by_key_with_the_table_it_comes_from() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", ROWS), builder.table("right", ROWS)
    by_foreign_key = left.join(right, pair, STORED, foreign_key_extractor=lambda value: value.split("-")[0])
    left.join(by_foreign_key, pair).to_stream().to("out", OUT)
    with TopologyTestDriver(builder.build()) as driver:
        case = Case(driver)
        assert case.left("1", "999-alpha") == []
        assert case.right("999", "beta") == [("1", "(999-alpha,(999-alpha,beta))")]
        assert list(driver.get_state_store("results").all()) == [("1", ValueAndTimestamp("(999-alpha,beta)", 0))]


def test_topics_and_nodes_have_the_names_kafka_streams_gives_them() -> None:
    topology = joined("join").build()
    assert list(topology.repartition_topics) == [REGISTRATION.removeprefix("test-"), RESPONSE.removeprefix("test-")]
    assert list(topology.nodes)[4:-2] == [
        "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000007",
        "KTABLE-SINK-0000000008",
        "KTABLE-SOURCE-0000000009",
        "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000011",
        "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000012",
        "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000013",
        "KTABLE-SINK-0000000015",
        "KTABLE-SOURCE-0000000016",
        "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-0000000017",
        "KTABLE-FK-JOIN-OUTPUT-0000000018",
    ]
    assert "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010" in topology.stores
    assert set(topology.copartitioned_topics()) == {
        frozenset({"left", RESPONSE.removeprefix("test-")}),
        frozenset({"right", REGISTRATION.removeprefix("test-")}),
    }


def test_tables_that_ask_and_answer_each_other_are_one_level_of_a_bounded_run() -> None:
    builder = joined("join")
    builder.stream("words", ROWS).group_by(lambda _k, v: v, Grouped(STRING, STRING)).count()
    levels = builder.build().levels()
    assert [[sub.source_topics[0] for sub in level] for level in levels] == [
        [RESPONSE.removeprefix("test-"), REGISTRATION.removeprefix("test-"), "words"],
        ["KSTREAM-AGGREGATE-STATE-STORE-0000000024-repartition"],
    ]
    assert [is_cyclic(level) for level in levels] == [True, False]


def test_a_named_join_names_everything_it_makes() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", ROWS), builder.table("right", ROWS)
    left.left_join(right, pair, foreign_key_extractor=foreign_key, table_joined=TableJoined(name="fk"))
    topology = builder.build()
    assert list(topology.repartition_topics) == ["fk-subscription-registration-topic", "fk-subscription-response-topic"]
    assert list(topology.nodes)[4:] == [
        "fk-subscription-registration-processor",
        "fk-subscription-registration-sink",
        "fk-subscription-registration-source",
        "fk-subscription-receive",
        "fk-subscription-join-foreign",
        "fk-foreign-join-subscription",
        "fk-subscription-response-sink",
        "fk-subscription-response-source",
        "fk-subscription-response-resolver",
        "fk-result",
    ]
    assert "fk-subscription-store" in topology.stores


def test_options_of_one_kind_of_join_are_refused_by_the_other() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", ROWS), builder.table("right", ROWS)
    join, left_join = cast("Any", left.join), cast("Any", left.left_join)  # types refuse it as well
    with pytest.raises(TopologyError, match="belongs to a join by key"):
        join(right, pair, foreign_key_extractor=foreign_key, named=Named("x"))
    with pytest.raises(TopologyError, match="belongs to a join by foreign key"):
        left_join(right, pair, table_joined=TableJoined(name="x"))


@pytest.mark.parametrize("partition", [0, 7, None])
@pytest.mark.parametrize("hash_", [None, hash128(b"value")])
@pytest.mark.parametrize("instruction", Instruction)
def test_subscriptions_are_read_back(instruction: Instruction, hash_: bytes | None, partition: int | None) -> None:
    serde = subscription_serde(STRING)
    subscription = Subscription(hash_, instruction, "pk", partition)
    assert serde.deserialize(serde.serialize(subscription)) == subscription


def test_subscriptions_answers_and_keys_have_kafka_streams_bytes() -> None:
    hash_ = bytes(range(16))
    subscriptions, responses = subscription_serde(STRING), response_serde(STRING)
    asked = Subscription(hash_, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "pk", 5)
    assert subscriptions.serialize(asked) == b"\x01\x03" + hash_ + b"pk" + b"\0\0\0\5"
    assert subscriptions.deserialize(b"\x00\x02" + hash_ + b"pk").primary_partition is None
    assert responses.serialize(SubscriptionResponse(hash_, "v", 5)) == b"\0" + hash_ + b"v"
    assert responses.deserialize(b"\x80") == SubscriptionResponse(None, None, None)
    assert combined_key(b"F", b"pk1").hex() == "0000000146706b31"
    with pytest.raises(ValueError, match="version 2"):
        subscriptions.deserialize(b"\x02\x00pk")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "9d2764a018e329428c3cf3b035938518"),
        ("a", "3361634e7e0f5188e9c7dda24eae326b"),
        ("lhs1|rhs1", "89e50dec7ae498cf14dd0fb527fa3f80"),
        ("rhsValue1|", "f9189e8e47bc47411419c170d5f86f0f"),
        ("The quick brown fox jumps over the lazy dog", "e74c5921af0f99c8b7f85ec81df06726"),
    ],
)
def test_hashes_are_those_of_kafka_streams(text: str, expected: str) -> None:
    assert hash128(text.encode()).hex() == expected
