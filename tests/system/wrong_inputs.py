"""Wrong inputs of people: files, settings, arguments, and what a clear answer to each names.

A case is its name, the content of `streams.toml` (None for no file), the arguments of the command, and a pattern that the
answer must match: the culprit, by the name that the person knows.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

SERVER = "127.0.0.1:24000"
"""Stands for the broker of the tests."""
BASE = f'[kafka]\n"bootstrap.servers" = "{SERVER}"\n[apps.clicks]\ntopology = "my_module:build"\n'
CONFIG = f"{BASE}[apps.clicks.config]\n"
DESCRIBE = ("describe", "clicks", "--version", "v1")
STATUS = ("status", "clicks")
WRITE = ("topic", "write")


class WrongInput(NamedTuple):
    """One wrong input."""

    name: str
    toml: str | bytes | None
    command: tuple[str, ...]
    names: str


def kafka(line: str) -> str:
    return BASE.replace(f'{SERVER}"\n', f'{SERVER}"\n{line}\n')


def setting(line: str) -> str:
    return f"{CONFIG}{line}\n"


def described(name: str, toml: str | bytes | None, names: str) -> WrongInput:
    return WrongInput(name, toml, DESCRIBE, names)


def set_to(key: str, *values: str, names: str | None = None) -> list[WrongInput]:
    """A setting of an application with each of these values, in TOML."""
    return [described(f"{key} = {v[:40]}", setting(f'"{key}" = {v}'), names or key.replace(".", r"\.")) for v in values]


def brokers(*lists: str) -> list[WrongInput]:
    text = BASE.replace(SERVER, "{}")
    return [WrongInput(f"brokers {each!r}", text.format(each), STATUS, r"bootstrap\.servers|reached") for each in lists]


def command(line: str, names: str, toml: str | None = BASE) -> WrongInput:
    return WrongInput(line[:60], toml, tuple(line.split(" ")), names)


def topology(reference: str, names: str) -> WrongInput:
    return described(f"topology {reference}", BASE.replace("my_module:build", reference), names)


FILES = {
    "one.json": b'{"a":"x"}\n',
    "empty.sql": b"",
    "binary.sql": bytes(range(256)),
    "latin.sql": b"-- k\xe4se\nCREATE STREAM a (b STRING) WITH (KAFKA_TOPIC='a', VALUE_FORMAT='JSON');",
    "typo.sql": b"CREATE STREM a (b STRING);",
    "binary": bytes(range(256)) * 8,
    "m_exit.py": b"import sys\ndef build(b): sys.exit(3)\n",
    "m_exit0.py": b"import sys\nsys.exit(0)\n",
    "m_none.py": b"def build(b): pass\n",
    "m_recursive.py": b"def build(b): return build(b)\n",
    "m_syntax.py": b"def build(b) return 1\n",
    "m_bytes.py": b"\xff\xfe\x00",
    "m_raises.py": b"def build(b): raise ValueError('bad plan')\n",
    "m_latin.py": b"# k\xe4se\ndef build(b): pass\n",
    "my_module.py": b"""
from datetime import timedelta
from riverrun import JSON, LONG, STRING, Consumed, Materialized, Produced, StreamsBuilder, TimeWindows, Topology, windowed

def build(builder: StreamsBuilder) -> Topology:
    windows = TimeWindows.of(timedelta(minutes=5), grace=timedelta(minutes=1))
    grouped = builder.stream("clicks", Consumed(STRING, JSON)).group_by_key()
    counts = grouped.windowed_by(windows).count(Materialized(name="clicks-per-user"))
    counts.to_stream().to("click-counts", Produced(windowed(STRING), LONG))
    return builder.build()
