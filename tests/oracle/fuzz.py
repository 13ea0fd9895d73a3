"""Compares random topologies with Kafka Streams (`make oracle`). Minimises those that differ, and shows them as Python.

```
python -m tests.oracle.fuzz --minutes 3              from a seed by chance
python -m tests.oracle.fuzz --seed 17 --cases 1      one case again
python -m tests.oracle.fuzz --golden                 writes the sample that `make test` replays
```
"""

from __future__ import annotations

import argparse
import pprint
import random
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from riverrun import STRING
from riverrun.state.api import StoreKind
from riverrun.testing import TopologyTestDriver
from tests.oracle.java_side import answering
from tests.oracle.random_topologies import build, code_of, kind_of, random_case, why_different
from tests.oracle.replay import APPLICATION, closing_like_kafka_streams, digest, entries_of, latin, save

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tests.oracle.random_topologies import Case

    Result = dict[str, Any]
    Ask = Callable[[dict[str, Any]], Result]

GOLDEN_SEEDS = range(200)
GOLDEN = "random_topologies"
_NOT_PLAIN = {StoreKind.SESSION, StoreKind.JOIN_WINDOW, StoreKind.VERSIONED, StoreKind.BUFFER}


def asked(case: Case) -> dict[str, Any]:
    """A case as the Java side takes it."""
    return {"topology": "", **case}


def ours(case: Case) -> Result:
    """Riverrun's result, as `java/Oracle.java` writes it down."""
    try:
        topology = build(case)
        settings = {} if case["cache"] else {"statestore.cache.max.bytes": 0}
        topics: dict[str, list[Any]] = {}
        with TopologyTestDriver(topology, settings, application_id=APPLICATION) as driver:
            for index, (topic, key, value, timestamp, headers) in enumerate(case["records"]):
                raw = tuple((name, text.encode()) for name, text in headers)
                driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp, headers=raw)
                for written in sorted(driver.produced_topic_names()):
                    for record in driver.read_raw(written):
                        names = [[name, latin(data)] for name, data in record.headers]
                        entry = [index, latin(record.key), latin(record.value), record.timestamp, names]
                        topics.setdefault(written, []).append(entry)
            held = driver.get_all_state_stores()
            kinds = {name: builder.kind for name, builder in topology.stores.items()}
            plain = {name: store for name, store in held.items() if kinds.get(name) not in _NOT_PLAIN}
            stores = {name: list(entries_of(store)) for name, store in plain.items()}
            dropped = driver.metrics()["dropped-records-total"]
        return {"describe": topology.describe(), "topics": topics, "stores": stores, "dropped": dropped}
    except Exception:  # noqa: BLE001 - whatever it is, Kafka Streams does not fail
        return {"failure": traceback.format_exc()}


def explained(case: Case) -> Iterator[Result]:
    """Riverrun's result, and that of windows which close like those of Kafka Streams, if they do not anyway."""
    yield ours(case)
    if any(step.get("suppress") and step["windows"] != "time" for step in case["steps"]):
        with closing_like_kafka_streams():
            yield ours(case)


def canonical(case: Case, result: Result) -> Result:
    """A result without what may differ (DIFFERENCES.md), and with everything else."""
    if "failure" in result:
        return {"failure": True}
    retentions = {name: builder.retention_ms for name, builder in build(case).stores.items()}
    last_ms = max((record[3] for record in case["records"]), default=0) + 1
    topics = {topic: log for topic, log in result["topics"].items() if not topic.endswith("-changelog")}
    if not case["cache"] and any(step.get("windows") == "session" for step in case["steps"]):
        topics = {topic: [entry[:4] for entry in log] for topic, log in topics.items()}
    stores = {}
    for name, entries in result["stores"].items():
        kept_ms = retentions.get(name, 0)
        stores[name] = sorted(
            list(e) for e in entries if not kept_ms or int(e[0].rpartition("@")[2]) > last_ms - kept_ms
        )
    found = {"describe": result["describe"].splitlines(), "topics": topics, "stores": stores}
    return found if any(retentions.values()) else found | {"dropped": result["dropped"]}


def differences(case: Case, theirs: Result) -> list[str]:
    """The difference between both; nothing if Kafka Streams fails itself."""
    if "failure" in theirs:
        return []
    found = [_differences(case, mine, theirs) for mine in explained(case)]
    return found[0] if all(found) else []


