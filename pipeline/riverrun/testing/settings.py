"""Converts the settings that tests pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.config import StreamsConfig, streams_config

if TYPE_CHECKING:
    from collections.abc import Mapping


def given_settings(config: StreamsConfig | Mapping[str, Any] | None, reader: str) -> StreamsConfig:
    """Return settings, also from Kafka Streams' dotted names.

    Args:
        config: The test's settings; None for the defaults.
        reader: Their receiver, for messages.

    Raises:
        ConfigError: If a setting is unknown, or its value impossible.
    """
    if config is None or isinstance(config, StreamsConfig):
        return config or StreamsConfig()
    return streams_config(reader, "config", config)
