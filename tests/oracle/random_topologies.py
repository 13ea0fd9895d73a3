"""Random topologies, as lists of steps that `java/Described.java` and this module build alike, and random input for them.

A step is a dict: `op`, `of` (the numbers of the steps it works on) and options. A step that no other one uses writes its
results to `out-<number>`. `code_of` returns a topology as Python; `build` runs that.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import riverrun
from riverrun import STRING, Consumed, Grouped, Joined, Produced, StreamJoined
from tests.oracle.topologies import first, flat, ms, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

    Step = dict[str, Any]
    Case = dict[str, Any]

STREAM, TABLE, WINDOWS, GLOBAL = "stream", "table", "windows", "global"
TOPICS = ("in", "other", "third")


def brief(value: str) -> str:
    return value[-8:]


def pair(left: object, right: object) -> str:
    return brief(f"{text(left)}+{text(right)}")


def passes(number: int, key: str | None, value: str | None) -> bool:
    if number == 1:
        return key != "a"
    if value is None:
        return False
    return len(value) % 2 == 0 if number == 0 else value < "c"


def mapped(number: int, value: str | None) -> str:
    return brief(f"{text(value)}!") if number == 0 else first(value)


def key_of(number: int, key: str | None, value: str | None) -> str | None:
    if number == 1:
        return "-" if key is None else key
    return None if number == 2 and value is not None and value.startswith("a") else first(value)


def add(_key: str, value: str | None, known: str) -> str | None:
    return None if len(known) > 6 else known + first(value)


def add_row(_key: str, value: str | None, known: str) -> str:
    return brief(known + first(value))


def remove(_key: str, value: str | None, known: str) -> str:
    return brief(f"{known}-{first(value)}")


def together(left: str | None, right: str | None) -> str:
    return brief(text(left) + text(right))


NAMES: dict[str, Any] = {
    **{name: getattr(riverrun, name) for name in riverrun.__all__},
    "TEXTS": Consumed(STRING, STRING),
    "BY_TEXT": Grouped(STRING, STRING),
    "BY_TEXTS": StreamJoined(STRING, STRING, STRING),
    "LOOKED_UP": Joined(STRING, STRING),
    "TO_TEXTS": Produced(STRING, STRING),
    **{
        f.__name__: f
        for f in (ms, text, first, flat, brief, pair, passes, mapped, key_of, add, add_row, remove, together)
    },
}
"""Names that the code of a topology may use."""

_STATELESS = {
    "filter": "{0}.filter(lambda k, v: passes({f}, k, v))",
    "filter_not": "{0}.filter_not(lambda k, v: passes({f}, k, v))",
    "map_values": "{0}.map_values(lambda v: mapped({f}, v))",
    "map": "{0}.map(lambda k, v: (key_of({f}, k, v), pair(k, v)))",
    "select_key": "{0}.select_key(lambda k, v: key_of({f}, k, v))",
    "flat_map": "{0}.flat_map(lambda k, v: [(key_of({f}, k, v), v), (k, pair(k, v))])",
    "flat_map_values": "{0}.flat_map_values(lambda v: [] if v is None else [v, first(v)])",
    "split": "{0}.split().branch(lambda k, v: passes({f}, k, v)).default_branch()",
    "merge": "{0}.merge({1})",
    "repartition": "{0}.repartition(Repartitioned(STRING, STRING{name}))",
    "to_table": "{0}.to_table({stored})",
    "stream": "builder.stream({topic!r}, TEXTS)",
    "table": "builder.table({topic!r}, TEXTS, {stored})",
    "global": "builder.global_table({topic!r}, TEXTS)",
    "versioned": (
        "builder.table({topic!r}, TEXTS, Materialized(STRING, STRING, name={store!r}, history_retention=ms({history})))"
    ),
    "look_up_global": "{0}.filter(lambda k, v: v is not None).{join}({1}, pair, key_selector=lambda k, v: key_of({f}, k, v))",
    "table_filter": "{0}.filter(lambda k, v: passes({f}, k, v){stored_if_named})",
    "table_map_values": "{0}.map_values(lambda v: mapped({f}, v), {stored})",
    "table_join": "{0}.{join}({1}, pair, {stored})",
    "foreign_key_join": "{0}.{join}({1}, pair, {stored}, foreign_key_extractor=lambda v: key_of({f}, None, v))",
    "suppress": "{0}.suppress(Suppressed.until_time_limit(ms({limit}), BufferConfig.unbounded()))",
    "cogroup": "{0}.group_by_key(BY_TEXT).cogroup(lambda k, v, known: brief(known + '1' + first(v)))"
    ".cogroup({1}.group_by_key(BY_TEXT), lambda k, v, known: brief(known + '2' + first(v))).aggregate(str, {stored})",
    "join": "{0}.{join}({1}, pair, JoinWindows.of(ms({before}), grace=ms({grace})).after(ms({after})), joined={by})",
}
_JOINS = {"inner": "join", "left": "left_join", "outer": "outer_join"}


def code_of(case: Case) -> str:
    """A function that builds the topology of a case."""
    steps = case["steps"]
    lines = [f"    n{number} = {_expression(step, case)}" for number, step in enumerate(steps)]
    used = {number for step in steps for number in step.get("of", ())}
    for number, step in enumerate(steps):
        if number not in used and kind_of(step) != GLOBAL:
            lines.append(f"    {_as_stream(number, case)}.to('out-{number}', TO_TEXTS)")
    return "\n".join(["def build(builder):", *lines, ""])


def build(case: Case) -> Topology:
    """The topology of a case."""
    names = dict(NAMES)
    exec(code_of(case), names)  # noqa: S102 - it was made above
    builder = riverrun.StreamsBuilder()
    names["build"](builder)
    return builder.build(optimization=case["optimization"])


def _as_stream(number: int, case: Case) -> str:
    kind = kind_of(case["steps"][number])
    if kind == WINDOWS:
        as_text = "lambda v: None if v is None else str(v)"
        return f"n{number}.to_stream(lambda k, _v: flat(k)).map_values({as_text})"
    return f"n{number}.to_stream()" if kind == TABLE else f"n{number}"


def _expression(step: Step, case: Case) -> str:
    of = [f"n{number}" for number in step.get("of", ())]
    store = step.get("store")
    given = {
        "f": 0,
        **step,
        "join": _JOINS[step["kind"]] if step.get("kind") in _JOINS else "",
        "stored": f"Materialized(STRING, STRING, name={store!r})",
        "stored_if_named": f", Materialized(STRING, STRING, name={store!r})" if store else "",
        "name": f", name={step['name']!r}" if "name" in step else "",
        "by": f"StreamJoined(STRING, STRING, STRING, store_name={store!r})" if store else "BY_TEXTS",
    }
    special = {
        "aggregate": _aggregate,
        "windows": _windows,
        "table_aggregate": _table_aggregate,
        "look_up": _look_up,
        "split": _split,
        "to_stream": _to_stream,
    }
    if step["op"] in special:
        return special[step["op"]](step, given, case)
    return _STATELESS[step["op"]].format(*of, **given)


def _to_stream(step: Step, _given: Step, case: Case) -> str:
    return _as_stream(step["of"][0], case)


def _split(step: Step, _given: Step, _case: Case) -> str:
    branches = f"list(n{step['of'][0]}.split().branch(lambda k, v: passes({step['f']}, k, v)).default_branch().items())"
    return f"(lambda found: found[1][1].map_values(lambda v: mapped(0, v)).merge(found[0][1]))(sorted({branches}))"


def _grouped(step: Step, given: Step) -> str:
    if "key" not in step:
        return f"n{step['of'][0]}.group_by_key(BY_TEXT)"
    by = f"Grouped(STRING, STRING{given['name']})"
    return f"n{step['of'][0]}.group_by(lambda k, v: key_of({step['key']}, k, v), {by})"


def _aggregate(step: Step, given: Step, _case: Case) -> str:
    grouped, store = _grouped(step, given), step.get("store")
    if step["kind"] == "count":
        counts = f"{grouped}.count(Materialized(STRING, LONG, name={store!r}))"
        return f"{counts}.map_values(str, Materialized(STRING, STRING))"
    if step["kind"] == "reduce":
        return f"{grouped}.reduce(lambda one, two: brief(one + two), {given['stored']})"
    return f"{grouped}.aggregate(str, add, {given['stored']})"


def _table_aggregate(step: Step, given: Step, case: Case) -> str:
    mapper = f"(key_of({step['key']}, k, v), v)"
    if kind_of(case["steps"][step["of"][0]]) == WINDOWS:
        mapper = "(k.key, str(v))"
    grouped = f"n{step['of'][0]}.group_by(lambda k, v: {mapper}, Grouped(STRING, STRING{given['name']}))"
    if step["kind"] == "count":
        counts = f"{grouped}.count(Materialized(STRING, LONG, name={step.get('store')!r}))"
        return f"{counts}.map_values(str, Materialized(STRING, STRING))"
    if step["kind"] == "reduce":
        return f"{grouped}.reduce(lambda a, b: brief(a + b), lambda a, b: brief(a + '-' + b), {given['stored']})"
    return f"{grouped}.aggregate(str, add_row, remove, {given['stored']})"


def _windows(step: Step, given: Step, _case: Case) -> str:
    windows = {
        "time": "TimeWindows.of(ms({size}), grace=ms({grace})).advance_by(ms({advance}))",
        "session": "SessionWindows.of(ms({size}), grace=ms({grace}))",
        "sliding": "SlidingWindows.of(ms({size}), grace=ms({grace}))",
    }[step["windows"]].format(**step)
    windowed = f"{_grouped(step, given)}.windowed_by({windows})"
    if step["emit"]:
        windowed += ".emit_strategy(EmitStrategy.on_window_close())"
    kept = "" if step["windows"] == "session" else ", retention=ms(600_000)"
    if step["kind"] == "count":
        table = f"{windowed}.count(Materialized(STRING, LONG{kept}))"
    else:
        table = f"{windowed}.reduce(together, Materialized(STRING, STRING{kept}))"
    return f"{table}.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))" if step["suppress"] else table


def _look_up(step: Step, given: Step, _case: Case) -> str:
    left, right = (f"n{number}" for number in step["of"])
    if "grace" in step:
        left += ".filter(lambda k, v: k is not None)"
        return f"{left}.{given['join']}({right}, pair, joined=Joined(STRING, STRING, grace_period=ms({step['grace']})))"
    return f"{left}.{given['join']}({right}, pair, joined=LOOKED_UP)"


def kind_of(step: Step) -> str:
    """The result of a step."""
    op = step["op"]
    if op in {"windows", "global"}:
        return str(op)
    tables = {"table", "versioned", "to_table", "aggregate", "cogroup", "suppress"}
    return TABLE if op in tables or (op.startswith(("table_", "foreign_"))) else STREAM


def random_case(seed: int) -> Case:
    """A topology, its input and whether stores cache."""
    source = random.Random(seed)
    while True:
        drawn = _Drawing(source)
        for _ in range(source.randint(1, 3)):
            drawn.add_source()
        for _ in range(source.randint(1, 8)):
            drawn.add_step()
        case = {
            "seed": seed,
            "optimization": source.choice(["none", "none", "all"]),
            "cache": source.random() < 0.5,
            "steps": drawn.steps,
        }
        case["records"] = _records(source, sorted({step["topic"] for step in drawn.steps if "topic" in step}))
        if why_different(case) is None:
            return case


def why_different(case: Case) -> str | None:
    """The section of DIFFERENCES.md about a case whose result may differ from Kafka Streams'; None if there is none.

    All that is known to differ is declared here: such cases are not drawn.
    """
    steps = case["steps"]
    sessions = any(step.get("windows") == "session" for step in steps)
    if case["cache"] and sessions:
        return "a session cache still shows sessions that have expired"
    for step in steps:
        above = [steps[number] for number in step.get("of", ())]
        if step["op"] == "to_stream" or not any(kind_of(other) in {TABLE, WINDOWS} for other in above):
            continue
        if not case["cache"] and any(_replaces_the_initial(steps, number) for number in step.get("of", ())):
            return "without a cache, a first update replaces what the initializer gives"
        if step["op"] == "table_join" and len({_suppressed(steps, n) for n in step["of"]} - {None}) == 1 != len(above):
            return "a suppressed table joined with itself"
        if case["cache"] and step["op"] == "table_join" and _share_a_source(steps, step["of"]):
            return "a table that waits in a cache is joined when its turn comes"
    if any(step["op"] == "foreign_key_join" for step in steps) and len(_topology(case).repartition_topics) > 2:
        return "the test driver takes what waits in several internal topics in the order of writing, not of event times"
    if not case["cache"] and any(step.get("suppress") and step["windows"] != "time" for step in steps):
        return "without a cache, sliding windows and sessions say that they replaced something else"
    return None


def _topology(case: Case) -> Topology:
    """The topology of a case; an empty one if both sides refuse it."""
    try:
        return build(case)
    except riverrun.TopologyError:
        return riverrun.Topology()


def _replaces_the_initial(steps: list[Step], number: int) -> bool:
    step = steps[number]
    if step["op"] in {"cogroup", "windows"}:
        return True
    if step["op"] == "aggregate":
        return bool(step["kind"] != "reduce")
    return any(
        _replaces_the_initial(steps, n) for n in step.get("of", ()) if kind_of(step) == TABLE == kind_of(steps[n])
    )


def _share_a_source(steps: list[Step], numbers: list[int]) -> bool:
    """Tell whether two tables have a common source, so that an update reaches both before it is forwarded."""
    above = [_all_above(steps, number) for number in set(numbers)]
    return len(above) > 1 and bool(above[0] & above[1])


def _all_above(steps: list[Step], number: int) -> set[int]:
    return {number}.union(*(_all_above(steps, other) for other in steps[number].get("of", ())))


def _suppressed(steps: list[Step], number: int) -> int | None:
    step = steps[number]
    if step["op"] == "suppress":
        return number
    return next(
        (
            found
            for n in step.get("of", ())
            if kind_of(steps[n]) == TABLE and (found := _suppressed(steps, n)) is not None
        ),
        None,
    )


class _Drawing:
    """A topology that grows."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.steps: list[Step] = []

    def add_source(self) -> None:
        free = [topic for topic in TOPICS if topic not in {step.get("topic") for step in self.steps}]
        if free:
            op = self.source.choice(["stream", "stream", "stream", "table", "table", "versioned", "global"])
            op = "stream" if not self.steps and op == "global" else op
            step: Step = {"op": op, "topic": self.source.choice(free)}
            if op == "versioned":
                step |= {"store": f"versions-{len(self.steps)}", "history": self.source.choice([100, 500, 100_000])}
            self.steps.append(step)

    def add_step(self) -> None:
        kinds = {STREAM: _OF_STREAMS, TABLE: _OF_TABLES, WINDOWS: _OF_WINDOWS}
        candidates = [n for n, step in enumerate(self.steps) if kind_of(step) in kinds]
        number = self.source.choice(candidates[-4:])
        drawn = self.source.choice(kinds[kind_of(self.steps[number])])(self, number)
        if drawn is not None:
            self.steps.append(drawn)

    def other(self, kind: str) -> int | None:
        found = [n for n, step in enumerate(self.steps) if kind_of(step) == kind]
        return self.source.choice(found) if found else None

    def stored(self, step: Step) -> Step:
        return step | {"store": f"store-{len(self.steps)}"} if self.source.random() < 0.3 else step

    def named(self, step: Step) -> Step:
        return step | {"name": f"name-{len(self.steps)}"} if self.source.random() < 0.3 else step

    def grouped(self, step: Step) -> Step:
        return self.named(step | {"key": self.source.randrange(3)}) if self.source.random() < 0.6 else step