def _differences(case: Case, mine: Result, theirs: Result) -> list[str]:
    if "failure" in mine:
        return [mine["failure"]]
    mine, theirs = canonical(case, mine), canonical(case, theirs)
    both = mine["stores"].keys() & theirs["stores"].keys()
    for side in (mine, theirs):
        side["stores"] = {name: side["stores"][name] for name in sorted(both)}
    return [
        f"{part}\n  Kafka Streams: {_less(theirs[part], mine[part])}\n  Riverrun:      {_less(mine[part], theirs[part])}"
        for part in mine
        if mine[part] != theirs[part]
    ]


def _less(one: Any, other: Any) -> Any:
    """Of two parts, what the first has otherwise."""
    if isinstance(one, dict):
        return {name: value for name, value in one.items() if other.get(name) != value}
    if isinstance(one, list):
        return [line for line in one if line not in other] or one
    return one


def shrunk(case: Case, differs: Callable[[Case], bool]) -> Case:
    """The case without all that the difference does not need."""
    while True:
        smaller = next((found for found in _smaller(case) if why_different(found) is None and differs(found)), None)
        if smaller is None:
            return case
        case = smaller


def _smaller(case: Case) -> Iterator[Case]:
    records, steps = case["records"], case["steps"]
    size = (len(records) + 1) // 2
    while size:
        for start in range(0, len(records), size):
            yield {**case, "records": records[:start] + records[start + size :]}
        size = size // 2
    for number in reversed(range(len(steps))):
        for heir in [None, *steps[number].get("of", ())]:
            fewer = _without(steps, number, heir)
            if fewer is not None:
                topics = {step.get("topic") for step in fewer}
                yield {**case, "steps": fewer, "records": [record for record in records if record[0] in topics]}


def _without(steps: list[dict[str, Any]], number: int, heir: int | None) -> list[dict[str, Any]] | None:
    """The steps without one, whose users take another one of the same kind; None if there is none."""
    users = [step for step in steps if number in step.get("of", ())]
    if len(steps) == 1 or (users and (heir is None or kind_of(steps[heir]) != kind_of(steps[number]))):
        return None
    if heir is not None and not users:
        return None

    def moved(n: int) -> int:
        n = heir if n == number and heir is not None else n
        return n - (n > number)

    left = [step for n, step in enumerate(steps) if n != number]
    return [step | {"of": [moved(n) for n in step["of"]]} if "of" in step else step for step in left]


def shown(case: Case, found: list[str]) -> str:
    """A case as Python, and what differs."""
    given = f"optimization={case['optimization']!r}, cache={case['cache']}"
    lines = [
        f"# seed {case['seed']}, {given}",
        code_of(case),
        f"RECORDS = {pprint.pformat(case['records'], width=120)}",
        *found,
    ]
    return "\n".join(lines)


def compare(ask: Ask, seed: int) -> str | None:
    """How a random case differs, made small; None if it does not."""
    case = random_case(seed)
    if not differences(case, ask(asked(case))):
        return None
    print(f"Seed {seed} differs, and is made small", flush=True)
    small = shrunk(case, lambda other: bool(differences(other, ask(asked(other)))))
    return shown(small, differences(small, ask(asked(small))))


def digest_of(case: Case, result: Result, stores: Collection[str]) -> dict[str, Any]:
    """The part of a result that is kept: its digest, with the stores that both sides can read."""
    found = canonical(case, result)
    names = sorted(set(stores) & {name for name in result["stores"] if is_plain(case, name)})
    found["stores"] = {name: found["stores"].get(name) for name in names}
    return {"stores": names, "digest": digest(found)}


def is_plain(case: Case, name: str) -> bool:
    """Whether both sides read the values of a store."""
    builder = build(case).stores.get(name)
    return builder is not None and builder.kind not in _NOT_PLAIN


def write_golden(ask: Ask) -> None:
    """The sample for `make test`: Kafka Streams' results as digests, without cases in which it fails."""
    found = {}
    for seed in GOLDEN_SEEDS:
        case = random_case(seed)
        theirs = ask(asked(case))
        if "failure" not in theirs:
            found[str(seed)] = digest_of(case, theirs, set(theirs["stores"]))
    save(GOLDEN, found)


def main() -> None:
    """Compare until the time is over; exit code 1 if anything differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--golden", action="store_true")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000_000) if given.seed is None else given.seed
    failed = done = 0
    with answering() as ask:
        if given.golden:
            write_golden(ask)
            return
        end = time.monotonic() + 60 * given.minutes
        while done < given.cases and time.monotonic() < end:
            found = compare(ask, first + done)
            done += 1
            if found is not None:
                failed += 1
                print(found, end="\n\n", flush=True)
    print(f"{done} random topologies from seed {first}, {failed} of them differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
