"""Judges frames of rows by Great Expectations, builds Data Docs of the results, and keeps unexpected rows."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.config.secrets import redacted
from riverrun.errors import USER_ERRORS, StreamsError, as_exception
from riverrun.extras import require_extra
from riverrun.hosting.process import SystemClock
from riverrun.quality.frames import keep_newest, rows_of_check, write_lines
from riverrun.quality.sharing import make_shared_directory, share_below
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from riverrun.config import AppConfig
    from riverrun.quality.frames import Frame, Statistics

log = logging.getLogger(__name__)

# Subdirectories of Data Docs: the pages, and the results as JSON from which the pages are built.
SITE, RESULTS = "site", "results"


@dataclass(frozen=True, slots=True)
class GateReport:
    """Places for the results of a check, in addition to its verdict, and the statistics of earlier checks.

    Args:
        check: Name of the check; empty for one without pages and rows.
        directory: Where Data Docs are built; None to build none.
        actions: Great Expectations' own, which run after each result.
        earlier: Statistics of earlier checks of this kind by name of the frame, latest first.
        rows: Directory or URL that gets unexpected rows, among those of other checks; empty to keep none.
        rows_limit: Maximum number of rows that are kept of each expectation.
        rows_checks: Number of checks whose rows are kept.
    """

    check: str = ""
    directory: Path | None = None
    actions: Sequence[Any] = ()
    earlier: Mapping[str, Sequence[Statistics]] = field(default_factory=dict)
    rows: str = ""
    rows_limit: int = 1000
    rows_checks: int = 100

    @classmethod
    def of(
        cls, config: AppConfig, check: str, actions: Sequence[Any], earlier: Mapping[str, Sequence[Statistics]]
    ) -> GateReport:
        if not check:
            return cls(actions=actions, earlier=earlier)
        rows = (
            f"{config.unexpected_rows.rstrip('/')}/{config.name}/{rows_of_check(check)}"
            if config.unexpected_rows
            else ""
        )
        limits = config.unexpected_rows_limit, config.unexpected_rows_checks
        return cls(check, config.docs_directory, actions, earlier, rows, *limits)


def new_context(report: GateReport) -> Any:
    """Return a context of Great Expectations that stores results next to Data Docs, or in memory."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    if report.directory is None:
        context = gx.get_context(mode="ephemeral")
    else:
        make_shared_directory(report.directory)
        defaults = InMemoryStoreBackendDefaults()
        stores = {
            **defaults.stores,
            defaults.validation_results_store_name: {
                "class_name": "ValidationResultsStore",
                "store_backend": _files(report.directory / RESULTS),
            },
            defaults.expectations_store_name: {
                "class_name": "ExpectationsStore",
                "store_backend": _files(report.directory / "suites"),
            },
        }
        site = {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": _files(report.directory / SITE),
        }
        settings = DataContextConfig(store_backend_defaults=defaults, stores=stores, data_docs_sites={SITE: site})
        context = gx.get_context(mode="ephemeral", project_config=settings)
    context.variables.progress_bars = {"globally": False}
    return context


def validated(context: Any, definition: Any, rows: Any, result_format: Any, report: GateReport) -> tuple[Any, str]:
    """Validate rows, build their page of Data Docs, and run actions; return the result and the page.

    The page is relative to the directory of Data Docs, and empty if none is built.
    """
    import great_expectations as gx

    docs = [] if report.directory is None else [gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=[SITE])]
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=definition.name, validation_definitions=[definition], actions=docs, result_format=result_format
        )
    )
    # Without a time, Great Expectations takes the name for one where it can: `dec6a250` is a day in the year 250.
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    run = gx.RunIdentifier(run_name=report.check or definition.name, run_time=now)
    found = checkpoint.run(batch_parameters={"dataframe": rows}, run_id=run)
    if report.directory is not None:
        share_below(report.directory)
    # Not as actions of the checkpoint: one that fails would fail the check.
    for action in report.actions:
        try:
            action._data_context = context  # noqa: SLF001 - as its checkpoint does
            action.run(checkpoint_result=found)
        # Recipients that do not answer do not change the findings.
        except USER_ERRORS as error:
            log.warning("the action %s of a check failed: %s", getattr(action, "name", action), as_exception(error))
    ((identifier, result),) = found.run_results.items()
    return result, f"{SITE}/validations/{'/'.join(identifier.to_tuple())}.html" if docs else ""


