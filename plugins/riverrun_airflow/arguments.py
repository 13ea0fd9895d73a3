"""Arguments of operators that are the fields of dataclasses. Airflow's templates change them as attributes of the operator."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from riverrun_airflow.acting import number, truth
from riverrun_airflow.hooks import CONNECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SparkTask:
    """Arguments of operators that compute on Spark (`riverrun_airflow.submission.Computing`)."""

    config: str = ""
    master: str = ""
    apart: bool | None = None
    riverrun_conn_id: str = CONNECTION


def gathering(init: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` with an argument for each field of the dataclasses that it takes; each becomes an attribute.

    Values may be templates, so it gets None for the dataclasses. A field that it takes itself is left to it.
    """
    signature = inspect.signature(init)
    own, known = signature.parameters, init.__globals__
    groups = {name: known[each.annotation] for name, each in own.items() if is_dataclass(known.get(each.annotation))}
    added = [each for kind in groups.values() for each in _parameters(kind) if each.name not in own]

    @wraps(init)
    def gather(self: Any, **given: Any) -> None:
        for each in added:
            setattr(self, each.name, given.pop(each.name, each.default))
        init(self, **given, **dict.fromkeys(groups))

    kept = [each for name, each in own.items() if name not in groups]
    parameters = sorted([*kept, *added], key=lambda each: (each.kind, each.default is not Parameter.empty))
    # Airflow reads it, for required arguments and those of `default_args`.
    gather.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return gather


def gathered(task: Any, kind: Callable[..., T], **others: Any) -> T:
    """Return the dataclass whose fields are attributes of a task; `others` are values that templates do not give."""
    found = {each.name: getattr(task, each.name) for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**found | others)


def rendered(task: Any, kind: Callable[..., T]) -> T:
    """Return the dataclass whose fields are attributes of a task that templates may have turned into texts."""
    hints, given = get_type_hints(kind), {}
    for each in fields(kind):  # type: ignore[arg-type]
        name, value = each.name, getattr(task, each.name)
        if value in {None, "", "None"}:
            continue
        if hints[name] is int:
            value = number(name, value) or each.default
        elif bool in {hints[name], *get_args(hints[name])}:
            value = truth(name, value)
        given[name] = value
    return kind(**given)


def _parameters(kind: Any) -> Iterator[Parameter]:
    for each in fields(kind):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is MISSING else default)
