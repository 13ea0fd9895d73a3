"""`App.describe`: the topology from Python, in each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, ConfigError, Consumed, Produced, Riverrun, StreamsBuilder, Topology

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.project.app import App


def build(builder: StreamsBuilder) -> Topology:
    builder.stream("words", Consumed(STRING, STRING)).to("copies", Produced(STRING, STRING))
    return builder.build()


@pytest.fixture
def app(tmp_path: Path) -> App:
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    project.app("words", build)
    return project.app("words", version="v1")


def test_an_application_is_described_in_each_format_without_a_broker(app: App) -> None:
    topology = app.topology()
    assert app.describe() == app.describe("text") == topology.describe()
    assert app.describe("mermaid") == topology.mermaid()
    assert app.describe("svg") == topology.svg()
    assert app.describe(format="html") == topology.html("words v1")


def test_an_unknown_format_is_refused_with_those_there_are(app: App) -> None:
    with pytest.raises(ConfigError, match="cannot be described as 'png'") as refused:
        app.describe("png")
    assert "text, mermaid, svg, html" in str(refused.value.hint)


def test_an_application_shows_the_code_of_its_tasks_and_what_is_called(app: App) -> None:
    code = app.code()
    assert "# KSTREAM-SOURCE-0000000000\ndef run(queue, limit, last_time):" in code
    assert code.endswith("# Not fused: none\n")
