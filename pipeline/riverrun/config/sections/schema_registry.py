"""Parses `[schema_registry]`, whose settings have the names of Confluent's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.config.checks import check_type, nearest
from riverrun.config.secrets import expanded
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

URL = "url"


class Setting(NamedTuple):
    """A setting of the registry's client or of serdes.

    Args:
        kind: Type of its value.
        meaning: Its effect, as a sentence.
        default: Its default value; None for no default.
    """

    kind: type | tuple[type, ...]
    meaning: str
    default: Any = None


CLIENT_SETTINGS: Mapping[str, Setting] = {
    URL: Setting(str, "Address, or several separated by commas. `mock://...` is a registry in memory, for tests."),
    "basic.auth.user.info": Setting(str, "User and password, as `user:password`."),
    "bearer.auth.client.id": Setting(str, "Client id, for `OAUTHBEARER`."),
    "bearer.auth.client.secret": Setting(str, "Client secret, for `OAUTHBEARER`."),
    "bearer.auth.credentials.source": Setting(str, "Source of tokens: `STATIC_TOKEN` or `OAUTHBEARER`."),
    "bearer.auth.identity.pool.id": Setting(str, "Identity pool of Confluent Cloud."),
    "bearer.auth.issuer.endpoint.url": Setting(str, "Address that issues tokens, for `OAUTHBEARER`."),
    "bearer.auth.logical.cluster": Setting(str, "Logical cluster of Confluent Cloud."),
    "bearer.auth.scope": Setting(str, "Scope of tokens, for `OAUTHBEARER`."),
    "bearer.auth.token": Setting(str, "The token, for `STATIC_TOKEN`."),
    "cache.capacity": Setting(int, "Number of schemas that the client keeps."),
    "max.retries": Setting(int, "Number of retries of a call.", 3),
    "proxy": Setting(str, "Address of a proxy between the client and the registry."),
    "retries.max.wait.ms": Setting(int, "Longest pause between two attempts.", 20_000),
    "retries.wait.ms": Setting(int, "First pause between two attempts; it doubles each time.", 1000),
    "ssl.ca.location": Setting(str, "File with CA certificates (PEM) that verify the registry's certificate."),
    "ssl.certificate.location": Setting(str, "File with the client's certificate (PEM)."),
    "ssl.key.location": Setting(str, "File with the key of that certificate (PEM)."),
    "timeout": Setting((int, float), "Seconds to wait for an answer.", 30),
}
"""Settings of the client."""
SERDE_SETTINGS: Mapping[str, Setting] = {
    "auto.register.schemas": Setting(bool, "Whether writing a value registers its schema.", default=True),
    "normalize.schemas": Setting(bool, "Whether the registry normalizes schemas.", default=False),
    "subject.name.strategy": Setting(str, "Strategy that names subjects.", "topic_subject_name_strategy"),
    "use.latest.version": Setting(
        bool, "Whether values are written with their subject's latest version.", default=False
    ),
}
"""Settings of serdes; each serde may have its own."""
_SETTINGS = {**CLIENT_SETTINGS, **SERDE_SETTINGS}
_SOURCES = ("OAUTHBEARER", "STATIC_TOKEN")
_PROTOCOLS = ("http://", "https://", "mock://")


def schema_registry_settings(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Check the settings in `[schema_registry]`.

    Args:
        path: The file, for messages. Paths in it are relative to its directory.
        table: The settings.
        environ: Replaces `${NAME}`.

    Raises:
        ConfigError: If a setting is unknown or impossible. Messages leave out values, which may be secrets.
    """
    check_type(path, "schema_registry", table, dict)
    if not table:
        return {}
    found = {key: _checked(path, key, value, environ) for key, value in table.items()}
    if URL not in found:
        message = f"{path}: [schema_registry] needs url"
        raise ConfigError(message, hint='For example url = "http://127.0.0.1:8081".')
    if not all(url.strip().startswith(_PROTOCOLS) for url in found[URL].split(",")):
        message = f"{path}: [schema_registry] url is not an HTTP address"
        raise ConfigError(message, hint="For example http://127.0.0.1:8081; several are separated by commas.")
    source = found.get("bearer.auth.credentials.source", _SOURCES[0])
    if source not in _SOURCES:
        message = f"{path}: [schema_registry] bearer.auth.credentials.source is {source!r}"
        raise ConfigError(message, hint=f"Allowed: {', '.join(_SOURCES)}.")
    if found.get("use.latest.version") and found.get("auto.register.schemas", True):
        message = f"{path}: [schema_registry] use.latest.version needs auto.register.schemas = false"
        raise ConfigError(
            message, hint="Serdes that write with the latest version of a subject do not register schemas."
        )
    return found


def _checked(path: Path, key: str, value: Any, environ: Mapping[str, str]) -> Any:
    where = f"{path}: [schema_registry] {key}"
    if isinstance(value, dict):
        message = f"{where} is a table, not a setting"
        raise ConfigError(message, hint='Names with dots are quoted: "max.retries".')
    if key not in _SETTINGS:
        message = f"{where} is not a setting of it"
        raise ConfigError(message, hint=nearest(key, _SETTINGS))
    if isinstance(value, str):
        value = expanded(where, value, environ)
    expected = _SETTINGS[key].kind
    is_flag = isinstance(value, bool)  # Python counts True as an int
    if not isinstance(value, expected) or (is_flag and expected is not bool):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        message = f"{where} must be {' or '.join(kind.__name__ for kind in kinds)}"
        raise ConfigError(message)
    return str((path.parent / str(value)).resolve()) if key.endswith(".location") else value
