"""Dead letters: they are found, return to where they come from exactly once, or are discarded."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, STRING, Consumed, Produced, Repartitioned
from riverrun.cli.main import main
from riverrun.errors import ConfigError, RangeError, UnderWayError
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.topics.letters import LETTERS_TOPIC, LetterFilter

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

PARTITIONS = 2
CODE = """
from riverrun import JSON, STRING, Consumed, Produced

def build(builder):
    orders = builder.stream("{name}.in", Consumed(STRING, JSON))
    orders.map_values(lambda order: order["amount"] / order["count"]).to("{name}.out", Produced(STRING, JSON))
    return builder.build()
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "letters_code:build"

[apps."{name}".config]
"processing.exception.handler" = "continue"
"deserialization.exception.handler" = "continue"
"errors.dead.letter.queue.topic.name" = "{name}.dead"
"""


def build_orders(name: str, *, through: bool = False) -> Any:
    def build(builder: StreamsBuilder) -> Topology:
        orders = builder.stream(f"{name}.in", Consumed(STRING, JSON))
        if through:
            orders = orders.repartition(Repartitioned(STRING, JSON, name="through"))
        orders.map_values(lambda order: order["amount"] / order["count"]).to(f"{name}.out", Produced(STRING, JSON))
        return builder.build()

    return build


def opened(broker: Broker, name: str, directory: Path, *, through: bool = False) -> App:
    broker.create(PARTITIONS, f"{name}.in", f"{name}.out", f"{name}.dead")
    config = {
        "processing.exception.handler": "continue",
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": f"{name}.dead",
    }
    project = broker.project(directory=directory, by="ann@desk")
    return project.app(name, build_orders(name, through=through), config=config)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    return opened(broker, unique, tmp_path)


def order(broker: Broker, app: App, key: bytes, value: bytes | None, at: int, partition: int = 0) -> None:
    producer = IdempotentProducer(broker.door)
    producer.send(f"{app.name}.in", key, value, at, (("trace", b"\x00\xff"), ("empty", None)), partition)
    producer.flush()
    producer.close()


def outputs(broker: Broker, app: App) -> list[tuple[bytes | None, bytes | None]]:
    return sorted((record.key, record.value) for record in broker.read(f"{app.name}.out"))


def test_letters_are_found_by_error_origin_and_time(broker: Broker, app: App) -> None:
    order(broker, app, b"a", b'{"amount": 6, "count": 0}', 1_000)
    order(broker, app, b"b", b"{", 2_000, 1)
    order(broker, app, b"c", b'{"amount": 6}', 3_000)
    app.catch_up()
    letters = app.letters()
    found = {letter.key: letter for letter in letters.list()}
    assert {key: letter.error.rpartition(".")[2] for key, letter in found.items()} == {
        b"a": "ZeroDivisionError",
        b"b": "DecodeError",
        b"c": "KeyError",
    }
    first = found[b"a"]
    assert (str(first.origin), first.origin_offset, first.timestamp) == (f"{app.name}.in-0", 0, 1_000)
    assert (first.value, first.headers) == (b'{"amount": 6, "count": 0}', (("trace", b"\x00\xff"), ("empty", None)))
    assert "Traceback" in first.trace

    def keys(**conditions: Any) -> set[bytes | None]:
        return {letter.key for letter in letters.list(LetterFilter(**conditions))}

    assert keys(error="ZeroDivision") == {b"a"}
    assert keys(origin=f"{app.name}.in") == {b"a", b"b", b"c"}
    assert keys(origin=f"{app.name}.in-1") == {b"b"}
    assert keys(origin=f"{app.name}.in-0@1") == {b"c"}
    assert keys(since_ms=2_000, until_ms=3_000) == {b"b"}
    assert keys(places=frozenset({first.name})) == {b"a"}
    broker.write(f"{app.name}.dead", [(b"x", b"no letter", 1)])
    assert len(list(letters.list())) == 3, "other records are left out"


def test_a_letter_is_replayed_once_as_it_was_or_mended(broker: Broker, app: App) -> None:
    order(broker, app, b"a", b'{"amount": 6, "count": 0}', 1_000, 1)
    order(broker, app, b"b", b"{", 2_000)
    app.catch_up()
    letters = app.letters()
    by_key = {letter.key: letter for letter in letters.list()}
    assert letters.replay([by_key[b"a"]], b'{"amount": 6, "count": 3}') == 1
    assert letters.replay([by_key[b"a"]]) == 0, "what was replayed is not replayed again"
    assert letters.discard([by_key[b"b"], by_key[b"a"]]) == 1
    assert letters.replay(by_key.values()) == 0
    app.catch_up()
    assert outputs(broker, app) == [(b"a", b"2.0")]
    again = [record for record in broker.read(f"{app.name}.in") if record.key == b"a"][-1]
    assert (again.timestamp, again.headers) == (1_000, (("trace", b"\x00\xff"), ("empty", None)))
    assert list(letters.list()) == []
    notes = {letter.key: letter.note for letter in letters.list(LetterFilter(decided=True))}
    assert {key: (note.state, note.by, note.is_mended) for key, note in notes.items() if note} == {
        b"a": ("replayed", "ann@desk", True),
        b"b": ("discarded", "ann@desk", False),
    }


def test_a_replay_that_dies_has_written_nothing_and_another_user_fences_it(
    broker: Broker, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        order(broker, app, b"%d" % number, b"{", 1_000 + number)
    app.catch_up()
    letters, commit = app.letters(), TransactionalProducer.commit
    chosen = list(letters.list())

    def dies(_producer: TransactionalProducer, *_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TransactionalProducer, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        letters.replay(chosen)
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def waits(producer: TransactionalProducer, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            is_waiting.set()
            may_go_on.wait(60)
        commit(producer, *arguments)

    monkeypatch.setattr(TransactionalProducer, "commit", waits)
    refused: list[Exception] = []

    def slowly() -> None:
        try:
            app.letters().replay(chosen)
        except UnderWayError as error:
            refused.append(error)

    slow = threading.Thread(target=slowly)
    slow.start()
    assert is_waiting.wait(60)
    assert letters.replay(chosen) == 5
    may_go_on.set()
    slow.join(60)
    assert len(refused) == 1
    assert len(broker.read(f"{app.name}.in")) == 10, "each was written once more, and no more than once"


def test_letters_of_repartition_topics_return_to_them(broker: Broker, unique: str, tmp_path: Path) -> None:
    app = opened(broker, unique, tmp_path, through=True)
    order(broker, app, b"a", b'{"amount": 6, "count": 0}', 1_000)
    app.runs.bounded(engine="local").run()
    (letter,) = app.letters().list()
    assert letter.origin.topic == f"{app.application_id}-through-repartition"
    assert app.letters().replay([letter], b'{"amount": 6, "count": 2}') == 1
    app.catch_up()
    assert outputs(broker, app) == [(b"a", b"3.0")]


def test_a_replay_names_what_it_repeats_and_leaves_out_replaced_rows(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.rows", f"{unique}.early", f"{unique}.out", f"{unique}.dead")

    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(f"{unique}.in", Consumed(STRING, JSON))
        stream.to(f"{unique}.early", Produced(STRING, JSON))
        rows = builder.table(f"{unique}.rows", Consumed(STRING, JSON)).to_stream()
        stream.merge(rows).map_values(lambda value: 12 // value).to(f"{unique}.out", Produced(STRING, JSON))
        return builder.build()

    broker.write(f"{unique}.in", [(b"a", b"0", 1), (b"b", b"2", 2), (b"c", b"{", 3)])
    broker.write(f"{unique}.rows", [(b"a", b"0", 1), (b"b", b"0", 2), (b"a", b"3", 3)])
    config = {
        "processing.exception.handler": "continue",
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": f"{unique}.dead",
    }
    project = broker.project(directory=tmp_path, by="ann@desk")
    app = project.app(unique, build, config=config)
    app.catch_up()
    aside = config | {"processing.exception.handler": "set-aside"}
    other = project.app(f"{unique}-other", build, config=aside)
    other.catch_up()
    letters = app.letters()
    own = [each for each in letters.list() if "ZeroDivision" in each.error and not each.left_no_trace]
    assert sorted((each.origin.topic, each.key) for each in own) == sorted(
        [(f"{unique}.in", b"a"), (f"{unique}.rows", b"a"), (f"{unique}.rows", b"b")]
    )
    planned = letters.plan(own)
    assert [(each.origin.topic, each.key) for each in planned.outdated] == [(f"{unique}.rows", b"a")]
    assert planned.groups == (other.application_id,)
    with pytest.raises(
        RangeError, match=rf"topics {unique}\.early, .* may get records twice, and so do group {unique}-"
    ):
        letters.replay(own)
    assert len(broker.read(f"{unique}.in")) == 3, "nothing was written"
    assert letters.replay(own, again=True) == 2
    whole = [each for each in other.letters().list() if each.left_no_trace]
    assert sorted(each.value or b"" for each in whole) == [b"0", b"0", b"0", b"{", b"{"]
    assert letters.replay(whole) == 3, "the rows of a and b have been replaced, also by a replay"


def test_wrong_requests_are_refused_and_change_nothing(broker: Broker, app: App, tmp_path: Path) -> None:
    for number in range(2):
        order(broker, app, b"%d" % number, b"{", 1_000 + number)
    app.catch_up()
    letters = app.letters()
    with pytest.raises(ConfigError, match="2 letters cannot all get one value"):
        letters.replay(letters.list(), b"{}")
    broker.admin().delete_topics([f"{app.name}.in"])
    with pytest.raises(RangeError, match=r"come from .*\.in-0, which no longer exists"):
        letters.replay(letters.list())
    assert len(list(letters.list())) == 2
    plain = broker.project(directory=tmp_path / "plain").app("plain", build_orders("plain"))
    with pytest.raises(ConfigError, match="plain has no dead letter topic"):
        plain.letters()


@pytest.mark.broker
def test_commands_list_show_mend_replay_and_discard(
    broker: Broker, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters_code.py").write_text(CODE.format(name=app.name))
    (tmp_path / "streams.toml").write_text(FILE.format(name=app.name, servers=broker.bootstrap_servers))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def riverrun(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["riverrun", "letters", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    order(broker, app, b"a", b'{"amount": 6, "count": 0}', 1_000)
    order(broker, app, b"b", b"\xff", 2_000, 1)
    app.catch_up()
    code, text = riverrun("list", app.name)
    assert (code, "2 letters" in text, f"{app.name}.in-1@0" in text) == (0, True, True), text
    shown = [json.loads(line) for line in riverrun("list", app.name, "--json")[1].splitlines()]
    places = {bytes.fromhex(each["key"]): each["place"] for each in shown}
    code, text = riverrun("show", app.name, places[b"a"])
    assert (code, 'value: {"amount":6,"count":0}' in text, "ZeroDivisionError" in text) == (0, True, True), text
    assert "value: 0xff" in riverrun("show", app.name, places[b"b"])[1]
    code, text = riverrun("replay", app.name)
    assert (code, "No letters are selected" in text) == (1, True), text
    assert "1 letter would be replayed" in riverrun("replay", app.name, "--error", "ZeroDivision", "--dry-run")[1]
    code, text = riverrun("replay", app.name, places[b"a"], "--value", '{"amount": 6, "count": 3}')
    assert (code, "1 letter replayed" in text) == (0, True), text
    assert "There is no letter at" in riverrun("replay", app.name, places[b"a"])[1]
    assert "1 letter would be discarded" in riverrun("discard", app.name, "--all", "--dry-run")[1]
    assert "1 letter discarded" in riverrun("discard", app.name, "--all")[1]
    assert riverrun("list", app.name)[1].startswith("0 letters")
    assert "discarded by" in riverrun("list", app.name, "--decided")[1]
    app.catch_up()
    assert outputs(broker, app) == [(b"a", b"2.0")]
    assert LETTERS_TOPIC in broker.admin().list_topics()
