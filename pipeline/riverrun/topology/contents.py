"""Finds what functions refer to and what classes and objects consist of, without calling their own code."""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import decimal
import dis
import functools
import hashlib
import importlib
import re
import sys
import sysconfig
import types
import typing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, UnionType
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 14):
    import annotationlib

from riverrun.errors import USER_ERRORS, as_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_LIBRARY = str(Path(__file__).resolve().parents[1])
_PYTHON = tuple(
    f"{place}/"
    for place in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(dis.__file__).parent)}
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OWN = frozenset({"__main__", "__mp_main__"})

# They may find anything in a function's module, so all of it counts.
WHOLE = frozenset({"globals", "eval", "exec"})

_LONG = 64

# CPython's flag `CO_HAS_DOCSTRING`, which 3.13 introduced.
_HAS_DOCSTRING = 0x4000000

MISSING = object()

# Libraries derive these attributes of classes from the others.
_GENERATED = re.compile(
    r"__(pydantic|msgspec|struct|attrs|dataclass|class_vars|private_attributes|signature|fields|validators|annotat)\w*__"
)

_SKIPPED = frozenset(
    [
        "__module__",
        "__doc__",
        "__qualname__",
        "__dict__",
        "__weakref__",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__abstractmethods__",
        "__match_args__",
        "__hash__",
        "__type_params__",
        "__protocol_attrs__",
        "__non_callable_proto_members__",
        "__replace__",
        "__orig_class__",
        "__classdictcell__",
        "__conditional_annotations__",
        "__mutable_keys__",
        "__readonly_keys__",
        "_make",
        "_replace",
        "_asdict",
        "_abc_impl",
        "_is_protocol",
        "_is_runtime_protocol",
    ]
)

_SLOTS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    type(vars(typing.NamedTuple("_Pair", [("left", int)]))["left"]),
)

# How functions read outside of the program, by module and name, and what they read then: no digest covers it.
_OUTSIDE: Mapping[tuple[str, str], str] = {
    ("os", "environ"): "environment variables",
    ("os", "getenv"): "environment variables",
    ("builtins", "open"): "files",
    ("importlib", "import_module"): "modules that it looks up by name",
    ("builtins", "__import__"): "modules that it looks up by name",
    ("sys", "modules"): "modules that it looks up by name",
}


@dataclass(frozen=True, slots=True)
class References:
    """Names that the code of a function refers to, including inner functions and classes.

    Args:
        chains: Names of the module, each with the attributes that follow it: `("helper", "fee")` for `helper.fee`.
        imports: Modules that it imports itself: level, name, and the names taken from it.
    """

    chains: tuple[tuple[str, ...], ...]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    attributes: frozenset[str]


@functools.lru_cache(maxsize=4096)
def references_of(code: CodeType) -> References:
    """Return what a function's code refers to."""
    chains, imports, attributes = set[tuple[str, ...]](), set[tuple[int, str, tuple[str, ...]]](), set[str]()
    for part in _all_code(code):
        chain: tuple[str, ...] = ()
        before: list[Any] = [None, None]
        for step in dis.get_instructions(part):
            if step.opname in _LOADS_ATTRIBUTE:
                attributes.add(step.argval)
            if chain and step.opname in _LOADS_ATTRIBUTE:
                chain = (*chain, step.argval)
            elif step.opname != "PUSH_NULL":
                if chain:
                    chains.add(chain)
                chain = (step.argval,) if step.opname in _LOADS_GLOBAL else ()
            if step.opname == "IMPORT_NAME":
                level, names = before
                imports.add((level or 0, step.argval, tuple(names or ())))
            before = [before[1], step.argval]
        if chain:
            chains.add(chain)
    return References(tuple(sorted(chains)), tuple(sorted(imports)), frozenset(attributes))


def _all_code(code: CodeType) -> Iterator[CodeType]:
    left = [code]
    while left:
        part = left.pop()
        yield part
        left += [constant for constant in part.co_consts if isinstance(constant, CodeType)]


