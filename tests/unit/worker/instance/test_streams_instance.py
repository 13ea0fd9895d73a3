"""Mistakes that an instance refuses before it asks any other process."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import ConfigError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.worker.stream_thread.protocol import StreamJob
from riverrun.worker.streams_instance import StreamsInstance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class OverwhelmedMachine:
    """Stream processes on a machine that is asked for far too many, and has room for some."""

    def __init__(self, room: int, on_start: Callable[[int], None] = lambda _started: None) -> None:
        self.all: list[int] = []
        self._room = room
        self._on_start = on_start

    def start(self) -> bool:
        if len(self.all) == self._room:
            return False
        self.all.append(len(self.all))
        self._on_start(len(self.all))
        return True


@pytest.fixture
def instance(tmp_path: Path) -> StreamsInstance:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    hidden = dict.fromkeys(("server_token", "server_read_token", "server_ssl_key_password"), "secret")
    streams = StreamsConfig(**hidden)  # type: ignore[arg-type] # by name
    application = Application(AppConfig("app", "m:f", streams=streams), "v1", builder.build(), Kafka({}), tmp_path)
    made = StreamsInstance(application, lambda _job: pytest.fail("nothing is built"))
    made._group = SimpleNamespace(request_rebalance=lambda: None)  # type: ignore[assignment]
    return made


def test_a_stop_while_threads_are_starting_takes_effect_at_once(instance: StreamsInstance) -> None:
    machine = OverwhelmedMachine(1000, lambda started: instance.scale(3) if started == 3 else None)
    instance._processes = machine  # type: ignore[assignment]
    instance.scale(1000)
    instance._scale()
    assert len(machine.all) == 3


def test_an_instance_that_is_told_to_stop_starts_no_more_threads(instance: StreamsInstance) -> None:
    machine = OverwhelmedMachine(1000, lambda _started: instance.stop())
    instance._processes = machine  # type: ignore[assignment]
    instance.scale(1000)
    instance._scale()
    assert len(machine.all) == 1


def test_an_instance_goes_on_with_the_threads_that_the_machine_has_room_for(instance: StreamsInstance) -> None:
    machine = OverwhelmedMachine(2)
    instance._processes = machine  # type: ignore[assignment]
    instance.scale(5)
    instance._scale()
    assert len(machine.all) == 2


def test_processes_that_run_users_code_are_not_told_the_tokens(instance: StreamsInstance) -> None:
    assert b"secret" not in pickle.dumps(instance._processes._job)


def test_instances_and_threads_write_where_a_candidate_does(instance: StreamsInstance) -> None:
    staged = replace(instance._connected.application, published={"out": "staging-out"}, dead_letters="staging-letters")
    assert StreamJob.of(staged).application(staged.topology) == staged


def test_tags_that_the_instance_is_not_called_by_are_refused(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    streams = StreamsConfig(rack_aware_assignment_tags=("zone", "cluster"), client_tag={"cluster": "k1"})
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    application = Application(AppConfig("app", "m:f", streams=streams), "v1", builder.build(), Kafka(nowhere), tmp_path)
    instance = StreamsInstance(application, lambda _job: pytest.fail("nothing is built"))
    with pytest.raises(
        ConfigError, match=r"rack\.aware\.assignment\.tags names zone, but there is no client\.tag\.zone"
    ):
        instance.run()
