"""Digests of values with everything that they refer to: functions, classes, objects and containers.

A digest covers the content of a user's functions, classes and constants, whichever module they are in. What belongs to Python,
to Riverrun or to an installed library counts by its name. Digests do not contain addresses, places of files or the order of
sets, so they are alike in all processes.
"""

# ruff: noqa: PERF401 - generators that ask for digests cannot be comprehensions
from __future__ import annotations

import dataclasses
import functools
import logging
import re
import sys
import threading
import types
import typing
import weakref
from contextvars import ContextVar
from enum import Enum, EnumType
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GenericAlias,
    MappingProxyType,
    MethodType,
    ModuleType,
    UnionType,
)
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from riverrun.serde.api import Serde, SerdePlace
from riverrun.serde.windowed import with_ends
from riverrun.topology.contents import (
    CONTENTS,
    MISSING,
    WHOLE,
    annotations_of,
    atom_of,
    bytecode,
    captured,
    hashed,
    holds_more,
    imported,
    is_a,
    is_copied,
    is_msgspecs,
    is_own,
    is_users_attribute,
    module_of,
    name_of,
    named_in,
    normal_annotation,
    order_of,
    read_outside,
    reduced_parts,
    references_of,
    resolved,
    state_of,
    taken_from,
    used_inside,
)
from riverrun.topology.written_functions import written

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    Steps: typing.TypeAlias = Generator[Any, str, list[object]]

# Replaces the body of a generated function in its digest: bytecode depends on the version of Python.
GENERATED_FROM = "generated_from"
# Some seconds for a topology; larger containers are named as not digested.
_MOST_VALUES = 2_000_000
_STRUCT_OPTIONS = ("frozen", "order", "eq", "array_like", "omit_defaults", "forbid_unknown_fields", "tag", "tag_field")

