"""Functions made from generated text, whose lines tracebacks, profilers and debuggers can show."""

from __future__ import annotations

import linecache
from itertools import count
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

if TYPE_CHECKING:
    from collections.abc import Callable

_compiled: WeakValueDictionary[tuple[str, str], CodeType] = WeakValueDictionary()
"""Code by label and text, shared by tasks with equal functions."""


def generated(label: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """Make a function from generated text, and keep its lines for tools that show them.

    The lines are in `linecache` as long as the function, or a traceback through it, exists.

    Args:
        label: Describes the function; it is part of its file name.
        text: The definition of one function.
        names: The objects that the function names besides its arguments.
    """
    code = _compiled.get((label, text))
    if code is None:
        code = _compiled[label, text] = _code(label, text)
    return FunctionType(code, names)


def text_of(function: Callable[..., Any]) -> str:
    """Return the text that a generated function was made from."""
    return "".join(linecache.getlines(function.__code__.co_filename))


def _code(label: str, text: str) -> CodeType:
    file = f"<riverrun {label}>"
    if file in linecache.cache:  # of tasks of another application, or with other settings
        file = next(name for n in count(2) if (name := f"<riverrun {label} #{n}>") not in linecache.cache)
    module = compile(text, file, "exec")
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # no time: `checkcache` keeps it
    finalize(code, linecache.cache.pop, file, None).atexit = False
    return code
