"""Rules of data contracts are not applied: schemas that have them are refused, unless a setting says otherwise."""

from __future__ import annotations

import json
import uuid
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, RuleSet, Schema
from google.protobuf.duration_pb2 import Duration

from riverrun import (
    BYTES,
    STRING,
    Avro,
    Consumed,
    DeserializationError,
    JsonSchema,
    Produced,
    Protobuf,
    SerializationError,
    StreamsBuilder,
)
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from riverrun import Serde

RECORD = {"type": "record", "name": "Card", "fields": [{"name": "number", "type": "string"}]}
OBJECT = {"type": "object", "title": "Card", "properties": {"number": {"type": "string"}}}
OWN = {"AVRO": Avro(schema=RECORD), "JSON": JsonSchema(schema=OBJECT), "PROTOBUF": Protobuf(Duration)}
VALUES: dict[str, Any] = {"AVRO": {"number": "7"}, "JSON": {"number": "7"}, "PROTOBUF": Duration(seconds=7)}
MIGRATION = frozenset({RuleMode.UPGRADE, RuleMode.DOWNGRADE, RuleMode.UPDOWN})
CASES = list(product(["ENCRYPT", "ENCRYPT_PAYLOAD", "CEL", "CEL_FIELD", "OWN"], RuleMode))
WAYS: list[dict[str, Any]] = [
    {},
    {"auto.register.schemas": False, "use.latest.version": True},
]


def contract(mode: RuleMode, *, group: str = "domain_rules", type_: str = "ENCRYPT", disabled: bool = False) -> RuleSet:
    kind = RuleKind.CONDITION if type_ == "CEL" else RuleKind.TRANSFORM
    rule = Rule("secret", None, kind, mode, type_, ["PII"], None, None, None, None, disabled)
    return RuleSet(**{"migration_rules": None, "domain_rules": None, "encoding_rules": None, group: [rule]})


def subject_with(rules: RuleSet | None, form: str) -> tuple[str, bytes]:
    """The address of a registry whose subject `out-value` has a schema with rules, and a value written with it."""
    url = f"mock://{uuid.uuid4()}"
    plain = placed(OWN[form], SerdePlace("plain", is_key=False, registry={"url": url}))
    data = plain.serialize(VALUES[form])
    registry = registry_of({"url": url})
    text = registry.schema(int.from_bytes(data[1:5])).schema_str
    known = registry.registered("out-value", Schema(text, form, [], None, rules), normalize=False)
    return url, b"\0" + known.schema_id.to_bytes(4) + data[5:]


def at(url: str, form: str, **settings: Any) -> Serde[Any]:
    return placed(OWN[form], SerdePlace("out", is_key=False, registry={"url": url, **settings}))


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize(("type_", "mode"), CASES)
def test_a_schema_with_rules_is_refused_where_they_would_act(form: str, type_: str, mode: RuleMode) -> None:
    group = "migration_rules" if mode in MIGRATION else "domain_rules"
    if type_ == "ENCRYPT_PAYLOAD" and mode not in MIGRATION:
        group = "encoding_rules"
    url, data = subject_with(contract(mode, group=group, type_=type_), form)
    for way in WAYS:
        if mode in {RuleMode.WRITE, RuleMode.WRITEREAD}:
            with pytest.raises(Exception, match=rf"subject out-value: its rules are not supported: secret \({type_}\)"):
                at(url, form, **way).serialize(VALUES[form])
            assert registry_of({"url": url}).latest("out-value").schema.rule_set, "nothing is registered before it"
    if mode in {RuleMode.READ, RuleMode.WRITEREAD}:
        with pytest.raises(Exception, match=rf"cannot be read with schema \d+: its rules .* \({type_}\)"):
            at(url, form).deserialize(data)
    else:
        assert at(url, form).deserialize(data) == VALUES[form]
    if mode is RuleMode.READ or mode in MIGRATION:
        assert at(url, form).serialize(VALUES[form])


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize("way", WAYS)
def test_disabled_and_ignored_rules_have_no_effect(form: str, way: dict[str, Any]) -> None:
    for rules in (None, RuleSet(None, []), contract(RuleMode.WRITEREAD, disabled=True)):
        url, data = subject_with(rules, form)
        assert at(url, form).deserialize(data) == VALUES[form]
        assert at(url, form, **way).serialize(VALUES[form])
    url, data = subject_with(contract(RuleMode.WRITEREAD), form)
    assert at(url, form, **{"ignore.rules": True}).deserialize(data) == VALUES[form]
    assert at(url, form, **way, **{"ignore.rules": True}).serialize(VALUES[form])


def test_an_application_neither_reads_nor_writes_values_with_rules() -> None:
    url, data = subject_with(contract(RuleMode.WRITEREAD), "AVRO")
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(json.loads).to("out", Produced(STRING, OWN["AVRO"]))
    builder.stream("read", Consumed(STRING, Avro())).to("copy", Produced(STRING, OWN["AVRO"]))
    topology = builder.build()
    with (
        TopologyTestDriver(topology, schema_registry={"url": url}) as driver,
        pytest.raises(SerializationError, match="its rules are not supported"),
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("k", json.dumps({"number": "7"}))
    with (
        TopologyTestDriver(topology, schema_registry={"url": url}) as driver,
        pytest.raises(DeserializationError, match="its rules are not supported"),
    ):
        driver.input_topic("read", STRING, BYTES).pipe_input("k", data)
