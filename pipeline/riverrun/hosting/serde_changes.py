"""Compares a serde with the one that has written rows before: can it read them?

A description of a serde is a plain value that can be kept: the form of its JSON, the name of a simple format, the descriptions
of the serdes inside it, or a digest of its code. Two descriptions of JSON are compared by examples (`serde.written_form`).
Where a description does not say everything, the rows themselves must be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from riverrun.errors import USER_ERRORS, as_exception
from riverrun.serde.api import Serde, placed
from riverrun.serde.serdes import BYTES, is_json, simple_format
from riverrun.serde.written_form import examples, field_paths, form_of, is_certain
from riverrun.topology.fingerprint import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Description: TypeAlias = "dict[str, Any]"

_JSON, _CUSTOM = "json", "custom"
_MOST_REASONS = 3
_COMPOSED = "riverrun.serde."
"""Modules whose serdes are the bytes of the serdes in them, in a fixed frame."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing a serde with an earlier one.

    Args:
        reasons: Why the serde cannot read all that the earlier one may have written; empty if it can.
        is_sure: Whether the descriptions alone decide that. If not, the rows do.
        is_misread: Whether rows may be read as other values without an error, so that reading them proves nothing.
        lost: Fields that are in earlier values and that the serde no longer reads.
    """

    reasons: tuple[str, ...] = ()
    is_sure: bool = True
    is_misread: bool = False
    lost: tuple[str, ...] = ()


def described(serde: Serde[Any]) -> Description:
    """Return the description of a serde.

    >>> from riverrun.serde.serdes import LONG
    >>> from riverrun.serde.windowed import windowed
    >>> described(windowed(LONG))
    {'format': 'windowed_of_size_ms', 'parts': [{'format': 'long'}]}
    """
    if is_json(serde):
        form = form_of(serde.value_type)
        if form is not None:
            return {"format": _JSON, "form": form}
    simple = simple_format(serde)
    if simple is not None:
        return {"format": simple}
    function, parts = _composition(serde)
    if parts:
        return {"format": function, "parts": [described(part) for part in parts]}
    unplaced = serde.remake[1][0] if serde.remake is not None and serde.remake[0] is placed else serde
    return {"format": _CUSTOM, "name": serde.name, "code": code_of(unplaced)}


def _composition(serde: Serde[Any]) -> tuple[str, list[Serde[Any]]]:
    """Return the name of the frame, and the serdes in it; no serdes if its bytes are not those of others in a frame."""
    function, arguments = serde.remake or (None, ())
    if function is None or function is placed or not function.__module__.startswith(_COMPOSED):
        return "", []
    return function.__qualname__, [part for part in arguments if isinstance(part, Serde)]


def compare(earlier: Mapping[str, Any], serde: Serde[Any], *, is_key: bool) -> Comparison:
    """Compare a serde with the description of an earlier one.

    >>> import dataclasses
    >>> from riverrun.serde.serdes import JSON, LONG
    >>> old = dataclasses.make_dataclass("Visit", [("clicks", int)])
    >>> new = dataclasses.make_dataclass("Visit", [("clicks", int), ("country", str)])
    >>> compare(described(JSON(old)), JSON(new), is_key=False).reasons
    ('Object missing required field `country`',)
    >>> compare(described(JSON(new)), JSON(old), is_key=False)
    Comparison(reasons=(), is_sure=True, is_misread=False, lost=('country',))
    """
    now = described(serde)
    if earlier == now or (serde == BYTES and not is_key):
        return Comparison()
    before = earlier.get("format")
    if before == now["format"] == _JSON:
        return _compare_json(earlier["form"], now["form"], serde, is_key=is_key)
    parts = _composition(serde)[1]
    if before == now["format"] and len(earlier.get("parts", ())) == len(parts) > 0:
        each = [compare(old, part, is_key=is_key) for old, part in zip(earlier["parts"], parts, strict=True)]
        return _together(each)
    if _CUSTOM in {before, now["format"]}:
        return Comparison(is_sure=False)
    return Comparison((f"they were written as {name_of(earlier)}, not as {name_of(now)}",), is_misread=True)


def name_of(description: Mapping[str, Any]) -> str:
    """Return a description in a few words.

    >>> name_of({"format": "windowed_of_size_ms", "parts": [{"format": "long"}]})
    'windowed_of_size_ms[long]'
    """
    parts = ", ".join(map(name_of, description.get("parts", ())))
    if "form" in description:
        kind = description["form"]
        return f"json[{kind.get('class', kind['is'])}]"
    return f"{description['format']}[{parts}]" if parts else str(description.get("name", description["format"]))


def _together(found: Iterable[Comparison]) -> Comparison:
    each = tuple(found)
    return Comparison(
        tuple(reason for one in each for reason in one.reasons),
        all(one.is_sure for one in each),
        any(one.is_misread for one in each),
        tuple(field for one in each for field in one.lost),
    )


def _compare_json(old: Mapping[str, Any], new: Mapping[str, Any], serde: Serde[Any], *, is_key: bool) -> Comparison:
    """Let a serde read examples of the form in which values were written."""
    lost = () if new["is"] == "any" else tuple(sorted(field_paths(dict(old)) - field_paths(dict(new))))
    if new["is"] == "any" and not is_key:
        return Comparison()
    tried = examples(dict(old)) if is_certain(dict(old)) else None
    if tried is None:
        return Comparison(is_sure=False, lost=lost)
    reasons: dict[str, None] = {}
    is_sure = True
    for example in tried:
        data = msgspec.json.encode(example)
        try:
            value = serde.deserialize(data)
            # A key has to be written again as it was, or the store does not find its row.
            written = serde.serialize(value) if is_key else data
        except USER_ERRORS as error:  # a user's class may raise anything
            reason = as_exception(error)
            if error.__cause__ is None:
                reasons[str(reason)] = None
            # The class itself refuses the example, which may be unlike all rows.
            else:
                is_sure = False
            continue
        if written != data:
            reasons[f"key {data.decode()} is now written as {written.decode(errors='replace')}"] = None
    return Comparison(tuple(reasons)[:_MOST_REASONS], is_sure, lost=lost)
