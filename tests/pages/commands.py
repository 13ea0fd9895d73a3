"""Generates the page of every command: `python -m tests.pages.commands docs/reference/cli.md`."""

from __future__ import annotations

import inspect
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer

from riverrun.cli.main import app
from riverrun.cli.project import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Command line

`python -m tests.pages.commands` makes this page from the commands themselves.
[Running](../running.md) explains how to use them.

`riverrun --help` lists the commands, and each command has a `--help` of its own.
Options of `riverrun` itself stand before the command:
"""
_KINDS = {int: "NUMBER", float: "NUMBER", Path: "PATH"}


def page() -> str:
    """Return the page as Markdown."""
    command: Any = typer.main.get_command(app)
    own = [each for each in command.params if "completion" not in each.name]
    lines = [_HEAD, *_table("Option", own), "", *_exit_codes()]
    for name, each in command.commands.items():
        lines += ["", *_described(f"riverrun {name}", each)]
    return "\n".join(lines) + "\n"


def _exit_codes() -> list[str]:
    codes = [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    return ["## Exit codes", "", "| Code | Meaning |", "|---|---|", *codes]


def _described(name: str, command: Any, level: str = "##") -> Iterator[str]:
    """Describe a command and its subcommands."""
    yield from (f"{level} {name}", "", _text(command.help))
    below = getattr(command, "commands", {})
    if below and command.params:
        yield from ("", "```", f"{name} [OPTIONS] [COMMAND]", "```", "", *_table("Option", command.params))
    for part, each in below.items():
        yield ""
        yield from _described(f"{name} {part}", each, f"{level}#")
    if below:
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = [name, *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)]
    yield from ("", "```", " ".join(usage), "```")
    for kind, parameters in ("Argument", arguments), ("Option", options):
        if parameters:
            yield ""
            yield from _table(kind, parameters)


def _table(kind: str, parameters: list[Any]) -> Iterator[str]:
    yield from (f"| {kind} | Default | Meaning |", "|---|---|---|")
    for each in parameters:
        yield f"| {_named(each)} | {_default(each)} | {_meaning(each)} |"


def _named(parameter: Any) -> str:
    """Return the names of a parameter, the long one of an option first, and its placeholder."""
    if parameter.param_type_name == "argument":
        return f"`{_placeholder(parameter)}`"
    opposite = parameter.secondary_opts if getattr(parameter, "default", None) is True else []
    names = [*sorted(parameter.opts, key=len, reverse=True), *opposite]
    kind = "" if parameter.is_flag else f" {_kind(parameter)}"
    return ", ".join(f"`{name}{kind if name == names[0] else ''}`" for name in names)


def _placeholder(argument: Any) -> str:
    name = argument.name.upper()
    several = f"{name}..." if argument.nargs < 0 else name
    return several if argument.required else f"[{several}]"


def _kind(option: Any) -> str:
    annotation = _annotation(option)
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return "CHOICE"
    return _KINDS.get(annotation, "TEXT")


def _annotation(parameter: Any) -> Any:
    """Return the type of one value."""
    found = parameter.type_descriptor.annotation
    return get_args(found)[0] if get_origin(found) is list else found


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if getattr(parameter, "is_flag", False):
        return "on" if parameter.default is True else "off"
    value = parameter.default
    if value is None or value in ("", ()):
        return "none"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _meaning(parameter: Any) -> str:
    annotation = _annotation(parameter)
    parts = [_text(parameter.help)]
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        parts.append(f"One of {', '.join(f'`{each.value}`' for each in annotation)}.")
    lowest, highest = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if lowest is not None:
        parts.append(f"At least {lowest}{'' if highest is None else f', at most {highest}'}.")
    if getattr(parameter, "multiple", False):
        parts.append("May be repeated.")
    if parameter.envvar:
        parts.append(f"The environment variable `{parameter.envvar}` sets it as well.")
    return " ".join(parts).replace("|", "\\|")


def _text(text: str) -> str:
    """Convert a help text to Markdown: one line per paragraph, with names of files and options as code."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
