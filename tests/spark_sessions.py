"""Spark sessions of tests that cannot go on with the one that others have left in their process."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from riverrun.spark.java import classes_archive
from riverrun.spark.session import on_demand, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 60


def own_session(**options: Any) -> Any:
    """The session of this process. Its Java starts as that of commands does, with an archive of its classes."""
    return spark_session(archive=classes_archive(os.environ), **options)


AS_COMMANDS_DO = on_demand(own_session, None, {})
"""Lets a run choose its engine as commands do: a few records are processed without Spark."""

_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""pyspark leaves it behind where a server's session was, and refuses all others then."""


@contextmanager
def session_with(package: str) -> Iterator[Any]:
    """A session of this process with a Java library. These are fetched when the JVM starts, which outlives its sessions."""
    end_jvm()
    session = own_session(packages=[package])
    yield session
    session.stop()


@contextmanager
def session_of(server: str) -> Iterator[Any]:
    """A session of a Spark Connect server. A process has either this one or one of its own."""
    end_jvm()
    session = spark_session(server)
    yield session
    session.stop()
    os.environ.pop(_CONNECT_MODE, None)


@contextmanager
def new_session_if_any() -> Iterator[None]:
    """A session that begins now has the search path of now, for its executors. It ends with this context."""
    _stop_active()
    yield
    _stop_active()


def _stop_active() -> None:
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


def end_jvm() -> None:
    """End the session that other tests have left, and its JVM."""
    _stop_active()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # that ends it
        gateway.proc.wait(_SECONDS)
        SparkContext._gateway = SparkContext._jvm = None
