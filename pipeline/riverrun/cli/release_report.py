"""Reports the result of a step of `riverrun release`, or its error, in words or as one JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from riverrun.cli.exit_codes import NEEDS_APPROVAL, code_of
from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.releases.control_topic.registry import Release

NEXT: Mapping[str, str] = {
    "none": "riverrun release start {app} --to VERSION",
    "planned": "riverrun release reprocess {app}",
    "reprocessed": "riverrun release gate {app}",
    "gated": "riverrun release cut {app}",
    "cutting": "riverrun release cut {app}",
    "live": "riverrun release rollback {app}, if it must be",
    "rolling-back": "riverrun release rollback {app}",
    "rolled-back": "riverrun release start {app} --to VERSION",
    "aborted": "riverrun release start {app} --to VERSION",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command.

    Args:
        text: In words.
        document: As JSON.
        code: The exit code.
    """

    text: str
    document: Any
    code: int = 0


def report(action: Callable[[], Outcome], *, as_json: bool) -> None:
    """Run an action and report its result. Errors go to the error output, and into the document.

    Args:
        action: The action.
        as_json: Whether the standard output is one JSON document.
    """
    from riverrun.project.progress_bar import progress_bar

    try:
        with progress_bar():
            outcome = action()
    except StreamsError as error:
        if as_json:
            told = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
            typer.echo(_encoded({**told, "exit_code": code_of(error)}))
        raise
    typer.echo(_encoded(outcome.document) if as_json else outcome.text)
    if outcome.code:
        raise typer.Exit(outcome.code)


def told(release: Release, *, asks: bool = False) -> Outcome:
    """Describe the state of a release, and the next command.

    Args:
        release: The state.
        asks: Whether the exit code says that an approval is needed.
    """
    following = next_step(release)
    needs = asks and release.verdict is not None and release.verdict.needs_approval
    document = {**msgspec.to_builtins(release), "next": following}
    return Outcome(f"{release}\nNext: {following}", document, NEEDS_APPROVAL if needs else 0)


def next_step(release: Release) -> str:
    """Return the next command."""
    verdict = release.verdict
    if release.step.value == "gated" and verdict is not None and verdict.needs_approval:
        return f"riverrun release approve {release.app} --verdict {verdict.id}"
    if release.step.value == "reprocessed" and verdict is not None and verdict.critical:  # it has failed the gate
        return f"riverrun release abort {release.app}, then mend {release.candidate} and start again"
    return NEXT[release.step.value].format(app=release.app)


def plain(value: Any) -> Any:
    """Convert a dataclass to JSON; values that JSON lacks become text."""
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _encoded(document: Any) -> str:
    return msgspec.json.encode(document, enc_hook=str).decode()
