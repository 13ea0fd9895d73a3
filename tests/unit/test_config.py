"""The content of `streams.toml`, and how mistakes in it are refused."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from riverrun import StreamsBuilder
from riverrun.config import Optimization, ProjectConfig, TopologyConfig, call_attribute, load_attribute
from riverrun.config.address import ServerAddress
from riverrun.config.checks import choices, nearest, wrong_in_schedule
from riverrun.config.code import look_beside
from riverrun.config.parsing import UNSAFE
from riverrun.config.streams import PREFIXED, StreamsConfig, dotted
from riverrun.errors import ConfigError, StreamsError, TopologyError

GOOD = """
[kafka]
"bootstrap.servers" = "h:1"
"sasl.password" = "${SECRET}"
[apps.delays]
topology = "m:build"
version = "v1"
schedule = "0 */6 * * *"
[apps.delays.versions]
v2 = "m:build_v2"
[apps.delays.config]
"max.task.idle.ms" = -1
"deserialization.exception.handler" = "LogAndContinueExceptionHandler"
"consumer.fetch.min.bytes" = 5
"processing.exception.handler" = "my.handlers:Skip"
"production.exception.handler" = "DefaultProductionExceptionHandler"
"errors.dead.letter.queue.topic.name" = "letters"
"default.timestamp.extractor" = "LogAndSkipOnInvalidTimestamp"
"""


def bounded(inputs: str) -> tuple[str, str]:
    """The change that bounds the inputs since a gate."""
    return "[apps.delays.versions]", f"max_inputs_since_gate = {inputs}\n[apps.delays.versions]"


def carry(lines: str) -> tuple[str, str]:
    """The change that says what a version takes over."""
    return "[apps.delays.config]", f"[apps.delays.carry.v2]\n{lines}\n[apps.delays.config]"


def outputs(lines: str) -> tuple[str, str]:
    """The change that declares outputs."""
    return "[apps.delays.config]", f"[apps.delays.outputs]\n{lines}\n[apps.delays.config]"


def load(tmp_path: Path, text: str) -> ProjectConfig:
    path = tmp_path / "streams.toml"
    path.write_text(text)
    project = ProjectConfig.load(path, {"SECRET": "hidden"})
    for name in project.refused:
        project.app(name)
    return project


def test_an_error_of_one_application_stops_only_what_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    clicks = '[apps.clicks]\ntopology = "clicks:build"\n[apps.clicks.config]\n"server.token" = "${NOWHERE}"\n'
    path.write_text(f"{GOOD}{clicks}[apps.orders]\ntopolgy = 5\nversions = {{v2 = 1}}\n")
    project = ProjectConfig.load(path, {"SECRET": "hidden"})
    assert project.app("delays").name == "delays"
    with pytest.raises(ConfigError, match=r"clicks\.config\.server\.token needs the environment variable NOWHERE"):
        project.app("clicks")
    with pytest.raises(ConfigError, match=r"unknown key apps\.orders\.topolgy"):
        project.app("orders")
    assert {"clicks-v1", "orders-v1", "orders-v2"} <= set(project.application_ids)


IN_TOML = {
    "a string": '"text"', "a whole number": "7", "a number": "7.5", "true": "true", "an array": "[1]", "a table": "{a = 1}",
    "a date": "2026-01-01", "a time": "12:00:00", "a moment": "2026-01-01T00:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize("kind", IN_TOML)
@pytest.mark.parametrize(
    "place",
    [
        "kafka", "spark", "schema_registry", "console", "logging",
        "apps", "apps.a", "apps.a.config", "apps.a.versions", "apps.a.outputs", "apps.a.carry",
        "apps.a.topology", "apps.a.version", "apps.a.schedule", "apps.a.quality", "apps.a.data_docs",
        "apps.a.unexpected_rows", "apps.a.unexpected_rows_limit", "apps.a.unexpected_rows_checks",
        'apps.a.config."state.dir"', 'apps.a.config."num.stream.threads"', 'apps.a.config."server.allowed.hosts"',
        'apps.a.config."server.token"', 'apps.a.config."snapshot.url"', 'apps.a.config."application.server"',
        'apps.a.config."server.ssl.key.location"', 'apps.a.config."processing.guarantee"', 'kafka."client.id"',
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_named_in_the_words_of_toml(tmp_path: Path, place: str, kind: str) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(f"{place} = {IN_TOML[kind]}\n")
    message = ""
    try:
        load(tmp_path, path.read_text())
    except ConfigError as error:
        message = error.message
    assert not re.search(r"\bdict\b|\bstr\b|\bint\b|\bNone\b|datetime|True|False", message)


def test_unexpected_rows_are_next_to_the_file_or_at_a_url_and_bounded(tmp_path: Path) -> None:
    head = '[kafka]\n"bootstrap.servers" = "h:1"\n[apps.a]\ntopology = "a:b"\n'
    for written, place in (("kept", str(tmp_path / "kept")), ("s3://bucket/kept", "s3://bucket/kept")):
        app = load(tmp_path, f'{head}unexpected_rows = "{written}"\nunexpected_rows_limit = 5\n').app("a")
        assert (app.unexpected_rows, app.unexpected_rows_limit, app.unexpected_rows_checks) == (place, 5, 100)
    for key in ("unexpected_rows_limit", "unexpected_rows_checks"):
        for wrong in (0, 100_001):
            with pytest.raises(ConfigError, match=rf"apps.a.{key} is \d+, and must be .* at most 100000"):
                load(tmp_path, f"{head}{key} = {wrong}\n").app("a")


def test_no_text_of_the_file_may_have_a_nul(tmp_path: Path) -> None:
    for setting in ("state.dir", "snapshot.url", "server.ssl.key.location", "application.server", "server.token"):
        with pytest.raises(ConfigError, match=r"NUL|not host:port"):
            load(tmp_path, GOOD.replace('"max.task.idle.ms" = -1', f'"{setting}" = "a\\u0000b"'))
    for key in ("quality", "data_docs", "unexpected_rows", "version", "schedule"):
        with pytest.raises(ConfigError, match="NUL"):
            load(tmp_path, f'[kafka]\n"bootstrap.servers" = "h:1"\n[apps.a]\ntopology = "a:b"\n{key} = "a\\u0000b"\n')


def test_a_value_of_the_wrong_kind_is_not_shown_where_it_may_be_secret(tmp_path: Path) -> None:
    for where in (
        '[apps.a.config]\n"server.token"',
        '[kafka]\n"sasl.password"',
        '[apps.a.config]\n"server.ssl.key.password"',
    ):
        path = tmp_path / "streams.toml"
        path.write_text(f'[apps.a]\ntopology = "a:b"\n{where} = [["hidden"], 12345]\n')
        with pytest.raises(ConfigError) as raised:
            ProjectConfig.load(path, {}).app("a")
        assert "hidden" not in str(raised.value)
        assert "12345" not in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('"topology.optimization" = "faster"', "'faster' is not a value of topology.optimization"),
        ('"topology.optimization" = true', "topology.optimization is true, not a string"),
        ('"default.dsl.store" = "disk"', "default.dsl.store is 'disk'"),
        ('"ensure.explicit.internal.resource.naming" = 1', "naming is 1, not true or false"),
    ],
)
def test_settings_of_the_topology_are_checked(tmp_path: Path, setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(tmp_path, GOOD + setting)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('"consumer.group.id" = "mine"', "consumer.group.id cannot be set"),
        ('"consumer.auto.offset.reset" = "latest"', "consumer.auto.offset.reset cannot be set"),
        ('"producer.transactional.id" = "mine"', "producer.transactional.id cannot be set"),
        ('"producer.transaction.timeout.ms" = 10000', "producer.transaction.timeout.ms cannot be set"),
        ('"consumer.session.timeout.ms" = "6s"', "session.timeout.ms is '6s', and must be at least 1"),
        ('"consumer.heartbeat.interval.ms" = 0', "heartbeat.interval.ms is 0, and must be at least 1"),
        ('"topic.retention.sm" = 5', "topic.retention.sm is not a setting of topics"),
        ('"commit.interval.ms" = "5"', "commit.interval.ms is '5', not a whole number"),
    ],
)
def test_what_clients_are_not_to_be_told_is_refused(tmp_path: Path, setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(tmp_path, GOOD + setting)


@pytest.mark.parametrize(
    ("change", "complaint", "hint"),
    [
        (('"bootstrap.servers"', "bootstrap.servers"), "[kafka] bootstrap is a table", '"bootstrap.servers"'),
        (('"h:1"', '"h"'), "bootstrap.servers has 'h', which is not host:port", "9092"),
        (('"h:1"', '"http://h:1"'), "has 'http://h:1', which is not host:port", "9092"),
        (('"h:1"', '"h:1,i:70000"'), "has 'i:70000', which is not host:port", "9092"),
        (("${SECRET}", "${SECRET:-none}"), "has a ${ that does not begin ${NAME}", "without a default"),
        (('"max.task.idle.ms" = -1', '"max.task.idle.ms" = true'), "is true, not a whole number", ""),
        (('"max.task.idle.ms" = -1', "max.task.idle.ms = -1"), "unknown setting", '"max.task.idle.ms"'),
        (('"0 */6 * * *"', '"every day"'), "not a cron expression: it has 2 fields", "0 */6 * * *"),
        (
            ('"0 */6 * * *"', '"0 25 * * *"'),
            "not a cron expression: [0 25 * * *] is not acceptable, out of range",
            "0 */6 * * *",
        ),
        (('"0 */6 * * *"', '"@dayly"'), "not a cron expression: there is no @dayly", "0 */6 * * *"),
        (("${SECRET}", "$SECRET"), "has $SECRET, which is not replaced", "Write ${SECRET}."),
        (
            ('"errors.dead.letter.queue.topic.name" = "letters"', '"state.dir" = "$HOME/x"'),
            "has $HOME",
            "[kafka], [spark]",
        ),
        (('"max.task.idle.ms" = -1', '"num.stream.threads" = 100000'), "is 100000, and must be at most 1000", ""),
        (('"max.task.idle.ms" = -1', '"max.poll.interval.ms" = 9223372036854775807'), "must be at most 2147483647", ""),
        (
            ('"max.task.idle.ms" = -1', '"task.timeout.ms" = 99999999999999999999'),
            "must be at most 9000000000000",
            "",
        ),
        (('"v1"', f'"{"v" * 200}"'), "more than 199 characters", "249"),
    ],
)
def test_natural_mistakes_are_reported_with_what_to_write(
    tmp_path: Path, change: tuple[str, str], complaint: str, hint: str
) -> None:
    assert change[0] in GOOD
    with pytest.raises(ConfigError, match=re.escape(complaint)) as refused:
        load(tmp_path, GOOD.replace(*change))
    assert hint in (refused.value.hint or "")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(tmp_path, f"\ufeff{GOOD}").app("delays").name == "delays"


@pytest.mark.parametrize("name", ["enable.auto.commit", "isolation.level", "group.id", "transactional.id"])
def test_what_clients_are_not_to_be_told_is_refused_for_all_of_them_as_well(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"[kafka] {name} cannot be set")):
        load(tmp_path, GOOD.replace("[kafka]", f'[kafka]\n"{name}" = "x"'))


def test_settings_of_topics_are_those_of_kafka_and_of_other_makers_brokers(tmp_path: Path) -> None:
    properties = {"segment.ms": "5", "confluent.tier.enable": "true"}
    settings = "\n".join(f'"topic.{name}" = "{value}"' for name, value in properties.items())
    assert load(tmp_path, GOOD + settings).app("delays").streams.topic == properties


def test_settings_of_the_topology_reach_its_builder(tmp_path: Path) -> None:
    settings = '"topology.optimization" = "all"\n"ensure.explicit.internal.resource.naming" = true\n'
    settings += '"default.dsl.store" = "in_memory"\n'
    config = load(tmp_path, GOOD + settings).app("delays").streams.topology_config
    everything = frozenset(Optimization)
    assert config == TopologyConfig(everything, ensure_explicit_internal_resource_naming=True, is_persistent=False)
    assert load(tmp_path, GOOD).app("delays").streams.topology_config == TopologyConfig()


def test_a_project_is_read_with_kafka_streams_names_and_defaults(tmp_path: Path) -> None:
    project = load(tmp_path, GOOD)
    app = project.app("delays")
    assert project.kafka["sasl.password"] == "hidden"
    assert "hidden" not in repr(project)
    assert app.application_id() == "delays-v1"
    assert app.topology_of("v2") == "m:build_v2"
    assert app.streams.max_task_idle_ms == -1
    assert app.streams.commit_interval_ms == 100
    assert app.streams.deserialization_exception_handler == "continue"
    assert app.streams.consumer == {"fetch.min.bytes": "5"}
    assert app.streams.processing_exception_handler == "my.handlers:Skip"
    assert app.streams.production_exception_handler == "fail"
    assert app.streams.errors_dead_letter_queue_topic_name == "letters"
    assert app.streams.default_timestamp_extractor == "LogAndSkipOnInvalidTimestamp"


@pytest.mark.parametrize(
    ("settings", "interval_ms"),
    [
        ("", 100),
        ('"processing.guarantee" = "exactly_once_v2"', 100),
        ('"processing.guarantee" = "at_least_once"', 30_000),
        ('"processing.guarantee" = "at_least_once"\n"commit.interval.ms" = 7', 7),
    ],
)
def test_the_commit_interval_follows_from_the_guarantee_as_in_kafka_streams(
    tmp_path: Path, settings: str, interval_ms: int
) -> None:
    assert load(tmp_path, GOOD + settings).app("delays").streams.commit_interval_ms == interval_ms


@pytest.mark.parametrize(
    ("url", "where"), [("s3://bucket/snapshots", "s3://bucket/snapshots"), ("../snapshots", "{}/snapshots")]
)
def test_snapshots_are_kept_at_a_url_or_beside_the_file(tmp_path: Path, url: str, where: str) -> None:
    app = load(tmp_path, f'{GOOD}"snapshot.url" = "{url}"\n"snapshot.keep" = 7\n').app("delays")
    assert app.streams.snapshot_url == where.format(tmp_path.resolve().parent)
    assert app.streams.snapshot_keep == 7


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("[kafka]", "[kafak]"), "unknown key kafak.*'kafka'"),
        (("topology", "toplogy"), "unknown key apps.delays.toplogy.*'topology'"),
        (("max.task.idle.ms", "max.task.idl.ms"), "unknown setting.*max.task.idle.ms"),
        (("= -1", "= -2"), "at least -1"),
        (('"max.task.idle.ms" = -1', '"bounded.wall.clock.punctuation" = "often"'), "Allowed: refuse, once, never"),
        (("${SECRET}", "${MISSING}"), "environment variable MISSING"),
        (('fetch.min.bytes" = 5', 'group.instance.id" = "${MISSING}"'), "config.consumer.group.* variable MISSING"),
        (("LogAndContinueExceptionHandler", "Ignore"), "Allowed: fail, continue"),
        (("my.handlers:Skip", "my.handlers.Skip"), "or module:attribute"),
        (("LogAndSkipOnInvalidTimestamp", "LogAndSkip"), "Allowed: FailOnInvalidTimestamp"),
        (('= "letters"', "= 3"), "errors.dead.letter.queue.topic.name is 3, not a string"),
        (
            ('"max.task.idle.ms" = -1', '"processing.guarantee" = "exactly_once"'),
            "Allowed: exactly_once_v2, at_least_once",
        ),
        (('"max.task.idle.ms" = -1', '"processing_guarantee" = "at_least_once"'), "mean 'processing.guarantee'"),
        (
            ('version = "v1"', 'processing_guarantee = "at_least_once"'),
            '"processing.guarantee" belongs in .apps.delays.config',
        ),
        (
            ('version = "v1"', '"consumer.fetch.min.bytes" = 1'),
            '"consumer.fetch.min.bytes" belongs in .apps.delays.config',
        ),
        (
            ('version = "v1"', "commit.interval.ms = 1"),
            '"commit.interval.ms" belongs in .apps.delays.config',
        ),
        (('"max.task.idle.ms" = -1', '"application.id" = "x"'), "name and version"),
        (('"max.task.idle.ms" = -1', '"default.key.serde" = "x"'), "each source names its own"),
        (('"max.task.idle.ms" = -1', "max.task.idle.ms = -1"), 'config.max.*with dots are quoted: "max.task.idle.ms"'),
        (('"h:1"', '"h:1'), "is not TOML"),
        (('"bootstrap.servers" = "h:1"', ""), "needs .bootstrap.servers"),
        (('version = "v1"', 'version = "v 1"'), "version 'v 1' of apps.delays has characters other"),
        (('v2 = "m:build_v2"', "v2 = 3"), "apps.delays.versions.v2 is 3, not a string"),
        (("v2 = ", "v1 = "), "versions.v1 is declared twice"),
        (bounded("-1"), "at least 0.*Leave it out"),
        (bounded("true"), "is true, not a whole number"),
        (bounded('"1k"'), "'1k', not a whole number"),
        (carry('sums = "kept"'), "carry.v2.sums is 'kept'.*Allowed: same, empty, or a function"),
        (carry("sums = 1"), "carry.v2.sums is 1, not a string"),
        (carry('my.sums = "same"'), 'carry.v2.my is a table.*with dots are quoted: "my.sums"'),
        (
            carry('[apps.delays.carry.v3]\nsums = "same"'),
            "carry.v3: there is no version v3 to release.*Known: v2",
        ),
        (outputs('alerts = "lot"'), r"outputs.alerts is 'lot'.*Allowed: table, log. Did you mean 'log'"),
        (outputs("alerts = 1"), "outputs.alerts is 1.*Allowed: table, log"),
        (outputs('my.alerts = "log"'), 'outputs.my is a table.*with dots are quoted: "my.alerts"'),
        (outputs('alerts = "log"\n[apps.delays.output]'), "unknown key apps.delays.output.*Did you mean 'outputs'"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, GOOD.replace(*change, 1))
    assert "streams.toml" in str(raised.value)
    assert re.search(complaint, str(raised.value), re.DOTALL)


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        ProjectConfig.load(tmp_path, {})
    path = tmp_path / "streams.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"is not text in UTF-8: line 1 has the byte 0xff"):
        ProjectConfig.load(path, {})


def test_an_unknown_application_or_version_is_refused_with_the_nearest(tmp_path: Path) -> None:
    project = load(tmp_path, GOOD)
    with pytest.raises(ConfigError, match="Did you mean 'delays'"):
        project.app("delay")
    with pytest.raises(ConfigError, match="no version 'v3'"):
        project.app("delays").topology_of("v3")


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("no colon", "is not module:attribute"),
        ("riverrun.nowhere:x", "cannot be imported(.|\n)*`riverrun` is Riverrun's own package"),
        (
            "__main__:build",
            "defined in a script or notebook, which other processes cannot import(.|\n)*my_module:build",
        ),
        ("riverrun.apps.delays:buidl", "Did you mean 'build'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(reference: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_attribute(reference)


def test_the_http_token_comes_from_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    text = '"application.server" = "worker-1:8080"\n"server.token" = "${SECRET}${SECRET}${SECRET}"\n'
    project = load(tmp_path, GOOD + text)
    streams = project.app("delays").streams
    assert (streams.application_server, streams.server_token) == ("worker-1:8080", "hidden" * 3)
    assert "hidden" not in repr(project)


def test_a_secret_comes_from_a_file_without_the_end_of_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pass $word\n")
    read = load(tmp_path, GOOD.replace("${SECRET}", f"<${{file:{tmp_path}/password}}>"))
    assert read.kafka["sasl.password"] == "<pass $word>"
    assert "word" not in repr(read)


def test_the_environment_tells_instances_on_one_file_apart(tmp_path: Path) -> None:
    settings = '"consumer.group.instance.id" = "${SECRET}-0"\n"client.tag.zone" = "in-${SECRET}"\n'
    streams = load(tmp_path, GOOD + settings).app("delays").streams
    assert streams.consumer["group.instance.id"] == "hidden-0"
    assert streams.client_tag == {"zone": "in-hidden"}


@pytest.mark.parametrize(
    ("name", "complaint"), [("missing", "No such file"), (".", "Is a directory"), ("binary", "is not text")]
)
def test_a_secret_whose_file_cannot_be_read_names_the_file(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=rf"sasl.password needs the file {tmp_path}.*{complaint}"):
        load(tmp_path, GOOD.replace("${SECRET}", f"${{file:{tmp_path}/{name}}}"))


def test_a_secret_from_a_file_needs_an_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes an absolute path"):
        load(tmp_path, GOOD.replace("${SECRET}", "${file:password}"))


@pytest.mark.parametrize("key", ["server.token", "server.read.token"])
def test_a_token_with_a_line_end_is_used_and_an_impossible_one_is_not_shown(tmp_path: Path, key: str) -> None:
    streams = load(tmp_path, f'{GOOD}"{key}" = "s3cret-of-20-letters\\n"\n').app("delays").streams
    assert getattr(streams, key.replace(".", "_")) == "s3cret-of-20-letters"
    for token in ("s3cr\\u00e9t", "s3c\\nret", "s3c\\u0000ret"):
        with pytest.raises(ConfigError, match=r"characters that a token cannot have|NUL") as refused:
            load(tmp_path, f'{GOOD}"{key}" = "{token}"\n')
        assert "s3c" not in str(refused.value)


@pytest.mark.parametrize(
    "server",
    [
        "worker-1",
        "8080",
        ":8080",
        "worker-1:http",
        "worker-1:99999",
        "http://worker-1:8080",
        "worker-1:8080/status",
        "ann@worker-1:8080",
        "[::1]",
        "::1:8080",
    ],
)
def test_an_address_is_a_host_and_a_port(tmp_path: Path, server: str) -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        load(tmp_path, f'{GOOD}"application.server" = "{server}"\n')


def test_settings_of_spark_are_kept_under_its_own_names_and_never_shown(tmp_path: Path) -> None:
    spark = '[spark]\n"spark.executor.cores" = 2\n"spark.speculation" = true\n"spark.hadoop.fs.s3a.secret.key" = "${SECRET}"\n'
    project = load(tmp_path, GOOD + spark)
    assert project.spark == {
        "spark.executor.cores": "2",
        "spark.speculation": "true",
        "spark.hadoop.fs.s3a.secret.key": "hidden",
    }
    assert "hidden" not in repr(project)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('master = "local"', "[spark] master is not a setting of Spark"),
        ("spark.executor.cores = 2", "[spark] spark is not a setting of Spark"),
        ('"spark.jars" = ["a"]', "[spark] spark.jars is an array, not one value"),
    ],
)
def test_what_is_no_setting_of_spark_is_refused(tmp_path: Path, setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(tmp_path, GOOD + "[spark]\n" + setting)


USER_MODULE = """
from riverrun import STRING, Consumed

