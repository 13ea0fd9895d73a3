"""Sections of `streams.toml` next to Kafka Streams' settings: applications, the console, and the schema registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.config.addons import loader_of
from riverrun.config.checks import check_keys, check_type, nearest
from riverrun.config.parsing import streams_config
from riverrun.config.secrets import expanded
from riverrun.config.streams import SECRETS, StreamsConfig
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config.addons import TopologyLoader
    from riverrun.config.code import PickledFunction


class OutputKind(Enum):
    """Says how consumers read an output: by the last record of each key, or by every record."""

    TABLE = "table"
    """The last record of each key is a row: a release corrects the rows that differ."""
    LOG = "log"
    """Each record counts: a release sends no record twice, and the new version continues."""


@dataclass(frozen=True, slots=True)
class AppConfig:
    """One application.

    Args:
        name: Its name; everything else refers to it.
        topology: Function of a `StreamsBuilder` that returns the topology, as `module:attribute`; that function; or the path
            of a file of SQL, such as `orders.sql`, or of a kind that an add-on loads.
        version: Version that goes live first. Afterwards releases decide.
        schedule: Cron expression of bounded runs, for Airflow; none if left out.
        catchup_from: Time since when Airflow makes a separate run for each interval of the schedule, which ends where the
            interval does; none if left out.
        quality: Function that returns the expectations of the gate, as `module:attribute`; that function; or the path of suites
            in JSON, a file or a directory.
        schedule_timezone: The time zone of both schedules, by its name in the IANA database.
        quality_schedule: Cron expression of checks of the live version, for Airflow; after its runs in Airflow if left out.
        gate: Whether the outputs of bounded runs are judged by these expectations before they are public.
        data_docs: Directory that gets Data Docs of gates and checks, below the application's name; none if left out.
        unexpected_rows: Directory or URL of fsspec that gets rows that do not meet an expectation; none if left out.
        unexpected_rows_limit: Number of rows that are kept of each expectation, at most.
        unexpected_rows_checks: Number of gates and checks whose rows are kept: the newest ones.
        versions: Further versions to release, with their topologies.
        outputs: Kinds of outputs by topic, `table` or `log`, where the kind derived from the topology is wrong.
        carry: For releases that carry state, by version: what becomes of stores and outputs, by name. Of a store, `same`,
            `empty`, or the function that migrates it, as `module:attribute`; of an output, `same`.
        max_inputs_since_gate: Number of offsets after which a cut needs a new gate; no bound if left out.
        streams: Kafka Streams' settings.
        schema_registry: The project's settings of the schema registry. Never printed: they may hold secrets.
        logging: The project's `[logging]`, for processes that run its functions.
        elsewhere: Topics in place of those that the topology names. A member of an environment writes to these alone; a version
            of a joint release reads them.
    """

    name: str
    topology: str | PickledFunction
    version: str = "v1"
    schedule: str | None = None
    schedule_timezone: str = "UTC"
    catchup_from: str | None = None
    quality: str | PickledFunction | None = None
    quality_schedule: str | None = None
    gate: bool = False
    data_docs: str | None = None
    unexpected_rows: str | None = field(default=None, repr=False)
    unexpected_rows_limit: int = 1000
    unexpected_rows_checks: int = 100
    versions: Mapping[str, str | PickledFunction] = field(default_factory=dict)
    outputs: Mapping[str, OutputKind] = field(default_factory=dict)
    carry: Mapping[str, Mapping[str, str | PickledFunction]] = field(default_factory=dict)
    max_inputs_since_gate: int | None = None
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    schema_registry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    logging: Mapping[str, Any] = field(default_factory=dict, repr=False)
    elsewhere: Mapping[str, str] | None = None

    def application_id(self, version: str | None = None) -> str:
        """`<name>-<version>`: consumer group, prefix of internal topics and of transactional ids."""
        return f"{self.name}-{version or self.version}"

    @property
    def docs_directory(self) -> Path | None:
        """The directory of its Data Docs, whose pages are below `site`; None if there are none."""
        return None if self.data_docs is None else Path(self.data_docs) / self.name

    def topology_of(self, version: str) -> str | PickledFunction:
        """Return the reference or function that builds a version's topology."""
        known = {self.version: self.topology, **self.versions}
        if version not in known:
            message = f"Application {self.name} has no version {version!r}"
            raise ConfigError(message, hint=f"Declare it in [apps.{self.name}.versions]. {nearest(version, known)}")
        return known[version]

    def loader_of(self, version: str) -> TopologyLoader | None:
        """Return the loader of the file that a version's topology is; None if a function builds it."""
        return loader_of(self.topology_of(version))


CONSOLE_SERVER = "127.0.0.1:8091"
"""The address of a console that nothing says anything of."""
CONSOLE_KEYS = (
    "application.server",
    "server.allowed.hosts",
    "server.read.token",
    "server.ssl.certificate.location",
    "server.ssl.key.location",
    "server.ssl.key.password",
    "server.token",
)
"""Settings of the console."""


def console_settings(path: Path, table: Any, environ: Mapping[str, str]) -> StreamsConfig:
    """Check what `[console]` says."""
    check_type(path, "console", table, dict)
    check_keys(path, "console", table, CONSOLE_KEYS)
    settings = dict(table)
    for key in SECRETS & settings.keys():
        settings[key] = expanded(f"{path}: console.{key}", str(settings[key]), environ)
    return streams_config(path, "console", settings)


LOGGING_KEYS = (
    "disable_existing_loggers",
    "filters",
    "formatters",
    "handlers",
    "incremental",
    "loggers",
    "root",
    "version",
)
"""Keys of `logging.config.dictConfig`."""


def logging_settings(path: Path, table: Any) -> dict[str, Any]:
    """Return the content of `[logging]` as `logging.config.dictConfig` takes it; empty without that section.

    Existing loggers stay as they are unless it says otherwise, since Riverrun's own exist already.
    """
    check_type(path, "logging", table, dict)
    check_keys(path, "logging", table, LOGGING_KEYS)
    return {"version": 1, "disable_existing_loggers": False, **table} if table else {}


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
    "ignore.rules": Setting(
        bool, "Whether schemas with rules, such as encryption of fields, are used without applying them.", default=False
    ),
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
    """Check the settings in `[schema_registry]`."""
    check_type(path, "schema_registry", table, dict)
    if not table:
        return {}
    found = {key: _checked(path, key, value, environ) for key, value in table.items()}
    if URL not in found:
        raise ConfigError(f"{path}: [schema_registry] needs url", hint='For example url = "http://127.0.0.1:8081".')
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
        raise ConfigError(f"{where} is a table, not a setting", hint='Names with dots are quoted: "max.retries".')
    if key not in _SETTINGS:
        raise ConfigError(f"{where} is not a setting of it", hint=nearest(key, _SETTINGS))
    if isinstance(value, str):
        value = expanded(where, value, environ)
    expected = _SETTINGS[key].kind
    # In Python, True is an int.
    is_flag = isinstance(value, bool)
    if not isinstance(value, expected) or (is_flag and expected is not bool):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise ConfigError(f"{where} must be {' or '.join(kind.__name__ for kind in kinds)}")
    return str((path.parent / str(value)).resolve()) if key.endswith(".location") else value