""",
}
"""Files in the directory of each case."""

TOML = [
    described("[logging] unknown key", f"{BASE}[logging]\nhandler = {{}}\n", "Did you mean .handlers"),
    described(
        "[logging] no class", f"{BASE}[logging.handlers.x]\nclass = 'no.Such'\n", r"\[logging\].*'x'.*dictConfig"
    ),
    described("utf-16", BASE.encode("utf-16"), "UTF-16"),
    described("latin-1", f"# käse\n{BASE}".encode("latin-1"), "UTF-8"),
    described("NUL", f"{BASE}\0", "not TOML"),
    described("a key twice", f'{BASE}topology = "x:y"\n', "not TOML"),
    described("nested deeply", f"a = {'[' * 3000}{']' * 3000}", "nested"),
    described("dotted key", BASE.replace('"bootstrap.servers"', "bootstrap.servers"), "quoted"),
    described("kafka is an array", "kafka = []\n", "kafka is"),
    described("kafka is a number", "kafka = 5\n", "kafka is 5"),
    described("[[apps]]", f'[kafka]\n"bootstrap.servers"="{SERVER}"\n[[apps]]\nname="x"\n', "apps is"),
    described(
        "apps.clicks is a text", f'[kafka]\n"bootstrap.servers"="{SERVER}"\n[apps]\nclicks="a:b"\n', r"apps\.clicks"
    ),
    described("topology is an array", BASE.replace('"my_module:build"', '["my_module:build"]'), "topology"),
    described("topology is missing", BASE.replace('topology = "my_module:build"', ""), "topology"),
    described("topolgy", BASE.replace("topology", "topolgy"), "topolgy.*topology"),
    *(
        described(f"version {v!r}", f'{BASE}version = "{v}"\n', "version")
        for v in ("", "..", "a/b", "a b", "ä", "a\\u0000")
    ),
    described("versions has the live one", f'{BASE}version="v1"\n[apps.clicks.versions]\nv1="m:o"\n', "declared twice"),
    *(
        described(f"schedule {s!r}", f'{BASE}schedule = "{s}"\n', "schedule")
        for s in ("every day", "61 * * * *", "0 0 31 2 *", "0 0 30 2 *", "@dayly", "", "* * * *", "0 0 * * 9")
    ),
    described("schedule is a number", f"{BASE}schedule = 5\n", "schedule"),
    described("unset secret", kafka('"sasl.password" = "${NOT_SET}"'), "NOT_SET"),
    described("spark master", f"{BASE}[spark]\nmaster = 5\n", "master"),
    described("spark typo", f'{BASE}[spark]\n"sparks.x" = "y"\n', r"sparks\.x"),
    described("registry without url", f"{BASE}[schema_registry]\ntimeout = 3\n", "url"),
    described("registry of a file", f'{BASE}[schema_registry]\nurl = "file:///etc/passwd"\n', "url"),
    described("no file", None, "streams.toml"),
    described("empty file", "", r"bootstrap\.servers"),
    *(
        WrongInput(
            f"app name {n!r}", BASE.replace("apps.clicks", f'apps."{n}"'), ("describe", n, "--version", "v1"), "name"
        )
        for n in ("..", "a" * 300, "käse", "a b", "a/b")
    ),
]
SETTINGS = [
    *set_to(
        "commit.interval.ms", "99999999999999999999", "true", "inf", "1.5", "2026-01-01", '"5"', "-1", "[]", "{a = 1}"
    ),
    *set_to("num.stream.threads", "0", "-1", "100000", '"two"'),
    *set_to("num.standby.replicas", "-1", "100000"),
    *set_to("replication.factor", "0", "-5", "70000"),
    *set_to("statestore.cache.max.bytes", "-1", '"1G"'),
    *set_to("processing.guarantee", '"exactly_once_v3"', "5", '""', '["exactly_once_v2"]'),
    *set_to("num.stream.thread", "2", names="Did you mean 'num.stream.threads'"),
    *set_to("state.dir", '""', "5", '"a\\u0000b"', '"$HOME/x"', '"~no_such_user/x"'),
    *set_to("server.token", '"${X:-y}"', '"${NOPE}"', '"${file:/nope}"', '"${file:/etc}"', '"${file:tok}"', "12345"),
    *set_to(
        "application.server",
        '"http://127.0.0.1:1"',
        '"127.0.0.1"',
        '"127.0.0.1:70000"',
        '"256.1.1.1:80"',
        '"a:b:c"',
        "5",
    ),
    *set_to("server.allowed.hosts", '["*"]', '"a"', "[5]", '["http://a"]'),
    *set_to("deserialization.exception.handler", '"log-and-continu"', "5"),
    *set_to("default.timestamp.extractor", '"x"', "5"),
    *set_to("snapshot.keep", "0", '"all"'),
    *set_to("auto.offset.reset", '"newest"', "5"),
    *set_to("topic.retention.sm", "5"),
    *set_to("consumer.group.id", '"mine"'),
    *set_to("producer.transactional.id", '"mine"'),
    *(
        described(f"kafka {line[:40]}", kafka(line), names)
        for line, names in (
            ('"client.id" = ["a"]', r"client\.id"),
            ('"client.id" = {a = 1}', r"client\.id"),
            ('"group.id" = "x"', r"group\.id"),
            ('"sasl.password" = "$HOME"', r"\$HOME"),
            ('"ssl.ca.location" = "a\\u0000b"', "NUL"),
            ('"sasl.mechanism" = "OAUTHBEARER"', "oauth_cb"),
            ('"oauth_cb" = "m_raises:build"', "OAUTHBEARER"),
        )
    ),
]
BROKERS = [
    *brokers(
        "", ",,", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:-1", "http://127.0.0.1:24000", "127.0.0.1:70000", "127.0.0.1:1"
    ),
    *brokers("no.such.host.invalid:24000", "[::1]:1", "a b:1"),
    *(
        WrongInput(
            f"tokens of {code}", kafka(f'"sasl.mechanism" = "OAUTHBEARER"\n"oauth_cb" = "{code}"'), STATUS, names
        )
        for code, names in (
            ("no_such:token", "no_such"),
            ("m_raises:build", "bad plan"),
            ("m_none:build", "must return"),
        )
    ),
    WrongInput("TLS to a plain port", kafka('"security.protocol" = "SSL"'), STATUS, r"security\.protocol"),
    WrongInput("unknown protocol", kafka('"security.protocol" = "SLS"'), STATUS, r"security\.protocol"),
    WrongInput("a number is a text", kafka('"fetch.max.bytes" = "x"'), STATUS, r"fetch\.max\.bytes"),
    WrongInput("unknown property", kafka('"fetch.max.byte" = 5'), STATUS, r"fetch\.max\.byte"),
    WrongInput(
        "missing certificates",
        kafka('"security.protocol" = "SSL"\n"ssl.ca.location" = "/nope.pem"'),
        STATUS,
        r"nope\.pem",
    ),
]
TOPOLOGIES = [
    topology("m_exit:build", "m_exit.*SystemExit"),
    topology("m_exit0:build", "m_exit0.*SystemExit"),
    topology("m_none:build", "returned None"),
    topology("m_recursive:build", "RecursionError"),
    topology("m_syntax:build", r"m_syntax\.py, line 1"),
    topology("m_bytes:build", "m_bytes"),
    topology("m_latin:build", "m_latin"),
    topology("m_raises:build", "bad plan"),
    topology("my_module:STRING", "Serde, not a function"),
    topology("my_module:bild", "bild"),
    topology("my_modul:build", "my_modul'"),
    topology("my_module.build", "module:attribute"),
    topology("os:getcwd", "os:getcwd"),
    topology("nope.sql", r"nope\.sql"),
    topology("empty.sql", r"empty\.sql"),
    topology("binary.sql", r"binary\.sql"),
    topology("latin.sql", r"latin\.sql.*line 1"),
    topology("typo.sql", r"STREM.*typo\.sql:1:8"),
    topology("/etc/passwd", "module:attribute"),
]
COMMANDS = [
    WrongInput("--config is a directory", BASE, ("--config", ".", *DESCRIBE), "directory"),
    WrongInput("--config is missing", BASE, ("--config", "/nope/x.toml", *DESCRIBE), r"/nope/x\.toml"),
    WrongInput("--config is empty", BASE, ("--config", "", *DESCRIBE), "cannot be read|no "),
    command("describe", "app"),
    command("describe click", "'clicks'"),
    command("describe clicks --version v9", "v9"),
    command("describe clicks --format jpg", "jpg"),
    command("wroker", "worker"),
    command("worker clicks --threads 0", "threads"),
    command("worker clicks --threads two", "threads"),
    command("worker clicks --threads 1000000000", "threads"),
    command("worker clicks --state-dir one.json", r"one\.json"),
    command("worker clicks --state-dir /proc/x", "/proc/x"),
    command("worker clicks --server 0.0.0.0:25052", "token"),
    command("worker clicks --server 256.1.1.1:80", r"256\.1\.1\.1"),
    command("worker clicks --server a:b:c", "a:b:c"),
    command("worker clicks --in-process --threads 2", "--threads"),
    command("dev click", "'clicks'"),
    command("dev clicks --version v9", "v9"),
    command("dev clicks --tests nope", "nope"),
    command("worker clicks --instances 2", "--instances"),
    command("scale clicks -- -1", "-1|threads"),
    command("scale clicks 2 --server 127.0.0.1:1", r"127\.0\.0\.1:1"),
    command("status clicks --server http://127.0.0.1:25000/", "URL"),
    command(f"status clicks --server {SERVER}", "does not answer"),
    command("skip clicks x", "'x'"),
    command("skip clicks foo-0@1", "foo-0"),
    command("skip clicks clicks-0@-1", "clicks-0@-1"),
    command("skip clicks clicks-0@999", "clicks-0"),
    command("run clicks --to yesterday", "yesterday"),
    command("run clicks --from clicks-0@x", "clicks-0@x"),
    command("run clicks --max-records-per-slice 0", "slice"),
    command("lag click", "clicks"),
    command("reset clicks", "--yes"),
    command("topic create x --partitions 0", "partitions"),
    command("topic create x --partitions 1000000000", "partitions"),
    command("topic create x --replication-factor 0", "replica"),
    command("topic create x -c retention.ms=x", r"retention\.ms|create"),
    command("topic create x -c nonsense", "name=value"),
    WrongInput("topic create 'a b'", BASE, ("topic", "create", "a b"), "legal"),
    command("topic create ..", "legal"),
    command(f"topic create {'a' * 300}", "legal"),
    command("topic create clicks --partitions 7", "4 partitions, not 7"),
    command("topic read nope", "nope"),
    command("topic read clicks --value-serde jsn", "jsn"),
    command("topic read clicks --from somewhere", "somewhere"),
    command("topic read __consumer_offsets --limit 1 --app nope", "nope"),
    command("topic write nope one.json", "nope"),
    command("topic write clicks nope.txt", r"nope\.txt"),
    command("topic write clicks .", "directory"),
    command("topic write clicks binary", "Line 1 cannot be written"),
    command("topic write __consumer_offsets one.json", "__consumer_offsets"),
    command("topic write clicks-v1-counts-changelog one.json", "clicks-v1-counts-changelog"),
    command("topic write clicks one.json --key nope", "nope"),
    command("topic write clicks one.json --timestamp a", "time"),
    WrongInput("empty separator", BASE, (*WRITE, "clicks", "one.json", "--separator", ""), "separator"),
    command("release plan clicks --to v7", "v7"),
    command("release plan clicks --to v1", "v1"),
    command("release promote clicks", "promote"),
    command("release rollback clicks", "no release"),
    command("release cut clicks", "no release"),
    command("release approve clicks", "release|approve|verdict"),
    *(
        command(f"init {n}", "name|module")
        for n in ("../x", "Foo", "class", "json", "riverrun", "a" * 300, "tests", "pandas")
    ),
    WrongInput("init ''", None, ("init", ""), "name"),
    WrongInput("init with a line end", None, ("init", "a\nb"), "name"),
    command("init okname --directory .", "exists"),
    command("init okname --directory /proc/x", "/proc/x"),
    command("init okname --directory my_module.py/x", r"my_module\.py/x"),
    command("broker start --port 70000", "port"),
    command("--home my_module.py broker start --port 24100", r"my_module\.py"),
    command("--home /proc/x broker start --port 24100", "/proc/x"),
    command("sql clicks -e SHOW", "not a file of statements"),
    command("console", "server|token|address", f'{BASE}[console]\n"application.server" = "0.0.0.0:25051"\n'),
    command("console", "port", f'{BASE}[console]\n"application.server" = "x"\n'),
    command("import one.json clicks --format json --package com.nope:x:1", r"com\.nope#x;1: not found.*--package"),
    command("snapshot clicks", r"snapshot\.url|snapshot"),
]
VALUES, OTHERS = "misfit-values", "misfit-bytes"
"""Topics of exports that do not fit: JSON objects like `VALUE`, and bytes that are no text."""
VALUE = {"a": 1, "b": "a long text", "c": {"d": 1}, "e": 99_999_999_999}
DATABASE = "--format jdbc --option url=jdbc:h2:./misfit --package com.h2database:h2:2.3.232"


def export(arguments: str, names: str = "", topic: str = VALUES) -> WrongInput:
    """An export under a name of its own, to a target of its own if that is `out`; `names` is empty for one that fits."""
    own = f"n{zlib.crc32(f'{topic} {arguments}'.encode())}"
    arguments = re.sub("^out ", f"out-{own} ", arguments)
    line, quoted, schema = arguments.partition(" --schema ")
    command = ("export", topic, *line.split(" "), "--name", own, *((quoted.strip(), schema) if quoted else ()))
    return WrongInput(f"export {arguments}"[:100], BASE, command, names)


FITTING_EXPORTS = [
    export(f"numbers {DATABASE} --schema a int"),
    export(f"narrow {DATABASE} --schema a int, b string"),
    export("there --format parquet --schema a int"),
    export("there_too --format json"),
    export("bytes --format parquet --binary", topic=OTHERS),
]
"""What is there before: tables, directories, and sessions that have written something."""
EXPORTS = [
    *(
        export(f"{kind} --format {kind} --schema c struct<d: int>", f"{kind} target {kind} cannot be written.*--schema")
        for kind in ("csv", "text")
    ),
    export("text --format text", "text target text cannot be written.*_timestamp"),
    *(
        export(
            f"out_{number} --format {kind} --schema {schema}", f"does not fit the schema {re.escape(schema)}.*offset 0"
        )
        for number, (kind, schema) in enumerate(
            [("parquet", "b int"), ("json", "e int"), ("csv", "b double"), ("orc", "b timestamp")]
        )
    ),
    *(
        export(f"out --format {kind} --schema a int, A int", "cannot be written.*COLUMN_ALREADY_EXISTS")
        for kind in ("parquet", "json", "orc")
    ),
    export("out --format parquet --schema a interval", "cannot be written.*--schema"),
    export("out --format parquet --schema _key string", "cannot be written.*_key"),
    export("one.json --format parquet", r"one\.json"),
    export("one.json/below --format csv", r"one\.json/below"),
    export("/proc/x --format json", "/proc/x"),
    export("nope://x/y --format json", "nope://x/y"),
    export(f"{'a' * 300} --format json", "a{300}"),
    export("out --format parquet --option compression=zipp", "compression.*zipp|zipp"),
    export("out --format csv --option encoding=nope", "nope"),
    export("out --format csv --option timestampFormat=nonsense", "week-based pattern"),
    export("out --format avro", "avro"),
    export("out --format rate", "rate"),
    export("out --format com.nope.Format", r"com\.nope\.Format"),
    export("out --format json", "misfit-bytes, partition 0, offset 0.*--binary", OTHERS),
    export("out --format csv --binary", "csv cannot hold bytes.*--format parquet", OTHERS),
    export(f"numbers {DATABASE} --schema a string, e bigint", "misfit-values for table numbers: .*e.*not found"),
    export(f"narrow {DATABASE} --schema a string, b struct<d: int>", "struct"),
    export(f"nope.numbers {DATABASE}", "target nope.numbers: .*NOPE.*not found$"),
    export("t --format jdbc --option url=jdbc:postgresql://127.0.0.1:1/x", "127.0.0.1:1/x.*--package"),
    export("t --format jdbc --option url=jdbc:nope:x", "jdbc:nope:x.*--package"),
    export("t --format jdbc", "url"),
]
"""Exports that do not fit their targets; each needs Spark."""
ALL = [*TOML, *SETTINGS, *BROKERS, *TOPOLOGIES, *COMMANDS]
