"""Renders the page as HTML."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from riverrun.service.answering import page
from riverrun_airflow.acting import in_airflow
from riverrun_airflow.links import PAGE, base, docs_of, page_of
from riverrun_airflow.overview import EXPIRED, STATES
from riverrun_airflow.work_requests import HELD_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.config import AppConfig
    from riverrun.hosting.release import Release
    from riverrun.releases.check_log import CheckRecord
    from riverrun.spark.runs import RunRecord
    from riverrun_airflow.overview import Between, OffsetStretch, Overview, Partition

_STEPS = "planned", "reprocessed", "gated", "cutting", "live"
SHOWN_RUNS = 10
# Number of runs from which there is a trend.
_LEAST = 2
_MINUTE = 60
# The base line of a trend's bars, and the height of the highest, as in charts of instances.
_FLOOR, _ROOM = 76, 70
_LOOK_ONLY = "<p>You may look at this application, not act on it.</p>"


def document(name: str, body: str) -> str:
    """Return a whole page; `name` is the application that it shows, empty for all."""
    shown, title = escape(name), escape(name) or "Riverrun"
    return page(body, "applications", "airflow.js", root=f"{base()}{PAGE}", title=title, name=shown, is_shown=True)


def problem(text: str) -> str:
    """Return the description of a problem, to show in place of the requested content."""
    return f'<p role="alert">{escape(in_airflow(text))}</p>'


def applications(
    projects: Mapping[str, Iterable[str]], graphs: Mapping[str, Between], problems: Iterable[str] = ()
) -> str:
    """Return the applications of projects, by the path of `streams.toml`: problems, then a table and a picture of each."""
    head = "<tr><th>Application<th>Live<th>Release<th>Offsets behind<th>Last check</tr>"
    shown = "".join(map(problem, problems))
    for path, rows in projects.items():
        title = f"<h2>{escape(path)}</h2>" if len(projects) > 1 else ""
        shown += title + _table("applications", head, "".join(rows))
        shown += _between(graphs[path]) if path in graphs else ""
    return shown


def _between(graph: Between) -> str:
    told = "".join(f"<li>{escape(in_airflow(each))}" for each in graph.told)
    region = '<div class="wide" tabindex=0 role=region aria-label="Topics between applications">'
    return f"<h3>Topics between applications</h3>{region}{graph.picture}</div><ul>{told}</ul>"


def row(name: str, found: Overview | str) -> str:
    """Return an application's row; `found` may be the reason why its state is not known."""
    if isinstance(found, str):
        told = f"<td colspan=4>{problem(found)}"
    else:
        behind = found.behind.removesuffix(" offsets behind")
        check = _result(found.checks[0]) if found.checks else "none"
        told = f"<td>{escape(found.release.live)}<td>{escape(found.step)}<td>{escape(behind)}<td>{check}"
    return f'<tr><td><a href="{page_of(name)}">{escape(name)}</a>{told}</tr>'


def application(app: AppConfig, found: Overview, allowed: frozenset[str], tasks: Mapping[str, str]) -> str:
    """Return the page of an application. `allowed` are DAGs that the user may trigger, `tasks` addresses by author of runs."""
    release = found.release
    summary = f"{release.live} is live; release: {found.step}; {found.behind}"
    partitions = "".join(map(_partition, found.partitions))
    pages = docs_of(app.name) if found.docs is not None else ""
    return (
        f'<p>{escape(summary)} · <a href="{page_of("")}">all applications</a></p>{_key()}'
        f"{_table('partitions', '<tr><th>Partition<th>Offsets<th>Map<th>Behind</tr>', partitions)}"
        f"<h2>Release</h2>{_release(release, pages)}<h2>Checks</h2>{_checks(found.checks, pages)}"
        f"<h2>Runs</h2>{_trends(found.runs)}{_runs(found, tasks, pages)}<h2>Act</h2>{actions(app, allowed)}"
    )


