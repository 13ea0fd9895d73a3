"""A processor's view of its application (`ProcessingContext`)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from riverrun import (
    STRING,
    Consumed,
    FixedKeyProcessor,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    TopologyError,
    ValueTransformerWithKey,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.processor.api import ProcessingContext

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
SETTINGS = {"user.limit": 3, "user.names": ["a", "b"], "max.task.idle.ms": 7, "server.token": "secret-of-20-letters"}


class QueryClient(Processor[str, str], FixedKeyProcessor[str, str], ValueTransformerWithKey[str, str, str]):
    """Hands its context out."""

    contexts: ClassVar[list[ProcessingContext]] = []

    def init(self, context: ProcessingContext) -> None:
        self.contexts.append(context)

    def process(self, record: Any) -> None:
        """Nothing."""

    def transform(self, _key: str, value: str | None) -> str | None:
        return value


@pytest.fixture(params=["process", "process_values", "transform_values", "global"])
def context(request: pytest.FixtureRequest) -> Iterator[ProcessingContext]:
    QueryClient.contexts.clear()
    builder = StreamsBuilder()
    match request.param:
        case "process":
            builder.stream("in", TEXTS).process(QueryClient)
        case "process_values":
            builder.stream("in", TEXTS).process_values(QueryClient)
        case "transform_values":
            builder.table("in", TEXTS).transform_values(QueryClient)
        case _:
            builder.add_global_store(Stores.key_value_store("s", STRING, STRING), "in", TEXTS, QueryClient)
    with TopologyTestDriver(builder.build(), SETTINGS, application_id="app"):
        yield QueryClient.contexts[0]


def test_processors_read_the_settings_of_the_application(context: ProcessingContext) -> None:
    settings = context.app_configs()
    assert settings["application.id"] == "app"
    assert (settings["max.task.idle.ms"], settings["num.stream.threads"]) == (7, 1)
    assert context.app_configs_with_prefix("user.") == {"limit": 3, "names": ["a", "b"]}
    assert "secret" not in repr(settings)


def test_what_a_processor_does_to_the_settings_is_its_own(context: ProcessingContext) -> None:
    context.app_configs()["application.id"] = "other"
    assert context.app_configs()["application.id"] == "app"


def test_a_processor_knows_where_the_state_of_its_task_is_kept(context: ProcessingContext) -> None:
    task = "global" if str(context.task_id) == "-1_-1" else str(context.task_id)
    assert context.state_dir == Path(".riverrun/state/app") / task


def test_the_processor_of_a_global_store_cannot_schedule() -> None:
    class Scheduling(Processor[str, str]):
        def init(self, context: ProcessorContext) -> None:
            context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, print)

        def process(self, record: Record[str, str]) -> None:
            """Nothing."""

    builder = StreamsBuilder()
    builder.add_global_store(Stores.key_value_store("s", STRING, STRING), "in", TEXTS, Scheduling)
    with pytest.raises(TopologyError, match=r"schedule\(\) not supported in global processor context"):
        TopologyTestDriver(builder.build())
