"""Secrets stay out of messages."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.config.secrets import is_secret, redacted
from riverrun.errors import ConfigError
from riverrun.spark.databases import shown
from riverrun.spark.failures import cause_of, complaint, translated
from riverrun.transfers.jdbc import JdbcTarget

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
URLS = [
    "jdbc:sqlserver://db;user=sa;password=hunter2",
    "jdbc:sqlserver://db:1433;databaseName=x;user=sa;Password={a;hunter2};encrypt=true",
    "jdbc:postgresql://db/shop?user=ann&password=hunter2",
    "jdbc:postgresql://db/shop?sslpassword=hunter2&x=1",
    "jdbc:mysql://ann:hunter2@db:3306/shop",
    "jdbc:mysql://ann:hunter2@one@db/shop",
    "jdbc:oracle:thin:ann/hunter2@db:1521/shop",
    "jdbc:oracle:thin:ann/hunter2@//db:1521/shop",
    "jdbc:h2:mem:test;USER=sa;PWD=hunter2",
    "jdbc:db2://db:50000/shop:user=ann;password=hunter2;",
    "mongodb+srv://ann:hunter2@cluster.example/shop",
    "s3a://bucket/x?secret_key=hunter2",
    "abfss://c@a.dfs.core.windows.net/x?sas_token=hunter2",
]


@pytest.mark.parametrize("url", URLS)
def test_passwords_of_databases_addresses_are_in_no_message(url: str) -> None:
    trace = f"An error occurred\n: java.sql.SQLException: no connection to {url} (timeout)\n\tat x"
    texts = [
        redacted(f"No suitable driver for {url}, which was asked"),
        shown(url),
        translated(trace, "connect").message,
        cause_of(RuntimeError(f"SQLException: no connection to {url}")),
        complaint(RuntimeError(f"[FAILED] cannot read {url} (1)\nJVM stack trace")),
    ]
    with pytest.raises(ConfigError) as refused:
        JdbcTarget("t", {"url": url.replace("postgresql", "other")}, ("id",)).check()
    assert [text for text in (*texts, str(refused.value)) if "hunter2" in text] == []
    assert all(text.strip() for text in texts)


SECRET, TAIL = "hunter2", "Zw4Tail"
WORDS: list[str | tuple[str, ...]] = [
    *(
        "password",
        "passwd",
        "passphrase",
        "pass",
        "pwd",
        "pw",
        "secret",
        "token",
        "credential",
        "credentials",
        "sas",
        "sig",
        "jwt",
    ),
    *(
        ("api", "key"),
        ("access", "key"),
        ("private", "key"),
        ("account", "key"),
        ("encryption", "key"),
        ("secret", "key"),
    ),
    *(("db", "pass"), ("client", "secret"), ("auth", "token"), ("ssl", "key", "password"), ("sasl", "jaas", "config")),
    *(("aws", "secret", "access", "key"), ("basic", "auth", "user", "info"), ("ssl", "key", "pem"), ("sas", "token")),
]


def spelled(word: str | tuple[str, ...]) -> list[str]:
    """All usual spellings of a name."""
    parts = (word,) if isinstance(word, str) else word
    camel = parts[0] + "".join(part.title() for part in parts[1:])
    joined = [separator.join(parts) for separator in (".", "_", "-")]
    return list(dict.fromkeys([*joined, camel, camel[:1].upper() + camel[1:], "_".join(parts).upper()]))


NAMES = [name for word in WORDS for name in spelled(word)]
PREFIXES = ["", "spark.hadoop.fs.x.", "DB_", "x-"]
PLAIN = [
    "hunter2Zw4Tail",
    "hunter2/Zw4Tail",
    "hunter2@Zw4Tail",
    "hunter2%26Zw4Tail",
    "hunter2+Zw4Tail==",
    "hunter2:Zw4Tail",
    "hunter2#Zw4Tail",
]
"""Secrets that stand without quotes anywhere."""
ODD = [f"{SECRET}{odd}{TAIL}" for odd in [*"&;,)}]|<$!? ", "' ", "; x", "a b c", "\u00e4"]]
FORMS: dict[str, Callable[[str, str], str]] = {
    "a property": lambda name, value: f"{name}={value}",
    "a property with spaces": lambda name, value: f"bad setting: {name} = {value} (line 3)",
    "YAML": lambda name, value: f"kafka:\n  {name}: {value}\n  retries: 3",
    "an arrow of Scala": lambda name, value: f"Map({name} -> {value}, b -> c)",
    "a query": lambda name, value: (
        f"GET https://h:8080/x?a=1&{name}={value.replace('&', '%26').replace('#', '%23')}&b=2 failed"
    ),
    "a connection string": lambda name, value: f"Server=db,1433;User=ann;{name}={value};Encrypt=true",
    "a JDBC address in parentheses": lambda name, value: f"jdbc:mysql://(host=h,user=u,{name}={value})/x",
    "a log line": lambda name, value: f"2026-01-01 10:00:00 INFO client {{{name}={value}, retries=3}} started",
    "a shell's export": lambda name, value: f"export {name}={value} && run",
}
QUOTED: dict[str, Callable[[str, str], str]] = {
    "JSON": lambda name, value: json.dumps({"user": "ann", name: value, "retries": 3}),
    "JSON on lines": lambda name, value: json.dumps({name: value, "retries": 3}, indent=2),
    "JSON in JSON": lambda name, value: json.dumps({"body": json.dumps({name: value, "b": 1})}),
    "a dict of Python": lambda name, value: f"refused: { ({name: value, 'b': 1})!r}",
    "a pair of Python": lambda name, value: f"refused: {[(name, value), ('b', '1')]!r}",
    "JAAS": lambda name, value: f'PlainLoginModule required username="ann" {name}={json.dumps(value)};',
    "TOML": lambda name, value: f'"{name}" = {json.dumps(value)}',
    "XML": lambda name, value: f"<a><{name}>{value.replace('<', '&lt;')}</{name}><b>1</b></a>",
    "XML of Hadoop": lambda name, value: (
        f"<property><name>{name}</name><value>{value.replace(' ', '')}</value></property>"
    ),
    "an environment of Kubernetes": lambda name, value: json.dumps({"name": name, "value": value, "b": 1}),
    "braces of SQL Server": lambda name, value: (
        f"jdbc:sqlserver://db;{name}=" + "{" + value.replace("}", "}}") + "};encrypt=true"
    ),
    "an option": lambda name, value: f"run --{name} {value.replace(' ', '')} --verbose",
}
USERS = [
    "{u}:{s}@",
    ":{s}@",
    "{s}@",
    "{u}:{s}/slash@",
    "{u}:{s}@one@",
    "{u}:{s}?x@",
    "{u}:{s}#x@",
    "{u}:{s};x@",
    "{u}:12345{s}@",
]
SCHEMES = [
    "https",
    "redis",
    "mongodb+srv",
    "jdbc:mysql",
    "s3",
    "ftp",
    "kafka",
    "snowflake",
    "postgresql",
    "amqps",
    "git+https",
]
HEADERS = [
    "Authorization: Bearer {s}",
    "authorization: Basic {s}=",
    "Cookie: sid={s}; b={s}",
    "Proxy-Authorization: Digest {s}",
    "Set-Cookie: a={s}",
]


def leaks(text: str) -> list[str]:
    return [part for part in (SECRET, TAIL) if part in text]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_secrets_are_hidden_in_each_form_by_each_name(form: str, name: str) -> None:
    for prefix, value in itertools.product(PREFIXES, PLAIN):
        text = FORMS[form](prefix + name, value)
        assert leaks(redacted(text)) == [], text
        assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("form", QUOTED)
@pytest.mark.parametrize("name", NAMES)
def test_secrets_of_any_characters_are_hidden_where_they_are_quoted(form: str, name: str) -> None:
    for value in [*PLAIN, *ODD]:
        text = QUOTED[form](name, value)
        assert leaks(redacted(text)) == [], text
        if form.startswith("JSON") or form == "an environment of Kubernetes":
            assert json.loads(redacted(text)).keys() == json.loads(text).keys()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("user", USERS)
def test_users_in_urls_are_hidden(scheme: str, user: str) -> None:
    address = f"{scheme}://{user.format(u='ann', s=SECRET)}db.example:5432/shop"
    for text in (
        address,
        f"cannot reach {address}: timeout",
        json.dumps({"url": address}),
        f"({address})",
        f"a={address},b",
    ):
        assert leaks(redacted(text)) == [], text
        assert "db.example:5432/shop" in redacted(text), "the host can be read"


@pytest.mark.parametrize("header", HEADERS)
def test_headers_with_credentials_are_hidden(header: str) -> None:
    line = header.format(s=SECRET)
    for text in (
        line,
        f"GET / HTTP/1.1\r\n{line}\r\nHost: h",
        f"curl -H '{line}' h",
        json.dumps(dict([line.split(": ", 1)])),
    ):
        assert leaks(redacted(text)) == [], text


@pytest.mark.parametrize(
    "text",
    [
        "sent Bearer hunter2hunter2",
        "curl -u ann:hunter2 https://h",
        "mysql --password hunter2 shop",
        "ann:hunter2@db.example refused",
        "org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='hunter2';",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
        "the API key: hunter2",
        "secret access key = hunter2",
        "password:\thunter2",
        "{'tokens': 1, 'auth_token': b'hunter2'}",
        '{\\"password\\": \\"hunter2\\"}',
        "passwords[0]=hunter2",
        'password="hunter2',
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=core.windows.net",
        "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=hunter2=",
        "https://h/?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2&X-Amz-Security-Token=hunter2",
        "tool --password=hunter2 --token:hunter2 -secret=hunter2",
        "CREATE USER ann WITH PASSWORD 'hunter2'",
        "ALTER USER ann IDENTIFIED WITH mysql_native_password BY 'hunter2'",
        'login of ann with password "hunter2" was refused',
        "https://h/token?client_assertion=hunter2&X-Goog-Signature=hunter2",
        "npm_hunter2hunter2hunter2",
        "github_pat_hunter2hunter2hunter2",
        "SG.hunter2hunter2hunter2.hunter2hunter2hunter2",
        "sk_live_hunter2hunter2hunter2",
        "AIzahunter2hunter2hunter2",
        "back to https://h/?next=%2Fx%3Fpassword%3Dhunter2%26a%3Db",
        "tool --password\thunter2",
        "bearer=hunter2",
        "mysql -u ann -phunter2 shop",
        "mysqldump -h db -p'hunter2 hunter2' shop",
        "C:\\bin\\mysql.exe -phunter2",
        "mariadb-dump -phunter2 shop",
        "sshpass -phunter2 ssh db",
        "sshpass -p hunter2 ssh db",
        "redis-cli -h cache -a hunter2 ping",
        "sqlcmd -S db -U sa -P hunter2",
        "mongosh -u ann -p hunter2 db",
        "docker login -u ann -p hunter2 registry.example",
        "ldapsearch -D cn=ann -w hunter2",
        "ldapsearch -D cn=ann -whunter2",
        "mongodump -u ann -phunter2",
        "docker login -u ann -phunter2",
        "Command '['mysql', '-u', 'ann', '-phunter2', 'shop']' returned non-zero exit status 1.",
        "Command '['sshpass', '-p', 'hunter2', 'ssh', 'db']' died with <Signals.SIGKILL: 9>.",
        "Command '['redis-cli', '-h', 'cache', '-a', 'hunter2 hunter2', 'ping']' timed out after 5 seconds",
        '{"args": ["docker", "login", "-u", "ann", "-p", "hunter2"]}',
        '["C:\\\\bin\\\\sqlcmd.exe","-P","hunter2"]',
        "the password is hunter2",
        "Your API key is: hunter2.",
        "its passphrase was correct-hunter2-horse",
        "cannot open key.pem with passphrase hunter2",
        "with passphrase hunter2, which is wrong",
        "login with password hunter2 failed",
    ],
)
def test_further_forms_of_secrets_are_hidden(text: str) -> None:
    assert leaks(redacted(text)) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("next=%2Fx%3Fpassword%3Dhunter2%26a%3Db", "next=%2Fx%3Fpassword%3D***%26a%3Db"),
        ("jdbc%3Apassword%3Dhunter2%3Buser%3Dann", "jdbc%3Apassword%3D***%3Buser%3Dann"),
        ("q=%22password%3Dhunter2%22&a=b", "q=%22password%3D***%22&a=b"),
        ("password%3D%22hunter2%26hunter2%22%26a%3Db", "password%3D***%26a%3Db"),
        ("password%3Dhunter2%26hunter2 x", "password%3D*** x"),
        ("password%3D%22hunter2", "password%3D***"),
        ('password%3D"hunter2 hunter2" x', 'password%3D"***" x'),
        ("password=hunter2%26a%3Db", "password=***"),
    ],
)
def test_the_text_after_an_encoded_secret_is_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_what_is_no_secret_is_left_as_it_is() -> None:
    texts = [
        "Cannot look up topics at 127.0.0.1:9092, kafka:9092: clicks-0@12,clicks-1@7",
        "java.sql.SQLException: no such table: at 10:15:00 (x = 1; y = 2)",
        "jdbc:postgresql://db:5432/shop?user=ann&ssl=true",
        "s3a://bucket/a b@c/d:e",
        "abfss://container@account.dfs.core.windows.net/x",
        "http://127.0.0.1:8090/stores/clicks-per-user/ann@example.org",
        "https://registry.npmjs.org/@scope/package?x=1",
        "a run of ann@desk, since 2026-01-01 00:00:00+00:00",
        "run/ann@desk/1767225600000-c0ffee",
        "mongodb://one:27017,two:27017/shop?replicaSet=a",
        "http://[::1]:8090/stores",
        "Unexpected token: '}' at line 3, column 7",
        "max.tokens = 5; tokenizer = words; primary.key = id; key = 7; keys: 3; passed: 3, bypass=true",
        "key.serializer=LongSerializer, ssl.key.location=/etc/key.pem, password.file = /run/secrets/x",
        "Task 0_3 of clicks-v1: partition 3 at offset 12, monkey=1, compass: north",
        "commit took 12 ms; restore_ms=5; lag=0; sign: +1; signal: 15; passage=1; keyboard: us",
        "Set processing.exception.handler = continue, or correct the function.",
        "[2013-07-01T00:00:00Z, 2013-07-01T01:00:00Z): 1",
        "mailto:ann@example.org",
        "The gate does not pass: click-counts: it has rows",
        "A record that must pass: Not Found",
        "does not pass: x",
        "mysql -p shop; mysql -P 3306 shop; tar -px; nc -p9092; mysqld is on port 3306",
        "Command '['mysql', '-p', 'shop']' failed; ['mysql', '-P', '3306', 'shop']; ['mysql', '-p']",
        "the password is asked for, is not set, is missing, was wrong, is about to expire; the secret is mounted",
        "Wrong passphrase. A passphrase for key.pem is needed; the passphrase must be a text",
        "password authentication failed for user ann",
        "secret scope s1: the secret is stored in a file; secret orders-2 not found",
        "read --token-file first; --password is asked for",
        "Unsupported bearer: got basic",
        'bearer.auth.client.id=orders-app; bearer.auth.logical.cluster=lkc-1; {"scheme": "bearer", "bearerFormat": "JWT"}',
    ]
    assert [redacted(text) for text in texts] == texts


def test_pages_for_people_stay_readable() -> None:
    """Most lines that change are examples of settings with secrets."""
    pages = list((ROOT / "docs").rglob("*.md"))
    lines = [line for page in pages for line in page.read_text().splitlines() if line.strip()]
    changed = [line for line in lines if redacted(line) != line]
    assert len(lines) > 3_000
    assert len(changed) < len(lines) / 200, changed


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a ",
        "a:",
        "a=",
        "password=",
        '"',
        "'",
        "{",
        "[",
        "\\\\",
        "://",
        "a@",
        "x:y@",
        "<a>",
        "--a ",
        "basic ",
        "=(",
        "Bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "mysql -",
        "passphrase is ",
        "password a",
    ],
)
def test_long_texts_take_a_moment(part: str) -> None:
    text = part * (200_000 // len(part))
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 20, "it takes seconds, or minutes"


@given(st.text(max_size=200))
def test_any_text_can_be_redacted_twice(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("name", [prefix + name for prefix in PREFIXES for name in NAMES])
def test_names_of_secrets_are_known_in_each_spelling(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "key",
            "key.serializer",
            "primaryKey",
            "partition.key",
            "max.tokens",
            "tokenizer",
            "bypass",
            "compass",
            "passage",
        ),
        *(
            "spark.executor.memory",
            "ssl.key.location",
            "ssl.ca.location",
            "password.file",
            "sasl.mechanism",
            "sasl.username",
        ),
        *(
            "token.endpoint.url",
            "monkey",
            "keyboard",
            "signal",
            "design",
            "group.id",
            "auto.offset.reset",
            "assassin",
            "",
        ),
        *(
            "bearer.auth.client.id",
            "bearer.auth.logical.cluster",
            "bearer.auth.identity.pool.id",
            "bearer.auth.scope",
            "bearerFormat",
            "Unsupported bearer",
            "missing bearer",
        ),
    ],
)
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net",
        "spark.ssl.keyStorePassword",
        "spark.kubernetes.authenticate.submission.oauthToken",
        "spark.authenticate.secret",
    ],
)
def test_settings_with_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret(name)