def actions(app: AppConfig, allowed: frozenset[str]) -> str:
    """Return forms that trigger an application's DAGs, and links to them, for users that may trigger them."""
    if not allowed:
        return _LOOK_ONLY
    versions = [app.version, *app.versions]
    forms = {
        "backfill": _field("from", "committed")
        + _field("to", "latest")
        + _choice("version", ["live", *versions])
        + "<label>dry run<input type=checkbox name=dry_run checked></label>",
        "release": _choice("version", versions, versions[-1]) + _choice("then", ["ask", "keep", "retire"], "keep"),
        "quality": _field("since", "last"),
    }
    if app.gate:
        forms["held"] = _choice("action", HELD_ACTIONS) + _field("approve", "")
    shown = []
    for kind, fields in forms.items():
        dag = f"{app.name}__{kind}"
        if dag in allowed:
            link = f'<a data-airflow href="{base()}/dags/{quote(dag)}">{escape(dag)}</a>'
            button = f"<button>Trigger {escape(dag)}</button>"
            form = f'<form data-dag="{escape(dag)}" aria-label="{escape(dag)}">'
            shown.append(f"{form}{fields}{button}<output></output></form><small>{link}</small>")
    return "".join(shown)


def _table(what: str, head: str, rows: str) -> str:
    region = f'<div class="wide" tabindex=0 role=region aria-label="Table of {what}">'
    return f"{region}<table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"


def _field(name: str, value: str) -> str:
    return f'<label>{name}<input name="{name}" value="{escape(value)}"></label>'


def _choice(name: str, values: Iterable[str], chosen: str = "") -> str:
    options = (f"<option{' selected' if each == chosen else ''}>{escape(each)}</option>" for each in values)
    return f'<label>{name}<select name="{name}">{"".join(options)}</select></label>'


def _key() -> str:
    return f'<p class="key">{"".join(f"<i class={state}></i>{state}" for state in STATES)}</p>'


def _partition(each: Partition) -> str:
    shown = "".join(_stretch(part, each.end) for part in each.stretches)
    return (
        f'<tr><td>{escape(each.name)}<td class="offsets">{each.start}..{each.end}'
        f'<td><div class="bar">{shown}</div><td>{each.behind}</tr>'
    )