def raises(builder):
    builder.stream("in", Consumed(STRING, STRING)).join()

def is_refused(builder):
    builder.stream("in", Consumed(STRING, STRING, name="a b"))
"""


@pytest.mark.parametrize(
    ("function", "error", "complaint"),
    [
        (
            "raises",
            ConfigError,
            r"user_module:raises raised TypeError: .*join\(\).*Look at .*user_module.py, line 5, in raises",
        ),
        ("is_refused", TopologyError, r"'a b' is illegal.*Look at .*user_module.py, line 8, in is_refused"),
    ],
)
def test_of_a_users_function_that_raises_the_line_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: type[StreamsError], complaint: str
) -> None:
    (tmp_path / "user_module.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error) as raised:
        call_attribute(f"user_module:{function}", StreamsBuilder())
    assert re.search(complaint, str(raised.value), re.DOTALL)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def build(:\n", r"SyntaxError.*Look at .*broken_\w+.py, line 1"),
        ("import re\nre.compile('(')\n", r"cannot be imported: .*Look at .*broken_\w+.py, line 2"),
    ],
)
def test_of_a_module_that_cannot_be_imported_the_line_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str
) -> None:
    name = f"broken_{len(source)}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_attribute(f"{name}:build")
    assert re.search(complaint, str(raised.value), re.DOTALL)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("import sys\ndef build(b): sys.exit(3)", "mistaken:build raised SystemExit: 3"),
        ("build = 7", "mistaken:build is of type int, not a function"),
        ("from riverrun import JSON as build", "It is of type JsonSerde. Does it name the right function"),
    ],
)
def test_a_module_that_is_no_topology_is_told_from_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, complaint: str
) -> None:
    (tmp_path / "mistaken.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mistaken", raising=False)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        call_attribute("mistaken:build", object())


def test_modules_are_found_beside_the_file_wherever_a_program_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("project", "started"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "found_beside.py").write_text(f"def build(): return {name!r}")
    monkeypatch.chdir(tmp_path / "started")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "found_beside", raising=False)
    look_beside(Path("../project/streams.toml"), first=True)
    assert call_attribute("found_beside:build") == "project"


def test_modules_beside_the_file_of_a_program_hide_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    for _ in range(2):
        look_beside(tmp_path / "streams.toml")
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize("host", ["256.1.1.1", "1.2.3", "1.2.3.4.5", "1", "0.0.0.0.0", "1..2.3"])
def test_numbers_that_are_no_address_are_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="the host is not valid"):
        ServerAddress.parse(f"{host}:80")


@pytest.mark.parametrize("hosts", [["*"], ["*.example.org"], [""], ["http://a"], ["a b"], ["a/b"]])
def test_hosts_that_no_caller_can_use_are_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match="which is not the name of a host"):
        load(tmp_path, GOOD.replace('"max.task.idle.ms" = -1', f'"server.allowed.hosts" = {hosts}'.replace("'", '"')))


def test_a_state_directory_below_the_home_directory_is_meant_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for setting in ("state.dir", "snapshot.url"):
        project = load(tmp_path, GOOD.replace('"max.task.idle.ms" = -1', f'"{setting}" = "~/x"'))
        streams = project.app("delays").streams
        assert {streams.state_dir, streams.snapshot_url} >= {str(tmp_path / "home/x")}
    with pytest.raises(ConfigError, match="no_such_user"):
        load(tmp_path, GOOD.replace('"max.task.idle.ms" = -1', '"state.dir" = "~no_such_user/x"'))


def test_a_replication_factor_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1, or -1"):
        load(tmp_path, GOOD.replace('"max.task.idle.ms" = -1', '"replication.factor" = 0'))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"])
def test_a_file_in_another_encoding_is_told_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "streams.toml"
    path.write_bytes(f"# k\xe4se\n{GOOD}".encode(encoding))
    with pytest.raises(ConfigError, match=r"is not TOML|not text in UTF-8|UTF-16") as raised:
        ProjectConfig.load(path, {"SECRET": "hidden"})
    assert "codec" not in str(raised.value)


def test_a_module_of_the_users_that_hides_the_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "riverrun.py").write_text("")
    (tmp_path / "topology.py").write_text("def build(builder): ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"riverrun\.py hides Riverrun"):
        load_attribute("topology:build")


def test_the_bound_of_inputs_since_a_gate_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD.replace(*bounded("0"))).app("delays").max_inputs_since_gate == 0
    assert load(tmp_path, GOOD).app("delays").max_inputs_since_gate is None


def test_a_gate_needs_expectations(tmp_path: Path) -> None:
    section = "[apps.delays]"
    gated = GOOD.replace(section, f"{section}\ngate = true", 1)
    found = load(tmp_path, gated if "quality" in GOOD else gated.replace(section, f'{section}\nquality = "a:b"', 1))
    assert found.app("delays").gate
    assert not load(tmp_path, GOOD).app("delays").gate
    for given, told in (
        ("gate = true", "quality, by which the gate would judge, is missing"),
        ('gate = "yes"', "gate"),
    ):
        text = f'[kafka]\n"bootstrap.servers" = "a:1"\n[apps.x]\ntopology = "a:b"\n{given}\n'
        with pytest.raises(ConfigError, match=told):
            load(tmp_path, text).app("x")


@pytest.mark.parametrize(
    "schedule", ["@hourly", "*/5 0-12 1,15 jan-mar MON", "0 0 L * *", "0 0 * * 1#2", "0 0 * * 7", "0 0 ? * * 30"]
)
def test_schedules_that_airflow_understands_pass(schedule: str) -> None:
    assert wrong_in_schedule(schedule) is None


@pytest.mark.parametrize(
    "schedule", ["", "* * * *", "60 * * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "a * * * *"]
)
def test_schedules_that_nobody_understands_do_not(schedule: str) -> None:
    assert wrong_in_schedule(schedule) is not None


def test_schedules_have_a_time_zone_that_exists(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).app("delays").schedule_timezone == "UTC"
    berlin = GOOD.replace("[apps.delays]", '[apps.delays]\nschedule_timezone = "Europe/Berlin"')
    assert load(tmp_path, berlin).app("delays").schedule_timezone == "Europe/Berlin"
    with pytest.raises(ConfigError, match="is 'Europe/Berlim', and this machine knows no such time zone"):
        load(tmp_path, berlin.replace("Berlin", "Berlim"))


def test_intervals_that_airflow_catches_up_on_begin_at_a_time_and_need_a_schedule(tmp_path: Path) -> None:
    daily = 'schedule = "@daily"\ncatchup_from = "2026-01-01"'
    project = '[kafka]\n"bootstrap.servers" = "h:1"\n[apps.clicks]\ntopology = "m:build"\n'
    assert load(tmp_path, project + daily).app("clicks").catchup_from == "2026-01-01"
    wrong = {"clicks.catchup_from is 'soon', which is not a time": daily.replace("2026-01-01", "soon")}
    for schedule in "", 'schedule = "@once"\n':
        with_schedule = daily.replace('schedule = "@daily"\n', schedule)
        wrong = {**wrong, f"catchup_from needs apps.clicks.schedule{'' if schedule else ','}": with_schedule}
    for message, text in wrong.items():
        with pytest.raises(ConfigError, match=message):
            load(tmp_path, project + text)


def settings(**given: Any) -> ProjectConfig:
    table = {"topology": "m:build", "config": {key.replace("_", "."): value for key, value in given.items()}}
    content = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "apps": {"clicks": table}}
    return ProjectConfig.read(Path("/project/streams.toml"), content, {})


LONG = "0123456789abcdef"


@pytest.mark.parametrize("length", [*range(1, 16), 16, 64])
@pytest.mark.parametrize("key", ["server_token", "server_read_token"])
def test_tokens_that_could_be_guessed_are_refused(key: str, length: int) -> None:
    token = "x" * length
    if length >= 16:
        assert getattr(settings(**{key: token}).app("clicks").streams, key) == token
        return
    with pytest.raises(ConfigError, match=f"has {length} characters, and a token has at least 16") as refused:
        settings(**{key: token}).app("clicks")
    assert "openssl rand" in (refused.value.hint or "")


@pytest.mark.parametrize("read", [LONG, f" {LONG}", f"{LONG}\n"])
def test_a_token_for_readers_is_not_that_of_operators(read: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.read\.token is equal to server\.token") as refused:
        settings(server_token=LONG, server_read_token=read).app("clicks")
    assert LONG not in str(refused.value)
    assert settings(server_token=LONG, server_read_token=LONG + "x").app("clicks").streams.server_token == LONG


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"key_location": "key.pem"}, "server.ssl.key.location is set, and server.ssl.certificate.location is not"),
        ({"key_password": "hunter2"}, "server.ssl.key.password is set, and server.ssl.certificate.location is not"),
        ({"key_location": "k.pem", "key_password": "x", "ca_location": "ca.pem"}, "server.ssl.key.location is set"),
        ({"certificate_location": "CERTIFICATE"}, "has no key"),
    ],
)
def test_a_key_and_a_certificate_belong_together(tmp_path: Path, given: dict[str, str], complaint: str) -> None:
    alone, both = tmp_path / "certificate.pem", tmp_path / "both.pem"
    alone.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    both.write_text(alone.read_text() + "-----BEGIN EC PRIVATE KEY-----\n-----END EC PRIVATE KEY-----\n")
    named = {f"server_ssl_{key}": str(alone) if value == "CERTIFICATE" else value for key, value in given.items()}
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        settings(**named).app("clicks")
    for fits in ({"certificate_location": str(both)}, {"certificate_location": str(alone), "key_location": "key.pem"}):
        settings(**{f"server_ssl_{key}": value for key, value in fits.items()}).app("clicks")
    settings(server_ssl_ca_location="ca.pem").app("clicks")
    settings(server_ssl_certificate_location="/elsewhere/tls.pem").app("clicks")  # it may be on another machine


@pytest.mark.parametrize("key", sorted(UNSAFE))
def test_properties_that_load_code_need_to_be_allowed_by_name(key: str) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", key: "x.so"}
    path = Path("/project/streams.toml")
    with pytest.raises(ConfigError, match="lets clients load code or run commands") as refused:
        ProjectConfig.read(path, {"kafka": kafka}, {})
    assert f'"unsafe.properties" = ["{key}"]' in (refused.value.hint or "")
    allowed = ProjectConfig.read(path, {"kafka": {**kafka, "unsafe.properties": [key]}}, {})
    assert allowed.kafka == kafka
    for prefix in ("consumer", "producer"):
        with pytest.raises(ConfigError, match="lets clients load code"):
            settings(**{f"{prefix}.{key}": "x"}).app("clicks")


@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 4000, "9" * 5000, "0x" + "f" * 20_000, "0o" + "7" * 400, "0b" + "1" * 2000]
)
@pytest.mark.parametrize(
    "place", ['"commit.interval.ms" = {}', '"user.x" = [[{}]]', '"user.x" = {{ a = {} }}', '"nothing" = {}']
)
def test_a_number_of_any_length_is_refused(tmp_path: Path, place: str, number: str) -> None:
    text = (
        f'[kafka]\n"bootstrap.servers" = "b:1"\n[apps.a]\ntopology = "m:f"\n[apps.a.config]\n{place.format(number)}\n'
    )
    (tmp_path / "streams.toml").write_text(text)
    with pytest.raises(ConfigError, match="more digits than are read") as raised:
        ProjectConfig.load(tmp_path / "streams.toml", {})
    assert len(str(raised.value)) < 1000


SETTINGS = {
    "application.server": "127.0.0.1:8080",
    "server.token": "a-long-random-token-of-operators",
    "server.read.token": "a-long-random-token-of-readers",
    "topic.segment.ms": "7",
}
NEEDS_A_CERTIFICATE = {"server.ssl.key.location", "server.ssl.key.password"}


@pytest.mark.parametrize("field", fields(StreamsConfig), ids=lambda field: field.name)
def test_each_setting_can_be_set_in_the_file(tmp_path: Path, field: Field[Any]) -> None:
    key = dotted(field.name)
    if key in PREFIXED:
        key = f"{key}.{'segment.ms' if key == 'topic' else 'fetch.max.bytes'}"
    default = ["abc"] if field.default == () else field.default
    value = SETTINGS.get(key, "/abc" if default in {MISSING, "", None} else default) if default != ["abc"] else default
    also = '"server.ssl.certificate.location" = "/tls/certificate.pem"\n' if key in NEEDS_A_CERTIFICATE else ""
    if key.endswith(("topic", "topic.name")):
        value = "letters"
    text = f'[apps.delays]\ntopology = "m:f"\n[apps.delays.config]\n{also}"{key}" = {json.dumps(value)}\n'
    streams = load(tmp_path, f'[kafka]\n"bootstrap.servers" = "b:1"\n{text}').app("delays").streams
    found = getattr(streams, field.name)
    assert (list(found.values()) if isinstance(found, dict) else found) in (value, [value], ("abc",))


@pytest.mark.parametrize("key", ["history.topic", "errors.dead.letter.queue.topic.name"])
@pytest.mark.parametrize("name", ["a b", "..", "ö", "a/b", "x" * 250])
def test_a_topic_of_a_setting_has_a_legal_name(tmp_path: Path, key: str, name: str) -> None:
    text = f'[kafka]\n"bootstrap.servers" = "b:1"\n[apps.a]\ntopology = "m:f"\n[apps.a.config]\n"{key}" = "{name}"\n'
    with pytest.raises(ConfigError, match=f"{key} is .* not the name of a topic"):
        load(tmp_path, text).app("a")


@pytest.mark.parametrize(
    "declared",
    [
        '[archives.a]\ntopics = ["t"]\nurl = "${EMPTY}"',
        '[exports.a]\ntopic = "t"\nformat = "parquet"\ntarget = "${EMPTY}"',
        '[imports.a]\ntopic = "t"\nformat = "csv"\nsource = "${EMPTY}"',
    ],
)
def test_a_place_whose_variable_is_empty_is_refused(tmp_path: Path, declared: str) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(f'[kafka]\n"bootstrap.servers" = "b:1"\n{declared}\n')
    project = ProjectConfig.load(path, {"EMPTY": ""})
    (found,) = (each for section in project.sections.values() for each in section.values())
    assert isinstance(found, ConfigError)


@pytest.mark.parametrize("word", ["zzz", "formt", ""])
@pytest.mark.parametrize("known", [["format", "target"], ["format", "format", "target"]])
def test_hints_list_no_word_twice(word: str, known: list[str]) -> None:
    for hint in (nearest(word, known), choices(word, known)):
        words = re.findall(r"[a-z]{5,}", re.sub(r"Did you mean.*", "", hint))
        assert len(words) == len({*words})
