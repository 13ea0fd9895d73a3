"""`[schema_registry]` in streams.toml: settings of Confluent's client, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riverrun.config import ProjectConfig
from riverrun.errors import ConfigError

KAFKA = {"bootstrap.servers": "127.0.0.1:1"}
PATH = Path("/project/streams.toml")
ENVIRON = {"REGISTRY_PASSWORD": "hunter2"}


def read(**registry: Any) -> ProjectConfig:
    content = {"kafka": KAFKA, "schema_registry": registry, "apps": {"words": {"topology": "words:build"}}}
    return ProjectConfig.read(PATH, content, ENVIRON)


def test_settings_reach_every_application() -> None:
    project = read(**{"url": "http://127.0.0.1:8081", "basic.auth.user.info": "ann:${REGISTRY_PASSWORD}", "timeout": 5})
    assert project.app("words").schema_registry == {
        "url": "http://127.0.0.1:8081",
        "basic.auth.user.info": "ann:hunter2",
        "timeout": 5,
    }
    assert project.with_app("more", {"topology": "m:build"}, {}).app("more").schema_registry["timeout"] == 5


def test_files_are_relative_to_the_configuration() -> None:
    project = read(**{"url": "https://registry", "ssl.ca.location": "ca.pem"})
    assert project.schema_registry["ssl.ca.location"] == "/project/ca.pem"


def test_what_is_printed_has_no_secrets() -> None:
    project = read(**{"url": "http://ann:hunter2@registry", "bearer.auth.token": "hunter2"})
    assert "hunter2" not in f"{project!r} {project.app('words')!r} {project.app('words').streams.settings()}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"basic.auth.user.info": "ann:hunter2"}, "needs url"),
        ({"url": "hunter2"}, "url is not an HTTP address"),
        ({"url": "http://x", "timeuot": 3}, "timeuot is not a setting of it"),
        ({"url": "http://x", "timeout": "hunter2"}, "timeout must be int or float"),
        ({"url": "http://x", "auto.register.schemas": "hunter2"}, "auto.register.schemas must be bool"),
        ({"url": "http://x", "max.retries": True}, "max.retries must be int"),
        ({"url": "http://x", "bearer.auth.token": "${NOBODY}"}, "environment variable NOBODY"),
        ({"url": "http://x", "bearer.auth.credentials.source": "CUSTOM"}, "'CUSTOM'"),
        ({"url": "http://x", "use.latest.version": True}, "auto.register.schemas = false"),
        ({"url": "http://x", "ssl": {"ca": {"location": "x"}}}, "ssl is a table"),
    ],
)
def test_what_is_unknown_or_impossible_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read(**settings)
    assert "hunter2" not in str(refused.value)