def is_own(module: str, file: str | None = None) -> bool:
    """Return whether a module is the user's: not Python's, Riverrun's or of a library; `file` is that of its code, if known."""
    top = module.partition(".")[0]
    if top == "riverrun":
        return module.startswith("riverrun.apps")
    if top in _OWN:
        return True
    path = file if file is not None and not file.startswith("<") else _file_of(module)
    if path is None:
        return top not in sys.stdlib_module_names
    return _is_own_file(path)


@functools.lru_cache(maxsize=4096)
def _is_own_file(path: str) -> bool:
    if not _INSTALLED.isdisjoint(Path(path).parts):
        return False
    return path.startswith(f"{_LIBRARY}/apps/") or not path.startswith((*_PYTHON, f"{_LIBRARY}/"))


def _file_of(module: str) -> str | None:
    loaded = vars(sys.modules[module]) if module in sys.modules else {}
    found = loaded.get("__file__") or next(iter(loaded.get("__path__", ())), None)
    return found if isinstance(found, str) else None


def imported(level: int, name: str, package: Mapping[str, Any]) -> ModuleType | None:
    """Return a user's module that a function imports when it is called; None if it is another's, or cannot be imported."""
    try:
        full = importlib.util.resolve_name("." * level + name, package.get("__package__")) if level else name
        if full not in sys.modules:
            spec = find_spec(full)
            if spec is None or not is_own(full, spec.origin):
                return None
        found = importlib.import_module(full)
    # A user's module may raise anything when it is imported.
    except USER_ERRORS as error:
        as_exception(error)
        return None
    return found if is_own(full) else None


def is_a(value: Any, kinds: type | UnionType | tuple[type, ...]) -> bool:
    """Return whether a value's class is, or extends, a given one, whatever its attribute `__class__` says."""
    return issubclass(type(value), kinds)


def atom_of(value: Any) -> str | None:
    """Return the text of a value without parts; None for any other."""
    kind = type(value)
    if kind is str:
        text = _placed(value) if "/" in value or "\\" in value else value
        return f"s:{text}" if len(text) < _LONG else f"S:{hashed(text.encode('utf-8', 'surrogatepass'))}"
    if kind is int:
        return f"i:{value:x}"
    if kind is bytes:
        return f"b:{value!r}" if len(value) < _LONG else f"B:{hashed(value)}"
    if value is None or kind is bool or value is Ellipsis or value is NotImplemented:
        return f"c:{value}"
    if kind is float or kind is complex:
        return f"{kind.__name__}:{value!r}"
    return None


def hashed(data: bytes) -> str:
    """Return a digest of bytes: 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _placed(text: str) -> str:
    """Replace the directory of a project at the beginning of a path."""
    # `Path(__file__)` depends on where the project is installed. Longest first: one root may contain another.
    for root in sorted({*filter(None, sys.path)}, key=len, reverse=True):
        if text.startswith(root) and text[len(root) : len(root) + 1] in {"", "/", "\\"}:
            return f"<installed>{text[len(root) :]}"
    return text


def order_of(value: Any) -> tuple[str, str]:
    """Return a key that sorts the values of a set alike in all processes, before they are digested."""
    kind = type(value)
    text = atom_of(value)
    if text is None and is_a(value, tuple | frozenset):
        parts = [order_of(each) for each in value]
        text = repr(sorted(parts) if is_a(value, frozenset) else parts)
    if text is None and is_a(value, Enum):
        text = str(value.name)
    if text is None:
        text = value.__qualname__ if is_a(value, type | FunctionType) else ""
    return kind.__qualname__, text


def name_of(value: Any) -> str:
    """Return the name of a class or a function of Python, Riverrun or a library."""
    module = getattr(value, "__module__", None)
    top = module.partition(".")[0] if isinstance(module, str) else ""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    # Only the package: libraries move names between their modules.
    return str(name) if top in sys.stdlib_module_names or top == "riverrun" else f"{top}:{name}"


def captured(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the values of a function's closure by name, sorted."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = []
    for name, cell in sorted(cells, key=lambda pair: pair[0]):
        try:
            found.append((name, cell.cell_contents))
        # Not assigned yet.
        except ValueError:
            continue
    return found


def resolved(chain: tuple[str, ...], names: Mapping[str, Any]) -> tuple[int, Any]:
    """Return what a name stands for, following attributes of the user's modules, and how many names lead there."""
    value = names.get(chain[0], MISSING)
    for length, attribute in enumerate(chain[1:], 1):
        if not is_a(value, ModuleType) or not is_own(str(vars(value).get("__name__", ""))):
            return length, value if not is_a(value, ModuleType) else MISSING
        inside = vars(value)
        value = inside.get(attribute, inside.get("__getattr__", MISSING))
    if is_a(value, ModuleType) and not is_own(str(vars(value).get("__name__", ""))):
        return len(chain), MISSING
    return len(chain), value


