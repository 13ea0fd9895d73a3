"""Access to the schema registry: Confluent's client, with Riverrun's errors and retries."""

from __future__ import annotations

import functools
import logging
import random
import time
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from riverrun.config.secrets import redacted
from riverrun.config.sections import CLIENT_SETTINGS, URL
from riverrun.errors import ConfigError, RegistryError, SchemaError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

log = logging.getLogger(__name__)

# Pauses between attempts, as in Confluent's client.
_RETRYING = ("max.retries", "retries.wait.ms", "retries.max.wait.ms")
_NOT_FOUND, _INCOMPATIBLE, _INVALID = 404, 409, 422
_FORBIDDEN = (401, 403)
_BUSY = 500


class RegistryClient:
    """A registry client for one process. It caches answers: schemas and their ids never change."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # The client's own libraries cause deprecation warnings.
        with warnings.catch_warnings(record=True):
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - of an extra

        given = {
            "timeout": CLIENT_SETTINGS["timeout"].default,
            **{k: v for k, v in settings.items() if k in CLIENT_SETTINGS},
        }
        # Confluent's client asks for these two, which exist in Confluent Cloud only.
        if "bearer.auth.credentials.source" in given:
            given = {"bearer.auth.logical.cluster": "", "bearer.auth.identity.pool.id": "", **given}
        given = _without_user(given)
        self._shown = redacted(given[URL])
        # Confluent's mock registry gives one schema another id in each subject, unlike a real one.
        self._ids: dict[Any, Any] | None = {} if given[URL].startswith("mock://") else None
        retrying = (given.get(key, CLIENT_SETTINGS[key].default) for key in _RETRYING)
        self._retries, self._wait_ms, self._longest_wait_ms = retrying
        try:
            self._client = SchemaRegistryClient.new_client(given)
        except (OSError, TypeError, ValueError) as error:
            message = f"The client of the schema registry refuses the settings: {redacted(str(error))}"
            raise ConfigError(message, hint="Correct [schema_registry] in streams.toml.") from error

    def schema(self, schema_id: int, form: str | None = None) -> Any:
        return self._asked(f"schema {schema_id}", lambda: self._client.get_schema(schema_id, None, form))

    def version(self, subject: str, version: int, form: str | None = None) -> Any:
        """Return a version of a subject (`RegisteredSchema`). Raises as `schema` does."""
        what = f"version {version} of subject {subject}"
        return self._asked(what, lambda: self._client.get_version(subject, version, fmt=form))

    def latest(self, subject: str) -> Any:
        """Return the latest version of a subject (`RegisteredSchema`). Raises as `schema` does."""
        return self._asked(f"the latest version of subject {subject}", lambda: self._client.get_latest_version(subject))

    def newest(self, subject: str) -> Any:
        """Return the latest version of a subject (`RegisteredSchema`); None if the registry does not know the subject."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - of an extra

        # Otherwise the library would know none but the first one that it was told.
        self._client.clear_latest_caches()

        def asked() -> Any:
            try:
                return self._client.get_latest_version(subject)
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND:
                    return None
                raise

        return self._asked(f"the latest version of subject {subject}", asked)

    def registered(self, subject: str, schema: Any, *, normalize: bool) -> Any:
        """Register a schema as a new version of its subject, unless it is registered already.

        Returns the version (`RegisteredSchema`). Its schema has the rules that the registry added.
        """
        what = f"a schema for subject {subject}"
        call = partial(self._client.register_schema_full_response, subject, schema, normalize)
        found = self._asked(what, call, subject)
        self._client.clear_latest_caches()
        return found if self._ids is None else self._ids.setdefault(schema, found)

    def known(self, subject: str, schema: Any, *, normalize: bool) -> Any:
        """Return the version of a subject that has this schema (`RegisteredSchema`). Raises as `schema` does."""
        what = f"that schema as a version of subject {subject}"
        return self._asked(what, lambda: self._client.lookup_schema(subject, schema, normalize), subject)

    def _asked(self, what: str, call: Callable[[], T], subject: str | None = None) -> T:
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError  # noqa: PLC0415

        attempt = 0
        while True:
            try:
                return call()
            # The client itself has retried everything but conflicts.
            except SchemaRegistryError as error:
                if attempt >= self._retries or not _is_race(error):
                    raise self._refused(what, error, subject) from error
                log.info("another instance is registering %s: retrying", what)
            except OAuthTokenError as error:
                message = f"Schema registry {self._shown} cannot be reached: no token was issued"
                raise RegistryError(message, hint="Check bearer.auth.* in [schema_registry].") from error
            except _http_errors() as error:
                if attempt >= self._retries:
                    raise self._silent(what, error) from error
                log.warning("schema registry %s does not answer (%s): retrying", self._shown, type(error).__name__)
            self._pause(attempt)
            attempt += 1

    def _pause(self, attempt: int) -> None:
        wait_ms = min(self._wait_ms * 2**attempt, self._longest_wait_ms)
        time.sleep(random.random() * wait_ms / 1000)  # noqa: S311 - instances that collided must not retry in step

    def _silent(self, what: str, error: Exception) -> RegistryError:
        why = redacted(str(error)) or type(error).__name__
        message = f"Schema registry {self._shown} does not answer the request for {what}: {why}"
        hint = "Check url and ssl.ca.location in [schema_registry], and whether the registry runs. No record is lost."
        return RegistryError(message, retriable=True, hint=hint)

    def _refused(self, what: str, error: Any, subject: str | None) -> StreamsError:
        status, why = error.http_status_code, redacted(str(error.error_message))
        if status == _NOT_FOUND:
            message = f"Schema registry {self._shown} does not have {what}: {why}"
            hint = "Register it, or set auto.register.schemas = true." if subject else None
            return SchemaError(message, hint=hint)
        if status == _INCOMPATIBLE:
            message = f"Subject {subject}{self._versions(subject)} refuses the schema as incompatible: {why}"
            hint = "Make the schema compatible, for example with defaults for new fields, or choose another topic."
            return SchemaError(message, hint=hint)
        if status in _FORBIDDEN:
            message = f"Schema registry {self._shown} refuses {what} (HTTP {status}): {why}"
            return RegistryError(message, hint="Check basic.auth.user.info or bearer.auth.* in [schema_registry].")
        if status < _BUSY:
            hint = "Correct the schema." if status == _INVALID else None
            return SchemaError(f"Schema registry {self._shown} refuses {what} (HTTP {status}): {why}", hint=hint)
        message = f"Schema registry {self._shown} failed on {what} (HTTP {status}): {why}"
        return RegistryError(message, retriable=True, hint="Check the registry's log. No record is lost.")

    def _versions(self, subject: str | None) -> str:
        """Return the versions of a subject for a message; empty if they cannot be fetched."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        try:
            return f" with its versions {', '.join(map(str, self._client.get_versions(subject)))}"
        except (SchemaRegistryError, *_http_errors()):
            return ""


@functools.cache
def _http_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the client's HTTP library."""
    # Since confluent-kafka 2.16 that is httpx2 where it is installed, and httpx elsewhere. Their errors share no class.
    found: list[type[Exception]] = []
    for library in ("httpx", "httpx2"):
        with suppress(ModuleNotFoundError):
            found.append(import_module(library).HTTPError)
    return tuple(found)


