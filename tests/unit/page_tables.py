"""Tables of pages, to be compared with what they are about."""

from __future__ import annotations

from itertools import dropwhile, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    _, _, below = (DOCS / page).read_text().partition(f"\n{heading}\n")
    section = below.partition("\n#")[0].splitlines()
    lines = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), section))
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return cells[1:]
