"""Kafka Streams' own settings, and those that decide how a topology is built."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - annotations are read when this is loaded
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from riverrun.config.setting import (
    ADDRESS,
    DIRECTORY,
    LARGEST_INT,
    LONGEST_MS,
    OWN,
    PLACE,
    TOPIC,
    Flag,
    Names,
    OneOf,
    Prefixed,
    Replicas,
    Secret,
    StreamsSetting,
    Text,
    WholeNumbers,
    one_of,
)
from riverrun.errors import ConfigError
from riverrun.records import AutoOffsetReset

if TYPE_CHECKING:
    from pathlib import Path


class Optimization(Enum):
    """A rule of `topology.optimization`."""

    REUSE_KTABLE_SOURCE_TOPICS = "reuse.ktable.source.topics"
    MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
    SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def parse_optimization(text: str) -> frozenset[Optimization]:
    """Parse the rules in a value of `topology.optimization` (`StreamsConfig.verifyTopologyOptimizationConfigs`).

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
_TIMESTAMP_EXTRACTORS = (
    "FailOnInvalidTimestamp",
    "LogAndSkipOnInvalidTimestamp",
    "UsePartitionTimeOnInvalidTimestamp",
    "WallclockTimestampExtractor",
)
_HANDLER = OneOf(
    {
        "fail": "fail",
        "continue": "continue",
        "set-aside": "set-aside",
        "LogAndFailExceptionHandler": "fail",
        "LogAndContinueExceptionHandler": "continue",
        "LogAndFailProcessingExceptionHandler": "fail",
        "LogAndContinueProcessingExceptionHandler": "continue",
        "DefaultProductionExceptionHandler": "fail",
    },
    takes_code=True,
)


def _offset_reset(_path: Path | str, _where: str, text: str) -> str:
    AutoOffsetReset.parse(text)
    return text


