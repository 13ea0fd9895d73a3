"""Assets of topics and targets, whose events say which offsets were written, and lineage for OpenLineage's Airflow provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

_OF_TABLES = frozenset({"mysql", "postgres"})
FACET = "riverrun"
"""The name of the run's facet."""


@dataclass(frozen=True, slots=True)
class TopicLineage:
    """Topics that a task has read, written or judged.

    Args:
        brokers: `bootstrap.servers`; their order does not matter.
        inputs: Topics that it has read.
        outputs: Topics that it has written.
        facet: Facts about the run: application, version, range, verdict.
        judged: Outcomes of expectations, by topic.
        uris: URIs of what a transfer has read, and of what it has written; empty if the task is none.
    """

    brokers: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facet: Mapping[str, str] = field(default_factory=dict)
    judged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    uris: tuple[str, str] | tuple[()] = ()

    def told(self) -> Any:
        """Return the lineage as an object of OpenLineage's provider."""
        # Only that provider calls this method, so it is installed.
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


def lineage_of(task: Any, task_instance: Any) -> Any:  # noqa: ARG001 - the provider's signature
    """Return what a task has read, written or judged, for OpenLineage. Operators have this function as a method."""
    return task.lineage.told()


def first_of(brokers: str) -> str:
    """Return the broker that stands for a cluster.

    >>> first_of("b:9092, SSL://a:9092")
    'a:9092'
    """
    # The first by name, not by place: two projects may list the same brokers in another order, and share their assets.
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
    """Group outcomes of a verdict (by expectation) by topic.

    >>> judged_by_topic({"sums: it has rows": "passed: 3", "sums, difference: same": "passed"})
    {'sums': {'it has rows': 'passed: 3', 'difference: same': 'passed'}}
    """
    found: dict[str, dict[str, str]] = {}
    for name, outcome in outcomes.items():
        about, _, rule = name.partition(": ")
        topic, comma, part = about.partition(", ")
        found.setdefault(topic, {})[f"{part}: {rule}" if comma else rule] = outcome
    return found


_PARTS = "/%:@,;=+-._~!$&'()*"
"""Characters of a path that stay as they are in a URI."""
_S3 = frozenset({"s3a", "s3n"})
_DEFAULTS = {"postgresql": ("postgres", 5432, "public"), "mysql": ("mysql", 3306, "")}
"""By the name in JDBC: scheme, port and schema, by Airflow's conventions for URIs of tables."""


class Announcing(Protocol):
    """A task that makes events."""

    own_outlets: Any
    inlets: list[Any]
    outlets: list[Any]


def topic_asset(brokers: str, topic: str) -> Asset:
    """Return the asset of a topic, for the `schedule` of DAGs that are to follow it.

    >>> topic_asset("b:9092,a:9092", "clicks").uri
    'kafka://a:9092/clicks'

    Args:
        brokers: `bootstrap.servers`; their order does not matter.
        topic: Name of the topic, as on the brokers.
    """
    uri = f"kafka://{first_of(brokers)}/{topic}"
    return Asset(name=uri, uri=uri, group="kafka")


def target_asset(target: str, format: str, options: Mapping[str, str] | None = None) -> Asset:  # noqa: A002 - Spark's word
    """Return the asset of a source of imports or a target of exports, for the `schedule` of DAGs that are to follow it.

    Its URI has no user, password or options. A path without a scheme is one of this machine.

    >>> target_asset("/srv/out/", "parquet").uri, target_asset("s3a://shop/out", "json").uri
    ('file:///srv/out', 's3://shop/out')
    >>> target_asset("totals", "jdbc", {"url": "jdbc:postgresql://ann:pw@db/shop?ssl=true"}).uri
    'postgres://db:5432/shop/public/totals'

    Args:
        target: A path, or the table of `jdbc`.
        format: `jdbc`, or any other that Spark knows, for paths.
        options: Options of the format; those of `jdbc` have the database's `url`.
    """
    uri = _table_uri(target, options or {}) if format.lower() == "jdbc" else _path_uri(target)
    return Asset(name=uri, uri=uri, group="riverrun")