_BY_NAME = (
    BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# Their state differs between processes, and decides nothing about results.
_NEUTRAL = (
    logging.Logger,
    logging.LoggerAdapter,
    logging.Handler,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.Barrier,
    threading.local,
    weakref.ref,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
    SerdePlace,
)
# As Python has it until 3.13: fingerprints must not change with the version of Python.
_UNION = f"#{hashed(repr(['class', 'UnionType']).encode())}"

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class _Frame:
    """A value whose digest is being computed: a node of Tarjan's algorithm, since values may refer to each other in cycles."""

    __slots__ = ("at", "found", "key", "label", "low", "start", "steps", "unseen")

    def __init__(self, at: int, key: int, label: str, low: int, start: int) -> None:
        self.steps: Steps | None = None
        self.at = at
        self.key = key
        self.label = label
        self.low = low
        self.start = start
        self.found = low
        self.unseen: set[str] = set()


class Digester:
    """Computes digests. Values that several others refer to are digested once.

    Args:
        only_code: Whether to leave out what functions capture and refer to, and what objects hold.
    """

    def __init__(self, *, only_code: bool = False) -> None:
        self._only_code = only_code
        self._left = _MOST_VALUES
        # Keeps values alive, so that no address is given to another value meanwhile.
        self._kept: list[Any] = []
        self._count = 0
        self._memo: dict[int, tuple[str, frozenset[str]]] = {}
        self._open: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self._pending: list[int] = []
        self._pending_texts: dict[int, str] = {}
        self._cycle_of: dict[int, int] = {}
        self._open_cycles: dict[int, int] = {}
        self._cycles = 0

    def digest(self, value: Any, label: str = "") -> tuple[str, frozenset[str]]:
        """Return a value's digest, and what could not be digested."""
        text = atom_of(value)
        if text is not None:
            return text, frozenset()
        # A stack of generators that ask for the digests of others: values may be nested deeper than Python's calls.
        frames = [self._begun(value, label)]
        child: Any = None
        while True:
            frame = frames[-1]
            try:
                child = frame.steps.send(text)  # type: ignore[union-attr, arg-type] # None begins
                parts = None
            except StopIteration as end:
                parts = end.value
            except Exception:  # noqa: BLE001 - an object whose class hides or replaces what every object has
                parts = self._unseen(frame)
            if parts is not None:
                text = f"#{hashed(repr(parts).encode('utf-8', 'backslashreplace'))}"
                self._end(frame, text)
                frames.pop()
                if not frames:
                    return text, frozenset(frame.unseen)
                frames[-1].low = min(frames[-1].low, frame.low)
                frames[-1].unseen |= frame.unseen
                continue
            name = frame.label
            if type(child) is _Named:
                child, name = child.value, child.name
            text = atom_of(child)
            if text is None:
                text = self._known(child, frame, len(frames))
            if text is None:
                frames.append(self._begun(child, name, len(frames)))

    def _unseen(self, frame: _Frame) -> list[object]:
        kind = type(self._kept[frame.at])
        frame.unseen.add(f"{frame.label or 'an object'} ({kind.__module__}.{kind.__qualname__})")
        return ["unseen", name_of(kind)]

    def _begun(self, value: Any, label: str, depth: int = 0) -> _Frame:
        self._kept.append(value)
        self._left -= 1
        self._count += 1
        key = id(value)
        frame = _Frame(len(self._kept) - 1, key, label, self._count, len(self._pending))
        try:
            frame.steps = self._described(value, frame)
        except Exception:  # noqa: BLE001 - an object whose class hides or replaces what every object has
            frame.steps = _named(*self._unseen(frame))
        self._open[key], self._found[key] = depth, self._count
        if (cycle := self._cycle_of.get(key)) is not None:
            self._open_cycles[cycle] = self._open_cycles.get(cycle, 0) + 1
        return frame

    def _known(self, value: Any, frame: _Frame, depth: int) -> str | None:
        """Return the digest of a value that was met before; for a value that contains this one, the way up to it."""
        key = id(value)
        if key in self._open:
            frame.low = min(frame.low, self._found[key])
            return f"^{depth - self._open[key]}"
        if key in self._pending_texts:
            frame.low = min(frame.low, self._found[key])
            return self._pending_texts[key]
        # Not while another value of its cycle is open: a digest must not depend on where the cycle was entered first.
        if key in self._memo and not self._open_cycles.get(self._cycle_of.get(key, -1)):
            text, unseen = self._memo[key]
            frame.unseen |= unseen
            return text
        return None

    def _end(self, frame: _Frame, text: str) -> None:
        key = frame.key
        del self._open[key]
        if (cycle := self._cycle_of.get(key)) is not None:
            self._open_cycles[cycle] -= 1
        # Part of a cycle whose first value is still open: its digest holds only seen from there.
        if frame.low < frame.found:
            self._pending.append(key)
            self._pending_texts[key] = text
            return
        members = self._pending[frame.start :]
        del self._pending[frame.start :], self._found[key]
        if members:
            self._cycles += 1
        for member in members:
            del self._pending_texts[member], self._found[member]
            self._cycle_of[member] = self._cycles
        if members:
            self._cycle_of[key] = self._cycles
        self._memo[key] = text, frozenset(frame.unseen)

    def _described(self, value: Any, frame: _Frame) -> Steps:  # noqa: C901, PLR0911, PLR0912 - one case per type
        kind = type(value)
        if kind in (list, tuple):
            return self._items(value, frame)
        if kind in (dict, MappingProxyType):
            return self._pairs(value, frame)
        if kind in (set, frozenset):
            return self._set(value, frame)
        if kind is FunctionType:
            return self._function(value, frame)
        if issubclass(kind, type):
            return self._class(value) if is_own(module_of(value)) else _named("class", name_of(value))
        if issubclass(kind, ModuleType):
            return self._module(value)
        if kind is MethodType:
            return _listed("method", value.__func__, value.__self__)
        if kind is functools.partial:
            return _listed("partial", value.func, value.args, value.keywords)
        if kind in (staticmethod, classmethod):
            return _listed(kind.__name__, value.__func__)
        if kind is property:
            return _listed("property", value.fget, value.fset, value.fdel)
        if kind is functools.cached_property:
            return _listed("property", value.func)
        if kind is functools.singledispatchmethod:
            return _listed("dispatch", value.func, value.dispatcher)
        if kind is functools._lru_cache_wrapper:  # noqa: SLF001 - the type has no public name
            return _listed("cached", value.__wrapped__)
        if kind in (bytearray, memoryview):
            return _listed("bytes", bytes(value))
        if kind in _VIEWS:
            return _listed("view", *value)
        if kind is CodeType:
            return _listed("code", repr(bytecode(value)))
        if issubclass(kind, Serde):
            return self._serde(value)
        if issubclass(kind, Enum):
            return _listed("member", kind, value.name, value.value)
        if issubclass(kind, PurePath):
            return _listed("path", str(value))
        if issubclass(kind, _NEUTRAL):
            return _named("neutral", kind.__qualname__)
        if kind is ZoneInfo and value.key is not None:
            return _listed("zone", value.key)
        if kind is ContextVar:
            return _variable(value)
        if kind is re.Pattern:
            return _listed("pattern", value.pattern, value.flags)
        if kind.__module__ in {"typing", "types"} or kind in (GenericAlias, UnionType, typing.ForwardRef):
            described = _annotation(value)
            if described is not None:
                return described
        if kind in _BY_NAME:
            return self._builtin(value, frame)
        if is_own(kind.__module__):
            return self._object(value, kind)
        if kind.__module__.partition(".")[0] == "riverrun":
            return self._riverruns(value, kind)
        return self._foreign(value, frame)

    def _items(self, values: Iterable[Any], frame: _Frame) -> Steps:
        items = list(values)
        if not self._fits(len(items), frame):
            return [type(values).__name__, "too large", len(items)]
        parts: list[object] = [type(values).__name__]
        for item in items:
            text = atom_of(item)
            parts.append((yield item) if text is None else text)
        return parts

    def _pairs(self, values: Mapping[Any, Any], frame: _Frame) -> Steps:
        items = list(values.items())
        if not self._fits(2 * len(items), frame):
            return ["dict", "too large", len(items)]
        parts: list[object] = ["dict"]
        for pair in items:
            for item in pair:
                text = atom_of(item)
                parts.append((yield item) if text is None else text)
        return parts

    def _set(self, values: Iterable[Any], frame: _Frame) -> Steps:
        items = list(values)
        if not self._fits(len(items), frame):
            return ["set", "too large", len(items)]
        parts = []
        for item in sorted(items, key=order_of):
            text = atom_of(item)
            parts.append((yield item) if text is None else text)
        return ["set", sorted(parts)]

    def _fits(self, count: int, frame: _Frame) -> bool:
        if count <= self._left:
            self._left -= count
            return True
        frame.unseen.add(f"{frame.label or 'a container'} ({count:,} values)")
        return False

    def _function(self, function: FunctionType, frame: _Frame) -> Steps:
        code, names = function.__code__, function.__globals__
        if not is_own(str(names.get("__name__", "")), code.co_filename):
            return (yield from self._foreign_function(function))
        generated = vars(function).get(GENERATED_FROM)
        body = repr(generated) if generated is not None else (written(function) or bytecode(code))
        parts: list[object] = ["function", body, (yield function.__defaults__ or ())]
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            parts += [name, (yield value)]
        if self._only_code:
            return parts
        where = function.__qualname__.rpartition(".<locals>.")[2]
        for name, value in captured(function):
            if is_a(value, ModuleType):
                for inner, held in used_inside(value, references_of(code)):
                    parts += [inner, (yield _Named(held, f"{inner} in {where}"))]
            else:
                parts += [name, (yield _Named(value, f"{name} in {where}"))]
        for name, value in sorted(vars(function).items()):
            if name == "__wrapped__" or not name.startswith("__"):
                parts += [name, (yield _Named(value, f"{where}.{name}"))]
        if generated is None:
            parts.append((yield from self._referred(function, frame, where)))
        return parts

    def _referred(self, function: FunctionType, frame: _Frame, where: str) -> Steps:
        """Describe what a function's names stand for."""
        names, found = function.__globals__, references_of(function.__code__)
        parts: list[object] = []
        for chain in found.chains:
            means = read_outside(chain, names)
            if means:
                frame.unseen.add(f"{means} that {where} reads")
            if chain[0] in WHOLE and chain[0] not in names:
                parts += [chain[0], (yield from self._contents(names, ""))]
            length, value = resolved(chain, names)
            if value is not MISSING:
                name = ".".join(chain[:length])
                parts += [name, (yield _Named(value, f"{name} in {where}"))]
        for level, name, taken in found.imports:
            for inner, value in taken_from(imported(level, name, names), taken, found):
                parts += [inner, (yield _Named(value, f"{inner} in {where}"))]
        return parts

    def _foreign_function(self, function: FunctionType) -> Steps:
        """Describe a library's function: its name, and what it was made of. A decorator's holds the user's function."""
        parts: list[object] = ["library function", name_of(function)]
        held = vars(function)
        # Of `functools.singledispatch`, whose other cells are caches.
        if "registry" in held and "dispatch" in held:
            registry = held["registry"]
            for kind in sorted(registry, key=order_of):
                parts += [(yield kind), (yield registry[kind])]
            return parts
        for name, value in captured(function):
            parts += [name, (yield _Named(value, f"{name} in {function.__qualname__}"))]
        if "__wrapped__" in held:
            parts.append((yield held["__wrapped__"]))
        if GENERATED_FROM in held:
            parts.append(repr(held[GENERATED_FROM]))
        return parts

    def _module(self, module: ModuleType) -> Steps:
        name = str(vars(module).get("__name__", ""))
        if not is_own(name):
            return ["module", name]
        return ["module", (yield from self._contents(vars(module), f"{name}."))]

    def _contents(self, names: Mapping[str, Any], prefix: str) -> Steps:
        parts: list[object] = []
        for name, value in sorted(item for item in names.items() if item[0][:2] != "__"):
            if not is_a(value, ModuleType):
                parts += [name, (yield _Named(value, f"{prefix}{name}"))]
        return parts

    def _class(self, owner: type) -> Steps:
        own = type.__getattribute__(owner, "__dict__")
        parts: list[object] = ["class", owner.__qualname__]
        for base in owner.__bases__:
            parts.append((yield base))
        if is_own(type(owner).__module__):
            parts.append((yield type(owner)))
        is_enum = is_a(owner, EnumType)
        members: Mapping[str, Any] = owner.__members__ if isinstance(owner, EnumType) else {}
        for name, member in members.items():
            parts += [name, (yield member.value)]
        for name, value in sorted(item for item in own.items() if item[0] not in members):
            if is_users_attribute(name, value, is_enum=is_enum) and not is_copied(owner, name, value):
                parts += [name, (yield _Named(value, f"{owner.__qualname__}.{name}"))]
        parts.append((yield from self._fields(owner, own)))
        return parts

    def _fields(self, owner: type, own: Mapping[str, Any]) -> Steps:
        """Describe the fields of a class: their types and defaults, from which libraries make code."""
        parts: list[object] = []
        found = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
        for name, kind in annotations_of(own):
            if not is_a(kind, str):
                parts += [name, (yield kind)]
                continue
            parts += [name, normal_annotation(kind)]
            for chain in named_in(kind):
                _, value = resolved(chain, found)
                if value is not MISSING and is_a(value, type) and not is_own(value.__module__):
                    value = MISSING
                if value is not MISSING:
                    parts.append((yield value))
        parts += yield from self._defaults(owner, own)
        return parts

    def _defaults(self, owner: Any, own: Mapping[str, Any]) -> Steps:
        parts: list[object] = []
        for field in own.get("__dataclass_fields__", {}).values():
            # Of a `ClassVar`, `kw_only` is an object whose text has its address.
            parts += [field.name, field.init, field.compare, field.kw_only is True, (yield dict(field.metadata))]
            for default in (field.default, field.default_factory):
                # Pickled with its class, the sign that there is none becomes another object.
                is_missing = type(default) is type(dataclasses.MISSING)
                parts.append("none" if is_missing else (yield default))
        if "__dataclass_params__" in own:
            made = own["__dataclass_params__"]
            parts.append((made.eq, made.order, made.unsafe_hash, made.frozen))
        if issubclass(owner, msgspec.Struct):
            parts += [owner.__struct_fields__, owner.__struct_encode_fields__]
            for option in _STRUCT_OPTIONS:
                parts.append((yield getattr(owner.__struct_config__, option)))
            for default in owner.__struct_defaults__:
                parts.append((yield getattr(default, "factory", default) if is_msgspecs(default) else default))
        for each in own.get("__attrs_attrs__", ()):
            parts += [each.name, (yield each.default), (yield each.converter), (yield each.validator)]
        for name, each in own.get("__pydantic_fields__", {}).items():
            parts += [name, each.alias, (yield each.default), (yield each.default_factory), (yield list(each.metadata))]
        return parts

    def _object(self, value: Any, kind: type) -> Steps:
        """Describe an object by its class and its content, without calling its own code."""
        parts: list[object] = ["object", (yield kind)]
        if self._only_code:
            return parts
        for builtin, content in CONTENTS.items():
            if issubclass(kind, builtin):
                parts.append((yield content(value)))
        if any(holds_more(base) for base in kind.__mro__):
            parts.append((yield reduced_parts(value, kind)))
        for name, held in state_of(value, kind):
            parts += [name, (yield _Named(held, f"{kind.__qualname__}.{name}"))]
        return parts

    def _riverruns(self, value: Any, kind: type) -> Steps:
        """Describe one of Riverrun's own objects: values by the content of their fields, anything else by its name."""
        parts: list[object] = [kind.__qualname__]
        if dataclasses.is_dataclass(value) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
            for name, held in state_of(value, kind):
                # Other attributes were computed from the fields.
                if name in fields:
                    parts += [name, (yield held)]
        return parts

    def _serde(self, serde: Serde[Any]) -> Steps:
        """Describe a serde by its name and what it was made of, wherever it is used."""
        parts: list[object] = ["serde", serde.name]
        if is_own(type(serde).__module__):
            parts.append((yield type(serde)))
        if serde.remake is None:
            for part in (serde.serialize, serde.deserialize, serde.partition_key, serde.plain, serde.value_type):
                parts.append((yield part))
            return parts
        made, arguments = serde.remake
        if made is with_ends or any(is_a(argument, SerdePlace) for argument in arguments):
            return (yield from self._serde(arguments[0]))
        parts.append((yield made))
        for argument in arguments:
            # A dict is the settings of the schema registry: where schemas are, not what they are.
            if type(argument) is not dict:
                parts.append((yield argument))
        return parts

    def _builtin(self, value: Any, frame: _Frame) -> Steps:
        owner = getattr(value, "__self__", None)
        parts: list[object] = ["builtin", name_of(value)]
        module = getattr(value, "__module__", None)
        if isinstance(module, str) and is_own(module):
            frame.unseen.add(f"{module}.{value.__name__} (compiled)")
        if owner is not None and not is_a(owner, ModuleType):
            parts.append((yield owner))
        return parts

    def _foreign(self, value: Any, frame: _Frame) -> Steps:
        """Describe an object of Python's or of a library by how it would be pickled."""
        kind = type(value)
        if self._only_code:
            return [name_of(kind)]
        name = f"{kind.__module__}.{kind.__qualname__}"
        made = reduced_parts(value, kind)
        if isinstance(made, str):
            return ["global", name_of(kind), made]
        if made is None:
            frame.unseen.add(f"{frame.label or 'an object'} ({name})")
            return ["unseen", name_of(kind)]
        parts: list[object] = [name_of(kind)]
        for part in made:
            parts.append((yield part))
        return parts


@dataclasses.dataclass(frozen=True, slots=True)
class _Named:
    value: Any
    name: str


def _named(*parts: object) -> Steps:
    return list(parts)
    yield


def _listed(kind: str, *values: Any) -> Steps:
    parts: list[object] = [kind]
    for value in values:
        parts.append((yield value))
    return parts


def _variable(value: ContextVar[Any]) -> Steps:
    try:
        default = value.get()
    except LookupError:
        return ["variable", value.name]
    return ["variable", value.name, (yield default)]


def _union(value: Any) -> Steps:
    """Describe `Optional[int]` as `int | None`, which equal each other from Python 3.14 on."""
    parts: list[object] = ["type", _UNION]
    for each in typing.get_args(value):
        parts.append((yield each))
    return parts


def _annotation(value: Any) -> Steps | None:
    """Describe a type other than a class; None if it is not a type."""
    origin = typing.get_origin(value)
    if origin in (typing.Union, UnionType):
        return _union(value)
    if origin is not None:
        # A class in some versions of Python, an object in others.
        named = origin.__module__ == "typing"
        return _listed("type", str(origin).rpartition(".")[2].strip("'>") if named else origin, *typing.get_args(value))
    if is_a(value, typing.NewType):
        return _listed("new type", value.__name__, value.__supertype__)
    if is_a(value, typing.ForwardRef):
        return _listed("reference", value.__forward_arg__)
    if is_a(value, typing.TypeVar):
        return _listed("variable", value.__name__, value.__bound__, *value.__constraints__)
    if hasattr(type(value), "__value__") and hasattr(type(value), "__type_params__"):
        return _listed("alias", value.__name__, value.__value__)
    if type(value).__module__ == "typing":
        return _named("type", repr(value))
    return None
