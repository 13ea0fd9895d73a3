"""Parses Kafka Streams' settings from their dotted names, and refuses unknown settings and impossible values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.config.setting import ATTRIBUTE, LARGEST_INT
from riverrun.config.streams import AT_LEAST_ONCE, PREFIXED, SETTINGS, StreamsConfig, dotted, underscored
from riverrun.errors import ConfigError
from riverrun.records import whole_number

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_AT_LEAST_ONCE_COMMIT_INTERVAL_MS = 30_000


def streams_config(path: Path | str, where: str, table: Mapping[str, Any]) -> StreamsConfig:
    """Parse Kafka Streams' settings from their dotted names."""
    given: dict[str, Any] = {}
    # As in Kafka Streams, whose default interval depends on the guarantee. An explicit setting below overrides it.
    if table.get("processing.guarantee") == AT_LEAST_ONCE:
        given["commit_interval_ms"] = _AT_LEAST_ONCE_COMMIT_INTERVAL_MS
    for key, value in table.items():
        prefix = _prefix_of(key)
        if prefix is not None:
            _check_client(path, where, key, value)
            if prefix == "topic":
                _check_topic(path, where, key)
            given.setdefault(underscored(prefix), {})[key.removeprefix(f"{prefix}.")] = (
                # Kafka's clients take text only; `user.` settings are for processors, which get values as they were
                # written.
                value if prefix == "user" else str(value)
            )
            continue
        if key not in SETTINGS or key in PREFIXED:
            raise ConfigError(f"{path}: unknown setting {where}.{key}", hint=_hint(key, value))
        given[underscored(key)] = checked_setting(path, f"{where}.{key}", key, value)
    return _checked_together(path, where, StreamsConfig(**given))


def _checked_together(path: Path | str, where: str, streams: StreamsConfig) -> StreamsConfig:
    if streams.server_token and streams.server_token == streams.server_read_token:
        message = (
            f"{path}: {where}.server.read.token is equal to server.token, so callers that only read may do anything"
        )
        raise ConfigError(message, hint="Make another random token for them: openssl rand -hex 32")
    certificate = streams.server_ssl_certificate_location
    for key in ("server_ssl_key_location", "server_ssl_key_password"):
        if getattr(streams, key) and not certificate:
            message = f"{path}: {where}.{dotted(key)} is set, and server.ssl.certificate.location is not"
            raise ConfigError(
                message, hint="Without a certificate, the worker would answer in clear. Name the file with it."
            )
    if certificate and not streams.server_ssl_key_location and not _may_have_key(Path(certificate)):
        message = f"{path}: {where}.server.ssl.certificate.location is set, and {certificate} has no key"
        raise ConfigError(message, hint="Name the file with the key: server.ssl.key.location.")
    return streams


def _may_have_key(certificate: Path) -> bool:
    """Return whether a file of certificates may hold a key as well."""
    try:
        return b"PRIVATE KEY-----" in certificate.read_bytes()
    # It may be on another machine, where the worker will run.
    except (OSError, ValueError):
        return True


def _prefix_of(key: str) -> str | None:
    return next((prefix for prefix in PREFIXED if key.startswith(f"{prefix}.")), None)


def setting_named(key: str) -> str | None:
    """Return the setting that a user meant by a name with dots or underscores; None if there is none."""
    name = dotted(key)
    return name if name in SETTINGS.keys() - PREFIXED or _prefix_of(name) is not None else None


