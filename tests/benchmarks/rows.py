"""The rows: sides and their tasks. Everything else in this directory follows from these declarations."""

from __future__ import annotations

from dataclasses import dataclass, replace

JSON, AVRO, PROTOBUF, JSON_SCHEMA = "JSON", "Avro", "Protobuf", "JSON Schema"
WITH_SCHEMAS = (AVRO, PROTOBUF, JSON_SCHEMA)
"""Formats whose schemas are in a registry."""
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
NO_BROKER = "in memory"
"""No guarantee: rows of tasks that commit nowhere."""
JAVA, RIVERRUN, SPARK, BARE, QUIX = "Java", "Riverrun", "Riverrun on Spark", "bare loop", "quixstreams"
SQL = "Riverrun in SQL"
JAVA_SMALL = "Java -Xmx256m"
"""With so small a heap; by default it takes what it likes, up to a quarter of the machine."""
STRUCTURED, PATHWAY = "Spark Structured Streaming", "Pathway"
UNCOMMITTED = (STRUCTURED, PATHWAY)
"""Sides that commit no offsets: what they are done with is seen from what they publish."""
TOPIC, ARCHIVE = "topic", "archive"
"""The sides of a reader: one process reads the records of ranges from the topic, or from its archive."""
COMPUTED, CARRIED = "computed", "carried"
"""The sides of a release: the new version computes everything, or takes the state of the live one over."""
CALLED, FUSED = "called", "fused"
"""A task whose operators call each other, and one with generated functions."""
FEW, SOME, MANY, MOST = 1_000, 10_000, 1_000_000, 5_000_000
"""Numbers of keys; of fewer records than keys, each has its own."""
FEW_GATED, GATED_PER_RECORD = 50_000, 5
"""Rows that a gate judges: so many, and so many per record of the other rows' inputs."""
PARTITIONS = 4
PER_TRIGGER = 100_000
"""Records of a batch of Spark Structured Streaming."""


@dataclass(frozen=True)
class Row:
    """One measurement, taken of each side under each guarantee.

    Args:
        name: Its name in the report.
        kind: How it is measured: a key of `report.KINDS` and `laboratory.MEASURE`.
        topology: The topology: its names in topologies.py, Bench.java, and of the scripts of other sides.
        text: Describes it in the report; empty if its name says all.
        sides: The sides that take part; ratios are to the first.
        keys: How many users the input has.
        partitions: How many the input and the output have.
        per_second: How many records come in a second; 0 if all of them are there from the beginning.
        cache: Whether stores have one (of the default size).
        threads: Stream threads; Riverrun's are processes.
        in_memory: Whether stores are kept in memory rather than in RocksDB.
        snapshots: Whether bounded runs publish snapshots.
        fault: The process that dies while two instances are at work: `instance`, one of them, or `broker`; empty for none.
        standbys: How many copies of each task's state other instances keep.
        released: Whether another version takes its place and is taken back, while records keep coming.
        guarantees: The guarantees measured.
    """

    name: str
    kind: str
    topology: str
    text: str
    sides: tuple[str, ...] = (JAVA, RIVERRUN)
    keys: int = FEW
    partitions: int = PARTITIONS
    per_second: int = 0
    cache: bool = True
    threads: int = 1
    in_memory: bool = False
    snapshots: bool = False
    fault: str = ""
    standbys: int = 0
    released: bool = False
    guarantees: tuple[str, ...] = (EXACTLY_ONCE, AT_LEAST_ONCE)

    @property
    def work(self) -> Row:
        """The row without its words and sides. Rows of equal work are measured together, so a side has one figure in all."""
        return replace(self, name="", text="", sides=(), guarantees=())


_COUNT = "JSON to objects, count per key and minute, to a topic"
_SUM = "JSON to objects, sum per key in a table, to a topic"
_JOIN = "JSON to objects, join each with its user's row of a table, objects to JSON, to a topic"
_REPARTITION = "JSON to objects, by page through a repartition topic, count per page, to a topic"
_SESSIONS = "JSON to objects, count per session of a user (gap of a second), to a topic"
_PAIRS = "JSON to objects, failed views joined with successful ones of their user within a second, objects to JSON, to a topic"
_FOREIGN = "JSON to objects, last view of each user joined by a foreign key with a row of another table, to a topic"
_CLOSED = "JSON to objects, count per key and minute, suppressed until the minute is over, to a topic"
_STATELESS = "JSON to objects, filter (90 % stay), map, objects to JSON, to a topic"
_UNCACHED = "without a cache: every update is forwarded, and goes to the changelog and the output"
_KILLED = "One of two instances of table-sum is killed"
_ENGINES = f"""Spark Structured Streaming (`transformWithState` in Python) takes {PER_TRIGGER:,} records at a time, on
  two cores. Pathway has one thread, and keeps its state on disk. Both write to Kafka at least once, and commit no offsets:
  they are done with the records that the counts in their output tell of."""
_CHANGELOG = "the local state is deleted, and made again from the changelog of"


