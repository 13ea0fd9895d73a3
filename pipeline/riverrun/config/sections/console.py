"""`[console]`: where the console of a whole project answers, by the names that an instance's HTTP interface has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.config.checks import check_keys, check_type
from riverrun.config.secrets import expanded
from riverrun.config.sections.parsing import streams_config
from riverrun.config.sections.streams import SECRETS, StreamsConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONSOLE_SERVER = "127.0.0.1:8091"
"""The address of a console that nothing says anything of."""
CONSOLE_KEYS = (
    "application.server",
    "server.allowed.hosts",
    "server.read.token",
    "server.ssl.certificate.location",
    "server.ssl.key.location",
    "server.ssl.key.password",
    "server.token",
)
"""Settings of the console."""


def console_settings(path: Path, table: Any, environ: Mapping[str, str]) -> StreamsConfig:
    """Check what `[console]` says.

    Args:
        path: What it was read from, for messages; files are relative to its directory.
        table: What it says.
        environ: Where `${NAME}` in secrets is looked up.

    Raises:
        ConfigError: If a setting is unknown or impossible.
    """
    check_type(path, "console", table, dict)
    check_keys(path, "console", table, CONSOLE_KEYS)
    settings = dict(table)
    for key in SECRETS & settings.keys():
        settings[key] = expanded(f"{path}: console.{key}", str(settings[key]), environ)
    return streams_config(path, "console", settings)
