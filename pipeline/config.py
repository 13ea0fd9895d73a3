"""`streams.toml`: which applications there are, where Kafka is, and how they run.

Read with the standard library only, so that Airflow may parse it for every DAG. Whatever is not known is refused, with
the nearest name that is.
"""

from __future__ import annotations

import difflib
import importlib
import re
import tomllib
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.records import AutoOffsetReset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"

BOUNDED_WALL_CLOCK = ("refuse", "once", "never")
"""What a bounded run may do about punctuations that follow the wall clock."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_PREFIXES = ("client.tag.", "consumer.", "producer.", "topic.", "user.")
_EOS_COMMIT_INTERVAL_MS = 100


class Optimization(Enum):
    """A rule of `topology.optimization`."""

    REUSE_KTABLE_SOURCE_TOPICS = "reuse.ktable.source.topics"
    MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
    SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def parse_optimization(text: str) -> frozenset[Optimization]:
    """The rules that a value of `topology.optimization` names (`StreamsConfig.verifyTopologyOptimizationConfigs`).

    Raises:
        ConfigError: If there is no such rule, or `none` or `all` stands among others.

    >>> sorted(rule.value for rule in parse_optimization("merge.repartition.topics, single.store.self.join"))
    ['merge.repartition.topics', 'single.store.self.join']
    """
    names = [name.strip() for name in text.split(",")]
    rules = {rule.value: rule for rule in Optimization}
    if names == ["all"]:
        return frozenset(Optimization)
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name not in rules:
            message = f"{text!r} is no topology.optimization"
            raise ConfigError(message, hint=f"Allowed: none, all, or a list of {', '.join(rules)}")
    return frozenset(rules[name] for name in names)


@dataclass(frozen=True, slots=True)
class TopologyConfig:
    """The settings that decide what is built from the same calls (`org.apache.kafka.streams.TopologyConfig`).

    Args:
        optimization: The rules to apply.
        ensure_explicit_internal_resource_naming: Whether stores, changelogs and repartition topics that the user has not named
            are refused.
        is_persistent: Whether the DSL keeps stores in RocksDB unless their options say otherwise (`default.dsl.store`).
    """

    optimization: frozenset[Optimization] = frozenset()
    ensure_explicit_internal_resource_naming: bool = False
    is_persistent: bool = True


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Kafka Streams' own settings, dots written as underscores; times in ms, sizes in bytes.

    Args:
        commit_interval_ms: How often to commit; 100 under exactly_once unless set.
        state_dir: Where local state is kept, relative to `streams.toml`.
        statestore_cache_max_bytes: Size of the stores' caches at which a commit comes early.
        max_task_idle_ms: How long to wait for an empty input before others go ahead; -1 not at all.
        buffered_records_per_partition: Above this, an input is not fetched for a while.
        poll_ms: How long a poll waits for records.
        task_timeout_ms: How long to retry while brokers do not answer.
        replication_factor: Of internal topics; -1 for the brokers' default.
        deserialization_exception_handler: What becomes of records that cannot be read: `fail`, `continue`, or a handler of the
            user's as `module:attribute` (`pipeline.processor.handlers`).
        processing_exception_handler: The same for records on which user code fails.
        processing_exception_handler_global_enabled: Whether that handler is asked about global tables and stores as well.
        production_exception_handler: The same for records that cannot be written.
        errors_dead_letter_queue_topic_name: Where `fail` and `continue` keep the input records of failures; None: nowhere.
        auto_offset_reset: Where sources start without committed offsets that do not say so themselves: `earliest`, `latest`,
            `none` (then the application does not start) or `by_duration:` and a duration, as `by_duration:PT1H`.
        default_timestamp_extractor: How sources find event times that do not say so themselves: a class of
            `pipeline.processor.timestamps`, or `module:attribute`.
        uncaught_exception_handler: What a worker does when a stream process fails: `shutdown_client` ends this instance,
            `replace_thread` starts another process, `shutdown_application` ends all instances.
        num_stream_threads: Stream processes per worker instance.
        num_standby_replicas: Copies of each task's state on other instances, ready to take over.
        max_warmup_replicas: How many tasks may warm up elsewhere at a time before they move there.
        acceptable_recovery_lag: With at most so many changelog records missing, an instance may take a task over.
        rack_aware_assignment_tags: Client tags in whose values the copies of a state should differ.
        client_tag: What this instance is called by those tags (`client.tag.` prefix).
        snapshot_url: Where snapshots of state are kept: any URL of fsspec, or a path relative to `streams.toml`; none if empty.
        snapshot_keep: How many snapshots of a task are kept.
        snapshot_interval_ms: How often workers publish the state of each task that has changed; 0 for never.
        bounded_wall_clock_punctuation: What a bounded run does if a processor schedules by the wall clock: `refuse`, call each
            `once` at the end of every slice of its task, or `never`.
        metadata_max_age_ms: How often a worker looks for topics that have come to match a source's pattern.
        bounded_buffer_max_bytes: How much of what a task reads from repartition topics a bounded run keeps in memory; more is
            spilled to `state.dir`.
        metrics_num_samples: How many samples the sampled figures of processors' sensors are made of.
        metrics_recording_level: Sensors of higher levels record nothing: `INFO`, `DEBUG` or `TRACE`.
        metrics_sample_window_ms: How long such a sample is.
        max_poll_interval_ms: A stream process that is silent for longer is replaced.
        repartition_purge_interval_ms: How often records of repartition topics are deleted that have been processed.
        log_summary_interval_ms: How often a worker logs what it has done.
        application_server: `host:port` where a worker answers queries, and other instances find it; empty for nowhere. Port 0
            takes any that is free.
        server_token: What callers must show there (`Authorization: Bearer`), `${NAME}` is expanded; needed unless the host is
            the loopback.
        consumer: Client properties of consumers (`consumer.` prefix); `session.timeout.ms`, `heartbeat.interval.ms` and
            `group.instance.id` are those of the membership.
        producer: Client properties of producers (`producer.` prefix).
        topic: Settings of internal topics (`topic.` prefix).
        user: Settings of the application's own (`user.` prefix), for its processors to read.
        default_dsl_store: Where the DSL keeps stores unless their options say otherwise: `rocksDB` or `in_memory`.
        ensure_explicit_internal_resource_naming: Refuse topologies whose stores or internal topics are not all named: see
            `StreamsBuilder.build`.
        topology_optimization: `none`, `all`, or rules separated by commas: see `StreamsBuilder.build`.
    """

    commit_interval_ms: int = 30_000
    state_dir: str = ".millrace/state"
    statestore_cache_max_bytes: int = 10 * 1024 * 1024
    max_task_idle_ms: int = 0
    buffered_records_per_partition: int = 1000
    poll_ms: int = 100
    task_timeout_ms: int = 300_000
    replication_factor: int = -1
    deserialization_exception_handler: str = "fail"
    processing_exception_handler: str = "fail"
    processing_exception_handler_global_enabled: bool = False
    production_exception_handler: str = "fail"
    errors_dead_letter_queue_topic_name: str | None = None
    auto_offset_reset: str = "earliest"
    default_timestamp_extractor: str = "FailOnInvalidTimestamp"
    uncaught_exception_handler: str = "shutdown_client"
    num_stream_threads: int = 1
    num_standby_replicas: int = 0
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    rack_aware_assignment_tags: tuple[str, ...] = ()
    client_tag: Mapping[str, str] = field(default_factory=dict)
    bounded_wall_clock_punctuation: str = "refuse"
    bounded_buffer_max_bytes: int = 128 * 1024 * 1024
    snapshot_url: str = ""
    snapshot_keep: int = 3
    snapshot_interval_ms: int = 600_000
    metadata_max_age_ms: int = 300_000
    metrics_num_samples: int = 2
    metrics_recording_level: str = "INFO"
    metrics_sample_window_ms: int = 30_000
    max_poll_interval_ms: int = 300_000
    repartition_purge_interval_ms: int = 30_000
    log_summary_interval_ms: int = 120_000
    application_server: str = ""
    server_token: str = field(default="", repr=False)
    consumer: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    topic: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)
    default_dsl_store: str = "rocksDB"
    ensure_explicit_internal_resource_naming: bool = False
    topology_optimization: str = "none"

    def settings(self) -> dict[str, Any]:
        """All of it by dotted names, for processors to read (`AbstractProcessorContext.appConfigs`); without the token."""
        found: dict[str, Any] = {}
        for setting in fields(self):
            key, value = _dotted(setting.name), getattr(self, setting.name)
            if f"{key}." in _PREFIXES:
                found |= {f"{key}.{name}": given for name, given in value.items()}
            elif key != "server.token":
                found[key] = value
        return found

    @property
    def topology_config(self) -> TopologyConfig:
        """What decides how the topology is built.

        Raises:
            ConfigError: If a value is impossible.
        """
        return TopologyConfig(
            parse_optimization(self.topology_optimization),
            self.ensure_explicit_internal_resource_naming,
            is_persistent=self.default_dsl_store == "rocksDB",
        )


