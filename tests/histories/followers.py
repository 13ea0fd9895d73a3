"""Followers of exports: tables of a database that are to have exactly what is public, and their check."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun.project.transfers import export
from tests.histories.history import WrongError
from tests.histories.versions import COUNTS, SEEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.simulation.cluster import Cluster
    from tests.histories.watch import Watch

_CATCH_UP = timedelta(minutes=30)
_PROJECT = """
[exports.{counts}]
topic = "{counts}"
mode = "upsert"
key = ["page"]
key_serde = "string"
value_serde = "long"
target = "sqlite:///{database}"
table = "{counts}"
"consumer.session.timeout.ms" = 10000

[exports.{seen}]
topic = "{seen}"
key_serde = "string"
value_serde = "string"
target = "sqlite:///{database}"
table = "{seen}"
"consumer.session.timeout.ms" = 10000
"""


@dataclass(frozen=True)
class Database:
    """A database with a table that replaces rows by key, and one that only gets more."""

    cluster: Cluster
    directory: Path

    def follower(self, topic: str, *, until_caught_up: bool = False) -> Callable[[], object]:
        """Return what a process that follows a topic calls."""
        file = self.directory / "streams.toml"
        file.write_text(_PROJECT.format(counts=COUNTS, seen=SEEN, database=self._file))
        followed = export(self.cluster.project(file), topic)
        return lambda: followed.follow(until_caught_up=until_caught_up)

    def check(self, watch: Watch) -> None:
        """Catch up, and check that the tables have what is public."""
        for topic in (COUNTS, SEEN):
            self.cluster.start(f"catching-up-{topic}", self.follower(topic, until_caught_up=True)).join(_CATCH_UP)
        counts: dict[str, int] = dict(self._rows(f"SELECT page, value FROM {COUNTS}"))  # noqa: S608 - a constant
        wanted = {key: count for key, (_, count) in watch.rows[COUNTS].items()}
        if counts != wanted:
            raise WrongError("the database has the counts", counts, "and public are", wanted)
        seen = Counter(int(text.split()[2]) for (text,) in self._rows(f"SELECT value FROM {SEEN}"))  # noqa: S608 - as above
        if seen != watch.logs[SEEN]:
            raise WrongError("the database has too many", seen - watch.logs[SEEN], "and lacks", watch.logs[SEEN] - seen)

    @property
    def _file(self) -> Path:
        return self.directory / "followed.db"

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute(query).fetchall()
