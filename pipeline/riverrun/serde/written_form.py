"""The form of the JSON that a type's values are written in, as plain values that can be kept, and examples of such JSON.

Later code may have another class of that name, or none. It reads examples of the earlier form to learn whether it can read all
rows: msgspec itself decides, not a second set of its rules. An example differs from the first one in a single part, so their
number grows with the number of fields.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Form: TypeAlias = "dict[str, Any]"
"""`{"is": kind, ...}`; the outermost one also has `classes`, by the name that records refer to."""

# More are only possible where many classes refer to each other.
MOST_EXAMPLES = 5_000
_TIMES = {
    "datetime": "2026-01-01T06:30:00",
    "time": "06:30:00.000001",
}
_TEXTS = {
    "bytes": ("", "cml2ZXI="),
    "date": ("2026-01-01",),
    "decimal": ("1.50", "-12345678901234567890.123456789"),
    "timedelta": ("PT0S", "-P1DT0.5S"),
    "uuid": ("12345678-1234-5678-1234-567812345678",),
}
_PLAIN: Mapping[type, str] = {
    inspect.AnyType: "any",
    inspect.RawType: "any",
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateType: "date",
    inspect.DecimalType: "decimal",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
}
_LIMITED: Mapping[type, str] = {
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
}
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
# Values at which readers differ: beyond the whole numbers of a float, at the ends of 64 bits and beyond.
_INTS = (0, 1, -1, 2**53 + 1, -(2**63), 2**64)
_FLOATS = (0.5, 1.0, -2.25, 1e300)
_STRINGS = ("", "a", "a longer text, with é")


def form_of(type_: Any) -> Form | None:
    """Return the form of a type's JSON; None if it has parts that msgspec alone does not describe.

    >>> form_of(list[int])
    {'is': 'list', 'of': {'is': 'int'}, 'classes': {}}
    """
    try:
        found = inspect.type_info(type_)
    except Exception:  # noqa: BLE001 - a user's annotations may do anything
        return None
    work = _Forms()
    try:
        return {**work.of(found), "classes": work.classes}
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A part of a type has no known form."""


class _Forms:
    """The forms of one type's parts."""

    def __init__(self) -> None:
        self.classes: dict[str, Form] = {}
        self._names: dict[int, str] = {}

    def of(self, found: Any) -> Form:
        if isinstance(found, inspect.Metadata):
            return self.of(found.type)
        return _simple(found) or self._composed(found)

    def _composed(self, found: Any) -> Form:
        if isinstance(found, _RECORDS):
            return self._record(found)
        if isinstance(found, inspect.UnionType):
            return {"is": "union", "of": [self.of(each) for each in found.types]}
        if isinstance(found, inspect.TupleType):
            return {"is": "tuple", "of": [self.of(each) for each in found.item_types]}
        if isinstance(found, inspect.NamedTupleType):
            return {"is": "tuple", "of": [self.of(each.type) for each in found.fields]}
        if isinstance(found, inspect.CollectionType):
            return {"is": "list", "of": self.of(found.item_type), **_lengths(found)}
        if isinstance(found, inspect.DictType):
            return {"is": "dict", "keys": self.of(found.key_type), "of": self.of(found.value_type), **_lengths(found)}
        raise _UnknownError

    def _record(self, found: Any) -> Form:
        known = self._names.get(id(found))
        if known is not None:
            return {"is": "record", "class": known}
        own = getattr(found.cls, "__name__", str(found.cls))
        # Two classes of one name are possible, from different modules.
        name = own if own not in self.classes else f"{own} {len(self.classes)}"
        self._names[id(found)] = name
        # Reserved before its fields are visited: the class may contain itself.
        self.classes[name] = {}
        fields = [[each.encode_name, self.of(each.type), _may_be_missing(found, each)] for each in found.fields]
        made: Form = {"fields": fields}
        if getattr(found, "tag_field", None) is not None:
            made["tag"] = [found.tag_field, found.tag]
        if getattr(found, "array_like", False):
            made["array"] = True
        self.classes[name] = made
        return {"is": "record", "class": name}