def _stretch(part: OffsetStretch, end: int) -> str:
    size = part.end - part.start
    # A tenth of the bar at most, whatever the number of expired offsets: the others would be too narrow to see.
    width = min(size, max(1, (end - part.end) // 9)) if part.state == EXPIRED else size
    return f'<span class="{part.state}" style="flex:{width}" title="{part.state} {part.start}..{part.end}"></span>'


def _release(release: Release, docs: str) -> str:
    steps = list(_STEPS)
    if release.step.value not in steps:
        steps.append(release.step.value)
    current = ' aria-current="step"'
    shown = "".join(f"<li{current if each == release.step.value else ''}>{escape(each)}</li>" for each in steps)
    told = [f"Publication paused for {release.pause_ms} ms."] if release.pause_ms else []
    told += [f"{lost}." for lost in release.lost_records]
    if release.corrections:
        took = f", which took {release.corrections_ms} ms" if release.corrections_ms else ""
        told.append(f"{release.corrections} corrections were published{took}.")
    if release.repaired:
        told.append(f"Repaired: {release.repaired}.")
    if release.held is not None:
        told.append(f"The outputs of run {release.held.id} are held back: {release.held.progress}.")
        told.append(f"Decide on them: {release.app}__held.")
    candidate = f"{release.candidate} follows {release.previous or release.live}. " if release.candidate else ""
    summary = f'<ol class="steps">{shown}</ol><p>{escape(candidate + " ".join(told)) or "There was none yet."}</p>'
    if release.verdict is None:
        return summary
    outcomes = f'<pre class="outcomes">{escape(str(release.verdict))}</pre>'
    return f"{summary}{outcomes}{_pages(release.verdict.pages, docs)}"


def _checks(checks: Iterable[CheckRecord], docs: str) -> str:
    rows = "".join(
        f"<tr><td>{_time(each.at_ms)}<td>{_result(each)}<td>{escape(f'{each.version}, {each.what}')}<td>{_failures(each)}"
        f"<td>{_pages(each.pages, docs)}</tr>"
        for each in checks
    )
    return _table("checks", "<tr><th>Time<th>Result<th>Version<th>Failing<th>Data Docs</tr>", rows) if rows else "none"


def _result(each: CheckRecord) -> str:
    return f'<span class="is-{each.result}">{each.result}</span>'


def _failures(each: CheckRecord) -> str:
    failing = (f"<li>{escape(name)}: {escape(each.outcomes[name])}" for name in each.critical + each.warnings)
    return f"<ul>{''.join(failing)}</ul>"


def _pages(pages: Mapping[str, str], docs: str) -> str:
    shown = (
        # In a separate tab, without access to this one: they show text of users' records, and are not trusted.
        f'<a target="_blank" rel="noopener" href="{docs}/{quote(path)}">{escape(name)}</a>'
        for name, path in pages.items()
    )
    return " · ".join(shown) if docs else ""


def _runs(found: Overview, tasks: Mapping[str, str], docs: str) -> str:
    rows = "".join(
        f'<tr id="run-{escape(run.id)}"><td>{_time(run.started_ms)}<td>{escape(_state(run))}<td>{escape(run.version)}'
        f"<td>{_by(run.by, tasks)}<td>{_duration(run)}<td>{run.records_in:,}<td>{run.records_out:,}<td>{_dropped(run)}"
        f"<td>{escape(run.range)}<td>{_error(run, found.next_step(run))}"
        f"<td>{_pages(run.pages, docs)}</tr>"
        for run in found.runs[:SHOWN_RUNS]
    )
    head = (
        "<tr><th>Started<th>State<th>Version<th>By<th>Duration<th>Records in<th>Records out<th>Dropped<th>Range"
        "<th>Error, and what is next<th>Data Docs</tr>"
    )
    return _table("bounded runs", head, rows) if rows else "none"


def _trends(runs: Iterable[RunRecord]) -> str:
    """Return how records and duration have changed from run to run, oldest first; nothing for less than two runs."""
    done = [run for run in runs if run.ended_ms is not None and run.records_in][::-1]
    if len(done) < _LEAST:
        return ""
    seconds = [(run.ended_ms - run.started_ms) / 1000 for run in done if run.ended_ms is not None]
    shown = (
        _trend("Records in", [run.records_in for run in done], ""),
        _trend("Records out", [run.records_out for run in done], ""),
        _trend("Dropped", [sum(run.dropped.values()) for run in done], ""),
        _trend("Duration", seconds, " s"),
    )
    return f'<div class="trends">{"".join(shown)}</div>'


def _trend(name: str, values: Sequence[float], unit: str) -> str:
    """Return a bar for each run, with a summary as text."""
    most, width = max(values) or 1, 300 / len(values)
    heights = [_ROOM * value / most for value in values]
    bars = "".join(
        f'<rect x="{number * width:.1f}" y="{_FLOOR - height:.1f}" width="{width * 0.8:.1f}" height="{height:.1f}"/>'
        for number, height in enumerate(heights)
    )
    said = f"{name} of {len(values)} runs: last {values[-1]:,.6g}{unit}, at most {max(values):,.6g}{unit}"
    return (
        f"<figure><figcaption>{said}</figcaption>"
        f'<svg class="chart" viewBox="0 0 300 80" role="img" aria-label="{said}">{bars}</svg></figure>'
    )


def _duration(run: RunRecord) -> str:
    """Return how long a run took; empty while it runs, or if it died."""
    if run.ended_ms is None:
        return ""
    seconds = (run.ended_ms - run.started_ms) / 1000
    return f"{seconds:.1f} s" if seconds < _MINUTE else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _dropped(run: RunRecord) -> str:
    return "<br>".join(f"{escape(reason)} {count:,}" for reason, count in sorted(run.dropped.items()) if count)


def _error(run: RunRecord, following: str) -> str:
    said = escape(in_airflow(run.error or "")).replace("\n", "<br>")
    return f"{said}<br><strong>{escape(following)}</strong>" if said and following else said or escape(following)


def _state(run: RunRecord) -> str:
    """Return how far a run is; of one with a gate, also what became of its outputs."""
    return f"{run.state}, {run.gate}" if run.gate else run.state


def _by(by: str, tasks: Mapping[str, str]) -> str:
    """Return a user's name; for a task instance of Airflow, a link to it."""
    if by not in tasks:
        return escape(by)
    return f'<a data-airflow href="{escape(tasks[by])}">{escape(by)}</a>'


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + " UTC"