def _is_race(error: Any) -> bool:
    # Two instances have registered a new subject at once. Apicurio refuses the later one, which may retry.
    return error.http_status_code == _INCOMPATIBLE and "already exists" in str(error.error_message)


def _without_user(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the user moved out of the address."""
    # Libraries log addresses, and with them the password.
    addresses = [urlsplit(url.strip()) for url in settings[URL].split(",")]
    found, first = dict(settings), addresses[0]
    if first.username is not None and "basic.auth.user.info" not in found:
        found["basic.auth.user.info"] = f"{unquote(first.username)}:{unquote(first.password or '')}"
    bare = (urlunsplit(each._replace(netloc=each.netloc.rpartition("@")[2])) for each in addresses)
    return {**found, URL: ",".join(bare)}


def registry_of(settings: Mapping[str, Any]) -> RegistryClient:
    """Return the registry client of these settings, one per process."""
    if not settings:
        message = "A serde needs a schema registry, and none is configured"
        raise ConfigError(message, hint='Add [schema_registry] with url = "http://..." to streams.toml.')
    # Serdes differ in settings of their own, but share one client, so that each schema is fetched once.
    return _registry(tuple(sorted((k, v) for k, v in settings.items() if k in CLIENT_SETTINGS)))


@functools.cache
def _registry(settings: tuple[tuple[str, Any], ...]) -> RegistryClient:
    return RegistryClient(dict(settings))
