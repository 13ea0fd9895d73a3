"""Digests of a topology: its structure, and the user's functions in it."""

from __future__ import annotations

import functools
import hashlib
import inspect
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from riverrun.topology.digests.written_functions import written
from riverrun.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.parts import Parts

_STANDARD_LIBRARY = str(Path(inspect.getfile(functools)).parent)


def fingerprint(parts: Parts) -> str:
    """Return one digest of the whole topology, 16 hex digits."""
    groups = sorted(sorted(group) for group in parts.copartitioned_topics())
    return _digest(sorted(node_fingerprints(parts).items()), groups)


def node_fingerprints(parts: Parts) -> dict[str, str]:
    """Return a digest per node, store and global store, by name."""
    users = parts.users
    prints = {
        name: _node(node, tuple(sorted(s for s in users if name in users[s]))) for name, node in parts.nodes.items()
    }
    prints |= {f"store {name}": _store(builder) for name, builder in parts.stores.items()}
    for name, global_store in parts.global_stores.items():
        prints[f"global store {name}"] = _digest(_node(global_store.source, ()), _store(global_store.store))
    return prints


def _node(node: Node, stores: tuple[str, ...]) -> str:
    match node:
        case SourceNode():
            serdes = node.key_serde.name, node.value_serde.name
            topics = sorted(node.topics) if node.pattern is None else (node.pattern.pattern, node.pattern.flags)
            return _digest("source", topics, *serdes, code_of(node.timestamp_extractor), str(node.reset))
        case ProcessorNode():
            return _digest("processor", node.parents, stores, [code_of(function) for function in node.functions])
        case SinkNode():
            topic = node.topic if isinstance(node.topic, str) else code_of(node.topic)
            serdes = node.key_serde.name, node.value_serde.name
            return _digest("sink", node.parents, topic, *serdes, code_of(node.partitioner))


def _store(builder: StoreBuilder) -> str:
    serdes = builder.key_serde.name, builder.value_serde.name
    limit = () if builder.max_entries is None else (builder.max_entries,)
    return _digest(builder.kind.value, *serdes, builder.logging, builder.retention_ms, builder.window_size_ms, *limit)


GENERATED_FROM = "generated_from"
"""Name of an attribute that replaces the body of a generated function, whose bytecode depends on the version of Python."""


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def code_of(function: Any, seen: frozenset[int] = frozenset()) -> object:
    """Return everything that determines a function's behaviour: code, defaults, captured values, and functions of its module.

    The result never contains addresses, and nothing whose order changes from process to process. If the source is
    available, it does not depend on the version of Python.
    """
    if id(function) in seen:
        return "recursion"
    inner = functools.partial(code_of, seen=seen | {id(function)})
    match function:
        case functools.partial():
            named = sorted((name, inner(value)) for name, value in function.keywords.items())
            return [inner(function.func), [inner(a) for a in function.args], named]
        case MethodType():
            return [inner(function.__func__), inner(function.__self__)]
        case FunctionType():
            by_name = [(name, inner(value)) for name, value in sorted((function.__kwdefaults__ or {}).items())]
            captured = [inner(value) for value in _captured(function)]
            return [_body(function), inner(function.__defaults__), by_name, captured]
        case type():
            return [function.__qualname__, [(name, inner(method)) for name, method in _methods(function)]]
        case tuple() | list():
            return [inner(item) for item in function]
        case str() | bytes() | int() | float() | None:
            return function
        case _:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            return inner(type(function)) if _is_users_object(function) else name


def _body(function: FunctionType) -> object:
    """Return the body of a function: its source, or its bytecode if the source is not available.

    Functions of the standard library are represented by their names, whatever the version of Python.
    """
    if _is_pythons(function):
        return f"{function.__module__}.{function.__qualname__}"
    generated_from = vars(function).get(GENERATED_FROM)
    if generated_from is not None:
        return repr(generated_from)
    return written(function) or _bytecode(function.__code__)


def _is_pythons(function: FunctionType) -> bool:
    path = function.__code__.co_filename
    return path.startswith(_STANDARD_LIBRARY) and "site-packages" not in path


def _is_users_object(value: Any) -> bool:
    """Return whether an object is callable and its class is the user's, not Riverrun's or Python's."""
    call = vars(type(value)).get("__call__")
    return (
        isinstance(call, FunctionType)
        and not hasattr(value, "__qualname__")
        and not call.__module__.startswith("riverrun.")
    )


def _captured(function: FunctionType) -> list[Any]:
    """Return the values of the closure, and the functions and classes of the module that the code refers to, by name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    values = [cell.cell_contents for _, cell in sorted(cells.items()) if cell != CellType()]
    if _is_pythons(function):
        return values
    named = (function.__globals__.get(name) for name in sorted(_names(function.__code__)))
    own = [
        value for value in named if isinstance(value, FunctionType | type) and value.__module__ == function.__module__
    ]
    return [*values, *own]


def _names(code: CodeType) -> set[str]:
    """Return the names in a function and its inner functions. Versions of Python differ in the functions of comprehensions."""
    within = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*within)


def _methods(owner: type) -> list[tuple[str, FunctionType]]:
    """Return the methods that a user wrote, by name. Generated ones (dataclasses) have no file, or belong to Python."""
    found = {name: getattr(member, "__func__", member) for name, member in vars(owner).items()}
    return sorted(
        (name, member)
        for name, member in found.items()
        if isinstance(member, FunctionType)
        and not inspect.unwrap(member).__code__.co_filename.startswith("<")
        and not _is_pythons(member)
    )


def _bytecode(code: CodeType) -> object:
    constants = [_bytecode(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _constant(constant: object) -> str:
    return str(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
