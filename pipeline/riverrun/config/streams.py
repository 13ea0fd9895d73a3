"""Kafka Streams' own settings, and those that decide how a topology is built."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Optimization(Enum):
    """A rule of `topology.optimization`."""

    REUSE_KTABLE_SOURCE_TOPICS = "reuse.ktable.source.topics"
    MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
    SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def parse_optimization(text: str) -> frozenset[Optimization]:
    """Parse the rules in a value of `topology.optimization` (`StreamsConfig.verifyTopologyOptimizationConfigs`).

    Raises:
        ConfigError: If a rule is unknown, or `none` or `all` is combined with others.

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
            message = f"{text!r} is not a value of topology.optimization"
            raise ConfigError(message, hint=f"Allowed: none, all, or a list of {', '.join(rules)}")
    return frozenset(rules[name] for name in names)


@dataclass(frozen=True, slots=True)
class TopologyConfig:
    """Settings that influence how calls of the DSL become a topology (`org.apache.kafka.streams.TopologyConfig`).

    Args:
        optimization: The rules to apply.
        ensure_explicit_internal_resource_naming: Whether stores, changelogs and repartition topics without a name from
            the user are refused.
        is_persistent: Whether the DSL keeps stores in RocksDB unless their options say otherwise (`default.dsl.store`).
    """

    optimization: frozenset[Optimization] = frozenset()
    ensure_explicit_internal_resource_naming: bool = False
    is_persistent: bool = True


AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE_V2 = "exactly_once_v2"
SECRETS = frozenset({"server.token", "server.read.token", "server.ssl.key.password"})
"""Settings that are never shown; `${NAME}` is expanded in them."""
BOUNDED_ENGINES = ("auto", "local", "spark")
"""The engines that process the tasks of a bounded run; `auto` decides for each run."""
BOUNDED_WALL_CLOCK = ("refuse", "once", "never")
"""How a bounded run may treat wall-clock punctuations."""
MOST_THREADS = 1000
"""The most stream threads of an instance: each is a process."""
MOST_INSTANCES = 1000
"""The most instances that are started together: each takes a core."""
UNCAUGHT_EXCEPTION_RESPONSES = ("shutdown_client", "replace_thread", "shutdown_application")
"""Possible responses to the failure of a stream thread (`StreamThreadExceptionResponse`)."""
OWN = frozenset(
    {
        "bounded.buffer.max.bytes",
        "bounded.engine",
        "bounded.wall.clock.punctuation",
        "history.topic",
        "node.sample.interval.ms",
        "server.allowed.hosts",
        "server.query.max.bytes",
        "server.query.max.memory.bytes",
        "server.query.processes",
        "server.query.timeout.ms",
        "server.read.token",
        "server.ssl.ca.location",
        "server.ssl.certificate.location",
        "server.ssl.key.location",
        "server.ssl.key.password",
        "server.token",
        "archive.url",
        "snapshot.interval.ms",
        "snapshot.keep",
        "snapshot.url",
        "task.alignment.max.drift.ms",
        "uncaught.exception.handler",  # a method of KafkaStreams there
        "user.",
        "window.idle.close.ms",
    }
)
"""Settings that Kafka Streams does not have; all others have Kafka's names."""
PREFIXES = ("client.tag.", "consumer.", "producer.", "topic.", "user.")
"""Prefixes of settings; the part after a prefix names one setting."""


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Kafka Streams' own settings, dots written as underscores; times in ms, sizes in bytes.

    Args:
        processing_guarantee: `exactly_once_v2`, or `at_least_once`: records are written without transactions.
        commit_interval_ms: How often tasks commit; 30,000 under `at_least_once` unless set.
        state_dir: Directory of local state, relative to `streams.toml`.
        allow_os_group_write_access: Whether users of the state directory's group may write there.
        state_cleanup_delay_ms: How long a worker keeps the local state of tasks that moved to another instance.
        statestore_cache_max_bytes: Total size of the stores' caches that triggers an early commit; 0 disables caches.
        max_task_idle_ms: How long a task waits for an empty input before it processes records of others. 0 waits only
            for records that the broker already has, -1 does not wait.
        window_idle_close_ms: How long the inputs of a worker's task must be silent before its event time follows the clock,
            so that windows close without records. 0 disables that; bounded runs never do it.
        buffered_records_per_partition: Number of buffered records above which an input is paused.
        poll_ms: How long a poll waits for records.
        task_timeout_ms: How long tasks retry while brokers do not answer.
        task_alignment_max_drift_ms: How far apart in event time the tasks that write to one repartition topic may be,
            while any of them is behind. 0 derives the bound from the topology's windows, -1 sets no bound.
        replication_factor: Replicas of internal topics; -1 takes the brokers' default.
        deserialization_exception_handler: Treatment of records that cannot be read: `fail`, `continue`, `set-aside`
            (equal to `continue`, as nothing was processed), or a handler as `module:attribute`.
        processing_exception_handler: Treatment of records on which user code fails, in the forms of
            `deserialization.exception.handler`. `set-aside` undoes all that the input record has done.
        processing_exception_handler_global_enabled: Whether `processing.exception.handler` also decides about global tables
            and stores.
        production_exception_handler: Treatment of records that cannot be written, in the forms of
            `deserialization.exception.handler`.
        errors_dead_letter_queue_topic_name: Topic to which `fail`, `continue` and `set-aside` copy the input records of
            failures; none by default.
        auto_offset_reset: Where sources without committed offsets start, unless a source sets it: `earliest`, `latest`,
            `none` (the application does not start), or a duration back, such as `by_duration:PT1H`.
        default_timestamp_extractor: How sources determine event times, unless a source sets it: the name of a class in
            `riverrun.processor.timestamps`, or `module:attribute`.
        uncaught_exception_handler: Response of a worker to a failed stream thread: `shutdown_client` ends this instance,
            `replace_thread` starts another thread, `shutdown_application` ends all instances.
        num_stream_threads: Stream threads of a worker instance; each is a process.
        num_standby_replicas: Copies of each task's state on other instances, ready to take over.
        max_warmup_replicas: Number of tasks that may warm up elsewhere at a time before they move there.
        acceptable_recovery_lag: Number of changelog records that an instance may lack and still take over a task.
        rack_aware_assignment_tags: Client tags in whose values the copies of a state should differ.
        client_tag: Tags of this instance (`client.tag.` prefix).
        archive_url: Where `riverrun archive` keeps the topics that the application reads: any URL of fsspec, or a path
            relative to `streams.toml`. Bounded runs and releases read it in front of the topics. Empty: there is no archive.
        snapshot_url: Where snapshots of state are kept: any URL of fsspec, or a path relative to `streams.toml`. Empty
            disables snapshots.
        snapshot_keep: Number of snapshots to keep per task.
        snapshot_interval_ms: How often workers write snapshots of tasks whose state has changed; 0 for never.
        bounded_engine: What processes the tasks of a bounded run: `spark`, `local` (the process that starts the run, without
            Spark), or `auto`: `local` if the run is small and Spark would run on this machine.
        bounded_wall_clock_punctuation: Treatment of wall-clock punctuations in bounded runs: `refuse` them, call each
            `once` at the end of every slice of its task, or `never`.
        metadata_max_age_ms: How often a worker looks for new topics that match a pattern. It looks at known topics more often.
        bounded_buffer_max_bytes: Memory for a task's records from repartition topics in a bounded run. Further records
            spill to `state.dir`.
        metrics_num_samples: Number of samples behind each sampled metric of processors' sensors.
        metrics_recording_level: Level of sensors that record: `INFO`, `DEBUG` or `TRACE`. Sensors of higher levels record
            nothing.
        metrics_sample_window_ms: Length of a sample.
        history_topic: Topic in which workers keep their figures and events, for the console. Empty: the last hour is kept,
            in memory.
        node_sample_interval_ms: How often a worker samples at which node each stream thread is, for the console and
            metrics. 0 for never.
        max_poll_interval_ms: Time without a sign of life after which a worker replaces a stream thread.
        repartition_purge_interval_ms: How often workers delete processed records of repartition topics.
        log_summary_interval_ms: How often a worker logs its progress.
        application_server: Address, `host:port`, where a worker answers queries and other instances find it. Empty
            disables the server. Port 0 takes a free port.
        server_token: Token that callers must show (`Authorization: Bearer`); `${NAME}` is expanded. Required unless the
            host is the loopback.
        server_read_token: Token for callers that only read; `${NAME}` is expanded.
        server_allowed_hosts: Host names that callers without a token may use, in addition to the worker's own and those
            of the loopback.
        server_query_timeout_ms: Maximum time for a query in SQL, over all instances. A query that takes longer is ended.
        server_query_max_bytes: Maximum size of the rows of a query's answer.
        server_query_max_memory_bytes: Maximum memory of a process that computes queries. One that needs more is ended.
        server_query_processes: Maximum number of queries in SQL that run at a time; each has a process.
        server_ssl_certificate_location: File with a worker's certificates (PEM). The worker then answers over TLS only.
        server_ssl_key_location: File with their key (PEM), if it is a separate file.
        server_ssl_key_password: Password of the key; `${NAME}` is expanded.
        server_ssl_ca_location: File with CA certificates (PEM) by which callers verify workers; the system's if empty.
        consumer: Client properties of consumers (`consumer.` prefix); `session.timeout.ms`, `heartbeat.interval.ms` and
            `group.instance.id` apply to the group membership.
        producer: Client properties of producers (`producer.` prefix).
        topic: Settings of internal topics (`topic.` prefix), by the names of Kafka's `TopicConfig`.
        user: The application's own settings (`user.` prefix), for its processors to read.
        default_dsl_store: Where the DSL keeps stores unless their options say otherwise: `rocksDB` or `in_memory`.
        ensure_explicit_internal_resource_naming: Whether to refuse topologies with generated names of stores or internal
            topics.
        topology_optimization: `none`, `all`, or rules separated by commas: `reuse.ktable.source.topics`,
            `merge.repartition.topics`, `single.store.self.join`.
    """

    processing_guarantee: str = EXACTLY_ONCE_V2
    commit_interval_ms: int = 100
    state_dir: str = ".riverrun/state"
    allow_os_group_write_access: bool = False
    state_cleanup_delay_ms: int = 600_000
    statestore_cache_max_bytes: int = 10 * 1024 * 1024
    max_task_idle_ms: int = 0
    window_idle_close_ms: int = 0
    buffered_records_per_partition: int = 1000
    poll_ms: int = 100
    task_timeout_ms: int = 300_000
    task_alignment_max_drift_ms: int = 0
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
    bounded_engine: str = "auto"
    bounded_wall_clock_punctuation: str = "refuse"
    bounded_buffer_max_bytes: int = 128 * 1024 * 1024
    archive_url: str = ""
    snapshot_url: str = ""
    snapshot_keep: int = 3
    snapshot_interval_ms: int = 600_000
    metadata_max_age_ms: int = 300_000
    metrics_num_samples: int = 2
    metrics_recording_level: str = "INFO"
    metrics_sample_window_ms: int = 30_000
    history_topic: str = ""
    node_sample_interval_ms: int = 50
    max_poll_interval_ms: int = 300_000
    repartition_purge_interval_ms: int = 30_000
    log_summary_interval_ms: int = 120_000
    application_server: str = ""
    server_token: str = field(default="", repr=False)
    server_read_token: str = field(default="", repr=False)
    server_allowed_hosts: tuple[str, ...] = ()
    server_query_timeout_ms: int = 10_000
    server_query_max_bytes: int = 16 * 1024 * 1024
    server_query_max_memory_bytes: int = 512 * 1024 * 1024
    server_query_processes: int = 2
    server_ssl_certificate_location: str = ""
    server_ssl_key_location: str = ""
    server_ssl_key_password: str = field(default="", repr=False)
    server_ssl_ca_location: str = ""
    consumer: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    topic: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)
    default_dsl_store: str = "rocksDB"
    ensure_explicit_internal_resource_naming: bool = False
    topology_optimization: str = "none"

    def settings(self) -> dict[str, Any]:
        """Return all settings except secrets by dotted name, for processors to read (`AbstractProcessorContext.appConfigs`)."""
        found: dict[str, Any] = {}
        for setting in fields(self):
            key, value = dotted(setting.name), getattr(self, setting.name)
            if f"{key}." in PREFIXES:
                found |= {f"{key}.{name}": given for name, given in value.items()}
            elif key not in SECRETS:
                found[key] = value
        return found

    def without_secrets(self) -> StreamsConfig:
        """Return the settings without secrets, for processes that run users' code and answer no requests."""
        return replace(self, server_token="", server_read_token="", server_ssl_key_password="")

    @property
    def topology_config(self) -> TopologyConfig:
        """Return the settings that decide how the topology is built.

        Raises:
            ConfigError: If a value is impossible.
        """
        return TopologyConfig(
            parse_optimization(self.topology_optimization),
            self.ensure_explicit_internal_resource_naming,
            is_persistent=self.default_dsl_store == "rocksDB",
        )


def dotted(name: str) -> str:
    """Return Kafka's name of a setting from its field's name."""
    return name.replace("_", ".")


def underscored(name: str) -> str:
    """Return the field's name of a setting from Kafka's name."""
    return name.replace(".", "_")
