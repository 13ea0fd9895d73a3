"""The windowed count in Spark Structured Streaming: `transformWithState` in Python, state in RocksDB, until SIGTERM.

It never drops the state of windows that are over. All else of the count is done in Java.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE_MS = 60_000
_VIEW = "id LONG, user STRING, page STRING, millis LONG, ok BOOLEAN"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Count(StatefulProcessor):  # type: ignore[misc] # Spark asks for its own class
    """Counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - as Spark calls it
        known = self._count.get()
        count = (known[0] if known else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(user=key[0], start=key[1], n=count)

    def close(self) -> None:
        """Do nothing."""


def main(servers: str, connector: str, state: str, per_trigger: str) -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    os.environ["PYSPARK_PYTHON"] = sys.executable  # a setting would not reach the process that sets up state
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, Path(connector).glob("*.jar"))))
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        records = kafka.option("subscribe", os.environ["BENCH_INPUT"]).option("startingOffsets", "earliest")
        views = records.option("maxOffsetsPerTrigger", int(per_trigger)).load()
        windows = views.select(
            expr(f"from_json(CAST(value AS STRING), '{_VIEW}').user AS user"),
            expr(f"unix_millis(timestamp) DIV {MINUTE_MS} * {MINUTE_MS} AS start"),
        )
        counts = windows.groupBy("user", "start").transformWithState(
            Count(), "user STRING, start LONG, n LONG", "Update", "None"
        )
        rows = counts.select(
            expr("concat(encode(user, 'UTF-8'), unhex(lpad(hex(start), 16, '0'))) AS key"),
            expr("unhex(lpad(hex(n), 16, '0')) AS value"),
        )
        target = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).outputMode("update")
        target = target.option("topic", os.environ["BENCH_OUTPUT"]).option("checkpointLocation", state)
        target.start().awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
