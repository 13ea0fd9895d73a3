"""Runs histories: `PYTHONHASHSEED=0 python -m tests.histories FIRST [COUNT]`. Ends with the first that goes wrong.

`--shrink SEED [ATTEMPTS]` looks for a short history that goes wrong in this way, and prints it as sentences and as a test.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.histories.drawing import drawn
from tests.histories.history import tell
from tests.histories.shrinking import Shrinking, as_test, failure, numbered

_SHRINK = "--shrink"


def run(first: int, count: int = 1) -> None:
    """Run histories of consecutive seeds; print a single one."""
    began = time.monotonic()
    for seed in range(first, first + count):
        with TemporaryDirectory() as directory:
            story = tell(drawn(seed), Path(directory))
        print("\n".join(story.said) if count == 1 else f"seed {seed}: {story.said[-1].strip()}", flush=True)
    took_s = time.monotonic() - began
    print(f"{count} histories in {took_s:.1f} s, {60 * count / took_s:.0f} per minute")


def shrink(seed: int, attempts: int = 400) -> None:
    """Print the smallest history that goes wrong as that of the seed does."""
    found = failure(drawn(seed))
    if found is None:
        sys.exit(f"History {seed} ends well")
    found = Shrinking(found, attempts, lambda said: print(said, file=sys.stderr, flush=True)).shrink()
    print(numbered(found))
    print(f"\n{as_test(found.history)}", end="")


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("Set PYTHONHASHSEED=0: otherwise sets have another order each time")
    logging.disable(logging.CRITICAL)
    if arguments[:1] == [_SHRINK]:
        shrink(*map(int, arguments[1:]))
    else:
        run(*map(int, arguments))


main(sys.argv[1:])