def _simple(found: Any) -> Form | None:
    kind = _PLAIN.get(type(found))
    if kind is not None:
        return {"is": kind}
    kind = _LIMITED.get(type(found))
    if kind is not None:
        limits = {name: getattr(found, name) for name in found.__struct_fields__}
        return {"is": kind, **{name: limit for name, limit in limits.items() if limit is not None}}
    if isinstance(found, inspect.LiteralType):
        return {"is": "one of", "values": list(found.values)}
    if isinstance(found, inspect.EnumType):
        return {"is": "one of", "values": [msgspec.to_builtins(member) for member in found.cls]}
    return None


def _lengths(found: Any) -> dict[str, int]:
    limits = {"min_length": found.min_length, "max_length": found.max_length}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _may_be_missing(found: Any, field: inspect.Field) -> bool:
    """Return whether objects may be written without a field."""
    if field.required:
        return False
    if isinstance(found, inspect.TypedDictType):
        return True
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        # It may be UNSET.
        return True
    return isinstance(found, inspect.StructType) and bool(found.cls.__struct_config__.omit_defaults)


def is_certain(form: Form) -> bool:
    """Return whether the form says all that values may be: it has no part of any shape, and no text with a pattern.

    >>> is_certain({"is": "int", "classes": {}}), is_certain({"is": "list", "of": {"is": "any"}, "classes": {}})
    (True, False)
    """
    return all(each["is"] != "any" and "pattern" not in each for each in _parts(form))


def _parts(form: Form) -> Iterator[Form]:
    yield form
    inner = form.get("of", [])
    for each in inner if isinstance(inner, list) else [inner]:
        yield from _parts(each)
    if "keys" in form:
        yield from _parts(form["keys"])
    for made in form.get("classes", {}).values():
        for _, each, _ in made["fields"]:
            yield from _parts(each)


def field_paths(form: Form) -> set[str]:
    """Return the fields of a form's records, with the fields that lead to them.

    >>> import dataclasses
    >>> seat = dataclasses.make_dataclass("Seat", [("row", int)])
    >>> sorted(field_paths(form_of(dataclasses.make_dataclass("Trip", [("seats", list[seat])]))))
    ['seats', 'seats.row']
    """
    return set(_paths(form, form["classes"], "", ()))


def _paths(form: Form, classes: Mapping[str, Form], before: str, within: tuple[str, ...]) -> Iterator[str]:
    if form["is"] == "record" and form["class"] not in within:
        name = form["class"]
        for field, inner, _ in [] if classes[name].get("array") else classes[name]["fields"]:
            yield f"{before}{field}"
            yield from _paths(inner, classes, f"{before}{field}.", (*within, name))
    inner = form.get("of", [])
    for each in inner if isinstance(inner, list) else [inner]:
        yield from _paths(each, classes, before, within)


def examples(form: Form) -> list[Any] | None:
    """Return plain values as JSON writes them, which together have all forms of each part; None if there are too many.

    >>> examples({"is": "union", "of": [{"is": "bool"}, {"is": "none"}], "classes": {}})
    [True, False, None]
    """
    found = list(islice(_examples(form, form["classes"], ()), MOST_EXAMPLES + 1))
    return None if len(found) > MOST_EXAMPLES else found


