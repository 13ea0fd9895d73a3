"""The topics of a version that is not live: where it writes its outputs, and the records it could not handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.hosting.publication import staging_name
from pipeline.kafka.admin import TopicSpec

if TYPE_CHECKING:
    from pipeline.kafka.admin import Admin


def create_staging(admin: Admin, application_id: str, topics: tuple[str, ...]) -> dict[str, str]:
    """Create the staging topics of a version, each like its public topic; gives public name to staging name.

    Raises:
        TopicError: If a public topic does not exist.
    """
    admin.require(topics, f"{application_id} is to publish to")
    counts = admin.partitions(topics)
    names = {topic: staging_name(application_id, topic) for topic in topics}
    config = {"cleanup.policy": "compact", "retention.ms": "-1"}
    admin.create_topics(TopicSpec(names[topic], counts[topic], config) for topic in topics)
    return names


def create_letters(admin: Admin, application_id: str, topic: str | None) -> str:
    """Create the topic of the dead letters of a version that is not live, and give its name.

    It has as many partitions as the public one, or one if handlers choose topics themselves, and keeps everything: letters
    are no table, and are not published when the version goes live.

    Raises:
        TopicError: If there is a public one, and it does not exist.
    """
    name, partitions = staging_name(application_id, topic or "dead-letters"), 1
    if topic is not None:
        admin.require([topic], f"{application_id} is to keep failures in")
        partitions = admin.partitions([topic])[topic]
    admin.create_topics([TopicSpec(name, partitions, {"cleanup.policy": "delete", "retention.ms": "-1"})])
    return name
