"""An instance that answers, from its first connection to its last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import BYTES, Consumed, Produced, Riverrun, StreamsBuilder, Topology
from riverrun.releases.topology import build_topology, load_application
from riverrun.service import peers
from riverrun.service.instance import new_instance

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def copying(builder: StreamsBuilder) -> Topology:
    builder.stream("here", Consumed(BYTES, BYTES)).to("there", Produced(BYTES, BYTES))
    return builder.build()


def test_connections_to_other_instances_end_with_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Noted(peers.Peers):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            opened.append(self)

    monkeypatch.setattr(peers, "Peers", Noted)
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    app = project.app("copies", copying, config={"application.server": "127.0.0.1:0"}, version="v1")
    application = load_application(app.project, "copies", version="v1")
    with new_instance(application, build_topology):
        assert [each._client.is_closed for each in opened] == [False]
    assert [each._client.is_closed for each in opened] == [True]
