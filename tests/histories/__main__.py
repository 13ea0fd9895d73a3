"""Runs histories: `PYTHONHASHSEED=0 python -m tests.histories FIRST [COUNT]`. Ends with the first that goes wrong."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.histories.drawing import drawn
from tests.histories.history import tell


def main(first: int, count: int = 1) -> None:
    """Run histories of consecutive seeds; print a single one."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("Set PYTHONHASHSEED=0: otherwise sets have another order each time")
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    for seed in range(first, first + count):
        with TemporaryDirectory() as directory:
            story = tell(drawn(seed), Path(directory))
        print("\n".join(story.said) if count == 1 else f"seed {seed}: {story.said[-1].strip()}", flush=True)
    took_s = time.monotonic() - began
    print(f"{count} histories in {took_s:.1f} s, {60 * count / took_s:.0f} per minute")


main(*map(int, sys.argv[1:]))
