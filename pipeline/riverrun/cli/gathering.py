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
    parameters: list[Parameter] = []
    gathered: dict[str, tuple[type, list[str]]] = {}
    for each in signature.parameters.values():
        kind = each.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            options = list(_options(kind))
            gathered[each.name] = kind, [option.name for option in options]
            parameters += options
        else:
            parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def gather(**given: Any) -> None:
        for name, (kind, names) in gathered.items():
            given[name] = kind(**{option: given.pop(option) for option in names})
        command(**given)

    parameters.sort(key=lambda each: getattr(each.annotation, "__origin__", None) is bool)
    # Typer reads it.
    gather.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return gather


def _options(kind: type) -> Iterator[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        (declared,) = hint.__metadata__
        if isinstance(declared, Meta):
            hint = Annotated[hint.__origin__, _option(each.name.replace("_", "-"), hint.__origin__, declared)]
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hint)


def _option(name: str, kind: Any, declared: Meta) -> Any:
    """Return the option of a field: a flag, a choice of two, or a value within its bounds."""
    if kind is bool:
        return typer.Option(f"--{name}", metavar="", help=declared.description)
    if bool in get_args(kind):
        return typer.Option(f"--{name}/--no-{name}", help=declared.description)
    return typer.Option(min=declared.ge, max=declared.le, help=declared.description)
