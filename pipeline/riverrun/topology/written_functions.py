"""Source code of functions as syntax trees, which do not depend on the version of Python, unlike bytecode."""

from __future__ import annotations

import ast
import linecache
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from riverrun.locks import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType, FunctionType

_Written = ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef

# They do not affect behaviour, or some versions of Python lack them.
_SKIPPED = frozenset({"annotation", "returns", "ctx", "kind", "type_comment", "type_params", "simple"})

_PARSINGS = 10

# CPython 3.11 counts the depth of syntax trees for all threads together, and raises `SystemError` if two threads build
# trees at a time (gh-106905).
_parsing = ProcessLock()


def written(function: FunctionType) -> str | None:
    """Return a function's parameters and body from its source, without comments, docstring, annotations and layout; or None."""
    code = function.__code__
    # Others cannot import its module, such as a notebook: processes that receive the function have no source.
    if function.__globals__.get("__name__") == "__main__" or code.co_filename.startswith("<"):
        return None
    # A module may have been rewritten and reloaded.
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    found = [node for node in _functions("".join(lines)).get(code.co_firstlineno, ()) if _may_be(node, code)]
    if len(found) > 1:
        found = [node for node in found if _has_all(node, code)]
    try:
        shapes = {repr(_function(node)) for node in found}
    # An expression of hundreds of terms.
    except RecursionError:
        return None
    # Several functions that begin at one line and cannot be told apart: bytecode has to do.
    return shapes.pop() if len(shapes) == 1 else None


@lru_cache(maxsize=32)
def _functions(source: str) -> Mapping[int, list[_Written]]:
    """Return all functions of a module by the line at which their code begins."""
    found: dict[int, list[_Written]] = {}
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, _Written):
            found.setdefault(_begins(node), []).append(node)
    return found


def _parsed(source: str) -> ast.Module:
    with _parsing.held():
        for _ in range(_PARSINGS - 1):
            # A thread of other code, which knows nothing of the lock, was parsing.
            with suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _begins(node: _Written) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(part.lineno for part in (node, *decorators))


def _may_be(node: _Written, code: CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return name == code.co_name and tuple(names) == code.co_varnames[: len(names)]


def _has_all(node: _Written, code: CodeType) -> bool:
    """Return whether all instructions of the code belong to its body, and one is the whole body of a lambda."""
    if not isinstance(node, ast.Lambda):
        return True
    body = node.body
    span = (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset)
    return span in set(code.co_positions())


def _function(node: _Written) -> object:
    args = node.args
    body: Iterable[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else _effective(node.body)
    parameters = [[arg.arg for arg in several] for several in (args.posonlyargs, args.args, args.kwonlyargs)]
    variadic = [arg and arg.arg for arg in (args.vararg, args.kwarg)]
    return [type(node).__name__, parameters, variadic, [_shape(part) for part in body]]


def _effective(body: list[Any]) -> list[Any]:
    """Return statements without those that do nothing, such as docstrings of functions and classes."""
    return [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


def _shape(part: object) -> object:
    """Convert a node to nested lists: its type and its content."""
    match part:
        case ast.JoinedStr():
            return ["JoinedStr", _joined(part.values)]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            defaults = [*part.args.defaults, *(default for default in part.args.kw_defaults if default is not None)]
            decorators = [] if isinstance(part, ast.Lambda) else part.decorator_list
            return [_function(part), _shape(defaults), _shape(decorators), getattr(part, "name", None)]
        case ast.AST():
            fields = ((name, value) for name, value in ast.iter_fields(part) if name not in _SKIPPED)
            return [type(part).__name__, [(name, _shape(value)) for name, value in fields if value not in (None, [])]]
        case list():
            return [_shape(item) for item in _effective(part)]
        case _:
            return repr(part)


def _joined(values: list[ast.expr]) -> list[object]:
    """Return an f-string's parts with adjacent texts joined."""
    # Versions of Python split these texts differently.
    pieces: list[object] = []
    for is_text, group in groupby(values, lambda value: isinstance(value, ast.Constant)):
        if is_text:
            text = "".join(str(value.value) for value in group if isinstance(value, ast.Constant))
            pieces += [text] if text else []
        else:
            pieces += [_shape(value) for value in group]
    return pieces
