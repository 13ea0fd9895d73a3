"""Distinguishes functions of the value alone from functions of key and value, by their number of parameters.

Kafka Streams has two interfaces for each (`ValueMapper` and `ValueMapperWithKey`); here the signature decides.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from riverrun.operators.stateless import OfValue, OfValues

if TYPE_CHECKING:
    from collections.abc import Callable

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def required_arguments(function: Callable[..., Any]) -> int | None:
    """Return the number of positional parameters without a default; None if Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(p.kind in _POSITIONAL and p.default is inspect.Parameter.empty for p in parameters)


def with_key(mapper: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a mapper of key and value for a mapper of one or two arguments."""
    if required_arguments(mapper) == 2:  # noqa: PLR2004 - key and value
        return mapper
    return OfValue(mapper)


def joiner_with_key(joiner: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a joiner of key and both values for a joiner of two or three arguments."""
    if required_arguments(joiner) == 3:  # noqa: PLR2004 - key and two values
        return joiner
    return OfValues(joiner)