@dataclass(frozen=True, slots=True)
class AppConfig:
    """One application.

    Args:
        name: Its name; everything else refers to it.
        topology: Where its topology is built: `module:attribute`, a function of a `StreamsBuilder`.
        version: The version that goes live first; from then on the releases decide.
        processing_guarantee: `exactly_once` or `at_least_once`.
        schedule: Cron expression of bounded runs; None if there are none.
        quality: Where its expectations are: `module:attribute`; None if there are none.
        versions: Further versions to release, with their topologies.
        streams: Kafka Streams' settings.
    """

    name: str
    topology: str
    version: str = "v1"
    processing_guarantee: str = EXACTLY_ONCE
    schedule: str | None = None
    quality: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    streams: StreamsConfig = field(default_factory=StreamsConfig)

    def application_id(self, version: str | None = None) -> str:
        """`<name>-<version>`: consumer group, prefix of internal topics and of transactional ids."""
        return f"{self.name}-{version or self.version}"

    def topology_of(self, version: str) -> str:
        """Where a version's topology is built.

        Raises:
            ConfigError: If there is no such version.
        """
        known = {self.version: self.topology, **self.versions}
        if version not in known:
            message = f"Application {self.name} has no version {version!r}"
            raise ConfigError(message, hint=f"Declare it in [apps.{self.name}.versions]. {_nearest(version, known)}")
        return known[version]


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """All of `streams.toml`.

    Args:
        path: Where it was read from; relative paths in it are relative to its directory.
        kafka: librdkafka properties. Never printed: they may hold secrets.
        apps: Applications by name.
        spark: Settings of Spark sessions, by Spark's own names. Never printed either.
    """

    path: Path
    kafka: Mapping[str, str] = field(repr=False)
    apps: Mapping[str, AppConfig]
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str]) -> ProjectConfig:
        """Read and check a file.

        Args:
            path: The file.
            environ: Where `${NAME}` in the `[kafka]` and `[spark]` sections, and in `server.token`, is looked up.

        Raises:
            ConfigError: If the file cannot be read, or anything in it is unknown or impossible.
        """
        try:
            content = tomllib.loads(path.read_text())
        except FileNotFoundError as error:
            message = f"There is no {path}"
            raise ConfigError(message, hint="Name another file with --config or MILLRACE_CONFIG.") from error
        except tomllib.TOMLDecodeError as error:
            message = f"{path} is not TOML: {error}"
            raise ConfigError(message) from error
        _check_keys(path, "", content, ("kafka", "spark", "apps"))
        kafka = _kafka(path, content.get("kafka", {}), environ)
        apps = {name: _app(path, name, table, environ) for name, table in content.get("apps", {}).items()}
        return cls(path, kafka, apps, _spark(path, content.get("spark", {}), environ))

    def app(self, name: str) -> AppConfig:
        """One application.

        Raises:
            ConfigError: If there is none of that name.
        """
        if name not in self.apps:
            message = f"{self.path} has no application {name!r}"
            raise ConfigError(message, hint=_nearest(name, self.apps))
        return self.apps[name]

    def state_directory(self, app: AppConfig) -> Path:
        """Where an application's local state is kept."""
        return (self.path.parent / app.streams.state_dir).resolve()


