"""One scenario in full: `python -m tests.oracle.show TOPOLOGY NUMBER` runs Kafka Streams and Riverrun and prints both.

The records come first, then the results, line by line: `-` is Kafka Streams alone, `+` Riverrun alone.
"""

from __future__ import annotations

import difflib
import json
import sys
from typing import TYPE_CHECKING, Any

from tests.oracle.java_side import replayed
from tests.oracle.replay import twin
from tests.oracle.scenarios import scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(name: str, number: int) -> None:
    """Print the scenario, and where the results differ; exits with 1 if they do."""
    (scenario,) = scenarios([name], [number])
    (result,) = replayed([scenario])
    this = twin(name)
    print(f"{name}, scenario {number}, cache {'on' if scenario['cache'] else 'off'}")
    for index, record in enumerate(scenario["records"]):
        print(index, json.dumps(record, ensure_ascii=False))
    theirs = list(_lines(this.canonical(scenario, result)))
    ours = list(_lines(this.canonical(scenario, this.replayed(scenario))))
    print(*difflib.ndiff(theirs, ours), sep="\n")
    sys.exit(theirs != ours)


def _lines(canonical: dict[str, Any]) -> Iterator[str]:
    for part, logs in (("topic", canonical["topics"]), ("store", canonical["stores"])):
        for name, log in sorted(logs.items()):
            yield from (f"{part} {name}: {json.dumps(record)}" for record in log)
    yield f"dropped: {canonical.get('dropped', 'not compared')}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
