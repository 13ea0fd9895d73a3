"""`Links`: the topics that a declaration in `streams.toml` reads and writes, next to applications, whose topologies say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Links:
    """The place of a declaration in the graph of its project: its attribute `links` has it.

    Args:
        reads: Topics that it reads.
        writes: Topics that it writes.
        letters: Topic to which it copies records that it cannot handle; empty for none.
        keeps_rows: Whether it keeps one row for each key of what it reads, or else adds each record.
        writes_keys: Whether the records that it writes have keys.
        is_known: Whether all that happens to the records is known. Nothing is of programs outside the project.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    letters: str = ""
    keeps_rows: bool = False
    writes_keys: bool = True
    is_known: bool = True