def _examples(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    kind = form["is"]
    if kind in _ALONE:
        return iter(_ALONE[kind](form))
    if kind in _COMPOSED:
        return _COMPOSED[kind](form, classes, within)
    return iter(_TEXTS[kind])


def _times(form: Form) -> Iterator[str]:
    text, zone = _TIMES[form["is"]], form.get("tz")
    return (text + end for end, has_zone in (("", False), ("Z", True)) if zone in {None, has_zone})


def _numbers(form: Form) -> Iterator[int | float]:
    is_whole = form["is"] == "int"
    low, high = form.get("ge", form.get("gt")), form.get("le", form.get("lt"))
    step = form.get("multiple_of", 1)
    # A reader with narrower limits refuses what lies at or just within these.
    limits = [limit + shift for limit in (low, high) if limit is not None for shift in (-step, 0, step)]
    tried: Sequence[int | float] = [*(_INTS if is_whole else _FLOATS), *limits]
    if "multiple_of" in form:
        tried = [each * step for each in tried]
    for each in dict.fromkeys(int(each) if is_whole else float(each) for each in tried):
        above = ("ge" not in form or each >= form["ge"]) and ("gt" not in form or each > form["gt"])
        below = ("le" not in form or each <= form["le"]) and ("lt" not in form or each < form["lt"])
        if above and below:
            yield each


def _strings(form: Form) -> Iterator[str]:
    least, most = form.get("min_length", 0), form.get("max_length", 2**31)
    tried = dict.fromkeys([*_STRINGS, "a" * least, "a" * min(most, least + 1)])
    pattern = form.get("pattern")
    yield from (each for each in tried if least <= len(each) <= most and (pattern is None or re.search(pattern, each)))


def _lists(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    least = form.get("min_length", 0)
    if not least:
        yield []
    if form.get("max_length", 1):
        yield from ([each] * max(1, least) for each in _examples(form["of"], classes, within))


def _tuples(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    parts = [[str(at), each, False] for at, each in enumerate(form["of"])]
    return (list(each.values()) for each in _combined(parts, classes, within))


def _members(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    return chain.from_iterable(_examples(each, classes, within) for each in form["of"])


def _dicts(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    keys = [str(each) for each in _examples(form["keys"], classes, within) if isinstance(each, str | int)]
    least = form.get("min_length", 0)
    if not least:
        yield {}
    if len(keys) < max(1, least) or not form.get("max_length", 1):
        return
    for number, value in enumerate(_examples(form["of"], classes, within)):
        several = keys[: max(1, least)]
        yield dict.fromkeys(several, value)
        if number == 0:
            yield from (dict.fromkeys([*several[1:], key], value) for key in keys[len(several) :])


def _records(form: Form, classes: Mapping[str, Form], within: tuple[str, ...]) -> Iterator[Any]:
    # A class within itself has shown by now what its fields take there.
    if within.count(form["class"]) > 1:
        return
    made, within = classes[form["class"]], (*within, form["class"])
    is_array, tag = made.get("array", False), made.get("tag")
    for each in _combined(made["fields"], classes, within, may_miss=not is_array):
        if is_array:
            yield [*([tag[1]] if tag else ()), *each.values()]
        else:
            yield {**({tag[0]: tag[1]} if tag else {}), **each}


def _combined(
    fields: Iterable[Sequence[Any]], classes: Mapping[str, Form], within: tuple[str, ...], *, may_miss: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield dicts with the first example of each field, then with each further example of one field, then without fields."""
    every = {name: list(islice(_examples(form, classes, within), MOST_EXAMPLES + 1)) for name, form, _ in fields}
    optional = {name for name, _, missing in fields if missing and may_miss}
    if any(not found and name not in optional for name, found in every.items()):
        return
    first = {name: found[0] for name, found in every.items() if found}
    yield first
    for name, found in every.items():
        yield from ({**first, name: each} for each in found[1:])
    for name in optional & first.keys():
        yield {key: value for key, value in first.items() if key != name}
    if len(optional & first.keys()) > 1:
        yield {key: value for key, value in first.items() if key not in optional}


_ALONE: Mapping[str, Callable[[Form], Iterable[Any]]] = {
    "any": lambda _: [None],
    "none": lambda _: [None],
    "bool": lambda _: [True, False],
    "int": _numbers,
    "float": _numbers,
    "str": _strings,
    "datetime": _times,
    "time": _times,
    "one of": lambda form: form["values"],
}
_COMPOSED: Mapping[str, Callable[[Form, Mapping[str, Form], tuple[str, ...]], Iterator[Any]]] = {
    "union": _members,
    "list": _lists,
    "tuple": _tuples,
    "dict": _dicts,
    "record": _records,
}
