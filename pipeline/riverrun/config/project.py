"""`streams.toml`: which applications there are, where Kafka is, and how they run."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from riverrun.config.addons import BUILT_IN, loaded_part, loader_of, others, parts, refuse_taken
from riverrun.config.checks import (
    check_keys,
    check_number,
    check_path,
    check_schedule,
    check_type,
    check_zone,
    choices,
    kind_of,
    nearest,
    read_text,
)
from riverrun.config.code import PickledFunction, reference_of
from riverrun.config.parsing import (
    ALLOWED_PROPERTIES,
    as_written,
    check_oauth,
    check_property,
    setting_named,
    streams_config,
)
from riverrun.config.secrets import expanded
from riverrun.config.sections import (
    AppConfig,
    OutputKind,
    console_settings,
    logging_settings,
    schema_registry_settings,
)
from riverrun.config.streams import SECRETS, StreamsConfig
from riverrun.errors import ConfigError
from riverrun.records import shortened, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]+")
_LONGEST_ID = 200
"""Names of topics have at most 249 characters; those of internal topics begin with the application id."""
_PROTOCOLS = frozenset({"", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_HIGHEST_PORT = 65_535
_BOUND = "max_inputs_since_gate"
_OF_STATE = ("same", "empty")
_GATE = "gate"
_ROWS = "unexpected_rows"
_NUMBERS_OF_ROWS = "unexpected_rows_limit", "unexpected_rows_checks"
_MOST_ROWS = 100_000
"""Rows of an expectation that are kept: they are in memory together."""
_OF_AN_INSTANCE = ("client.tag.", "consumer.", "producer.")
"""Prefixes of what instances on one file may differ in, as in `consumer.group.instance.id`: `${NAME}` is expanded."""
SECTIONS = "kafka", "spark", "schema_registry", "console", "logging", "apps"
"""Sections of the core: those of add-ons have other names."""
_SCHEDULES = "schedule", "quality_schedule"
_ZONE = "schedule_timezone"
_CATCHUP = "catchup_from"
_WITHOUT_INTERVALS = frozenset({"@once", "@continuous"})
_MOST_BITS = 1000
"""Longer numbers might not even be shown; each setting has its own limit below."""


@dataclass(frozen=True, slots=True)
class RefusedApp:
    """An application whose declaration has an error, such as a secret that is missing on this machine.

    Args:
        error: The error; whatever asks for the application raises it.
        application_ids: The ids of its versions as far as they can be read, so that its topics are not taken for another's.
    """

    error: ConfigError
    application_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The contents of `streams.toml`.

    Args:
        path: The file. Relative paths in it are relative to its directory.
        kafka: librdkafka properties. Never printed: they may hold secrets.
        apps: Applications by name.
        spark: Settings of Spark sessions, by Spark's own names. Never printed either.
        schema_registry: Settings of the schema registry, by the names of Confluent's client. Never printed either.
        console: Where the console of the project answers, as settings of an instance say it.
        logging: Configuration of Python's logging, as `logging.config.dictConfig` takes it; empty if there is none.
        refused: Applications whose declaration has an error. It stops only what asks for them.
        sections: What sections of add-ons declare, by section and name; an error where a declaration has one. Never
            printed: they may hold secrets.
        overrides: Fields of `StreamsConfig` that override those of all applications.
    """

    path: Path
    kafka: Mapping[str, str] = field(repr=False)
    apps: Mapping[str, AppConfig]
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema_registry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    console: StreamsConfig = field(default_factory=StreamsConfig, repr=False)
    refused: Mapping[str, RefusedApp] = field(default_factory=dict)
    logging: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def application_ids(self) -> list[str]:
        """Return the ids of all versions of all applications, those included whose declaration has an error."""
        usable = [app.application_id(version) for app in self.apps.values() for version in (app.version, *app.versions)]
        return usable + [each for app in self.refused.values() for each in app.application_ids]

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str], *, kafka: Mapping[str, Any] | None = None) -> ProjectConfig:
        """Read and check a file; `kafka` replaces its `[kafka]`."""
        try:
            content = tomllib.loads(read_text(path))
        except FileNotFoundError as error:
            message = f"{path} does not exist"
            raise ConfigError(message, hint="Name another file with --config or RIVERRUN_CONFIG.") from error
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise ConfigError(message, hint="Name the file streams.toml itself with --config.") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"{path} is nested too deeply") from error
        except ValueError as error:  # of `int`, to which tomllib leaves numbers
            raise ConfigError(_long_number(path)) from error
        _check_numbers(path, content)
        if kafka is not None:
            content["kafka"] = kafka
        return cls.read(path, content, environ)

    @classmethod
    def read(cls, path: Path, content: Mapping[str, Any], environ: Mapping[str, str]) -> ProjectConfig:
        """Check the content of a file, or a program's equivalent."""
        known = [*SECTIONS, *parts("sections", BUILT_IN)]
        if content.keys() - set(known):
            refuse_taken("sections", SECTIONS)
            known += parts("sections", others())
        check_keys(path, "", content, known)
        check_type(path, "apps", content.get("apps", {}), dict, hint="Write [apps.NAME], a table for each application.")
        registry = schema_registry_settings(path, content.get("schema_registry", {}), environ)
        kafka = _kafka(path, content.get("kafka", {}), environ)
        logging = logging_settings(path, content.get("logging", {}))
        apps: dict[str, AppConfig] = {}
        refused: dict[str, RefusedApp] = {}
        for name, table in content.get("apps", {}).items():
            try:
                apps[name] = _app(path, name, table, environ, registry, logging)
            except ConfigError as error:
                refused[name] = RefusedApp(error, _declared_ids(name, table))
        spark = _spark(path, content.get("spark", {}), environ)
        console = console_settings(path, content.get("console", {}), environ)
        sections = {each: _declared(path, each, content[each], environ) for each in content if each not in SECTIONS}
        return cls(
            path=path,
            kafka=kafka,
            apps=apps,
            spark=spark,
            schema_registry=registry,
            console=console,
            refused=refused,
            logging=logging,
            sections=sections,
        )

    def with_app(self, name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> ProjectConfig:
        """Return the project with one more application, which replaces one with the same name."""
        app = _app(self.path, name, _by_reference(table), environ, self.schema_registry, self.logging)
        return replace(self, apps={**self.apps, name: app})

    def app(self, name: str) -> AppConfig:
        """Return an application by name."""
        if name in self.refused:
            raise self.refused[name].error
        if name not in self.apps:
            raise ConfigError(f"{self.path} has no application {name!r}", hint=nearest(name, self.apps))
        found = self.apps[name]
        return replace(found, streams=replace(found.streams, **self.overrides)) if self.overrides else found

    def section(self, name: str) -> Mapping[str, Any]:
        """Return what a section of an add-on declares, by name; errors are not raised."""
        return self.sections.get(name, {})

    def declared(self, section: str, name: str) -> Any:
        """Return what `[SECTION.NAME]` of an add-on declares."""
        declared = self.section(section)
        if name not in declared:
            message = f"{self.path} has no {section.removesuffix('s')} {name!r}"
            raise ConfigError(message, hint=f"Declare it in [{section}.{name}]. {nearest(name, declared)}")
        found = declared[name]
        if isinstance(found, ConfigError):
            raise found
        return found

    def state_directory(self, app: AppConfig) -> Path:
        """Return the directory of an application's local state."""
        return (self.path.parent / app.streams.state_dir).resolve()


def _declared(path: Path, section: str, tables: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the tables of an add-on's section declare, by name."""
    check_type(path, section, tables, dict, hint=f"Write [{section}.NAME], a table for each of them.")
    found: dict[str, Any] = {}
    for name, table in tables.items():
        # An error in one declaration, or its package, must not stop others: it is raised when that one is asked for.
        try:
            found[name] = loaded_part("sections", section)(path, name, table, environ)
        except ConfigError as error:
            found[name] = error
    return found


def _check_numbers(path: Path, content: Mapping[str, Any]) -> None:
    """Make sure that whole numbers can be shown."""
    held: list[Any] = [content]
    for each in held:
        if isinstance(each, dict):
            held += each.values()
        elif isinstance(each, list):
            held += each
        # Python refuses to make text of numbers with thousands of digits, which messages would have to.
        elif isinstance(each, int) and each.bit_length() > _MOST_BITS:
            raise ConfigError(_long_number(path))


def _long_number(path: Path) -> str:
    return f"{path} has a number with more digits than are read"


def _declared_ids(name: str, table: Any) -> tuple[str, ...]:
    if not isinstance(table, dict):
        return (f"{name}-v1",)
    versions = table.get("versions", {})
    found = [table.get("version", "v1"), *(versions if isinstance(versions, dict) else ())]
    return tuple(f"{name}-{version}" for version in found if isinstance(version, str))


def _kafka(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, str]:
    check_type(path, "kafka", table, dict)
    allowed = table.get(ALLOWED_PROPERTIES, [])
    check_type(path, f"[kafka] {ALLOWED_PROPERTIES}", allowed, list)
    for each in allowed:
        check_type(path, f"[kafka] {ALLOWED_PROPERTIES}: an item", each, str)
    table = {key: value for key, value in table.items() if key != ALLOWED_PROPERTIES}
    for key, value in table.items():
        if isinstance(value, dict):
            name = as_written(key, value)
            message = f"{path}: [kafka] {key} is a table, not the property {name}"
            raise ConfigError(message, hint=f'Names with dots are quoted: "{name}".')
        if not isinstance(value, str | int | float):
            message = f"{path}: [kafka] {key} is {kind_of(value)}, not one value"
            raise ConfigError(message, hint='Several are one string, such as "kafka-1:9092,kafka-2:9092".')
        # librdkafka takes C strings, and would read up to a NUL.
        check_path(f"{path}: [kafka] {key}", value)
        check_property(path, key, allowed)
    if "bootstrap.servers" not in table:
        message = f'{path}: [kafka] needs "bootstrap.servers"'
        raise ConfigError(message, hint='For example "bootstrap.servers" = "127.0.0.1:19092".')
    found = {key: expanded(f"{path}: [kafka] {key}", _property(value), environ) for key, value in table.items()}
    check_oauth(path, found)
    for server in found["bootstrap.servers"].split(","):
        _check_server(path, server.strip())
    return found


def _check_server(path: Path, server: str) -> None:
    """Check that a broker's address has a port."""
    protocol, _, address = server.rpartition("://")
    host, _, port = address.rpartition(":")
    # Clients disagree on the default port.
    if protocol.upper() not in _PROTOCOLS or not (host and whole_number(port, _HIGHEST_PORT)):
        message = f"{path}: [kafka] bootstrap.servers has {server!r}, which is not host:port"
        raise ConfigError(message, hint="For example kafka-1.example.org:9092,kafka-2.example.org:9092.")


def _spark(path: Path, table: Any, environ: Mapping[str, str]) -> dict[str, str]:
    check_type(path, "spark", table, dict)
    for key, value in table.items():
        if not key.startswith("spark."):
            message = f"{path}: [spark] {key} is not a setting of Spark: their names begin with spark."
            hint = 'Names with dots are quoted: "spark.executor.memory" = "2g".'
            raise ConfigError(message, hint=hint)
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{path}: [spark] {key} is {kind_of(value)}, not one value")
    return {key: expanded(f"{path}: [spark] {key}", _property(value), environ) for key, value in table.items()}


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _app(
    path: Path,
    name: str,
    table: Any,
    environ: Mapping[str, str],
    registry: Mapping[str, Any],
    logging: Mapping[str, Any],
) -> AppConfig:
    where = f"apps.{name}"
    check_type(path, where, table, dict)
    if not _NAME.fullmatch(name):
        message = f"{path}: application name {name!r} has characters other than a-z A-Z 0-9 . _ -, or is . or .."
        raise ConfigError(message)
    texts = ("topology", "version", *_SCHEDULES, _ZONE, _CATCHUP, "quality", "data_docs", _ROWS)
    _refuse_settings(path, where, table)
    check_keys(path, where, table, (*texts, _BOUND, _GATE, *_NUMBERS_OF_ROWS, "versions", "outputs", "carry", "config"))
    if "topology" not in table:
        raise ConfigError(f"{path}: [{where}] needs topology", hint='For example topology = "my_module:build".')
    for key in texts:
        _check_reference(path, f"{where}.{key}", table.get(key, ""))
        check_path(f"{path}: {where}.{key}", table.get(key, ""))
    _check_schedules(path, where, table)
    versions = _versions(path, where, table.get("version", "v1"), table.get("versions", {}))
    check_type(path, f"{where}.config", table.get("config", {}), dict)
    settings = dict(table.get("config", {}))
    for key, value in settings.items():
        if isinstance(value, str) and (key in SECRETS or key.startswith(_OF_AN_INSTANCE)):
            settings[key] = expanded(f"{path}: {where}.config.{key}", value, environ)
    streams = streams_config(path, f"{where}.config", settings)
    _check_bound(path, where, table.get(_BOUND, 0))
    _check_numbers_of_rows(path, where, table)
    check_type(path, f"{where}.{_GATE}", table.get(_GATE, False), bool)
    if table.get(_GATE) and table.get("quality") is None:
        message = f"{path}: {where}.{_GATE} is true, but {where}.quality, by which the gate would judge, is missing"
        raise ConfigError(message, hint='For example quality = "my_module:expectations".')
    given = {key: table[key] for key in (*texts, _BOUND, _GATE, *_NUMBERS_OF_ROWS) if key in table}
    given["topology"] = _located(path, table["topology"])
    if "quality" in given:
        given["quality"] = _suites(path, table["quality"])
    if "data_docs" in given:
        given["data_docs"] = str((path.parent / table["data_docs"]).resolve())
    if _ROWS in given and "://" not in table[_ROWS]:
        given[_ROWS] = str((path.parent / table[_ROWS]).resolve())
    outputs = _outputs(path, f"{where}.outputs", table.get("outputs", {}))
    carry = _carry(path, f"{where}.carry", table.get("carry", {}), versions)
    given |= {"versions": versions, "outputs": outputs, "carry": carry, "streams": streams}
    return AppConfig(name, **given, schema_registry=registry, logging=logging)


def _check_numbers_of_rows(path: Path, where: str, table: Mapping[str, Any]) -> None:
    for key in _NUMBERS_OF_ROWS:
        check_type(path, f"{where}.{key}", table.get(key, 1), int)
        check_number(f"{path}: {where}.{key}", table.get(key, 1), 1, _MOST_ROWS)


def _check_schedules(path: Path, where: str, table: Mapping[str, Any]) -> None:
    for key in _SCHEDULES:
        if key in table:
            check_schedule(f"{path}: {where}.{key}", table[key])
    if _ZONE in table:
        check_zone(f"{path}: {where}.{_ZONE}", table[_ZONE])
    if _CATCHUP in table:
        _check_catchup(path, where, table[_CATCHUP], table.get("schedule", ""))


def _check_catchup(path: Path, where: str, since: str, schedule: str) -> None:
    try:
        datetime.fromisoformat(since)
    except ValueError as error:
        message = f"{path}: {where}.{_CATCHUP} is {since!r}, which is not a time"
        raise ConfigError(message, hint="For example 2026-01-01T00:00:00, in the time zone of the schedule.") from error
    if not schedule.strip() or schedule.strip() in _WITHOUT_INTERVALS:
        message = f"{path}: {where}.{_CATCHUP} needs {where}.schedule, whose intervals it selects"
        raise ConfigError(message, hint='For example schedule = "@daily".')


def _check_bound(path: Path, where: str, value: Any) -> None:
    check_type(path, f"{where}.{_BOUND}", value, int)
    if isinstance(value, bool) or not 0 <= value < 2**63:
        message = f"{path}: {where}.{_BOUND} is {shortened(value)}, and must be a number of offsets, at least 0"
        raise ConfigError(message, hint="Leave it out for no bound.")


def _outputs(path: Path, where: str, table: Any) -> dict[str, OutputKind]:
    """Read `[apps.NAME.outputs]`: kinds by topic. Releases check later that a version writes these topics."""
    check_type(path, where, table, dict)
    kinds = {kind.value: kind for kind in OutputKind}
    for topic, kind in table.items():
        if isinstance(kind, dict):
            message = f"{path}: {where}.{topic} is a table, not the kind of a topic"
            raise ConfigError(message, hint=f'Names with dots are quoted: "{as_written(topic, kind)}".')
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(f"{path}: {where}.{topic} is {kind!r}", hint=choices(str(kind), kinds))
    return {topic: kinds[kind] for topic, kind in table.items()}


def _carry(
    path: Path, where: str, table: Any, versions: Mapping[str, Any]
) -> dict[str, dict[str, str | PickledFunction]]:
    """Read `[apps.NAME.carry.VERSION]`: what becomes of stores and outputs. Releases check later that these exist."""
    check_type(path, where, table, dict)
    for version, said in table.items():
        if version not in versions:
            message = f"{path}: {where}.{version}: there is no version {version} to release"
            raise ConfigError(message, hint=nearest(version, versions))
        check_type(path, f"{where}.{version}", said, dict)
        for name, word in said.items():
            if isinstance(word, dict):
                message = f"{path}: {where}.{version}.{name} is a table, not what becomes of a store"
                raise ConfigError(message, hint=f'Names with dots are quoted: "{as_written(name, word)}".')
            _check_reference(path, f"{where}.{version}.{name}", word)
            if isinstance(word, str) and word not in _OF_STATE and ":" not in word:
                message = f"{path}: {where}.{version}.{name} is {word!r}"
                raise ConfigError(message, hint='Allowed: same, empty, or a function such as "my_module:migrated".')
    return {version: dict(said) for version, said in table.items()}


def _refuse_settings(path: Path, where: str, table: Mapping[str, Any]) -> None:
    """Refuse settings of Kafka Streams among Riverrun's own keys."""
    for key, value in table.items():
        setting = setting_named(as_written(key, value))
        if setting is not None:
            raise ConfigError(f"{path}: unknown key {where}.{key}", hint=f'"{setting}" belongs in [{where}.config].')


def _by_reference(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a declaration with references in place of functions."""
    versions = {name: reference_of(function) for name, function in table.get("versions", {}).items()}
    functions = {key: reference_of(table[key]) for key in ("topology", "quality") if table.get(key) is not None}
    given = {key: value for key, value in table.items() if value is not None}
    carry = {
        version: {store: reference_of(said) for store, said in stores.items()}
        for version, stores in table.get("carry", {}).items()
    }
    return {**given, **functions, "versions": versions, "carry": carry}


def _check_reference(path: Path, where: str, value: Any) -> None:
    """Check that a value is text, or a function that a program passed instead."""
    if not isinstance(value, PickledFunction):
        check_type(path, where, value, str)


def _versions(path: Path, where: str, first: str, table: Any) -> dict[str, str | PickledFunction]:
    """Read further versions. Their names are checked like the application's, as both are part of topic names."""
    check_type(path, f"{where}.versions", table, dict)
    for version in (first, *table):
        if not _NAME.fullmatch(version):
            raise ConfigError(
                f"{path}: version {version!r} of {where} has characters other than a-z A-Z 0-9 . _ -, or is . or .."
            )
        if len(version) + len(where.removeprefix("apps.")) >= _LONGEST_ID:
            message = f"{path}: the name and version of {where} have more than {_LONGEST_ID - 1} characters together"
            raise ConfigError(message, hint="Names of its internal topics begin with them: 249 characters at most.")
    for version, topology in table.items():
        _check_reference(path, f"{where}.versions.{version}", topology)
    if first in table:
        message = f"{path}: {where}.versions.{first} is declared twice: {where}.topology is the topology of {first}"
        raise ConfigError(message, hint=f"Name another version, or leave {first} out of [{where}.versions].")
    return {version: _located(path, topology) for version, topology in table.items()}


def _suites(path: Path, quality: str | PickledFunction) -> str | PickledFunction:
    """Return where expectations are; the path of files is relative to the directory of `streams.toml`."""
    if isinstance(quality, str) and ":" not in quality:
        return str((path.parent / quality).resolve())
    return quality


def _located(path: Path, topology: str | PickledFunction) -> str | PickledFunction:
    """Return the reference to a topology; the path of a file is relative to the directory of `streams.toml`."""
    return topology if loader_of(topology) is None else str((path.parent / str(topology)).resolve())