def _optimization(_path: Path | str, _where: str, text: str) -> str:
    parse_optimization(text)
    return text


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Kafka Streams' own settings, dots written as underscores; times in ms, sizes in bytes."""

    processing_guarantee: Annotated[str, one_of(EXACTLY_ONCE_V2, AT_LEAST_ONCE)] = EXACTLY_ONCE_V2
    """`exactly_once_v2`, or `at_least_once`: records are written without transactions."""
    commit_interval_ms: Annotated[int, WholeNumbers(0, LONGEST_MS)] = 100
    """How often tasks commit; 30,000 under `at_least_once` unless set."""
    state_dir: Annotated[str, DIRECTORY] = ".riverrun/state"
    """Directory of local state, relative to `streams.toml`."""
    allow_os_group_write_access: Annotated[bool, Flag()] = False
    """Lets users of the state directory's group write there."""
    state_cleanup_delay_ms: Annotated[int, WholeNumbers()] = 600_000
    """How long a worker keeps the local state of tasks that moved to another instance."""
    statestore_cache_max_bytes: Annotated[int, WholeNumbers(0, 2**50)] = 10 * 1024 * 1024
    """Total size of the stores' caches that triggers an early commit; 0 disables caches."""
    max_task_idle_ms: Annotated[int, WholeNumbers(-1)] = 0
    """How long a task waits for an empty input before it processes records of others. 0 waits only for records that the
    broker already has, -1 does not wait.
    """
    window_idle_close_ms: Annotated[int, WholeNumbers(0, LONGEST_MS), OWN] = 0
    """How long the inputs of a worker's task must be silent before its event time follows the clock, so that windows
    close without records. 0 disables that; bounded runs never do it.
    """
    buffered_records_per_partition: Annotated[int, WholeNumbers(highest=LARGEST_INT)] = 1000
    """Number of buffered records above which an input is paused."""
    poll_ms: Annotated[int, WholeNumbers(highest=LARGEST_INT)] = 100
    """How long a poll waits for records."""
    task_timeout_ms: Annotated[int, WholeNumbers(highest=LONGEST_MS)] = 300_000
    """How long tasks retry while brokers do not answer."""
    task_alignment_max_drift_ms: Annotated[int, WholeNumbers(-1), OWN] = 0
    """How far apart in event time the tasks that write to one repartition topic may be, while any of them is behind. 0
    derives the bound from the topology's windows, -1 sets no bound.
    """
    replication_factor: Annotated[int, Replicas()] = -1
    """Replicas of internal topics; -1 takes the brokers' default."""
    deserialization_exception_handler: Annotated[str, _HANDLER] = "fail"
    """Treatment of records that cannot be read: `fail`, `continue`, `set-aside` (equal to `continue`, as nothing was
    processed), or a handler as `module:attribute`.
    """
    processing_exception_handler: Annotated[str, _HANDLER] = "fail"
    """Treatment of records on which user code fails, in the forms of `deserialization.exception.handler`. `set-aside`
    undoes all that the input record has done.
    """
    processing_exception_handler_global_enabled: Annotated[bool, Flag()] = False
    """Lets `processing.exception.handler` decide about global tables and stores as well."""
    production_exception_handler: Annotated[str, _HANDLER] = "fail"
    """Treatment of records that cannot be written, in the forms of `deserialization.exception.handler`."""
    errors_dead_letter_queue_topic_name: Annotated[str | None, TOPIC] = None
    """Topic to which `fail`, `continue` and `set-aside` copy the input records of failures; none by default."""
    auto_offset_reset: Annotated[str, Text(_offset_reset)] = "earliest"
    """Start of sources without committed offsets, unless a source sets it: `earliest`, `latest`, `none` (the
    application does not start), or a duration back, such as `by_duration:PT1H`.
    """
    default_timestamp_extractor: Annotated[str, one_of(*_TIMESTAMP_EXTRACTORS, takes_code=True)] = (
        "FailOnInvalidTimestamp"
    )
    """How sources determine event times, unless a source sets it: the name of a class in
    `riverrun.processor.timestamps`, or `module:attribute`.
    """
    uncaught_exception_handler: Annotated[str, one_of(*UNCAUGHT_EXCEPTION_RESPONSES), OWN] = "shutdown_client"
    """Response of a worker to a failed stream thread: `shutdown_client` ends this instance, `replace_thread` starts
    another thread, `shutdown_application` ends all instances.
    """
    num_stream_threads: Annotated[int, WholeNumbers(highest=MOST_THREADS)] = 1
    """Stream threads of a worker instance; each is a process."""
    num_standby_replicas: Annotated[int, WholeNumbers(0, 1000)] = 0
    """Copies of each task's state on other instances, ready to take over."""
    max_warmup_replicas: Annotated[int, WholeNumbers(highest=1000)] = 2
    """Number of tasks that may warm up elsewhere at a time before they move there."""
    acceptable_recovery_lag: Annotated[int, WholeNumbers(0)] = 10_000
    """Number of changelog records that an instance may lack and still take over a task."""
    rack_aware_assignment_tags: Annotated[tuple[str, ...], Names()] = ()
    """Client tags in whose values the copies of a state should differ."""
    client_tag: Annotated[Mapping[str, str], Prefixed()] = field(default_factory=dict)
    """Tags of this instance (`client.tag.` prefix)."""
    bounded_engine: Annotated[str, one_of(*BOUNDED_ENGINES), OWN] = "auto"
    """Engine that processes the tasks of a bounded run: `spark`, `local` (the process that starts the run, without Spark), or
    `auto`: `local` if the run is small and Spark would run on this machine.
    """
    bounded_wall_clock_punctuation: Annotated[str, one_of(*BOUNDED_WALL_CLOCK), OWN] = "refuse"
    """Treatment of wall-clock punctuations in bounded runs: `refuse` them, call each `once` at the end of every slice
    of its task, or `never`.
    """
    bounded_buffer_max_bytes: Annotated[int, WholeNumbers(highest=2**50), OWN] = 128 * 1024 * 1024
    """Memory for a task's records from repartition topics in a bounded run. Further records spill to `state.dir`."""
    archive_url: Annotated[str, PLACE, OWN] = ""
    """Place where `riverrun archive` keeps the topics that the application reads: any URL of fsspec, or a path relative to
    `streams.toml`. Bounded runs and releases read it in front of the topics. Empty: there is no archive.
    """
    snapshot_url: Annotated[str, PLACE, OWN] = ""
    """Place for snapshots of state: any URL of fsspec, or a path relative to `streams.toml`. Empty disables
    snapshots.
    """
    snapshot_keep: Annotated[int, WholeNumbers(highest=1_000_000), OWN] = 3
    """Number of snapshots to keep per task."""
    snapshot_interval_ms: Annotated[int, WholeNumbers(0, LONGEST_MS), OWN] = 600_000
    """How often workers write snapshots of tasks whose state has changed; 0 for never."""
    metadata_max_age_ms: Annotated[int, WholeNumbers(highest=LONGEST_MS)] = 300_000
    """How often a worker looks for new topics that match a pattern. It looks at known topics more often."""
    metrics_num_samples: Annotated[int, WholeNumbers(highest=1000)] = 2
    """Number of samples behind each sampled metric of processors' sensors."""
    metrics_recording_level: Annotated[str, one_of("INFO", "DEBUG", "TRACE")] = "INFO"
    """Level of sensors that record: `INFO`, `DEBUG` or `TRACE`. Sensors of higher levels record nothing."""
    metrics_sample_window_ms: Annotated[int, WholeNumbers(highest=LONGEST_MS)] = 30_000
    """Length of a sample."""
    history_topic: Annotated[str, TOPIC, OWN] = ""
    """Topic in which workers keep their figures and events, for the console. Empty: the last hour is kept, in memory."""
    node_sample_interval_ms: Annotated[int, WholeNumbers(0, 60_000), OWN] = 50
    """How often a worker samples at which node each stream thread is, for the console and metrics. 0 for never."""
    max_poll_interval_ms: Annotated[int, WholeNumbers(highest=LARGEST_INT)] = 300_000
    """Time without a sign of life after which a worker replaces a stream thread."""
    repartition_purge_interval_ms: Annotated[int, WholeNumbers(highest=LONGEST_MS)] = 30_000
    """How often workers delete processed records of repartition topics."""
    log_summary_interval_ms: Annotated[int, WholeNumbers(0, LONGEST_MS)] = 120_000
    """How often a worker logs its progress."""
    application_server: Annotated[str, ADDRESS] = ""
    """Address, `host:port`, where a worker answers queries and other instances find it. Empty disables the server. Port
    0 takes a free port.
    """
    server_token: Annotated[str, Secret(is_token=True), OWN] = field(default="", repr=False)
    """Token that callers must show (`Authorization: Bearer`); `${NAME}` is expanded. Required unless the host is the
    loopback.
    """
    server_read_token: Annotated[str, Secret(is_token=True), OWN] = field(default="", repr=False)
    """Token for callers that only read; `${NAME}` is expanded."""
    server_allowed_hosts: Annotated[tuple[str, ...], Names(are_hosts=True), OWN] = ()
    """Host names that callers without a token may use, in addition to the worker's own and those of the loopback."""
    server_query_timeout_ms: Annotated[int, WholeNumbers(highest=3_600_000), OWN] = 10_000
    """Maximum time for a query in SQL, over all instances. A query that takes longer is ended."""
    server_query_max_bytes: Annotated[int, WholeNumbers(highest=LARGEST_INT), OWN] = 16 * 1024 * 1024
    """Maximum size of the rows of a query's answer."""
    server_query_max_memory_bytes: Annotated[int, WholeNumbers(highest=2**50), OWN] = 512 * 1024 * 1024
    """Maximum memory of a process that computes queries. One that needs more is ended."""
    server_query_processes: Annotated[int, WholeNumbers(highest=100), OWN] = 2
    """Maximum number of queries in SQL that run at a time; each has a process."""
    server_ssl_certificate_location: Annotated[str, PLACE, OWN] = ""
    """File with a worker's certificates (PEM). The worker then answers over TLS only."""
    server_ssl_key_location: Annotated[str, PLACE, OWN] = ""
    """File with their key (PEM), if it is a separate file."""
    server_ssl_key_password: Annotated[str, Secret(), OWN] = field(default="", repr=False)
    """Password of the key; `${NAME}` is expanded."""
    server_ssl_ca_location: Annotated[str, PLACE, OWN] = ""
    """File with CA certificates (PEM) by which callers verify workers; the system's if empty."""
    consumer: Annotated[Mapping[str, str], Prefixed()] = field(default_factory=dict)
    """Client properties of consumers (`consumer.` prefix); `session.timeout.ms`, `heartbeat.interval.ms` and
    `group.instance.id` apply to the group membership.
    """
    producer: Annotated[Mapping[str, str], Prefixed()] = field(default_factory=dict)
    """Client properties of producers (`producer.` prefix)."""
    topic: Annotated[Mapping[str, str], Prefixed()] = field(default_factory=dict)
    """Settings of internal topics (`topic.` prefix), by the names of Kafka's `TopicConfig`."""
    user: Annotated[Mapping[str, Any], Prefixed(), OWN] = field(default_factory=dict)
    """The application's own settings (`user.` prefix), for its processors to read."""
    default_dsl_store: Annotated[str, one_of("rocksDB", "in_memory")] = "rocksDB"
    """Kind of stores that the DSL makes unless their options say otherwise: `rocksDB` or `in_memory`."""
    ensure_explicit_internal_resource_naming: Annotated[bool, Flag()] = False
    """Refuses topologies with generated names of stores or internal topics."""
    topology_optimization: Annotated[str, Text(_optimization)] = "none"
    """`none`, `all`, or rules separated by commas: `reuse.ktable.source.topics`, `merge.repartition.topics`,
    `single.store.self.join`.
    """

    def settings(self) -> dict[str, Any]:
        """Return all settings except secrets by dotted name, for processors to read (`AbstractProcessorContext.appConfigs`)."""
        found: dict[str, Any] = {}
        for setting in fields(self):
            key, value = dotted(setting.name), getattr(self, setting.name)
            if key in PREFIXED:
                found |= {f"{key}.{name}": given for name, given in value.items()}
            elif key not in SECRETS:
                found[key] = value
        return found

    def without_secrets(self) -> StreamsConfig:
        """Return the settings without secrets, for processes that run users' code and answer no requests."""
        return replace(self, server_token="", server_read_token="", server_ssl_key_password="")

    @property
    def topology_config(self) -> TopologyConfig:
        """Return the settings that decide how the topology is built."""
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


def _declared() -> dict[str, StreamsSetting]:
    """Return the declarations of all settings, by Kafka's names."""
    declared = get_type_hints(StreamsConfig, include_extras=True).items()
    return {dotted(name): StreamsSetting(hint.__metadata__[0], OWN not in hint.__metadata__) for name, hint in declared}


SETTINGS: Mapping[str, StreamsSetting] = _declared()
"""The declarations of all settings, by Kafka's names."""
SECRETS = frozenset(key for key, setting in SETTINGS.items() if isinstance(setting.values, Secret))
"""Settings that are never shown; `${NAME}` is expanded in them."""
PREFIXED = frozenset(key for key, setting in SETTINGS.items() if isinstance(setting.values, Prefixed))
"""Prefixes of settings, without their dot; the part after it names one setting."""
