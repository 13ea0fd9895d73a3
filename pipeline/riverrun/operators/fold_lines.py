"""Lines of aggregations: they find the bytes of a key, and the key's entry in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.processor.fused import block, lacking

if TYPE_CHECKING:
    from riverrun.processor.fused import Site
    from riverrun.state.access import CachedFold

KEY_AS_BYTES = "key_as_bytes"
"""Numbers the names in generated lines."""


def bytes_lines(at: Site, fold: CachedFold) -> str:
    """Return the lines that find a key's bytes: those that it was read from, or those that the store writes."""
    if at.raw_key is not None:
        return f"{KEY_AS_BYTES} = {at.raw_key}"
    written = f"{KEY_AS_BYTES} = {at.named('bytes', fold.keys.serialize)}({at.key})"
    refused = f"raise {at.named('refused', fold.keys.refused)}({at.key}, error) from error"
    return f"{block('try:', written)}\n{block('except Exception as error:', refused)}"


def entry_lines(at: Site, fold: CachedFold, start: str | None = None) -> str:
    """Return the lines that find the entry of a key and add the record to it.

    Args:
        at: Place of the lines, after those of `bytes_lines`.
        fold: The aggregation.
        start: Name of the variable with the window's start; None without windows.
    """
    found = fold.finding(at.named, KEY_AS_BYTES, at.key_as_read, start)
    return f"{found}\n{fold.updating(at.named, at.key, at.value, at.item, at.place)}"


def lines_by_key(at: Site, fold: CachedFold) -> str:
    """Return the lines of an aggregation without windows; the operator handles records without a key or value."""
    refused = block(f"if {lacking(at, at.lacks_key)}:", at.process)
    return f"{refused}\n{block('else:', bytes_lines(at, fold), entry_lines(at, fold))}"
