"""Commands that take options as one dataclass, whose fields declare their types, defaults, bounds and help."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from msgspec import Meta

from riverrun.cli.project import flag

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
            name: kind(**{each.name: _plain(given.pop(each.name), each.default) for each in fields(kind)})
            for name, kind in groups.items()
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
        option, default = declared, Parameter.empty if each.default is MISSING else each.default
        if isinstance(declared, Meta):
            option = _option(each.name.replace("_", "-"), type_, declared)
            if default == ():
                type_, default = list[str] | None, None
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, option])


def _option(name: str, type_: Any, declared: Meta) -> Any:
    """Return the option of a field: a flag, a choice of two, one that may be repeated, or a value within its bounds."""
    said = declared.description
    if type_ is bool:
        return flag(f"--{name}", said or "")
    if bool in get_args(type_):
        return typer.Option(f"--{name}/--no-{name}", help=said)
    if get_origin(type_) is tuple:
        return typer.Option(f"--{name.removesuffix('s')}", help=said)
    return typer.Option(min=declared.ge, max=declared.le, help=said)


def _plain(given: Any, default: Any) -> Any:
    return tuple(given or ()) if default == () else given
