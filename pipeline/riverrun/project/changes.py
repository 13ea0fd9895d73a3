"""Changes of an application whose impact is asked for: a release of a version, or a backfill of an interval."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import ConfigError, ReleaseError, StreamsError
from riverrun.project.graph import Member
from riverrun.project.impact import Effect, impact_of
from riverrun.project.stretches import Stretch, stretches_of
from riverrun.releases.scope import Scope, require_repairable, scope_of
from riverrun.releases.topology import outputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.hosting.application import Application
    from riverrun.project.graph import ProjectGraph
    from riverrun.project.impact import Impact
    from riverrun.topology.outputs import Output

_LOG = "a log, of which each record counts: its records stay, and none is sent again"
_TABLE = "a table: rows that differ are published as corrections"


def impact_of_change(
    application: Application,
    graph: ProjectGraph,
    *,
    start: str = "",
    end: str = "",
    before: Application | StreamsError | None = None,
    topics: Iterable[str] = (),
) -> Impact:
    """Return what a release of an application means for others; with an interval, what a backfill means. It asks no broker.

    Args:
        application: The application, in the version that is released or computes the interval.
        graph: The graph of the project.
        start: Where the interval begins; empty for a release.
        end: Where the interval ends.
        before: The version that a release replaces, or the reason why it cannot be loaded; None if there is none.
        topics: The public tables that are computed again, if not all are.

    Raises:
        ConfigError: If only one end of an interval is known.
        RangeError: If an end of the interval is no time.
        ReleaseError: If the interval is empty.
    """
    if bool(start) != bool(end):
        has, lacks = ("start", "end") if start else ("end", "start")
        raise ConfigError(f"The interval to backfill has no {lacks}, only its {has}", hint="Name both, or neither.")
    name = application.config.name
    member = graph.application(name) or Member(name, version=application.version)
    if not start:
        told = {topic: _released(output) for topic, output in outputs(application).items()}
        return _with_ends(impact_of(graph, member, told), graph, before)
    scope = scope_of(start, end)
    if scope.start_ms >= scope.end_ms:
        message = f"{name}: the interval to backfill is empty: {scope}"
        raise ReleaseError(message, hint="It begins at its start, and ends before its end.")
    chosen = {topic: output for topic, output in outputs(application).items() if not topics or topic in topics}
    told = {topic: _backfilled(application, output, scope) for topic, output in chosen.items()}
    first = [topic for topic, (effect, _) in told.items() if effect is Effect.CORRECTED]
    times = stretches_of(graph, member, first, Stretch(scope.start_ms, scope.end_ms))
    return impact_of(graph, member, told, str(scope), times)


def _with_ends(impact: Impact, graph: ProjectGraph, before: Application | StreamsError | None) -> Impact:
    """Return the impact with topics of the version before that are no longer written, and their readers."""
    if before is None:
        return impact
    if isinstance(before, StreamsError):
        unknown = f"which topics are no longer written is not known: {before.message}"
        return replace(impact, unknown=(*impact.unknown, unknown))
    ended = [topic for topic in outputs(before) if topic not in impact.outputs]
    readers = {topic: [str(edge.reader) for edge in graph.readers(topic)] for topic in ended}
    return replace(impact, ended={topic: tuple(dict.fromkeys(names)) for topic, names in readers.items()})


def _released(output: Output) -> tuple[Effect, str]:
    return (Effect.CORRECTED, _TABLE) if output.kind is OutputKind.TABLE else (Effect.STAYS, _LOG)


def _backfilled(application: Application, output: Output, scope: Scope) -> tuple[Effect, str]:
    if output.kind is OutputKind.LOG:
        return Effect.STAYS, _LOG
    part = replace(scope, topics=frozenset({output.topic}))
    try:
        require_repairable(application, part)
    except ReleaseError as error:
        try:
            require_repairable(application, replace(part, from_beginning=True))
        except ReleaseError:
            return Effect.STAYS, f"a table that stays as it is: {error.message}"
        return Effect.CORRECTED, f"{_TABLE}, with --from-beginning only: {error.message}"
    return Effect.CORRECTED, f"{_TABLE}, where their interval is computed again"
