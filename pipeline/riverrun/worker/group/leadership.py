"""The work of the group's leader: makes orders for every instance from the introductions of all."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import UnreadableError
from riverrun.records import TaskId, shortened
from riverrun.worker.group.assignment import assign, withhold
from riverrun.worker.group.protocol import (
    AssignmentConfig,
    Instance,
    Introduction,
    Orders,
    Plan,
    introduction_of,
    task_ids,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


def introduced(said: Mapping[str, bytes]) -> dict[str, Introduction | None]:
    """Decode the introductions of all members; None, with a warning, for a member that cannot be understood.

    Args:
        said: Introduction of each member, as bytes.
    """
    found: dict[str, Introduction | None] = {}
    for member, data in said.items():
        try:
            found[member] = introduction_of(data)
        except UnreadableError as error:
            found[member] = None
            log.warning("group member %s gets no tasks: its introduction cannot be read: %s", shortened(member), error)
    return found


def finds_more(said: Iterable[Introduction | Orders | None], topics: Mapping[str, int]) -> bool:
    """Return whether messages claim topics or partitions that this process has not found."""
    claims = (claim for each in said if each is not None for claim in each.topics.items())
    return any(partitions > topics.get(topic, 0) for topic, partitions in claims)


def give_orders(
    members: Mapping[str, Introduction | None],
    topics: Mapping[str, int],
    tasks: Mapping[TaskId, bool],
    config: AssignmentConfig,
    application_id: str,
) -> dict[str, bytes]:
    """Make the orders of each member, as bytes.

    Args:
        members: Introduction of each member (`introduced`).
        topics: Partitions of the topics to read, as the leader itself has found them: claims of members prove nothing.
        tasks: All tasks, and whether each has state.
        config: Settings.
        application_id: The application id, for refusals.

    Returns:
        Orders by member.
    """
    refusals = _refusals(members, application_id)
    admitted = {member: intro for member, intro in members.items() if intro is not None and member not in refusals}
    plans = _plans(admitted.values(), tasks, config)
    servers = {intro.instance: intro.server for intro in admitted.values() if intro.server}
    shuts_down = any(intro.shuts_down for intro in admitted.values())
    orders = {member: Orders(refusal=why, process=_process(members[member])) for member, why in refusals.items()}
    for member, intro in admitted.items():
        plan = plans[intro.instance]
        orders[member] = Orders(
            texts(plan.active),
            texts(plan.standby),
            texts(plan.warm_up),
            _active_servers(plans, servers),
            _standby_servers(plans, servers),
            shuts_down=shuts_down,
            topics=dict(topics),
            process=intro.process,
            fingerprint=intro.fingerprint,
        )
    return {member: _encode(order) for member, order in orders.items()}


def _process(intro: Introduction | None) -> str:
    return intro.process if intro is not None else ""


def _refusals(members: Mapping[str, Introduction | None], application_id: str) -> dict[str, str]:
    """Return why members cannot take part: their topology is not the running or most common one, or their id is not unique."""
    running = Counter(intro.fingerprint for intro in members.values() if intro is not None and intro.active)
    present = running or Counter(intro.fingerprint for intro in members.values() if intro is not None)
    prevailing = max(present, key=lambda print_: (present[print_], print_), default="")
    seen: set[str] = set()
    refusals = {}
    for member, intro in sorted(members.items()):
        if intro is None:
            refusals[member] = (
                f"Instances of {application_id} run another release of Riverrun, with which this one cannot work: "
                "the introduction of this instance cannot be read"
            )
        elif intro.fingerprint != prevailing:
            refusals[member] = (
                f"Instances of {application_id} run another topology (fingerprint {prevailing}, "
                f"this one has {intro.fingerprint}); a changed topology needs a version of its own"
            )
        elif intro.instance in seen:
            refusals[member] = (
                f"Another instance of {application_id} uses the same state directory (id {intro.instance})"
            )
        else:
            seen.add(intro.instance)
    return refusals


def _plans(
    introductions: Iterable[Introduction], tasks: Mapping[TaskId, bool], config: AssignmentConfig
) -> dict[str, Plan]:
    instances = [_instance(intro, tasks) for intro in introductions]
    return withhold(assign(instances, tasks, config), instances) if instances else {}


def _instance(intro: Introduction, tasks: Mapping[TaskId, bool]) -> Instance:
    """Return an instance's description, limited to existing tasks."""
    positions = {TaskId.parse(text): position for text, position in intro.positions.items()}
    return Instance(
        id=intro.instance,
        capacity=intro.capacity,
        tags=intro.tags,
        active=task_ids(intro.active) & tasks.keys(),
        positions={task: position for task, position in positions.items() if tasks.get(task)},
        restoring=task_ids(intro.restoring) & tasks.keys(),
        standby=task_ids(intro.standby) & tasks.keys(),
    )


def _active_servers(plans: Mapping[str, Plan], servers: Mapping[str, str]) -> dict[str, str]:
    return {str(task): servers[owner] for owner, plan in plans.items() if owner in servers for task in plan.active}


def _standby_servers(plans: Mapping[str, Plan], servers: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for owner, plan in plans.items():
        if owner in servers:
            for task in plan.standby:
                found.setdefault(str(task), []).append(servers[owner])
    return found
