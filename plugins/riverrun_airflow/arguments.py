"""Arguments of operators that are the fields of dataclasses. Airflow's templates change them as attributes of the operator."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from riverrun_airflow.acting import number, truth

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def gathered(task: Any, kind: Callable[..., T]) -> T:
    """Return the dataclass whose fields are attributes of a task."""
    return kind(**given(task, kind))


def given(task: Any, kind: Callable[..., Any]) -> dict[str, Any]:
    """Return the attributes of a task that are fields of a dataclass."""
    return {each.name: getattr(task, each.name) for each in fields(kind)}  # type: ignore[arg-type]


def rendered(task: Any, kind: Callable[..., T]) -> T:
    """Return the dataclass whose fields are attributes of a task that templates may have turned into texts."""
    hints, found = get_type_hints(kind), {}
    for each in fields(kind):  # type: ignore[arg-type]
        name, value = each.name, getattr(task, each.name)
        if value in {None, "", "None"}:
            continue
        if hints[name] is int:
            value = number(name, value) or each.default
        elif bool in {hints[name], *get_args(hints[name])}:
            value = truth(name, value)
        found[name] = value
    return kind(**found)
