"""Commands that take options as one dataclass, whose fields declare their types, defaults, bounds and help."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def gathering(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the dataclasses that it takes; flags come last."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }

    @wraps(command)
    def gather(**given: Any) -> None:
        gathered = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        command(**given, **gathered)

    parameters: list[Parameter] = []
    for name, each in signature.parameters.items():
        parameters += _options(groups[name]) if name in groups else [each.replace(kind=Parameter.KEYWORD_ONLY)]
    parameters.sort(key=lambda each: getattr(each.annotation, "__origin__", None) is bool)
    # Typer reads it.
    gather.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return gather


def _options(kind: type) -> Iterator[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        type_, declared = get_args(hints[each.name])
        option = _option(each.name.replace("_", "-"), type_, declared) if isinstance(declared, Meta) else declared
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=Annotated[type_, option])


def _option(name: str, type_: Any, declared: Meta) -> Any:
    """Return the option of a field: a choice of two, or a value within its bounds."""
    if bool in get_args(type_):
        return typer.Option(f"--{name}/--no-{name}", help=declared.description)
    return typer.Option(min=declared.ge, max=declared.le, help=declared.description)
