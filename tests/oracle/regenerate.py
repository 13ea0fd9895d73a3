"""Writes the golden files: Kafka Streams' own results of every scenario (`make oracle`), in about 20 minutes.

Of the first scenarios of a topology everything is kept, of the others a digest.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from typing import Any

from tests.oracle.java_side import VERSION, replayed
from tests.oracle.replay import GOLDEN, digest, load, save, twin
from tests.oracle.scenarios import COMPLETE, SCENARIOS, scenarios

_Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def main(only: list[str]) -> None:
    """Replay all scenarios, or those of the named topologies."""
    GOLDEN.mkdir(exist_ok=True)
    unnamed, digests = {}, {}
    for name, pairs in _by_topology(only, range(COMPLETE)):
        save(name, _golden(pairs))
        unnamed[name] = pairs[0][1]["unnamed"]
    for name, pairs in _by_topology(only, range(COMPLETE, SCENARIOS)):
        digests[name] = "".join(digest(twin(name).canonical(*pair)) for pair in pairs)
    _update("unnamed", unnamed)
    _update("digests", digests)
    print(f"{sum(path.stat().st_size for path in GOLDEN.iterdir()) // 1024} KiB")


def _by_topology(only: list[str], numbers: range) -> Any:
    chosen = list(scenarios(only, numbers))
    pairs = zip(chosen, replayed(chosen), strict=True)
    return ((name, list(group)) for name, group in groupby(pairs, key=lambda pair: pair[0]["topology"]))


def _golden(pairs: _Pairs) -> dict[str, Any]:
    (structure,) = {json.dumps([result["describe"], result["internal_topics"]]) for _, result in pairs}
    describe, internal_topics = json.loads(structure)
    describe = re.sub(
        r"\(extractor class: .*\)", "(extractor class: a lambda)", describe
    )  # its name changes every time
    return {
        "kafka_streams": VERSION,
        "describe": describe,
        "internal_topics": internal_topics,
        "scenarios": [
            {"cache": s["cache"], "records": s["records"]} | {part: r[part] for part in ("topics", "stores", "dropped")}
            for s, r in pairs
        ],
    }


def _update(name: str, found: dict[str, Any]) -> None:
    """The results of all topologies; those not chosen stay."""
    known = load(name) if (GOLDEN / f"{name}.json.gz").exists() else {}
    save(name, dict(sorted({**known, **found}.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
