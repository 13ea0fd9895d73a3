"""`[console]` in streams.toml: where the page of a project answers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riverrun import Riverrun
from riverrun.config import ProjectConfig
from riverrun.console.serving import console
from riverrun.errors import ConfigError

PATH = Path("/project/streams.toml")
ENVIRON = {"CONSOLE_TOKEN": "hunter2-of-20-letters"}


def read(**settings: Any) -> ProjectConfig:
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "console": settings}
    return ProjectConfig.read(PATH, content, ENVIRON)


def test_settings_are_spelled_as_those_of_an_instance() -> None:
    table = {
        "application.server": "0.0.0.0:8091",
        "server.token": "${CONSOLE_TOKEN}",
        "server.allowed.hosts": ["console.example.org"],
        "server.ssl.certificate.location": "tls/console.pem",
    }
    found = read(**table)
    assert found.console.application_server == "0.0.0.0:8091"
    assert found.console.server_token == ENVIRON["CONSOLE_TOKEN"]
    assert found.console.server_allowed_hosts == ("console.example.org",)
    assert found.console.server_ssl_certificate_location == "/project/tls/console.pem"
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num.stream.threads": 2}, "unknown key console.num.stream.threads"),
        ({"application.server": "nowhere"}, "console.application.server"),
        ({"server.token": "${NOBODY}"}, "environment variable NOBODY"),
    ],
)
def test_what_is_unknown_or_impossible_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**settings)


@pytest.mark.parametrize(
    ("server", "message"),
    [("0.0.0.0:0", "requires no token"), ("nowhere", "nowhere"), ("192.0.2.1:0", "requires no token")],
)
def test_a_console_that_others_could_read_needs_a_token(server: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), console(Riverrun(read()), server):
        pass


def test_a_certificate_that_is_none_is_refused_before_anything_is_served() -> None:
    broken = Riverrun(read(**{"server.ssl.certificate.location": "none.pem"}))
    with pytest.raises(ConfigError, match="cannot be used"), console(broken, "127.0.0.1:0"):
        pass
