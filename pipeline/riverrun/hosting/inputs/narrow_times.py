"""Warns at the start of topics whose range of event times is narrower than usual: they refuse old records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from riverrun.kafka.record_times import time_limits
from riverrun.runtime.layout import changelog_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication

log = logging.getLogger(__name__)


def warn_of_narrow_times(connected: ConnectedApplication) -> None:
    """Log the output topics that refuse event times which brokers usually accept.

    Args:
        connected: The application; its topics are prepared.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    for topic, limits in sorted(time_limits(connected.admin, _written(connected.application)).items()):
        for setting, limit_ms in limits.narrow.items():
            log.warning(
                "topic %s takes no record whose event time lies more than %d ms from the brokers' clock (%s): such a record"
                " stops the application, or is the production handler's. Raise it for the topic where old records, or those of"
                " the future, are to be processed",
                topic,
                limit_ms,
                setting,
            )


def _written(application: Application) -> Iterator[str]:
    """Yield every topic that the application writes to, as far as the topology names it."""
    topology, published = application.topology, application.published or {}
    yield from (published.get(topic, topic) for topic in topology.sink_topics)
    yield from (internal_name(application.id, name) for name in topology.repartition_topics)
    for sub in topology.sub_topologies():
        yield from (changelog_name(application.id, store.name) for store in sub.stores if store.logging)
    letters = application.dead_letters or application.config.streams.errors_dead_letter_queue_topic_name
    if letters is not None:
        yield letters