def load_attribute(reference: str) -> Any:
    """What `module:attribute` names.

    Raises:
        ConfigError: If there is no such module or attribute, or the module cannot be imported.
    """
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        message = f"{reference!r} is not module:attribute"
        raise ConfigError(message)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"Module {module_name!r} cannot be imported: {error}"
        hint = "Is it installed, or in the directory millrace was started in? Executors of a cluster need it, too: [spark]."
        raise ConfigError(message, hint=hint) from error
    if not hasattr(module, attribute):
        message = f"Module {module_name} has no attribute {attribute!r}"
        raise ConfigError(message, hint=_nearest(attribute, vars(module)))
    return getattr(module, attribute)


def _kafka(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, str]:
    _check_type(path, "kafka", table, dict)
    if "bootstrap.servers" not in table:
        message = f'{path}: [kafka] needs "bootstrap.servers"'
        raise ConfigError(message)
    return {key: _expanded(path, f"[kafka] {key}", str(value), environ) for key, value in table.items()}


def _spark(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, str]:
    _check_type(path, "spark", table, dict)
    for key, value in table.items():
        if not key.startswith("spark."):
            message = f"{path}: [spark] {key} is no setting of Spark: their names begin with spark."
            hint = 'Names with dots are quoted: "spark.executor.memory" = "2g".'
            raise ConfigError(message, hint=hint)
        if not isinstance(value, str | int | float):
            message = f"{path}: [spark] {key} is {value!r}, not one value"
            raise ConfigError(message)
    return {key: _expanded(path, f"[spark] {key}", _spark_text(value), environ) for key, value in table.items()}


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expanded(path: Path, where: str, value: str, environ: Mapping[str, str]) -> str:
    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environ:
            message = f"{path}: {where} needs the environment variable {match[1]}, which is not set"
            raise ConfigError(message)
        return environ[match[1]]

    return _VARIABLE.sub(look_up, value)


