"""Creates the topics of a version that is not live: its staging topics, and its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import ReleaseError
from riverrun.hosting.control.publication import staging_name
from riverrun.kafka.admin import TopicSpec
from riverrun.releases.versions.outputs import outputs

if TYPE_CHECKING:
    from riverrun.hosting.connected import ConnectedApplication

_EVERYTHING = {"cleanup.policy": "delete", "retention.ms": "-1"}
_SETTINGS = {OutputKind.TABLE: {"cleanup.policy": "compact", "retention.ms": "-1"}, OutputKind.LOG: _EVERYTHING}


def create_staging(connected: ConnectedApplication) -> dict[str, str]:
    """Create the staging topics of a version, each with as many partitions as its public topic.

    Staging topics of tables are compacted. Those of logs keep every record.

    Returns:
        Staging names by public name.

    Raises:
        TopicError: If a public topic does not exist.
        ReleaseError: If a log has a staging topic that was made for a table: records may be missing from it.
    """
    admin, kinds = connected.admin, outputs(connected.application)
    admin.require(kinds, f"{connected.id} is to publish to")
    counts = admin.partitions(kinds)
    names = {topic: staging_name(connected.id, topic) for topic in kinds}
    existing = admin.partitions(names[topic] for topic, output in kinds.items() if output.kind is OutputKind.LOG)
    for name in existing:
        _require_all_kept(connected, name)
    admin.create_topics(TopicSpec(names[t], counts[t], _SETTINGS[output.kind]) for t, output in kinds.items())
    return names


def _require_all_kept(connected: ConnectedApplication, staging: str) -> None:
    if "compact" in connected.admin.topic_config(staging)["cleanup.policy"]:
        message = f"{staging} was made for a table, and is compacted: it does not keep every record of a log"
        name = connected.application.config.name
        hint = f"If {connected.version} is a candidate, `riverrun release abort {name}` deletes it."
        raise ReleaseError(message, hint=hint)


def create_letters(connected: ConnectedApplication, topic: str | None) -> str:
    """Create the dead letter topic of a version that is not live, and return its name.

    It has as many partitions as the public one, or one if handlers choose topics themselves. It keeps everything: dead
    letters are not a table, and are not published when the version goes live.

    Raises:
        TopicError: If a public one is configured and does not exist.
    """
    admin = connected.admin
    name, partitions = staging_name(connected.id, topic or "dead-letters"), 1
    if topic is not None:
        admin.require([topic], f"{connected.id} is to keep failures in")
        partitions = admin.partitions([topic])[topic]
    admin.create_topics([TopicSpec(name, partitions, _EVERYTHING)])
    return name
