"""Lineage in the form that OpenLineage's provider for Airflow asks for: topics are datasets, and runs have facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_TABLES = frozenset({"mysql", "postgres"})
FACET = "riverrun"
"""The name of the run's facet."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Topics that a task has read, written or judged.

    Args:
        brokers: `bootstrap.servers`; their order does not matter.
        inputs: Topics that it has read.
        outputs: Topics that it has written.
        facet: Facts about the run: application, version, range, verdict.
        judged: Outcomes of expectations in words, by topic.
        uris: URIs of what a transfer has read, and of what it has written; empty if the task is none.
    """

    brokers: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facet: Mapping[str, str] = field(default_factory=dict)
    judged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    uris: tuple[str, str] | tuple[()] = ()

    def told(self) -> Any:
        """Return the lineage as an object of OpenLineage's provider. Only that provider calls this, so it is installed."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import RunFacet

        if not self.brokers:
            return OperatorLineage()
        namespace = f"kafka://{first_of(self.brokers)}"
        facet = RunFacet().with_additional_properties(**self.facet)
        inputs = [InputDataset(namespace, topic, inputFacets=self._assertions(topic)) for topic in self.inputs]
        outputs = [OutputDataset(namespace, topic) for topic in self.outputs]
        if self.uris:
            inputs, outputs = [InputDataset(*named(self.uris[0]))], [OutputDataset(*named(self.uris[1]))]
        return OperatorLineage(inputs=inputs, outputs=outputs, run_facets={FACET: facet})

    def _assertions(self, topic: str) -> dict[str, Any]:
        from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality

        found = [
            quality.Assertion(assertion=name, success=not outcome.startswith("failed"), actual=outcome)
            for name, outcome in self.judged.get(topic, {}).items()
        ]
        return {"dataQualityAssertions": quality.DataQualityAssertionsDatasetFacet(found)} if found else {}


def first_of(brokers: str) -> str:
    """Return the broker that stands for a cluster: the first of `bootstrap.servers` by name.

    >>> first_of("b:9092, SSL://a:9092")
    'a:9092'
    """
    return min(server.strip().rpartition("://")[2] for server in brokers.split(","))


def named(uri: str) -> tuple[str, str]:
    """Return a URI as OpenLineage names datasets: a namespace, and a name in it.

    >>> named("kafka://a:9092/clicks"), named("file:///srv/out"), named("postgres://db:5432/shop/public/totals")
    (('kafka://a:9092', 'clicks'), ('file', '/srv/out'), ('postgres://db:5432', 'shop.public.totals'))
    """
    scheme, _, rest = uri.partition("://")
    server, _, path = rest.partition("/")
    if not server:
        return scheme, f"/{path}"
    return f"{scheme}://{server}", path.replace("/", ".") if scheme in _OF_TABLES else path


def judged_by_topic(outcomes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Group outcomes by topic.

    >>> judged_by_topic({"sums: it has rows": "passed: 3", "sums, difference: same": "passed"})
    {'sums': {'it has rows': 'passed: 3', 'difference: same': 'passed'}}

    Args:
        outcomes: The outcomes of a verdict: expectation to outcome.
    """
    found: dict[str, dict[str, str]] = {}
    for name, outcome in outcomes.items():
        about, _, rule = name.partition(": ")
        topic, comma, part = about.partition(", ")
        found.setdefault(topic, {})[f"{part}: {rule}" if comma else rule] = outcome
    return found
