"""The gate: expectations over a candidate's table and over its difference to the live one, judged by Great Expectations."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CRITICAL, INFO = "critical", "info"
CHANGE = "change"
"""Column of the frame: `same`, `changed`, `new` or `gone`, against the live version's table."""
_TALKATIVE = "great_expectations", "great_expectations.data_context.types.base"
"""Loggers of the library that tell of temporary directories; the second one gets a level of its own when it is imported."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate found.

    Args:
        outcomes: Expectation to outcome, in words: `passed`, `failed: ...`, `noted: ...` (failed, of severity `info`).
        critical: Expectations that failed and block the release.
        warnings: Expectations that failed and ask a person.
    """

    outcomes: Mapping[str, str]
    critical: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(rows: Sequence[Mapping[str, Any]], expectations: Sequence[Any]) -> Verdict:
    """Validate rows. An empty table always fails: on nothing, every other expectation holds.

    Args:
        rows: One mapping per row, with the column `change`.
        expectations: Great Expectations' own, each with its severity (`critical`, `warning`, `info`).
    """
    if not rows:
        rule = "the table has rows"
        return Verdict({rule: "failed: it is empty"}, (rule,), ())
    results = _validate(rows, expectations)
    outcomes: dict[str, str] = {}
    failed: dict[str, list[str]] = {CRITICAL: [], "warning": [], INFO: []}
    for result in results:
        name = _name(result.expectation_config)
        severity = _severity(result.expectation_config)
        word = "noted" if severity == INFO else "failed"
        outcomes[name] = "passed" if result.success else f"{word}: {_observed(result)}"
        if not result.success:
            failed[severity].append(name)
    outcomes["the table has rows"] = f"passed: {len(rows)}"
    return Verdict(outcomes, tuple(failed[CRITICAL]), tuple(failed["warning"]))


def _validate(rows: Sequence[Mapping[str, Any]], expectations: Sequence[Any]) -> Any:
    import great_expectations as gx
    import pandas as pd

    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("candidate")
    batch = source.add_dataframe_asset("table").add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite("gate", expectations=list(expectations)))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name="gate", data=batch, suite=suite))
    frame = pd.DataFrame.from_records(list(rows))
    return definition.run(batch_parameters={"dataframe": frame}, result_format="SUMMARY").results


def _severity(config: Any) -> str:
    """How grave a failure is; whatever is not known to be harmless blocks."""
    severity = getattr(config.severity, "value", config.severity)
    return severity if severity in {"warning", INFO} else CRITICAL


def _name(config: Any) -> str:
    settings = {k: v for k, v in config.kwargs.items() if k != "batch_id"}
    return f"{config.type}({', '.join(f'{k}={v}' for k, v in settings.items())})"


def _observed(result: Any) -> str:
    found = result.result or {}
    if "unexpected_percent" in found:
        return f"{found['unexpected_percent']:.3f} % unexpected, such as {found.get('partial_unexpected_list', [])[:3]}"
    exception = getattr(result, "exception_info", None) or {}
    return str(found.get("observed_value", exception.get("exception_message", "no result")))