def _plain(op: str) -> Callable[[_Drawing, int], Step | None]:
    return lambda drawn, n: {"op": op, "of": [n], "f": drawn.source.randrange(3 if "map_values" not in op else 2)}


def _draw_merge(drawn: _Drawing, n: int) -> Step | None:
    other = drawn.other(STREAM)
    return None if other is None else {"op": "merge", "of": [n, other]}


def _draw_repartition(drawn: _Drawing, n: int) -> Step | None:
    return drawn.named({"op": "repartition", "of": [n]})


def _draw_to_table(drawn: _Drawing, n: int) -> Step | None:
    return drawn.stored({"op": "to_table", "of": [n]})


def _draw_aggregate(drawn: _Drawing, n: int) -> Step | None:
    kind = drawn.source.choice(["count", "reduce", "aggregate"])
    return drawn.grouped(drawn.stored({"op": "aggregate", "of": [n], "kind": kind}))


def _draw_windows(drawn: _Drawing, n: int) -> Step | None:
    source = drawn.source
    windows = source.choice(["time", "time", "session", "sliding"])
    size = source.choice([20, 50, 100])
    close = source.choice(["", "", "emit", "suppress"])
    return drawn.grouped(
        {
            "op": "windows",
            "of": [n],
            "windows": windows,
            "size": size,
            "advance": source.choice([size, size // 2]),
            "grace": 3_000 if windows == "session" else source.choice([0, 30, 500]),
            "emit": close == "emit",
            "suppress": close == "suppress",
            "kind": source.choice(["count", "reduce"]),
        }
    )


def _draw_cogroup(drawn: _Drawing, n: int) -> Step | None:
    other = drawn.other(STREAM)
    return None if other is None or other == n else drawn.stored({"op": "cogroup", "of": [n, other]})


def _draw_join(drawn: _Drawing, n: int) -> Step | None:
    source, other = drawn.source, drawn.other(STREAM)
    before, after = source.choice([(30, 30), (50, 50), (0, 60), (60, 0), (60, -10)])
    kind = source.choice(["inner", "left", "outer"])
    step = {"op": "join", "of": [n, other], "kind": kind, "before": before, "after": after}
    return drawn.stored(step | {"grace": source.choice([0, 40, 200])})


def _draw_look_up(drawn: _Drawing, n: int) -> Step | None:
    other = drawn.other(TABLE)
    if other is None:
        return None
    step = {"op": "look_up", "of": [n, other], "kind": drawn.source.choice(["inner", "left"])}
    above = drawn.steps[other]
    return (
        step | {"grace": 40}
        if above["op"] == "versioned" and above["history"] > 500 and drawn.source.random() < 0.5
        else step
    )


def _draw_look_up_global(drawn: _Drawing, n: int) -> Step | None:
    other = drawn.other(GLOBAL)
    kind = drawn.source.choice(["inner", "left"])
    f = drawn.source.randrange(3)
    return None if other is None else {"op": "look_up_global", "of": [n, other], "kind": kind, "f": f}


def _draw_table_filter(drawn: _Drawing, n: int) -> Step | None:
    return drawn.stored({"op": "table_filter", "of": [n], "f": drawn.source.randrange(3)})


def _draw_table_map_values(drawn: _Drawing, n: int) -> Step | None:
    return drawn.stored({"op": "table_map_values", "of": [n], "f": drawn.source.randrange(2)})


def _draw_table_aggregate(drawn: _Drawing, n: int) -> Step | None:
    kind = drawn.source.choice(["count", "reduce", "aggregate"])
    step = {"op": "table_aggregate", "of": [n], "kind": kind, "key": drawn.source.randrange(3)}
    return drawn.named(drawn.stored(step))


def _draw_table_join(drawn: _Drawing, n: int) -> Step | None:
    kind = drawn.source.choice(["inner", "left", "outer"])
    return drawn.stored({"op": "table_join", "of": [n, drawn.other(TABLE)], "kind": kind})


def _draw_foreign_key_join(drawn: _Drawing, n: int) -> Step | None:
    kind, f = drawn.source.choice(["inner", "left"]), drawn.source.choice([0, 2])
    return drawn.stored({"op": "foreign_key_join", "of": [n, drawn.other(TABLE)], "kind": kind, "f": f})


def _draw_suppress(drawn: _Drawing, n: int) -> Step | None:
    return {"op": "suppress", "of": [n], "limit": drawn.source.choice([0, 30, 200])}


def _draw_to_stream(_drawn: _Drawing, n: int) -> Step | None:
    return {"op": "to_stream", "of": [n]}


_OF_STREAMS = (
    *map(_plain, ("filter", "filter_not", "map_values", "map", "select_key", "flat_map", "flat_map_values", "split")),
    _draw_merge,
    _draw_merge,
    _draw_repartition,
    _draw_to_table,
    *[_draw_aggregate] * 3,
    *[_draw_windows] * 3,
    _draw_cogroup,
    *[_draw_join] * 3,
    *[_draw_look_up] * 2,
    _draw_look_up_global,
)
_OF_TABLES = (
    _draw_table_filter,
    _draw_table_map_values,
    *[_draw_table_aggregate] * 2,
    *[_draw_table_join] * 2,
    _draw_foreign_key_join,
    _draw_suppress,
    *[_draw_to_stream] * 3,
)
_OF_WINDOWS = (_draw_to_stream, _draw_to_stream, _draw_table_aggregate)


def _records(source: random.Random, topics: list[str]) -> list[list[Any]]:
    now, late_ms = source.choice((0, 1_000, 1_600_000_000_000)), source.choice((0, 30, 60, 400))
    records: list[list[Any]] = []
    for _ in range(source.randint(8, 40)):
        now += source.choice((0, 1, source.randrange(30), source.randrange(30), 100 if source.random() < 0.1 else 5))
        time = max(0, now - source.randrange(late_ms)) if late_ms and source.random() < 0.4 else now
        key = None if source.random() < 0.04 else source.choice("abcd")
        value = (
            None
            if source.random() < 0.15
            else source.choice("abcd") + "".join(source.choices("wz", k=source.randrange(3)))
        )
        headers = [["h", str(source.randrange(10))]] if source.random() < 0.2 else []
        records.append([source.choice(topics), key, value, time, headers])
    return records