def used_inside(module: ModuleType, found: References, seen: frozenset[int] = frozenset()) -> list[tuple[str, Any]]:
    """Return what code may use of a user's module that it knows by another name: whatever its attributes name."""
    name = str(vars(module).get("__name__", ""))
    if not is_own(name) or id(module) in seen:
        return []
    if any(chain[0] in {"getattr", "vars"} for chain in found.chains):
        return [(name, module)]
    values: list[tuple[str, Any]] = []
    for attribute in sorted(found.attributes & vars(module).keys()):
        value = vars(module)[attribute]
        if is_a(value, ModuleType):
            values += used_inside(value, found, seen | {id(module)})
        else:
            values.append((f"{name}.{attribute}", value))
    return values


def taken_from(module: ModuleType | None, taken: tuple[str, ...], found: References) -> list[tuple[str, Any]]:
    """Return what a function uses of a module that it imports itself."""
    if module is None:
        return []
    if not taken:
        top = sys.modules.get(module.__name__.partition(".")[0])
        return used_inside(module, found) + ([] if top is None or top is module else used_inside(top, found))
    values: list[tuple[str, Any]] = []
    for name in taken:
        value = vars(module).get(name, MISSING)
        if value is MISSING:
            value = imported(0, f"{module.__name__}.{name}", {}) or MISSING
        if is_a(value, ModuleType):
            values += used_inside(value, found)
        elif value is not MISSING:
            values.append((f"{module.__name__}.{name}", value))
    return values


def is_msgspecs(value: Any) -> bool:
    """Return whether a default is one of msgspec's own objects: a factory, or the sign that there is none."""
    return type(value).__module__.partition(".")[0] == "msgspec"


def module_of(owner: type) -> str:
    """Return the name of a class's module; empty if it has none."""
    found = type.__getattribute__(owner, "__module__")
    return found if is_a(found, str) else ""


def read_outside(chain: tuple[str, ...], names: Mapping[str, Any]) -> str:
    """Return what a function reads outside of the program by a name; empty if nothing."""
    value = names.get(chain[0], MISSING)
    if value is MISSING:
        return _OUTSIDE.get(("builtins", chain[0]), "")
    if is_a(value, ModuleType):
        return _OUTSIDE.get((str(vars(value).get("__name__", "")), chain[1] if len(chain) > 1 else ""), "")
    for (module, name), what in _OUTSIDE.items():
        if module in sys.modules and vars(sys.modules[module]).get(name) is value:
            return what
    return ""


def is_users_attribute(name: str, value: Any, *, is_enum: bool) -> bool:
    """Return whether an attribute of a class is the user's, and not derived by Python or a library."""
    if name in _SKIPPED or _GENERATED.fullmatch(name) or is_a(value, _SLOTS):
        return False
    is_special = (name.startswith("__") and name.endswith("__")) or (is_enum and name.startswith("_"))
    if not is_special:
        return True
    inner = getattr(value, "__func__", value) if is_a(value, staticmethod | classmethod | MethodType) else value
    if is_a(inner, FunctionType):
        return not inner.__code__.co_filename.startswith("<") and is_own(
            inner.__module__ or "", inner.__code__.co_filename
        )
    return not is_enum and not is_a(inner, BuiltinFunctionType)


def is_copied(owner: type, name: str, value: Any) -> bool:
    """Return whether an attribute was copied from a base."""
    # `typing` does that at the first call of a class of a protocol.
    return name == "__init__" and any(vars(base).get(name) is value for base in owner.__mro__[1:])