def as_written(key: str, value: Any) -> str:
    """Return a name that TOML split at its dots because it was not quoted."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key


_ELSEWHERE = {
    "application.id": "It is the application's name and version: <name>-<version>.",
    "bootstrap.servers": "It belongs in [kafka].",
    "cache.max.bytes.buffering": "Write statestore.cache.max.bytes.",
    "default.key.serde": "There are no default serdes: each source names its own.",
    "default.value.serde": "There are no default serdes: each source names its own.",
    "dsl.store.suppliers.class": "Write default.dsl.store.",
}


def _hint(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f'Names with dots are quoted: "{as_written(key, value)}".'
    return _ELSEWHERE.get(key) or nearest(key, SETTINGS.keys() - PREFIXED)


NOT_THE_USERS = {
    "consumer.auto.offset.reset": "Write auto.offset.reset in [apps.NAME.config].",
    "consumer.enable.auto.commit": "Offsets are committed together with the results, at every commit.interval.ms.",
    "consumer.enable.auto.offset.store": "Offsets are committed together with the results.",
    "consumer.enable.partition.eof": "Consumers always report the ends of partitions.",
    "consumer.group.id": "The group is named after the application: <name>-<version>.",
    "consumer.isolation.level": "Consumers read committed records only.",
    "producer.enable.idempotence": "Producers are always idempotent.",
    "producer.max.in.flight": "It is 1: with more, records are lost when leaders of partitions change.",
    "producer.max.in.flight.requests.per.connection": "It is 1: with more, records are lost when leaders of partitions change.",
    "producer.partitioner": "Keys are partitioned as Java's producers do, or by Produced(partitioner=...).",
    "producer.transaction.timeout.ms": "It is 60 s for workers, and 15 minutes for slices of bounded runs.",
    "producer.transactional.id": "Transactional ids are named after the application and its tasks.",
}


def _unsafe(path: Path | str, where: str, key: str) -> ConfigError:
    message = f"{path}: {where} lets clients load code or run commands"
    return ConfigError(
        message, hint=f'If that is meant, set it in [kafka], with "{ALLOWED_PROPERTIES}" = ["{key}"] there.'
    )


# Checked here; the client library checks all others.
_MEMBERSHIP = frozenset({"consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"})


OAUTH_CALLBACK = "oauth_cb"
"""Names the function that gives tokens for logins with OAUTHBEARER, as in confluent-kafka."""
_OAUTH = "sasl.oauthbearer."
_OAUTH_PROPERTIES = tuple(
    f"{_OAUTH}{name}"
    for name in ("client.id", "client.secret", "config", "extensions", "method", "scope", "token.endpoint.url")
)
_OIDC_NEEDS = tuple(f"{_OAUTH}{name}" for name in ("client.id", "client.secret", "token.endpoint.url"))
_TOKEN_URL = re.compile(r"https?://[^\s/]+\S*")
ALLOWED_PROPERTIES = "unsafe.properties"
"""Names the properties of clients in `[kafka]` that may load code or run commands."""
# By these, librdkafka loads libraries or runs commands in every process with a client.
UNSAFE = frozenset(
    {"plugin.library.paths", "sasl.kerberos.kinit.cmd", "ssl.engine.id", "ssl.engine.location", "ssl.providers"}
)


def check_property(path: Path, key: str, allowed: Collection[str] = ()) -> None:
    """Check that a property of all clients (`[kafka]`) may be set."""
    if key in UNSAFE - set(allowed):
        raise _unsafe(path, f"[kafka] {key}", key)
    for prefix in ("consumer.", "producer."):
        if prefix + key in NOT_THE_USERS:
            raise ConfigError(f"{path}: [kafka] {key} cannot be set", hint=NOT_THE_USERS[prefix + key])


def check_oauth(path: Path, kafka: Mapping[str, str]) -> None:
    """Check that clients which log in with OAUTHBEARER have one source of tokens."""
    settings = [key for key in kafka if key == OAUTH_CALLBACK or key.startswith(_OAUTH)]
    if kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "")).upper() != "OAUTHBEARER":
        if settings:
            message = f"{path}: [kafka] {settings[0]} is for logins with OAUTHBEARER"
            raise ConfigError(message, hint='Set "sasl.mechanism" = "OAUTHBEARER" as well.')
        return
    for key in settings:
        if key.startswith(_OAUTH) and key not in _OAUTH_PROPERTIES:
            message = f"{path}: [kafka] {key} cannot be set"
            hint = nearest(key, _OAUTH_PROPERTIES) or f'Let a function give the tokens: "{OAUTH_CALLBACK}".'
            raise ConfigError(message, hint=hint)
    method = kafka.get(f"{_OAUTH}method", "default").lower()
    if method not in {"default", "oidc"}:
        raise ConfigError(f"{path}: [kafka] {_OAUTH}method is {method!r}", hint="Allowed: default, oidc")
    if (method == "oidc") == (OAUTH_CALLBACK in kafka):
        count = "has two sources" if method == "oidc" else "needs a source"
        message = f"{path}: [kafka] OAUTHBEARER {count} of tokens"
        hint = f'Set either "{OAUTH_CALLBACK}" = "module:function" or "{_OAUTH}method" = "oidc".'
        raise ConfigError(message, hint=hint)
    if method == "oidc":
        _check_oidc(path, kafka)
    elif not ATTRIBUTE.fullmatch(kafka[OAUTH_CALLBACK]):
        message = f"{path}: [kafka] {OAUTH_CALLBACK} is {kafka[OAUTH_CALLBACK]!r}, not module:function"
        raise ConfigError(message, hint="For example my_tokens:fetch.")


def _check_oidc(path: Path, kafka: Mapping[str, str]) -> None:
    missing = [key for key in _OIDC_NEEDS if not kafka.get(key)]
    if missing:
        raise ConfigError(f"{path}: [kafka] {_OAUTH}method = oidc needs {', '.join(missing)}")
    url = kafka[f"{_OAUTH}token.endpoint.url"]
    if not _TOKEN_URL.fullmatch(url):
        message = f"{path}: [kafka] {_OAUTH}token.endpoint.url is not an address"
        raise ConfigError(message, hint="For example https://login.example.org/oauth2/token.")


# Settings of `TopicConfig`. Brokers refuse others as well, but only when the next internal topic is created.
_TOPIC_SETTINGS = frozenset(
    """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level delete.retention.ms
    file.delete.delay.ms flush.messages flush.ms index.interval.bytes local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.downconversion.enable message.timestamp.after.max.ms
    message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas
    preallocate remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
    segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
    """.split()  # noqa: SIM905 - as a list it takes a page
)
# Prefixes of settings that other vendors' brokers add.
_VENDORS = ("confluent.", "redpanda.")


def _check_topic(path: Path | str, where: str, key: str) -> None:
    name = key.removeprefix("topic.")
    if name not in _TOPIC_SETTINGS and not name.startswith(_VENDORS):
        raise ConfigError(f"{path}: {where}.{key} is not a setting of topics", hint=nearest(name, _TOPIC_SETTINGS))


def _check_client(path: Path | str, where: str, key: str, value: Any) -> None:
    if key in NOT_THE_USERS:
        raise ConfigError(f"{path}: {where}.{key} cannot be set", hint=NOT_THE_USERS[key])
    if key.partition(".")[2] in UNSAFE:
        raise _unsafe(path, f"{where}.{key}", key.partition(".")[2])
    if key in _MEMBERSHIP and not whole_number(str(value), LARGEST_INT):
        raise ConfigError(f"{path}: {where}.{key} is {value!r}, and must be at least 1, and at most {LARGEST_INT}")


def checked_setting(path: Path | str, where: str, key: str, value: Any) -> Any:
    """Return the value of a setting of applications that stands elsewhere, too."""
    return SETTINGS[key].values.checked(path, where, value)
