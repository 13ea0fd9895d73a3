"""Numbers of commands, settings and calls have upper bounds: none starts a billion processes, or waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from riverrun import STRING, Repartitioned
from riverrun.cli.main import app
from riverrun.config.checks import check_number
from riverrun.config.parsing import streams_config
from riverrun.config.project import ProjectConfig
from riverrun.config.setting import LARGEST_LONG, WholeNumbers
from riverrun.config.streams import MOST_THREADS, SETTINGS
from riverrun.errors import ConfigError, TopologyError
from riverrun.project.live import LiveOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path("streams.toml")
WAITS_FOR_EVER = {
    "acceptable.recovery.lag",
    "max.task.idle.ms",
    "state.cleanup.delay.ms",
    "task.alignment.max.drift.ms",
}
"""Settings that are only compared: Kafka's highest number means without a bound."""


def commands(command: Any, name: str = "riverrun") -> Iterator[tuple[str, Any]]:
    found = getattr(command, "commands", {})
    if not found:
        yield name, command
    for part, each in found.items():
        yield from commands(each, f"{name} {part}")


NUMBERS = [
    (name, option.opts[0], option)
    for name, command in commands(typer.main.get_command(app))
    for option in command.params
    if getattr(getattr(option, "type_descriptor", None), "annotation", None) in {int, float}
]


def test_there_are_numbers_to_look_at() -> None:
    assert len(NUMBERS) > 10


@pytest.mark.parametrize(("name", "option", "found"), NUMBERS, ids=lambda each: str(each)[:60])
def test_numbers_of_commands_have_bounds(name: str, option: str, found: Any) -> None:
    assert found.max is not None, f"{name} {option}"
    assert found.min is not None, f"{name} {option}"


@pytest.mark.parametrize("given", ["1000000000", "9" * 30, "0", "-1", "1e3", "٣", ""])
@pytest.mark.parametrize(
    "command",
    [("worker", "clicks", "--threads"), ("worker", "clicks", "--on", "spark", "--instances"), ("scale", "clicks")],
)
def test_a_number_of_processes_that_is_impossible_is_a_usage_error(command: tuple[str, ...], given: str) -> None:
    done = CliRunner().invoke(app, [*command, given] if given[:1] != "-" else [*command, "--", given])
    if given == "٣":  # Python's own reading of digits
        return
    assert done.exit_code != 0
    assert not isinstance(done.exception, ValueError | OverflowError)


@pytest.mark.parametrize("threads", [0, -1, MOST_THREADS + 1, 10**9, True, 1.5])
def test_a_program_cannot_start_any_number_of_threads(threads: Any) -> None:
    with pytest.raises(ConfigError, match="threads is"):
        LiveOptions(threads=threads).applied_to(None)  # type: ignore[arg-type] # it is refused before


BOUNDS = {key: setting.values for key, setting in SETTINGS.items() if isinstance(setting.values, WholeNumbers)}


@pytest.mark.parametrize("key", [*BOUNDS, "replication.factor"])
@pytest.mark.parametrize("value", [2**63, 10**30, -2, 1.5, "1", True])
def test_settings_that_are_impossible_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"streams\.toml: apps\.clicks\.config"):
        streams_config(FILE, "apps.clicks.config", {key: value})


@pytest.mark.parametrize("key", sorted(BOUNDS.keys() - WAITS_FOR_EVER))
def test_each_setting_has_a_bound_that_waits_and_clients_can_use(key: str) -> None:
    highest = BOUNDS[key].highest
    assert highest < LARGEST_LONG
    streams_config(FILE, "apps.clicks.config", {key: highest})
    with pytest.raises(ConfigError, match="at most"):
        streams_config(FILE, "apps.clicks.config", {key: highest + 1})
    if key.endswith(".ms"):
        assert highest / 1000 <= threading.TIMEOUT_MAX


@pytest.mark.parametrize("partitions", [0, -1, 10**9])
def test_repartition_topics_have_a_possible_number_of_partitions(partitions: int) -> None:
    with pytest.raises(TopologyError, match="number_of_partitions must be at least 1 and at most"):
        Repartitioned(STRING, STRING, number_of_partitions=partitions)


@pytest.mark.parametrize("value", [10**400, -1, "7", True, 1.5, 2**63])
def test_bounds_of_inputs_since_a_gate_are_possible(value: Any) -> None:
    table = {"topology": "m:build", "max_inputs_since_gate": value}
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "apps": {"clicks": table}}
    with pytest.raises(ConfigError, match="max_inputs_since_gate"):
        ProjectConfig.read(FILE, content, {}).app("clicks")


@pytest.mark.parametrize("port", ["99999", "-1", "0x50", "9" * 5000, "٣"])
def test_ports_of_brokers_and_servers_are_possible(port: str) -> None:
    kafka = {"bootstrap.servers": f"127.0.0.1:{port}"}
    with pytest.raises(ConfigError, match=r"bootstrap\.servers has"):
        ProjectConfig.read(FILE, {"kafka": kafka}, {})
    with pytest.raises(ConfigError, match=r"application\.server"):
        streams_config(FILE, "apps.clicks.config", {"application.server": f"127.0.0.1:{port}"})


def test_a_check_of_a_number_names_its_bounds() -> None:
    with pytest.raises(ConfigError, match="parts is 'x', and must be a whole number of at least 1, and at most 9"):
        check_number("parts", "x", 1, 9)
