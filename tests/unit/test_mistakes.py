"""Mistakes in programs and commands are refused before a broker is asked, with what to write instead."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    STRING,
    Avro,
    ConfigError,
    Consumed,
    Grouped,
    JsonSchema,
    Materialized,
    Produced,
    Repartitioned,
    Riverrun,
    StreamsBuilder,
    Topology,
    TopologyError,
)
from riverrun.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
FILE = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "my_module:build"
"""
LEGAL = "1 to 249 characters out of a-z A-Z 0-9 . _ -"


def build(builder: StreamsBuilder) -> Topology:
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    return builder.build()


def forgot_to_return(builder: StreamsBuilder) -> None:
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))


@pytest.mark.parametrize(
    ("content", "complaint", "hint"),
    [
        ("[kafka]\n", '[kafka] needs "bootstrap.servers"', 'For example "bootstrap.servers"'),
        (FILE.replace("topology", "version"), "[apps.clicks] needs topology", "topology = "),
    ],
)
def test_a_file_that_lacks_a_necessary_key_is_refused_with_an_example(
    tmp_path: Path, content: str, complaint: str, hint: str
) -> None:
    (tmp_path / "streams.toml").write_text(content)
    with pytest.raises(ConfigError) as refused:
        Riverrun(tmp_path / "streams.toml").app("clicks")
    assert refused.value.message.endswith(complaint)
    assert hint in (refused.value.hint or "")


def test_an_application_of_the_file_is_not_declared_again(tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text(FILE)
    project = Riverrun(tmp_path / "streams.toml")
    with pytest.raises(ConfigError, match="declares application 'clicks'") as refused:
        project.app("clicks", build)
    assert "leave the topology out" in (refused.value.hint or "")


def test_a_schema_registry_is_passed_with_clients_properties_only(tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text(FILE)
    with pytest.raises(ConfigError, match="schema_registry cannot be combined with a file"):
        Riverrun(tmp_path / "streams.toml", schema_registry={"url": "http://127.0.0.1:1"})


def test_a_function_that_returns_no_topology_is_told_how_to_end() -> None:
    wrong: Any = forgot_to_return
    project = Riverrun(kafka=NOWHERE)
    project.app("clicks", wrong)
    with pytest.raises(TopologyError, match="returned None, not a Topology") as refused:
        project.app("clicks", version="v1").topology()
    assert refused.value.hint == "End the function with `return builder.build()`."


@pytest.mark.parametrize(
    "needless",
    [{"quality": "checks:all"}, {"versions": {"v2": "b:b"}}, {"outputs": {"o": "log"}}, {"config": {"a": 1}}],
)
def test_settings_of_a_declaration_need_its_topology(needless: dict[str, Any]) -> None:
    project = Riverrun(kafka=NOWHERE)
    project.app("clicks", "module:build")
    with pytest.raises(ConfigError, match=rf"app\('clicks', {next(iter(needless))}=...\) needs the topology"):
        project.app("clicks", **needless)


def test_a_declaration_names_its_settings_and_refuses_others() -> None:
    project = Riverrun(kafka=NOWHERE)
    assert "unexpected_rows_limit" in inspect.signature(project.app).parameters
    with pytest.raises(TypeError, match="unexpected keyword argument 'qualty'"):
        project.app("clicks", "module:build", qualty="suites")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250])
@pytest.mark.parametrize(
    "named", [lambda name: Materialized(name=name), lambda name: Grouped(STRING, STRING, name=name)]
)
def test_names_that_topics_cannot_have_are_refused(name: str, named: Callable[[str], object]) -> None:
    with pytest.raises(TopologyError, match="is illegal") as refused:
        named(name)
    assert LEGAL in refused.value.message


def test_a_repartition_topic_has_at_least_one_partition() -> None:
    with pytest.raises(TopologyError, match="number_of_partitions must be at least 1 and at most 100000, not 0"):
        Repartitioned(STRING, STRING, number_of_partitions=0)


@pytest.mark.parametrize("serde", [Avro, JsonSchema])
def test_a_serde_names_the_nearest_setting_and_the_place_of_others(serde: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"has no setting auto\.register\.schema") as refused:
        serde(schema='{"type": "string"}', config={"auto.register.schema": True})
    assert "auto.register.schemas" in (refused.value.hint or "")
    assert "[schema_registry]" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "clicks", "--config", "retention.ms"],
        ["import", "clicks.json", "clicks", "--option", "header"],
    ],
)
def test_options_without_a_value_are_refused_before_anything_is_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    (tmp_path / "streams.toml").write_text(FILE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["riverrun", "--config", str(tmp_path / "streams.toml"), *arguments])
    monkeypatch.setattr(cli, "interrupt_on_sigterm", lambda: None)
    monkeypatch.setattr(cli, "start_logging", lambda _style: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert f"{arguments[-1]!r} is not name=value" in capsys.readouterr().err
