"""The kinds of arguments that methods of the DSL take, by parameter name; `checked` checks each call.

The number of parameters distinguishes functions of the value alone from functions of key and value, for which Kafka Streams
has two interfaces (`ValueMapper` and `ValueMapperWithKey`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from riverrun.arguments import (
    DURATION,
    EXTRACTOR,
    FLAG,
    MAPPING,
    NUMBER,
    PARTITIONER,
    SERDE,
    STORE,
    SUPPLIER,
    TEXT,
    Kind,
    function,
    instance,
    one_of,
    optional,
    takes,
    takes_fields,
)
from riverrun.errors import TopologyError
from riverrun.operators.stateless import OfValue, OfValues
from riverrun.processor.expression_code import columns_of
from riverrun.processor.expressions import Expression, Row
from riverrun.serde.api import field_names
from riverrun.windows import (
    CalendarWindows,
    CountWindows,
    RollingWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import Serde

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def required_arguments(function: Callable[..., Any]) -> int | None:
    """Return the number of positional parameters without a default; None if Python does not know it, as for some builtins."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(p.kind in _POSITIONAL and p.default is inspect.Parameter.empty for p in parameters)


def with_key(mapper: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a mapper of key and value for a mapper of one or two arguments."""
    if not isinstance(mapper, Expression | Row) and required_arguments(mapper) == 2:  # noqa: PLR2004 - key and value
        return mapper
    return OfValue(mapper)


def mapper_of(mapper: Callable[..., Any] | None, columns: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the mapper of a call: a function, or the row of named expressions."""
    if (mapper is None) == (not columns):
        message = "map_values: mapper must be a function, not None"
        if columns:
            message = "map_values() has both a mapper and named columns"
        raise TopologyError(
            message, hint="Pass a function, or named columns: map_values(total=col('price') * col('n'))."
        )
    return Row.of(columns) if mapper is None else mapper


def negation_of(predicate: Callable[..., Any]) -> Callable[..., Any]:
    """Return what fingerprints cover of the predicate of `filter_not`."""
    # Of a function it is the function, as it always was: another fingerprint would refuse the state of existing
    # applications.
    return ~predicate if isinstance(predicate, Expression) else predicate


def check_columns(given: object, serde: Serde[Any] | None) -> None:
    """Make sure that an expression can be computed, and that values have its columns, if their serde has a known type."""
    if not isinstance(given, Expression | Row):
        return
    given.check()
    refuse_unknown(columns_of(given), serde, f"{given!r}", "column")


def refuse_unknown(read: Iterable[str], serde: Serde[Any] | None, reader: str, what: str = "field") -> None:
    """Refuse fields that values do not have, if their serde has a known type; `reader` reads them."""
    kind = None if serde is None else serde.value_type
    names = field_names(kind) if isinstance(kind, type) else None
    if not isinstance(kind, type) or names is None or _may_have_others(kind):
        return
    # Aggregates and expressions read attributes, which may have other names than fields of JSON.
    names = getattr(kind, "__struct_fields__", names)
    known = names if issubclass(kind, dict) else (*names, *dir(kind))
    for name in read:
        if name not in known:
            near = get_close_matches(name, known, 1)
            message = f"{reader}: {kind.__name__} has no {what} {name!r}"
            shown = f"It has: {', '.join(names)}" if names else None
            raise TopologyError(message, hint=f"Did you mean {near[0]!r}?" if near else shown)


def _may_have_others(kind: type) -> bool:
    """Return whether values of a type may have fields that their type does not show."""
    if issubclass(kind, dict):
        return getattr(kind, "__closed__", None) is False
    own = {name for each in kind.__mro__ for name in vars(each)}
    return "__getattr__" in own or ("__post_init__" in own and kind.__dictoffset__ != 0)


def joiner_with_key(joiner: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a joiner of key and both values for a joiner of two or three arguments."""
    if required_arguments(joiner) == 3:  # noqa: PLR2004 - key and two values
        return joiner
    return OfValues(joiner)


def _quoted_in(option: str) -> Callable[[Any], str | None]:
    """Return a hint that a bare name belongs in an option."""
    keyword = "" if option in {"Branched", "Named"} else "name="
    return lambda given: f"{option}({keyword}{given!r}) has the name." if isinstance(given, str) else None


STREAM = one_of("KStream", wanted="a KStream")
TABLE = one_of("KTable", wanted="a KTable")
ANY_SIDE = one_of(
    "KStream",
    "KTable",
    "GlobalKTable",
    wanted="a KStream, a KTable or a GlobalKTable",
    hint=lambda given: f"Read the topic first: builder.table({given!r}, ...)." if isinstance(given, str) else None,
)


def _windows(given: object) -> str | None:
    if isinstance(given, TimeWindows | UnlimitedWindows | CountWindows | RollingWindows) or type(given) in {
        SlidingWindows,
        SessionWindows,
        CalendarWindows,
    }:
        return None
    if isinstance(given, SlidingWindows | SessionWindows | CalendarWindows):
        return f"cannot be derived from {type(given).__mro__[1].__name__}: {type(given).__name__} would be ignored"
    if isinstance(given, Windows) and not isinstance(given, type):
        return None
    name = given.__name__ if isinstance(given, type) else repr(given)
    kinds = (
        "TimeWindows, SlidingWindows, SessionWindows, CalendarWindows, UnlimitedWindows, CountWindows, RollingWindows"
    )
    return f"must be {kinds} or your own Windows, not {name}"


WINDOWS = Kind("windows", _windows)
FETCH = function("value", "key, value", awaits=True)
BATCH_FETCH = function("values", "keys, values", awaits=True)
RETRY = optional(
    one_of("Retry", wanted="a Retry", hint=lambda given: f"Retry(attempts={given})" if isinstance(given, int) else None)
)
JOIN_WINDOWS = one_of("JoinWindows", wanted="JoinWindows")
PATTERN = one_of("Pattern", wanted="a Pattern", hint=lambda _given: "Pattern.begin(name, predicate)")
STORE_SUPPLIER = optional(one_of("StoreSupplier", wanted="a supplier from Stores"))
TOPICS = Kind(
    "a topic, several, or a compiled pattern",
    lambda given: (
        None
        if isinstance(given, str | re.Pattern | Iterable)
        else f"must be a topic, several, or a compiled pattern, not {given!r} ({type(given).__qualname__})"
    ),
)
BY_NAME: dict[str, Kind] = {
    "action": function("key, value"),
    "aggregator": function("key, value, aggregate"),
    "branched": optional(one_of("Branched", wanted="Branched", hint=_quoted_in("Branched"))),
    "buffer_config": one_of("BufferConfig", wanted="a BufferConfig"),
    "caching": FLAG,
    "consumed": one_of("Consumed", wanted="Consumed"),
    "emit_strategy": one_of("EmitStrategy", wanted="an EmitStrategy", hint=lambda _g: "EmitStrategy.on_window_close()"),
    "foreign_key_extractor": optional(function("value", "key, value")),
    "grouped": optional(one_of("Grouped", wanted="Grouped", hint=_quoted_in("Grouped"))),
    "initializer": function(""),
    "joined": optional(one_of("Joined", "StreamJoined", wanted="Joined or StreamJoined", hint=_quoted_in("Joined"))),
    "joiner": function("value, other_value", "key, value, other_value"),
    "key_selector": optional(function("key, value")),
    "key_serde": optional(SERDE),
    "log_config": MAPPING,
    "logging": FLAG,
    "materialized": optional(one_of("Materialized", wanted="Materialized", hint=_quoted_in("Materialized"))),
    "merger": function("key, aggregate, other_aggregate"),
    "name": optional(TEXT),
    "named": optional(one_of("Named", wanted="Named", hint=_quoted_in("Named"))),
    "number_of_partitions": optional(NUMBER),
    "offset_reset_policy": optional(one_of("AutoOffsetReset", wanted="an AutoOffsetReset")),
    "other": ANY_SIDE,
    "other_partitioner": PARTITIONER,
    "other_store_supplier": STORE_SUPPLIER,
    "other_value_serde": optional(SERDE),
    "partitioner": PARTITIONER,
    "path": optional(instance(Path, wanted="a Path", hint=lambda given: f"Path({given!r})")),
    "persistent": optional(FLAG),
    "predicate": function("key, value"),
    "printed": optional(one_of("Printed", wanted="Printed")),
    "processor_supplier": SUPPLIER,
    "produced": optional(one_of("Produced", wanted="Produced")),
    "reducer": function("aggregate, value"),
    "repartition": FLAG,
    "repartitioned": optional(one_of("Repartitioned", wanted="Repartitioned", hint=_quoted_in("Repartitioned"))),
    "retention": optional(DURATION),
    "history_retention": optional(DURATION),
    "grace_period": optional(DURATION),
    "max_entries": optional(NUMBER),
    "state_stores": TEXT,
    "store": STORE,
    "store_name": optional(TEXT),
    "supplier": SUPPLIER,
    "suppressed": one_of("Suppressed", wanted="Suppressed"),
    "table_joined": optional(one_of("TableJoined", wanted="TableJoined", hint=_quoted_in("TableJoined"))),
    "this_store_supplier": STORE_SUPPLIER,
    "time_to_wait": DURATION,
    "timestamp_extractor": optional(EXTRACTOR),
    "topic": TEXT,
    "truncates": FLAG,
    "keeps_unlogged": FLAG,
    "ttl": optional(DURATION),
    "topics": TOPICS,
    "value_serde": optional(SERDE),
    "windows": WINDOWS,
}
"""The kind of argument by parameter name, unless a method overrides it."""


def checked(**own: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a method of the DSL; `own` has kinds of parameters that `BY_NAME` lacks or defines differently."""

    def check(called: Callable[P, R]) -> Callable[P, R]:
        return takes(**_kinds(called, own))(called)

    return check


def checked_fields(**own: Kind) -> Callable[[C], C]:

    def check(cls: C) -> C:
        return takes_fields(**_kinds(cls, own))(cls)

    return check


def _kinds(called: Callable[..., Any], own: dict[str, Kind]) -> dict[str, Kind]:
    names = inspect.signature(called).parameters
    return {name: BY_NAME[name] for name in names if name in BY_NAME} | own