def annotations_of(own: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the annotations of a class by name, in their order, from its attributes."""
    found: Any = own.get("__annotations__")
    if found is None and sys.version_info >= (3, 14):
        found = own.get("__annotations_cache__")
        annotate = annotationlib.get_annotate_from_class_namespace(own)
        if found is None and annotate is not None:
            found = _evaluated(annotate)
    return list(found.items()) if is_a(found, dict) else []


if sys.version_info >= (3, 14):

    def _evaluated(annotate: Callable[[Any], Any]) -> Any:
        """Evaluate annotations, as earlier versions of Python do when they create a class. Unknown names become references."""
        try:
            return annotate(annotationlib.Format.VALUE)
        except Exception:  # noqa: BLE001 - names that only type checkers import, and whatever else the user wrote
            return annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)


def normal_annotation(annotation: str) -> str:
    """Return an annotation that is text without its layout."""
    try:
        return ast.dump(ast.parse(annotation, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return annotation


def named_in(annotation: str) -> list[tuple[str, ...]]:
    """Return the names in an annotation that is text, each with the attributes that follow it."""
    return [tuple(each.split(".")) for each in re.findall(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", annotation)]


def state_of(value: Any, kind: type) -> list[tuple[str, Any]]:
    """Return an object's attributes by name, without calling its own code."""
    found: dict[str, Any] = {}
    with_dict = getattr(kind, "__dictoffset__", 0)
    if with_dict:
        held = object.__getattribute__(value, "__dict__")
        found.update(item for item in held.items() if isinstance(item[0], str)) if is_a(held, dict) else None
    for owner in kind.__mro__:
        for name, member in type.__getattribute__(owner, "__dict__").items():
            if is_a(member, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    found.setdefault(name, member.__get__(value, kind))
                # A slot that is not assigned.
                except AttributeError:
                    continue
    return sorted(found.items())


def holds_more(base: type) -> bool:
    """Return whether a class that others wrote may keep more in its objects than attributes."""
    module = module_of(base)
    if base is object or base in CONTENTS or module in {"typing", "abc", "collections.abc", "enum"}:
        return False
    return not is_own(module) and module.partition(".")[0] not in {"riverrun", "msgspec"}


def reduced_parts(value: Any, kind: type) -> str | tuple[Any, ...] | None:
    """Return the parts from which an object would be unpickled; None if they do not determine it alike in all processes."""
    # These depend on the process, or change when they are read.
    if hasattr(kind, "__next__") or kind.__module__ in {"random", "_random", "socket", "_io"}:
        return None
    # Its flags say what this process has computed so far, and decide nothing.
    if kind is decimal.Context:
        value = value.copy()
        value.clear_flags()
    try:
        custom = copyreg.dispatch_table.get(kind)
        made: Any = custom(value) if custom is not None else kind.__reduce_ex__(value, 4)  # type: ignore[call-arg]
    except Exception:  # noqa: BLE001 - code of libraries
        return None
    if isinstance(made, str):
        return made
    top = kind.__module__.partition(".")[0]
    state = made[2] if len(made) > 2 else None  # noqa: PLR2004 - as pickle has it
    is_python = top in sys.stdlib_module_names
    holds_names = isinstance(state, dict) or (isinstance(state, tuple) and any(is_a(part, dict) for part in state))
    if holds_names and not (is_python or dataclasses.is_dataclass(value)):
        # A client's or a model's, with ids of processes or times of connections.
        return None
    return tuple(list(part) if hasattr(type(part), "__next__") else part for part in made)


def bytecode(code: CodeType) -> object:
    """Return the code of a function without source."""
    left = [*code.co_consts]
    is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
    if (
        is_function
        and left
        and isinstance(left[0], str)
        and (sys.version_info < (3, 13) or code.co_flags & _HAS_DOCSTRING)
    ):
        # The docstring, the first constant, changes no result.
        left[0] = None
    constants = [bytecode(c) if is_a(c, CodeType) else _constant(c) for c in left]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _constant(constant: object) -> str:
    return str(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


# Called instead of what a class that extends a built-in one may have overridden.
CONTENTS: Mapping[type, Callable[[Any], Any]] = {
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: lambda value: str.encode(value, "utf-8", "surrogatepass"),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__pos__,
    float: float.__pos__,
    datetime: datetime.isoformat,
}