def _app(path: Path, name: str, table: Any, environ: Mapping[str, str]) -> AppConfig:
    where = f"apps.{name}"
    _check_type(path, where, table, dict)
    if not _NAME.fullmatch(name):
        message = f"{path}: application name {name!r} has characters other than a-z A-Z 0-9 . _ -"
        raise ConfigError(message)
    texts = ("topology", "version", "processing_guarantee", "schedule", "quality")
    _check_keys(path, where, table, (*texts, "versions", "config"))
    if "topology" not in table:
        message = f"{path}: [{where}] needs topology"
        raise ConfigError(message, hint='For example topology = "my_module:build".')
    for key in texts:
        _check_type(path, f"{where}.{key}", table.get(key, ""), str)
    guarantee = table.get("processing_guarantee", EXACTLY_ONCE)
    if guarantee not in {EXACTLY_ONCE, AT_LEAST_ONCE}:
        message = f"{path}: {where}.processing_guarantee is {guarantee!r}"
        raise ConfigError(message, hint=f"Allowed: {EXACTLY_ONCE}, {AT_LEAST_ONCE}")
    settings = dict(table.get("config", {}))
    if "server.token" in settings:
        token = str(settings["server.token"])
        settings["server.token"] = _expanded(path, f"{where}.config.server.token", token, environ)
    streams = streams_config(path, f"{where}.config", settings, guarantee)
    given = {key: table[key] for key in texts if key in table}
    return AppConfig(name, **given, versions=dict(table.get("versions", {})), streams=streams)


def streams_config(path: Path | str, where: str, table: Mapping[str, Any], guarantee: str) -> StreamsConfig:
    """Kafka Streams' settings from their dotted names.

    Args:
        path: What they were read from, for messages.
        where: Where in it.
        table: The settings.
        guarantee: `exactly_once` or `at_least_once`.

    Raises:
        ConfigError: If one is unknown, or its value impossible.
    """
    known = {_dotted(f.name): f.name for f in fields(StreamsConfig) if f"{_dotted(f.name)}." not in _PREFIXES}
    given: dict[str, Any] = {}
    if guarantee == EXACTLY_ONCE:
        given["commit_interval_ms"] = _EOS_COMMIT_INTERVAL_MS
    for key, value in table.items():
        prefix = next((p for p in _PREFIXES if key.startswith(p)), None)
        if prefix is not None:
            if key == "consumer.auto.offset.reset":
                message = f"{path}: {where}.{key} is not a consumer's"
                raise ConfigError(message, hint="Write auto.offset.reset.")
            given.setdefault(_underscored(prefix[:-1]), {})[key[len(prefix) :]] = (
                value if prefix == "user." else str(value)
            )
            continue
        if key not in known:
            message = f"{path}: unknown setting {where}.{key}"
            raise ConfigError(message, hint=_nearest(key, known))
        given[known[key]] = _checked(path, f"{where}.{key}", key, value)
    return StreamsConfig(**given)