def _path_uri(target: str) -> str:
    """Return the URI of a path.

    >>> _path_uri("s3a://key:secret@shop/a b/"), _path_uri("abfss://box@store.net/out")
    ('s3://shop/a%20b', 'abfss://store.net/box/out')
    """
    parts = urlsplit(target)
    if not parts.scheme:
        return f"file://{quote(str(Path(target).absolute()), _PARTS)}"
    # A key with its secret is no part of an asset. But abfss has the container in front of the @: it becomes the path.
    user, _, host = parts.netloc.rpartition("@")
    inside = f"/{user}{parts.path}" if user and ":" not in user else parts.path
    return f"{'s3' if parts.scheme in _S3 else parts.scheme}://{host}{quote(inside.rstrip('/'), _PARTS)}"


def _table_uri(table: str, options: Mapping[str, str]) -> str:
    """Return the URI of a table.

    >>> _table_uri("shop.totals", {"URL": "jdbc:mysql://db:3307/x"}), _table_uri("t", {"url": "jdbc:h2:/data/x;USER=a"})
    ('mysql://db:3307/x/shop.totals', 'h2:///data/x/t')
    >>> _table_uri("t", {"url": "jdbc:oracle:thin:ann/secret@//db:1521/shop"})
    'oracle://db:1521/shop/t'
    """
    url = next((value for name, value in options.items() if name.lower() == "url"), "")
    kind, _, rest = url.removeprefix("jdbc:").partition(":")
    place = rest.partition("?")[0].partition(";")[0]
    has_user, place = "@" in place, place.rpartition("@")[2]
    server, _, database = place.lstrip("/").partition("/") if has_user or place.startswith("//") else ("", "", place)
    scheme, port, schema = _DEFAULTS.get(kind, (kind or "jdbc", 0, ""))
    where = f"{server}:{port}" if port and ":" not in server else server
    inside = table.replace(".", "/", 1) if schema and "." in table else "/".join(filter(None, (schema, table)))
    return f"{scheme}://{where}/{quote('/'.join(filter(None, (database.strip('/'), inside))), _PARTS)}"


def outputs_of(app: str) -> AssetAlias:
    """Return the outlet of an application's runs. The topics that they write are known only when they run."""
    return AssetAlias(name=f"riverrun:{app}", group="riverrun")


def transferred_by(kind: str, name: str) -> AssetAlias:
    """Return the outlet of an import or an export.

    Args:
        kind: `import` or `export`.
        name: Its name; the topic if it has no other.
    """
    return AssetAlias(name=f"riverrun-{kind}:{name}", group="riverrun")


def is_template(value: Any) -> bool:
    """Return whether an argument has its value only when the task runs.

    >>> is_template("clicks"), is_template("{{ params.app }}")
    (False, True)
    """
    return not isinstance(value, str) or "{{" in value or "{%" in value


def announce(
    task: Announcing,
    context: Context,
    outlet: AssetAlias,
    read: Iterable[Asset],
    events: Iterable[tuple[Asset, Mapping[str, Any]]],
) -> None:
    """Make events, unless the task's author has given it outlets without this one.

    Args:
        task: The task, which keeps the outlets that its author gave it.
        context: Airflow's context of the task instance.
        outlet: The outlet through which it makes events.
        read: Assets that it has read.
        events: Assets that it has written, with the facts about each event.
    """
    own, is_mapped = task.own_outlets, bool(getattr(context["ti"], "is_mapped", False))
    # A mapped task has an empty list of outlets if its author has given none.
    if own is not None and outlet not in own and (own or not is_mapped):
        return
    task.inlets = [*task.inlets, *read]
    # Added only now: the name of the application may be a template, or mapped.
    if outlet not in task.outlets:
        task.outlets = [*task.outlets, outlet]
    for asset, facts in events:
        context["outlet_events"][outlet].add(asset, extra=dict(facts))
