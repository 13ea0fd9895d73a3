"""Reports of checks: Data Docs of their results, and the actions that follow each check."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.config.directories import make_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

SITE, RESULTS = "site", "results"
"""Subdirectories of Data Docs: the pages, and the results as JSON from which the pages are built."""


@dataclass(frozen=True, slots=True)
class Report:
    """Places for results, in addition to the verdict.

    Args:
        check: Names the check.
        directory: Where Data Docs are built; None to build none.
        actions: Great Expectations' own, which run after each result.
    """

    check: str = ""
    directory: Path | None = None
    actions: Sequence[Any] = ()


def new_context(report: Report) -> Any:
    """Return a context of Great Expectations that stores results next to Data Docs, or in memory."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    if report.directory is None:
        context = gx.get_context(mode="ephemeral")
    else:
        make_directory(report.directory)
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


def validated(context: Any, definition: Any, rows: Any, result_format: Any, report: Report) -> tuple[Any, str]:
    """Validate rows at a checkpoint, whose actions build Data Docs and notify others.

    Args:
        context: The result of `new_context`.
        definition: Great Expectations' validation definition.
        rows: The DataFrame.
        result_format: Great Expectations' result format.
        report: The places for results.

    Returns:
        The result, and its page relative to the directory of Data Docs; the page is empty if none are built.
    """
    import great_expectations as gx

    docs = [] if report.directory is None else [gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=[SITE])]
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=definition.name, validation_definitions=[definition], actions=docs, result_format=result_format
        )
    )
    found = checkpoint.run(
        batch_parameters={"dataframe": rows}, run_id=gx.RunIdentifier(run_name=report.check or definition.name)
    )
    for action in report.actions:
        try:
            action._data_context = context  # noqa: SLF001 - as its checkpoint does
            action.run(checkpoint_result=found)
        except Exception as error:  # noqa: BLE001 - recipients that do not answer do not change the findings
            log.warning("the action %s of a check has failed: %s", getattr(action, "name", action), error)
    ((identifier, result),) = found.run_results.items()
    return result, f"{SITE}/validations/{'/'.join(identifier.to_tuple())}.html" if docs else ""


def _files(directory: Path) -> dict[str, str]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(directory)}