_HANDLERS = {
    "fail": "fail",
    "continue": "continue",
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
_ATTRIBUTE = re.compile(r"[\w.]+:\w+")

_LOWEST = {
    "acceptable.recovery.lag": 0,
    "commit.interval.ms": 0,
    "log.summary.interval.ms": 0,
    "max.task.idle.ms": -1,
    "num.standby.replicas": 0,
    "replication.factor": -1,
    "snapshot.interval.ms": 0,
    "statestore.cache.max.bytes": 0,
}


def _names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_CHOICES: Mapping[str, Mapping[str, str]] = {
    "bounded.wall.clock.punctuation": _names(*BOUNDED_WALL_CLOCK),
    "default.dsl.store": _names("rocksDB", "in_memory"),
    "default.timestamp.extractor": _names(*_TIMESTAMP_EXTRACTORS),
    "deserialization.exception.handler": _HANDLERS,
    "metrics.recording.level": _names("INFO", "DEBUG", "TRACE"),
    "processing.exception.handler": _HANDLERS,
    "production.exception.handler": _HANDLERS,
    "uncaught.exception.handler": _names("shutdown_client", "replace_thread", "shutdown_application"),
}
_TAKES_CODE = frozenset(key for key, allowed in _CHOICES.items() if allowed is _HANDLERS) | {
    "default.timestamp.extractor"
}
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "auto.offset.reset": AutoOffsetReset.parse,
    "topology.optimization": parse_optimization,
}
_TEXTS = frozenset({"state.dir", "errors.dead.letter.queue.topic.name", "server.token"})


def _chosen(path: Path | str, where: str, key: str, value: Any) -> str:
    allowed, takes_code = _CHOICES[key], key in _TAKES_CODE
    if takes_code and isinstance(value, str) and _ATTRIBUTE.fullmatch(value):
        return value
    if value not in allowed:
        message = f"{path}: {where} is {value!r}"
        also = " - or module:attribute" if takes_code else ""
        raise ConfigError(message, hint=f"Allowed: {', '.join(allowed)}{also}")
    return allowed[value]


def _checked(path: Path | str, where: str, key: str, value: Any) -> Any:
    if key in _CHOICES:
        return _chosen(path, where, key, value)
    if key in _TEXTS:
        return _text(path, where, value)
    match key:
        case "application.server":
            return _server(path, where, value)
        case "ensure.explicit.internal.resource.naming" | "processing.exception.handler.global.enabled":
            _check_type(path, where, value, bool)
            return value
        case "rack.aware.assignment.tags":
            _check_type(path, where, value, list)
            return tuple(map(str, value))
        case "snapshot.url":
            return _absolute(path, _text(path, where, value))
        case "auto.offset.reset" | "topology.optimization":
            _PARSERS[key](_text(path, where, value))
            return value
        case _:
            return _number(path, where, key, value)


def _text(path: Path | str, where: str, value: Any) -> str:
    _check_type(path, where, value, str)
    return str(value)


def _number(path: Path | str, where: str, key: str, value: Any) -> int:
    _check_type(path, where, value, int)
    lowest = _LOWEST.get(key, 1)
    if isinstance(value, bool) or value < lowest:
        message = f"{path}: {where} is {value!r}, and must be at least {lowest}"
        raise ConfigError(message)
    return int(value)


def _server(path: Path | str, where: str, value: Any) -> str:
    _check_type(path, where, value, str)
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal()):
        message = f"{path}: {where} is {value!r}, not host:port"
        raise ConfigError(message)
    return str(value)


def _absolute(path: Path | str, url: str) -> str:
    """A URL as it is; a path as seen from the directory of `streams.toml`."""
    return url if not url or "://" in url else str((Path(path).parent / url).resolve())


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _underscored(name: str) -> str:
    return name.replace(".", "_")


def _check_keys(path: Path, where: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
    known = list(allowed)
    for key in table:
        if key not in known:
            message = f"{path}: unknown key {f'{where}.' if where else ''}{key}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(known)}. {_nearest(key, known)}".strip())


def _check_type(path: Path | str, where: str, value: Any, expected: Callable[..., Any]) -> None:
    if not isinstance(value, expected):  # type: ignore[arg-type]
        message = f"{path}: {where} is {value!r}, not a {expected.__name__}"
        raise ConfigError(message)


def _nearest(word: str, known: Iterable[str]) -> str:
    names = [name for name in known if not name.startswith("_")]
    close = difflib.get_close_matches(word, names, 1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(names)) or 'none'}"