def _files(directory: Path) -> dict[str, str]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(directory)}


CRITICAL, WARNING, INFO = "critical", "warning", "info"
HAS_VALUES = "column {} has values"
"""The rule that a column breaks which has lost all its values."""
# Larger frames are judged by a local Spark where it finds what pandas finds, else in pandas with only the columns needed.
ROWS_IN_MEMORY = 300_000
# This logger reports temporary directories; the library sets its level when it is imported.
_TALKATIVE = "great_expectations.data_context.types.base"
_INDEX = "unexpected_index_column_names"
# From this probability on, it may be an accident that all rows lack a value, or are missing.
_ACCIDENT = 0.001
# On these kinds and the two below, Spark agrees with pandas.
_OF_ROWS = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
_NO_VALUES = "expect_column_values_to_be_null"
_OF_NULLS = frozenset({_NO_VALUES, "expect_column_values_to_not_be_null"})
# Whole numbers of Spark are below it.
_MOST = 2**63
_OF_SETS = frozenset({"expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"})
_NAMES_COLUMNS = "column", "column_A", "column_B"
_NAMES_LISTS = ("column_list",)
_NOT_NAMED = frozenset({"batch_id", "result_format"})
_SUMMARY = "SUMMARY"
_SHOWN = 3
_NAMELESS = "an error without a message"
_SOURCE = "riverrun"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a gate.

    Args:
        outcomes: Outcome by expectation, as text: `passed`, `failed: ...`, `noted: ...` (failed, of severity `info`).
        critical: Failed expectations that block the release.
        warnings: Failed expectations that a person has to approve.
        pages: Pages of Data Docs by the name of the frame that was judged, relative to their directory.
        statistics: Statistics of the frames that were judged, by name.
    """

    outcomes: Mapping[str, str]
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Statistics] = field(default_factory=dict)

    def __add__(self, other: Verdict) -> Verdict:
        outcomes = {**self.outcomes, **other.outcomes}
        pages = {**self.pages, **other.pages}
        statistics = {**self.statistics, **other.statistics}
        return Verdict(outcomes, self.critical + other.critical, self.warnings + other.warnings, pages, statistics)


def judge(
    name: str,
    frame: Frame,
    expectations: Sequence[Any],
    spark: Callable[[], Any],
    *,
    keys: Sequence[str] = (),
    if_empty: str = CRITICAL,
    report: GateReport | None = None,
) -> Verdict:
    """Validate the rows of a frame.

    An expectation of a missing column, or one that cannot be evaluated, blocks at any severity: it says nothing about the data.

    Args:
        name: Name of the frame, which precedes the name of each outcome.
        frame: The rows.
        expectations: Great Expectations' own, each with its severity (`critical`, `warning`, `info`).
        spark: Returns a Spark session, for large frames.
        keys: Columns that identify a row, for messages.
        if_empty: Severity of an empty frame.
        report: Where results go; defaults to the verdict alone.
    """
    report = report or GateReport()
    statistics = frame.statistics([column for each in expectations for column in _columns_of(each.configuration)])
    found, pages, failing = _Findings(name), dict[str, str](), list[Any]()
    # Without rows, most expectations pass: an empty frame has to be a finding of its own.
    found.add("it has rows", if_empty, "" if frame.rows else "it is empty", str(frame.rows))
    earlier = report.earlier.get(name, ())
    asked = [_of_this_frame(each, statistics, earlier) for each in expectations]
    judged = [each for each in asked if frame.rows or getattr(each, JUDGES_NO_ROWS, False)]
    for each in asked if not frame.rows else ():
        if each not in judged:
            found.add(_name(each.configuration), INFO, "it was not judged, as there are no rows")
    for each in [*judged]:
        if other := _taken_for(each, frame.columns):
            judged.remove(each)
            found.add(_name(each.configuration), CRITICAL, _unable(f"column {other!r} has that name in another case"))
    waiting = [(kind, part) for kind, alike in _by_format(judged, keys) for part in _parts(alike, frame)]
    while waiting:
        result_format, part = waiting.pop(0)
        subject = _subject(name, result_format, pages)
        try:
            result, page = _validate(subject, frame, part, spark, result_format, report)
        except StreamsError:
            raise
        # One expectation is not to keep the others from being judged.
        except USER_ERRORS as raised:
            error = as_exception(raised)
            # The library fails a validation as a whole, so halves are judged until the expectation at fault is alone.
            if len(part.expectations) > 1:
                half = len(part.expectations) // 2
                halves = part.expectations[:half], part.expectations[half:]
                waiting += [(result_format, replace(part, expectations=each)) for each in halves]
            else:
                found.add(_name(part.expectations[0].configuration), CRITICAL, _unable(error))
            continue
        pages |= {subject: page} if page else {}
        failing += found.add_results(part.expectations, result.results, frame, statistics)
    by_kind = [(each.configuration.type, column) for each in judged for column in _columns_of(each.configuration)]
    columns = {column for _, column in by_kind}
    found.add_emptied(columns - {column for kind, column in by_kind if kind == _NO_VALUES}, statistics, earlier)
    found.add_odd(columns - {column for kind, column in by_kind if kind in _OF_NULLS}, statistics)
    if failing and report.rows:
        _keep_rows(found, frame, failing, spark, report)
    critical, warnings = tuple(found.failed[CRITICAL]), tuple(found.failed[WARNING])
    return Verdict(found.outcomes, critical, warnings, pages, {name: statistics})


def is_accident(share: float, rows: int) -> bool:
    """Return whether it may be an accident that something is true of all of so many rows, if it is of this share of others.

    >>> is_accident(0.5, 9), is_accident(0.5, 10), is_accident(0, 1)
    (True, False, False)
    """
    return share**rows >= _ACCIDENT


def are_accidents(found: int, expected: float) -> bool:
    """Return whether it may be an accident that so many of something are found (Chernoff's bound).

    >>> are_accidents(3, 2.5), are_accidents(20, 2.5), are_accidents(0, 0)
    (True, False, True)
    """
    if found <= expected:
        return True
    return expected > 0 and found - expected + found * math.log(expected / found) >= math.log(_ACCIDENT)


# Attributes that an expectation may have: whether it judges frames without rows, and a method that takes statistics.
JUDGES_NO_ROWS, OF_THIS_FRAME = "judges_no_rows", "of_this_frame"


def _of_this_frame(expectation: Any, statistics: Statistics, earlier: Sequence[Statistics]) -> Any:
    """Return an expectation that knows the statistics of the frame and of earlier ones, if it compares them."""
    hand_over = getattr(expectation, OF_THIS_FRAME, None)
    return expectation if hand_over is None else hand_over(statistics, earlier)


@dataclass(slots=True)
class _Findings:
    """The findings of one frame so far."""

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=lambda: {CRITICAL: [], WARNING: [], INFO: []})

    def add(self, rule: str, severity: str, failure: str, passed: str = "") -> None:
        named = f"{self.name}: {rule}"
        if not failure:
            self.outcomes.setdefault(named, f"passed: {passed}" if passed else "passed")
            return
        self.outcomes[named] = f"{'noted' if severity == INFO else 'failed'}: {failure}"
        self.failed[severity].append(named)

    def add_results(
        self, asked: Sequence[Any], results: Sequence[Any], frame: Frame, statistics: Statistics
    ) -> list[Any]:
        """Add the result of each expectation, and return those that rows do not meet. One without a result blocks."""
        failing, left = list[Any](), list(results)
        for each in asked:
            name = _name(each.configuration)
            missing = [column for column in _columns_of(each.configuration) if column not in frame.columns]
            result = next((one for one in left if _is_result_of(one, each.configuration)), None)
            # Each result is used once: one suite may ask the same with two severities.
            if result is not None:
                left.remove(result)
            if missing:
                self.add(name, CRITICAL, f"there is no column {missing[0]!r}. {nearest(missing[0], frame.columns)}")
            elif result is None:
                self.add(name, CRITICAL, "Great Expectations has returned no result of it")
            elif self._add_result(name, result, _valueless(each.configuration, statistics)):
                failing.append(each)
        return failing

    def add_emptied(self, judged: set[str], statistics: Statistics, earlier: Sequence[Statistics]) -> None:
        """Warn of columns whose rows all lack a value, if by the last frame's share of such rows that is no accident."""
        for column in sorted(judged & statistics.columns.keys()):
            before = next((each for each in earlier if each.rows and column in each.columns), None)
            if before is None or not 0 < statistics.rows == statistics.columns[column].nulls:
                continue
            then = before.columns[column].nulls
            if not is_accident(then / before.rows, statistics.rows):
                lacked = f"in the last check without this warning, {then:,} of {before.rows:,} had none"
                told = f"none of {counted(statistics.rows, 'row')} has one; {lacked}"
                self.add(HAS_VALUES.format(column), WARNING, told)

    def add_odd(self, judged: set[str], statistics: Statistics) -> None:
        """Warn of NaN in columns: expectations pass on it, except for those about missing values."""
        for column in sorted(judged & statistics.columns.keys()):
            if nans := statistics.columns[column].nans:
                told = f"{counted(nans, 'row')} of {statistics.rows:,} have NaN, which expectations take for missing"
                self.add(f"column {column} has no NaN", WARNING, told)

    def _add_result(self, name: str, result: Any, valueless: str) -> bool:
        """Add a result, and return whether there are rows that do not meet the expectation."""
        config = result.expectation_config
        found = result.result or {}
        if result.success:
            self.add(name, INFO, "", found.get("details", {}).get("compared", valueless or _unjudged(found)))
            return False
        exception = _exception(getattr(result, "exception_info", None) or {})
        if exception:
            self.add(name, CRITICAL, _unable(exception))
        else:
            self.add(name, _severity(config), _observed(found))
        return not exception


def _by_format(expectations: Sequence[Any], keys: Sequence[str]) -> list[tuple[dict[str, Any], list[Any]]]:
    """Group expectations by result format, as a validation has only one: their own, or a summary with keys of some rows."""
    found: dict[str, tuple[dict[str, Any], list[Any]]] = {}
    for each in expectations:
        given = each.result_format if "result_format" in each.__fields_set__ else _SUMMARY
        own = dict(given) if isinstance(given, dict) else {"result_format": getattr(given, "value", given)}
        # Spark refuses an index of no columns.
        result_format = {_INDEX: list(keys), **own} if keys else own
        found.setdefault(repr(result_format), (result_format, []))[1].append(each)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Part:
    """Expectations of a frame that are judged together.

    Args:
        columns: The columns that they need; None for all.
        is_of_spark: Whether Spark judges them, as it finds what pandas finds.
    """

    expectations: list[Any]
    columns: frozenset[str] | None = None
    is_of_spark: bool = False


def _parts(expectations: list[Any], frame: Frame) -> list[_Part]:
    """Group the expectations of a frame by what judges them, so that no large frame is in memory as a whole."""
    # A verdict must not depend on the number of rows. Regular expressions, conditions, types, conversions and medians of Spark
    # differ from those of pandas, so it only gets expectations without them.
    if frame.rows <= ROWS_IN_MEMORY and _have_own_names(frame.columns):
        return [_Part(expectations)]
    is_for_spark = frame.rows > ROWS_IN_MEMORY and _have_own_names(frame.columns, strange=".`")
    kinds, alike = frame.kinds() if is_for_spark else {}, list[Any]()
    others: dict[frozenset[str] | None, list[Any]] = {}
    for each in expectations:
        if kinds and _is_alike_on_spark(each, kinds):
            alike.append(each)
        else:
            others.setdefault(_needed(each, frame.columns), []).append(each)
    parts = [_Part(each, columns) for columns, each in others.items()]
    return [_Part(alike, is_of_spark=True), *parts] if alike else parts


def _have_own_names(columns: Sequence[str], strange: str = "") -> bool:
    """Return whether engines find each column: they take `n` for `N`, and Spark takes `a.b` for a field of `a`."""
    return len({each.casefold() for each in columns}) == len(columns) and not {*"".join(columns)} & {*strange}


def _taken_for(expectation: Any, columns: Sequence[str]) -> str | None:
    """Return a column that would be judged in place of one that is named, as both have to be in memory; None without one."""
    named, needed = {*_columns_of(expectation.configuration)}, _needed(expectation, columns)
    present = sorted(named.union(columns if needed is None else needed))
    pairs = ((each, name) for each in present for name in named)
    return next((each for each, name in pairs if each != name and each.casefold() == name.casefold()), None)


def _is_alike_on_spark(expectation: Any, kinds: Mapping[str, Any]) -> bool:
    if getattr(expectation, "row_condition", None) is not None or not _is_of_the_library(expectation):
        return False
    kind, named = expectation.expectation_type, kinds.get(getattr(expectation, "column", None) or "", "")
    if kind in _OF_ROWS:
        return True
    if kind in _OF_NULLS:
        return bool(named)
    if kind == "expect_column_values_to_be_between":
        bounds = [each for each in (expectation.min_value, expectation.max_value) if each is not None]
        # NaN is above all numbers in Spark, and neither above nor below them in pandas.
        is_alike = all(type(each) in {int, float} and each == each for each in bounds)  # noqa: PLR0124 - NaN
        return named in {"int64", "double"} and is_alike
    if kind in _OF_SETS:
        wanted = {"int64": int, "string": str}.get(named)
        is_alike = bool(expectation.value_set) and {type(each) for each in expectation.value_set} == {wanted}
        return is_alike and (wanted is str or all(-_MOST <= each < _MOST for each in expectation.value_set))
    return False


def _needed(expectation: Any, columns: Sequence[str]) -> frozenset[str] | None:
    """Return the columns that pandas needs for an expectation; None for all, as for a user's own."""
    if not _is_of_the_library(expectation) or not _columns_of(expectation.configuration):
        return None
    named, condition = _columns_of(expectation.configuration), str(getattr(expectation, "row_condition", None) or "")
    return frozenset(each for each in columns if each in named or each in condition)


def _is_of_the_library(expectation: Any) -> bool:
    return type(expectation).__module__.startswith("great_expectations.expectations.core.")


def _validate(
    name: str,
    frame: Frame,
    part: _Part,
    spark: Callable[[], Any],
    result_format: Mapping[str, Any],
    report: GateReport,
) -> tuple[Any, str]:
    require_extra("quality")
    import great_expectations as gx

    # Leaves the level to the program, as for all other loggers.
    logging.getLogger(_TALKATIVE).setLevel(logging.NOTSET)
    context = new_context(report)
    session = spark() if part.is_of_spark else None
    if session is not None and _reads_files_of_this_machine(session):
        rows, source = frame.spark(session), context.data_sources.add_spark(_SOURCE)
    else:
        rows, source = frame.pandas(part.columns), context.data_sources.add_pandas(_SOURCE)
    # The columns that name a row are not loaded here; naming the rows of a large frame takes long anyway.
    if part.columns is not None:
        result_format = {key: value for key, value in result_format.items() if key != _INDEX}
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    # A suite gives its expectations ids, and one list may serve several outputs.
    own = [each.copy(update={"id": None}) for each in part.expectations]
    suite = context.suites.add_or_update(gx.ExpectationSuite(name, expectations=own))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    return validated(context, definition, rows, dict(result_format), report)


def _keep_rows(
    found: _Findings, frame: Frame, failing: Sequence[Any], spark: Callable[[], Any], report: GateReport
) -> None:
    """Write the rows that do not meet expectations to files, in all their columns, and add their places to the findings."""
    # A second validation finds them, as the pages and results of the first must not hold so many rows.
    result_format = {
        "result_format": _SUMMARY,
        "partial_unexpected_count": report.rows_limit,
        _INDEX: list(frame.columns),
    }
    parts = [part for part in _parts(list(failing), frame) if part.columns is None]
    if len(parts) < len(_parts(list(failing), frame)):
        log.warning("unexpected rows of %s are not all kept: pandas has not all of its columns in memory", found.name)
    results = [
        each
        for part in parts
        for each in _validate(found.name, frame, part, spark, result_format, GateReport())[0].results
    ]
    for place, each in enumerate(results, 1):
        rows = (each.result or {}).get("partial_unexpected_index_list")
        # An expectation of a whole column or table has no rows.
        if not rows:
            continue
        named = f"{found.name}: {_name(each.expectation_config)}"
        try:
            file = f"{found.name.replace(', ', '.')}/{place}-{each.expectation_config.type}.jsonl"
            kept = write_lines(report.rows, file, rows[: report.rows_limit])
            found.outcomes[named] += f"; {counted(min(len(rows), report.rows_limit), 'row')} in {kept}"
        except Exception as error:  # noqa: BLE001 - each kind of file store has errors of its own
            log.warning("unexpected rows of %s cannot be kept at %s: %s", found.name, redacted(report.rows), error)
            return
    checks = report.rows.rpartition("/")[0]
    try:
        keep_newest(checks, report.rows_checks)
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("unexpected rows of old checks cannot be deleted at %s: %s", redacted(checks), error)


def _reads_files_of_this_machine(session: Any) -> bool:
    """Return whether Spark's executors run on this machine; elsewhere they cannot read the frame's files."""
    is_local = "connect" not in type(session).__module__ and session.conf.get("spark.master", "").startswith("local")
    if not is_local:
        log.warning("executors of a cluster cannot read the rows to judge: judging them in memory")
    return is_local


def _unable(error: object) -> str:
    told = str(error) or type(error).__name__
    return f"it cannot be evaluated: {told}"


def _subject(name: str, result_format: Mapping[str, Any], pages: Mapping[str, str]) -> str:
    subject = name if not pages else f"{name}, {result_format['result_format']}"
    return subject if subject not in pages else f"{subject} {len(pages) + 1}"


def _is_result_of(result: Any, config: Any) -> bool:
    found = result.expectation_config
    return _name(found) == _name(config) and _severity(found) == _severity(config)


def _valueless(config: Any, statistics: Statistics) -> str:
    """Return what a passed expectation says of a column without values; empty if it has some."""
    named = [statistics.columns.get(each) for each in _columns_of(config)]
    if config.type in _OF_NULLS or not statistics.rows or not any(c and c.nulls == statistics.rows for c in named):
        return ""
    return f"none of {counted(statistics.rows, 'row')} has a value"


def _unjudged(found: Mapping[str, Any]) -> str:
    """Return that an expectation of rows has passed without any, as a condition or missing values left them all out."""
    rows = found.get("element_count")
    return (
        "it was not judged, as it leaves out all rows"
        if rows is not None and rows == found.get("missing_count", 0)
        else ""
    )


def _columns_of(config: Any) -> list[str]:
    """Return the columns that an expectation needs; expectations about the columns of a table need none."""
    if config.type.startswith(("expect_column_to_exist", "expect_table_")):
        return []
    named = [config.kwargs[each] for each in _NAMES_COLUMNS if config.kwargs.get(each) is not None]
    for each in _NAMES_LISTS:
        named += config.kwargs.get(each) or []
    return named


def _severity(config: Any) -> str:
    # The text is not to be trusted: any severity that is not known to be harmless blocks.
    severity = getattr(config.severity, "value", config.severity)
    return severity if severity in {WARNING, INFO} else CRITICAL


def _name(config: Any) -> str:
    """Return the name of an expectation: its type with its arguments, after its description if it has one."""
    settings = {k: v for k, v in config.kwargs.items() if k not in _NOT_NAMED}
    called = f"{config.type}({', '.join(f'{k}={v}' for k, v in settings.items())})"
    return f"{config.description} ({called})" if config.description else called


def _exception(info: Any) -> str | None:
    """Return the message of an exception, which the library reports per metric or as a whole."""
    if not isinstance(info, dict):
        return None
    if "exception_message" in info:
        return info["exception_message"] or (_NAMELESS if info.get("raised_exception") else None)
    return next((message for message in map(_exception, info.values()) if message), None)


def _observed(found: Mapping[str, Any]) -> str:
    if not found:
        return "its result format shows no details"
    if "compared" in found.get("details", {}):
        return str(found["details"]["compared"])
    if "unexpected_percent" not in found:
        return str(found.get("observed_value", "no result"))
    rows = found.get("partial_unexpected_index_list") or []
    rows = rows if rows and isinstance(rows[0], dict) else found.get("partial_unexpected_list", [])
    shown = "; ".join(_shown(row) for row in rows[:_SHOWN])
    return f"{found['unexpected_percent'] or 0:.3f} % unexpected, such as {shown}"


def _shown(row: Any) -> str:
    if not isinstance(row, dict):
        return str(row)
    return ", ".join(f"{name} {value}" for name, value in sorted(row.items()))
