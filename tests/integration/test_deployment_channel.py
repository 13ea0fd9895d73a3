"""Messages between the driver of a deployment and its instances, whatever happens to their topic."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from riverrun.cluster.instance import DEPLOYMENTS_TOPIC, Channel, InstanceReport, Message, StopInstances
from riverrun.errors import BrokerError
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from tests.waiting import until

if TYPE_CHECKING:
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

REPORT = InstanceReport(0, "node-a", "running", "", 7, 1)


def says(message: Message, teller: Channel, hearer: Channel) -> None:
    """Tell again and again, as both sides do while brokers refuse, until it is heard."""

    def is_heard() -> bool:
        with suppress(BrokerError):
            teller.tell(message)
            return message in hearer.hear(0.5)
        return False

    until(is_heard, f"heard {message}")


def test_driver_and_instance_hear_each_other_again_when_their_topic_was_deleted(broker: Broker, unique: str) -> None:
    kafka = Kafka({**broker.kafka, "topic.metadata.propagation.max.ms": "1000"})  # soon taken for gone
    driver, instance = Channel(Admin(kafka), unique), Channel(Admin(kafka), unique)
    says(REPORT, instance, driver)
    says(StopInstances(), driver, instance)
    broker.admin().delete_topics([DEPLOYMENTS_TOPIC])
    with suppress(BrokerError):
        instance.hear(0.5)
    says(REPORT, instance, driver)
    says(StopInstances(), driver, instance)
    driver.close()
    instance.close()
