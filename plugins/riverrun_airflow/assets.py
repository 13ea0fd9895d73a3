"""Topics as assets: a run that writes to a topic makes an event of its asset, with the offsets that it wrote."""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias


def topic_asset(brokers: str, topic: str) -> Asset:
    """Return the asset of a topic, for the `schedule` of DAGs that are to follow it.

    >>> topic_asset("b:9092,a:9092", "clicks").uri
    'kafka://a:9092/clicks'

    Args:
        brokers: `bootstrap.servers`; their order does not matter.
        topic: The topic.
    """
    first = min(server.strip().rpartition("://")[2] for server in brokers.split(","))
    uri = f"kafka://{first}/{topic}"
    return Asset(name=uri, uri=uri, group="kafka")


def outputs_of(app: str) -> AssetAlias:
    """Return the outlet of an application's runs. The topics that they write are known only when they run."""
    return AssetAlias(name=f"riverrun:{app}", group="riverrun")
