"""What an instance refuses before it asks anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline import STRING, Consumed, Produced, StreamsBuilder
from pipeline.config import AppConfig, StreamsConfig
from pipeline.errors import ConfigError
from pipeline.hosting.application import Application
from pipeline.worker.instance.supervisor import Supervisor

if TYPE_CHECKING:
    from pathlib import Path


def test_tags_that_the_instance_is_not_called_by_are_refused(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    streams = StreamsConfig(rack_aware_assignment_tags=("zone", "cluster"), client_tag={"cluster": "k1"})
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    application = Application(AppConfig("app", "m:f", streams=streams), "v1", builder.build(), nowhere, tmp_path)
    supervisor = Supervisor(application, lambda _job: pytest.fail("nothing is built"))
    with pytest.raises(
        ConfigError, match=r"rack\.aware\.assignment\.tags names zone, but there is no client\.tag\.zone"
    ):
        supervisor.run()
