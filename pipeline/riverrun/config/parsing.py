"""Parses Kafka Streams' settings from their dotted names, and refuses unknown settings and impossible values."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.address import checked_address
from riverrun.config.checks import check_path, check_type, expanded_user, nearest
from riverrun.config.secrets import checked_token
from riverrun.config.streams import (
    AT_LEAST_ONCE,
    BOUNDED_ENGINES,
    BOUNDED_WALL_CLOCK,
    EXACTLY_ONCE_V2,
    MOST_THREADS,
    PREFIXES,
    SECRETS,
    UNCAUGHT_EXCEPTION_RESPONSES,
    StreamsConfig,
    dotted,
    parse_optimization,
    underscored,
)
from riverrun.errors import ConfigError
from riverrun.records import AutoOffsetReset, is_legal_topic, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_AT_LEAST_ONCE_COMMIT_INTERVAL_MS = 30_000


def streams_config(path: Path | str, where: str, table: Mapping[str, Any]) -> StreamsConfig:
    """Parse Kafka Streams' settings from their dotted names.

    Args:
        path: The file, for messages.
        where: Place in the file.
        table: The settings.

    Raises:
        ConfigError: If one is unknown, or its value impossible.
    """
    known = _known()
    given: dict[str, Any] = {}
    # As in Kafka Streams, whose default interval depends on the guarantee. An explicit setting below overrides it.
    if table.get("processing.guarantee") == AT_LEAST_ONCE:
        given["commit_interval_ms"] = _AT_LEAST_ONCE_COMMIT_INTERVAL_MS
    for key, value in table.items():
        prefix = next((p for p in PREFIXES if key.startswith(p)), None)
        if prefix is not None:
            _check_client(path, where, key, value)
            if prefix == "topic.":
                _check_topic(path, where, key)
            given.setdefault(underscored(prefix[:-1]), {})[key[len(prefix) :]] = (
                # Kafka's clients take text only; `user.` settings are for processors, which get values as they were
                # written.
                value if prefix == "user." else str(value)
            )
            continue
        if key not in known:
            message = f"{path}: unknown setting {where}.{key}"
            raise ConfigError(message, hint=_hint(key, value))
        given[known[key]] = _checked(path, f"{where}.{key}", key, value)
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


def setting_named(key: str) -> str | None:
    """Return the setting that a user meant by a name with dots or underscores; None if there is none."""
    name = dotted(key)
    return name if name in _known() or name.startswith(PREFIXES) else None


def _known() -> dict[str, str]:
    """Return the fields that hold a single setting, by dotted name."""
    return {dotted(f.name): f.name for f in fields(StreamsConfig) if f"{dotted(f.name)}." not in PREFIXES}


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
    return _ELSEWHERE.get(key) or nearest(key, _known())


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
    """Check that a property of all clients (`[kafka]`) may be set.

    Args:
        path: The file, for messages.
        key: The property.
        allowed: Properties that are allowed although they load code or run commands (`unsafe.properties`).

    Raises:
        ConfigError: If it may not be set.
    """
    if key in UNSAFE - set(allowed):
        raise _unsafe(path, f"[kafka] {key}", key)
    for prefix in ("consumer.", "producer."):
        if prefix + key in NOT_THE_USERS:
            message = f"{path}: [kafka] {key} cannot be set"
            raise ConfigError(message, hint=NOT_THE_USERS[prefix + key])


def check_oauth(path: Path, kafka: Mapping[str, str]) -> None:
    """Check that clients which log in with OAUTHBEARER have one source of tokens.

    Args:
        path: The file, for messages.
        kafka: Properties of all clients.

    Raises:
        ConfigError: If they have none or two, or have one and log in otherwise.
    """
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
        message = f"{path}: [kafka] {_OAUTH}method is {method!r}"
        raise ConfigError(message, hint="Allowed: default, oidc")
    if (method == "oidc") == (OAUTH_CALLBACK in kafka):
        count = "has two sources" if method == "oidc" else "needs a source"
        message = f"{path}: [kafka] OAUTHBEARER {count} of tokens"
        hint = f'Set either "{OAUTH_CALLBACK}" = "module:function" or "{_OAUTH}method" = "oidc".'
        raise ConfigError(message, hint=hint)
    if method == "oidc":
        _check_oidc(path, kafka)
    elif not _ATTRIBUTE.fullmatch(kafka[OAUTH_CALLBACK]):
        message = f"{path}: [kafka] {OAUTH_CALLBACK} is {kafka[OAUTH_CALLBACK]!r}, not module:function"
        raise ConfigError(message, hint="For example my_tokens:fetch.")


def _check_oidc(path: Path, kafka: Mapping[str, str]) -> None:
    missing = [key for key in _OIDC_NEEDS if not kafka.get(key)]
    if missing:
        message = f"{path}: [kafka] {_OAUTH}method = oidc needs {', '.join(missing)}"
        raise ConfigError(message)
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
        message = f"{path}: {where}.{key} is not a setting of topics"
        raise ConfigError(message, hint=nearest(name, _TOPIC_SETTINGS))


def _check_client(path: Path | str, where: str, key: str, value: Any) -> None:
    if key in NOT_THE_USERS:
        message = f"{path}: {where}.{key} cannot be set"
        raise ConfigError(message, hint=NOT_THE_USERS[key])
    if key.partition(".")[2] in UNSAFE:
        raise _unsafe(path, f"{where}.{key}", key.partition(".")[2])
    if key in _MEMBERSHIP and not whole_number(str(value), _INT):
        message = f"{path}: {where}.{key} is {value!r}, and must be at least 1, and at most {_INT}"
        raise ConfigError(message)


_HANDLERS = {
    "fail": "fail",
    "continue": "continue",
    "set-aside": "set-aside",
    "LogAndFailExceptionHandler": "fail",
    "LogAndContinueExceptionHandler": "continue",
    "LogAndFailProcessingExceptionHandler": "fail",
    "LogAndContinueProcessingExceptionHandler": "continue",
    "DefaultProductionExceptionHandler": "fail",
}

_TIMESTAMP_EXTRACTORS = (
    "FailOnInvalidTimestamp",
    "LogAndSkipOnInvalidTimestamp",
    "UsePartitionTimeOnInvalidTimestamp",
    "WallclockTimestampExtractor",
)
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]+")
_VARIABLE = re.compile(r"\$\{.*|\$[A-Z_][A-Z0-9_]*")
_ATTRIBUTE = re.compile(r"[\w.]+:\w+")

LOWEST = {
    "acceptable.recovery.lag": 0,
    "commit.interval.ms": 0,
    "log.summary.interval.ms": 0,
    "max.task.idle.ms": -1,
    "node.sample.interval.ms": 0,
    "num.standby.replicas": 0,
    "replication.factor": -1,
    "snapshot.interval.ms": 0,
    "statestore.cache.max.bytes": 0,
    "task.alignment.max.drift.ms": -1,
    "window.idle.close.ms": 0,
}

_INT, _LONG = 2**31 - 1, 2**63 - 1
# About the longest time that threads of Python can wait: 285 years.
_LONGEST_MS = 9_000_000_000_000
# Settings that Kafka, Python or this machine limits below a long.
HIGHEST = {
    "bounded.buffer.max.bytes": 2**50,
    "buffered.records.per.partition": _INT,
    "commit.interval.ms": _LONGEST_MS,
    "log.summary.interval.ms": _LONGEST_MS,
    "max.poll.interval.ms": _INT,
    "max.warmup.replicas": 1000,
    "metadata.max.age.ms": _LONGEST_MS,
    "metrics.num.samples": 1000,
    "metrics.sample.window.ms": _LONGEST_MS,
    "node.sample.interval.ms": 60_000,
    "num.standby.replicas": 1000,
    "num.stream.threads": MOST_THREADS,
    "poll.ms": _INT,
    "replication.factor": 2**15 - 1,
    "repartition.purge.interval.ms": _LONGEST_MS,
    "server.query.processes": 100,  # each takes memory
    "server.query.timeout.ms": 3_600_000,
    "server.query.max.bytes": 2**31 - 1,
    "server.query.max.memory.bytes": 2**50,
    "snapshot.interval.ms": _LONGEST_MS,
    "snapshot.keep": 1_000_000,
    "statestore.cache.max.bytes": 2**50,
    "task.timeout.ms": _LONGEST_MS,
    "window.idle.close.ms": _LONGEST_MS,
}


def _names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


CHOICES: Mapping[str, Mapping[str, str]] = {
    "bounded.engine": _names(*BOUNDED_ENGINES),
    "bounded.wall.clock.punctuation": _names(*BOUNDED_WALL_CLOCK),
    "default.dsl.store": _names("rocksDB", "in_memory"),
    "default.timestamp.extractor": _names(*_TIMESTAMP_EXTRACTORS),
    "deserialization.exception.handler": _HANDLERS,
    "metrics.recording.level": _names("INFO", "DEBUG", "TRACE"),
    "processing.exception.handler": _HANDLERS,
    "processing.guarantee": _names(EXACTLY_ONCE_V2, AT_LEAST_ONCE),
    "production.exception.handler": _HANDLERS,
    "uncaught.exception.handler": _names(*UNCAUGHT_EXCEPTION_RESPONSES),
}
TAKES_CODE = frozenset(key for key, allowed in CHOICES.items() if allowed is _HANDLERS) | {
    "default.timestamp.extractor"
}
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "auto.offset.reset": AutoOffsetReset.parse,
    "topology.optimization": parse_optimization,
}
_TEXTS = frozenset({"server.ssl.key.password"})
_TOPICS = frozenset({"errors.dead.letter.queue.topic.name", "history.topic"})
_TOKENS = frozenset({"server.token", "server.read.token"})
_LISTS = frozenset({"rack.aware.assignment.tags", "server.allowed.hosts"})
_FILES = frozenset({"server.ssl.certificate.location", "server.ssl.key.location", "server.ssl.ca.location"})


def _chosen(path: Path | str, where: str, key: str, value: Any) -> str:
    allowed, takes_code = CHOICES[key], key in TAKES_CODE
    if takes_code and isinstance(value, str) and _ATTRIBUTE.fullmatch(value):
        return value
    if value not in allowed:
        message = f"{path}: {where} is {value!r}"
        also = " - or module:attribute" if takes_code else ""
        raise ConfigError(message, hint=f"Allowed: {', '.join(allowed)}{also}")
    return allowed[value]


def checked_setting(path: Path | str, where: str, key: str, value: Any) -> Any:
    """Return the value of a setting of applications that stands elsewhere, too.

    Args:
        path: The file, for messages.
        where: Name of the key there.
        key: Name of the setting.
        value: The value as it was written.

    Raises:
        ConfigError: If it cannot be the value of the setting.
    """
    return _checked(path, where, key, value)


def _checked(path: Path | str, where: str, key: str, value: Any) -> Any:
    if key in CHOICES:
        return _chosen(path, where, key, value)
    if key == "state.dir":
        return _directory(path, where, value)
    if key in _TEXTS:
        return _text(path, where, value)
    if key in _TOPICS:
        return _topic(path, where, value)
    if key in _TOKENS:
        return checked_token(f"{path}: {where}", _text(path, where, value))
    if key in _LISTS:
        return _names_listed(path, where, key, value)
    return _parsed(path, where, key, value)


def _parsed(path: Path | str, where: str, key: str, value: Any) -> Any:
    if key in _FILES:
        return _absolute(path, _text(path, where, value))
    match key:
        case "application.server":
            return _server(path, where, value)
        case (
            "allow.os.group.write.access"
            | "ensure.explicit.internal.resource.naming"
            | "processing.exception.handler.global.enabled"
        ):
            check_type(path, where, value, bool)
            return value
        case "archive.url" | "snapshot.url":
            return _absolute(path, _text(path, where, value))
        case "auto.offset.reset" | "topology.optimization":
            _PARSERS[key](_text(path, where, value))
            return value
        case _:
            return _number(path, where, key, value)


def _names_listed(path: Path | str, where: str, key: str, value: Any) -> tuple[str, ...]:
    check_type(path, where, value, list)
    for each in value:
        check_type(path, f"{where}: an item", each, str)
        if key == "server.allowed.hosts" and not _HOST.fullmatch(each):
            message = f"{path}: {where} has {each!r}, which is not the name of a host"
            raise ConfigError(
                message, hint="Names are compared as they are written, without patterns, schemes and ports."
            )
    return tuple(value)


def _text(path: Path | str, where: str, value: Any) -> str:
    check_type(path, where, value, str)
    check_path(f"{path}: {where}", value)
    variable = _VARIABLE.search(value)
    if variable is not None and where.rpartition(".config.")[2].removeprefix("console.") not in SECRETS:
        message = f"{path}: {where} has {variable[0]}, which is not replaced here"
        raise ConfigError(message, hint="${NAME} is replaced in [kafka], [spark] and secrets: write the value out.")
    return str(value)


def _topic(path: Path | str, where: str, value: Any) -> str:
    text = _text(path, where, value)
    if text and not is_legal_topic(text):
        message = f"{path}: {where} is {text!r}, which is not the name of a topic"
        raise ConfigError(message, hint="Names have the characters a-z A-Z 0-9 . _ -, at most 249 of them.")
    return text


def _number(path: Path | str, where: str, key: str, value: Any) -> int:
    check_type(path, where, value, int)
    lowest, highest = LOWEST.get(key, 1), HIGHEST.get(key, _LONG)
    if value < lowest:
        message = f"{path}: {where} is {value!r}, and must be at least {lowest}"
        raise ConfigError(message)
    if value > highest:
        message = f"{path}: {where} is {value!r}, and must be at most {highest}"
        raise ConfigError(message)
    if key == "replication.factor" and not value:
        message = f"{path}: {where} is 0, and must be at least 1, or -1"
        raise ConfigError(message, hint="-1 leaves the number of replicas to the brokers' default.replication.factor.")
    return int(value)


def _server(path: Path | str, where: str, value: Any) -> str:
    text = _text(path, where, value)
    return str(checked_address(f"{path}: {where}", text)) if text else ""


def _directory(path: Path | str, where: str, value: Any) -> str:
    text = _text(path, where, value)
    if not text:
        message = f"{path}: {where} is empty"
        raise ConfigError(message, hint='Leave it out for ".riverrun/state", or name a directory.')
    # `~` is replaced as shells do: nobody wants a directory of that name.
    return str(expanded_user(f"{path}: {where}", text))


def _absolute(path: Path | str, url: str) -> str:
    """Return a URL unchanged, and a path relative to the directory of `streams.toml`; `~` is replaced."""
    if not url or "://" in url:
        return url
    return str((Path(path).parent / expanded_user(f"{path}", url)).resolve())
