"""`[schema_registry]`: where schemas are kept, by the names of Confluent's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.config.checks import check_type, nearest
from pipeline.config.secrets import expanded
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

URL = "url"
CLIENT_SETTINGS: Mapping[str, type | tuple[type, ...]] = {
    URL: str,
    "basic.auth.user.info": str,
    "bearer.auth.client.id": str,
    "bearer.auth.client.secret": str,
    "bearer.auth.credentials.source": str,
    "bearer.auth.identity.pool.id": str,
    "bearer.auth.issuer.endpoint.url": str,
    "bearer.auth.logical.cluster": str,
    "bearer.auth.scope": str,
    "bearer.auth.token": str,
    "cache.capacity": int,
    "max.retries": int,
    "proxy": str,
    "retries.max.wait.ms": int,
    "retries.wait.ms": int,
    "ssl.ca.location": str,
    "ssl.certificate.location": str,
    "ssl.key.location": str,
    "timeout": (int, float),
}
"""Settings of the client, and of which type each is."""
SERDE_SETTINGS: Mapping[str, type | tuple[type, ...]] = {
    "auto.register.schemas": bool,
    "normalize.schemas": bool,
    "subject.name.strategy": str,
    "use.latest.version": bool,
}
"""Settings of serdes; each serde may have its own."""
_SETTINGS = {**CLIENT_SETTINGS, **SERDE_SETTINGS}
_SOURCES = ("OAUTHBEARER", "STATIC_TOKEN")
_PROTOCOLS = ("http://", "https://", "mock://")


def schema_registry_settings(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Check what `[schema_registry]` says.

    Args:
        path: What it was read from, for messages; files are relative to its directory.
        table: What it says.
        environ: Where `${NAME}` is looked up.

    Raises:
        ConfigError: If a setting is unknown or impossible. No message has a value: it may be a secret.
    """
    check_type(path, "schema_registry", table, dict)
    if not table:
        return {}
    found = {key: _checked(path, key, value, environ) for key, value in table.items()}
    if URL not in found:
        message = f"{path}: [schema_registry] needs url"
        raise ConfigError(message, hint='For example url = "http://127.0.0.1:8081".')
    if not all(url.strip().startswith(_PROTOCOLS) for url in found[URL].split(",")):
        message = f"{path}: [schema_registry] url is none"
        raise ConfigError(message, hint="For example http://127.0.0.1:8081; several are separated by commas.")
    source = found.get("bearer.auth.credentials.source", _SOURCES[0])
    if source not in _SOURCES:
        message = f"{path}: [schema_registry] bearer.auth.credentials.source is {source!r}"
        raise ConfigError(message, hint=f"Allowed: {', '.join(_SOURCES)}.")
    if found.get("use.latest.version") and found.get("auto.register.schemas", True):
        message = f"{path}: [schema_registry] use.latest.version needs auto.register.schemas = false"
        raise ConfigError(message, hint="What writes with the latest version of a subject registers none.")
    return found


def _checked(path: Path, key: str, value: Any, environ: Mapping[str, str]) -> Any:
    where = f"{path}: [schema_registry] {key}"
    if isinstance(value, dict):
        message = f"{where} is a table, not a setting"
        raise ConfigError(message, hint='Names with dots are quoted: "max.retries".')
    if key not in _SETTINGS:
        message = f"{where} is no setting of it"
        raise ConfigError(message, hint=nearest(key, _SETTINGS))
    if isinstance(value, str):
        value = expanded(where, value, environ)
    expected = _SETTINGS[key]
    is_flag = isinstance(value, bool)  # to Python it is an int
    if not isinstance(value, expected) or (is_flag and expected is not bool):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        message = f"{where} must be {' or '.join(kind.__name__ for kind in kinds)}"
        raise ConfigError(message)
    return str((path.parent / str(value)).resolve()) if key.endswith(".location") else value
