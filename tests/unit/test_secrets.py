"""Secrets stay out of messages."""

from __future__ import annotations

import pytest

from riverrun.config.secrets import is_secret, redacted
from riverrun.errors import ConfigError
from riverrun.spark.engine.databases import shown
from riverrun.spark.engine.failures import cause_of, complaint, translated
from riverrun.transfers.exporting.jdbc import JdbcTarget

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
    told = [
        redacted(f"No suitable driver for {url}, which was asked"),
        shown(url),
        translated(trace, "connect").message,
        cause_of(RuntimeError(f"SQLException: no connection to {url}")),
        complaint(RuntimeError(f"[FAILED] cannot read {url} (1)\nJVM stack trace")),
    ]
    with pytest.raises(ConfigError) as refused:
        JdbcTarget("t", {"url": url.replace("postgresql", "other")}, ("id",)).check()
    assert [text for text in (*told, str(refused.value)) if "hunter2" in text] == []
    assert all(text.strip() for text in told)


def test_what_is_no_secret_is_left_as_it_is() -> None:
    texts = [
        "Cannot look up topics at 127.0.0.1:9092, kafka:9092: clicks-0@12,clicks-1@7",
        "java.sql.SQLException: no such table: at 10:15:00 (x = 1; y = 2)",
        "jdbc:postgresql://db:5432/shop?user=ann&ssl=true",
        "s3a://bucket/a b@c/d:e",
    ]
    assert [redacted(text) for text in texts] == texts


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
