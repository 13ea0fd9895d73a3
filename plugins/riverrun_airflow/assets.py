"""Topics and targets as assets: a task that writes to one makes an event of its asset, with the offsets that it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias

from riverrun_airflow.lineage import first_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

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
        topic: The topic.
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
        format: The format.
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
    events: Iterable[tuple[Asset, Mapping[str, str]]],
) -> None:
    """Make events, unless the task's author has given it outlets without this one.

    The outlet is known only now if its name is a template, or is mapped. A mapped task has an empty list of outlets if its
    author has given none.

    Args:
        task: The task, which keeps the outlets that its author gave it.
        context: Its context.
        outlet: The outlet through which it makes events.
        read: Assets that it has read.
        events: Assets that it has written, with the facts about each event.
    """
    own, is_mapped = task.own_outlets, bool(getattr(context["ti"], "is_mapped", False))
    if own is not None and outlet not in own and (own or not is_mapped):
        return
    task.inlets = [*task.inlets, *read]
    if outlet not in task.outlets:
        task.outlets = [*task.outlets, outlet]
    for asset, facts in events:
        context["outlet_events"][outlet].add(asset, extra=dict(facts))