def _from_scratch(keys: int, suffix: str) -> tuple[Row, ...]:
    topologies = {"windowed-count": _COUNT, "table-sum": _SUM, "join": _JOIN}
    if keys == FEW:  # its keys are pages, always as many
        topologies["repartition-count"] = _REPARTITION
    return tuple(
        Row(f"{name} from scratch{suffix}", "bounded", name, f"{text}{suffix}.", (JAVA, SPARK), keys=keys, threads=2)
        for name, text in topologies.items()
    )


def _steady() -> tuple[Row, ...]:
    return tuple(
        Row(
            f"{partitions} partitions, {per_second:,}/s",
            "latency",
            "windowed-count",
            "",
            (JAVA, JAVA_SMALL, RIVERRUN),
            keys=SOME,
            partitions=partitions,
            per_second=per_second,
            guarantees=(EXACTLY_ONCE,),
        )
        for per_second in (3_000, 30_000)
        for partitions in (4, 16, 64, 256)
    )


def _step(name: str, topology: str, text: str, keys: int = FEW) -> Row:
    return Row(name, "task", topology, f"{text}.", (CALLED, FUSED), keys=keys, guarantees=(NO_BROKER,))


GROUPS: dict[str, tuple[Row, ...]] = {
    "stateless": (Row("stateless", "stream", "stateless", f"{_STATELESS}.", (JAVA, RIVERRUN, BARE)),),
    "windows": (
        Row("windowed-count", "stream", "windowed-count", f"{_COUNT}.", (JAVA, JAVA_SMALL, RIVERRUN, BARE)),
        Row("windowed-count, no cache", "stream", "windowed-count", f"The same {_UNCACHED}.", cache=False),
    ),
    "fusion": (
        _step("nothing", "nothing", "A source alone: the rest has this in it"),
        _step("filter", "filtered", "One filter"),
        _step("map values", "mapped", "One mapper"),
        _step("five steps", "five_steps", "Two filters, two mappers, one peek"),
        _step("branches", "branched", "Three branches, of which the second one takes all"),
        _step("sink", "sunk", "A sink, with serdes"),
        _step("processor", "processed", "A user's processor, a filter and a sink"),
        _step("table look-up", "joined", "An inner join with a table"),
        _step("count", "counted", "A count per key"),
        _step("sum", "reduced", "A sum per key, by the user's function"),
        _step("list", "gathered", "A list per key, which can be changed"),
        _step("windowed count", "counted_in_windows", "A count per key and minute"),
        _step("session count", "counted_in_sessions", "A count per session of a key: nothing is generated for these"),
        _step("session count, many keys", "counted_in_sessions", "Likewise; a million keys", MANY),
    ),
    "schemas": (
        Row(
            "serdes",
            "serde",
            "none",
            "A page view is read and written by the serde of its class; schemas are known already.",
            (JSON, AVRO, PROTOBUF, JSON_SCHEMA),
            guarantees=(NO_BROKER,),
        ),
    ),
    "formats": (
        Row(
            "windowed-count of formats",
            "stream",
            "windowed-count",
            "Page views to objects, count per key and minute, to a topic. Riverrun: of JSON. A registry has the schemas.",
            (RIVERRUN, AVRO, PROTOBUF, JSON_SCHEMA),
        ),
    ),
    "sql": (
        Row("stateless in SQL", "stream", "stateless", f"{_STATELESS}.", (RIVERRUN, SQL)),
        Row("windowed-count in SQL", "stream", "windowed-count", f"{_COUNT}.", (RIVERRUN, SQL)),
        Row("table-sum in SQL", "stream", "table-sum", f"{_SUM}.", (RIVERRUN, SQL)),
        Row("stream-table join in SQL", "stream", "join", f"{_JOIN}.", (RIVERRUN, SQL)),
    ),
    "tables": (
        Row("table-sum", "stream", "table-sum", f"{_SUM}.", (JAVA, JAVA_SMALL, RIVERRUN)),
        Row("table-sum, no cache", "stream", "table-sum", f"The same {_UNCACHED}.", cache=False),
    ),
    "joins": (
        Row("stream-table join", "stream", "join", f"{_JOIN}."),
        Row("repartition and count", "stream", "repartition-count", f"{_REPARTITION}."),
    ),
    "sessions": (
        Row("session-count", "stream", "session-count", f"{_SESSIONS}."),
        Row("session-count, many keys", "stream", "session-count", f"{_SESSIONS}; a million keys.", keys=MANY),
    ),
    "stateful": (
        Row("stream-stream join", "stream", "stream-join", f"{_PAIRS}."),
        Row("foreign-key join", "stream", "foreign-key-join", f"{_FOREIGN}."),
        Row("suppress", "stream", "suppress", f"{_CLOSED}."),
    ),
    "many-keys": (
        Row("table-sum, many keys", "stream", "table-sum", f"{_SUM}; a million keys.", keys=MANY),
        Row("windowed-count, many keys", "stream", "windowed-count", f"{_COUNT}; likewise.", keys=MANY),
        Row("stream-table join, many keys", "stream", "join", f"{_JOIN}; likewise.", keys=MANY),
    ),
    "scaling": (
        Row("windowed-count, 1", "stream", "windowed-count", "One stream thread."),
        Row("windowed-count, 2", "stream", "windowed-count", "Two of them.", threads=2),
    ),
    "latency": _steady(),
    "restore": (
        Row("restore of table-sum", "restore", "table-sum", f"{_CHANGELOG} table-sum, a million keys.", keys=MANY),
        Row(
            "restore of windows",
            "restore",
            "windowed-count-day",
            f"{_CHANGELOG} windows that are kept for a day.",
            keys=MANY,
        ),
    ),
    "queries": (
        Row(
            "point queries", "queries", "table-sum", "Values of single keys, asked by one caller, one after the other."
        ),
    ),
    "recovery": (
        Row(
            "a dead instance",
            "recovery",
            "table-sum",
            f"{_KILLED}; its state is made again from the changelog.",
            keys=MANY,
            fault="instance",
        ),
        Row(
            "a dead instance, standby",
            "recovery",
            "table-sum",
            f"{_KILLED}; the other one has a standby of each of its tasks.",
            keys=MANY,
            fault="instance",
            standbys=1,
        ),
        Row(
            "a dead broker",
            "recovery",
            "table-sum",
            "The broker is killed and started again.",
            keys=MANY,
            fault="broker",
        ),
    ),
    "soak": (
        Row(
            "an hour of kills",
            "soak",
            "repartition-count",
            "One of two instances is killed and started again, all the time; the figures are those of the other one.",
            (RIVERRUN,),
            fault="instance",
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "releases": (
        Row(
            "release, one level",
            "release",
            "table-sum",
            "A version that differs in every tenth key of table-sum takes its place, and is taken back.",
            (RIVERRUN,),
            released=True,
            guarantees=(EXACTLY_ONCE,),
        ),
        Row(
            "release, two levels",
            "release",
            "repartition-count",
            "Likewise of repartition and count.",
            (RIVERRUN,),
            released=True,
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "memory": (
        Row("memory, RocksDB", "memory", "table-sum", "table-sum, stores in RocksDB.", (JAVA, JAVA_SMALL, RIVERRUN)),
        Row(
            "memory, in memory",
            "memory",
            "table-sum",
            "table-sum, stores in memory.",
            (JAVA, JAVA_SMALL, RIVERRUN),
            in_memory=True,
        ),
    ),
    "gate": (
        Row(
            "differ and gate",
            "gate",
            "table-sum",
            "Two versions of a table that differ in every tenth row are compared, then judged by two expectations.",
            (RIVERRUN,),
            released=True,
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "quixstreams": (
        Row("stateless with quixstreams", "stream", "stateless", f"{_STATELESS}.", (JAVA, RIVERRUN, QUIX)),
        Row(
            "windowed-count with quixstreams",
            "stream",
            "windowed-count",
            f"{_COUNT}; quixstreams has no cache, so nobody has one here.",
            (JAVA, RIVERRUN, QUIX),
            cache=False,
        ),
        Row(
            "table-sum with quixstreams",
            "stream",
            "table-sum",
            f"{_SUM}; likewise.",
            (JAVA, RIVERRUN, QUIX),
            cache=False,
        ),
    ),
    "engines": (
        Row(
            "windowed-count of engines",
            "stream",
            "windowed-count",
            f"{_COUNT}. {_ENGINES}",
            (JAVA, RIVERRUN, STRUCTURED, PATHWAY),
            guarantees=(AT_LEAST_ONCE,),
        ),
    ),
    "bounded": _from_scratch(FEW, ""),
    "bounded-many-keys": _from_scratch(MANY, ", many keys"),
    "archive": (
        Row(
            "history",
            "archive",
            "",
            "All records of the input, read by ranges of offsets, as bounded runs do.",
            (TOPIC, ARCHIVE),
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "flights": (
        Row(
            "a year of flights",
            "flights",
            "",
            "The demo's delays per hour, computed from all flights of 2013 into fresh state.",
            (TOPIC, ARCHIVE),
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "carried": (
        Row(
            "one more output",
            "carry",
            "table-sum",
            "A version of table-sum, ten thousand keys, that also writes the high sums to a further topic.",
            (COMPUTED, CARRIED),
            keys=SOME,
            guarantees=(EXACTLY_ONCE,),
        ),
        Row(
            "one more output, many keys",
            "carry",
            "table-sum",
            "Likewise with five million keys, or as many as there are records, so that the state is as large as the input.",
            (COMPUTED, CARRIED),
            keys=MOST,
            guarantees=(EXACTLY_ONCE,),
        ),
    ),
    "costs": (
        Row(
            "no changelog",
            "bounded",
            "table-sum-unlogged",
            "A bounded table-sum of a million keys.",
            (SPARK,),
            keys=MANY,
            threads=2,
        ),
        Row(
            "changelog",
            "bounded",
            "table-sum",
            "With its changelog: the difference is what that costs.",
            (SPARK,),
            keys=MANY,
            threads=2,
        ),
        Row(
            "changelog and snapshot",
            "bounded",
            "table-sum",
            "And a snapshot of each task.",
            (SPARK,),
            keys=MANY,
            threads=2,
            snapshots=True,
        ),
    ),
}
"""Rows by group. A group is what is measured at a time, and one table of the report."""
