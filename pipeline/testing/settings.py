"""Settings as tests give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.config import StreamsConfig, streams_config

if TYPE_CHECKING:
    from collections.abc import Mapping


def given_settings(config: StreamsConfig | Mapping[str, Any] | None, reader: str) -> StreamsConfig:
    """Settings, also out of Kafka Streams' dotted names.

    Args:
        config: As a test gives them; None for the defaults.
        reader: Who was given them, for messages.

    Raises:
        ConfigError: If one is unknown, or its value impossible.
    """
    if config is None or isinstance(config, StreamsConfig):
        return config or StreamsConfig()
    return streams_config(reader, "config", config)
