"""The work of the group's leader: makes an assignment for every instance from the subscriptions of all."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import UnreadableError
from riverrun.records import shortened
from riverrun.worker.group.assignment import assign, withhold
from riverrun.worker.group.protocol import (
    AssignmentConfig,
    AssignmentInfo,
    Instance,
    InstanceTasks,
    SubscriptionInfo,
    addresses_of,
    in_order,
    packed,
    ranges,
    subscription_info_of,
    task_ids,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.records import TaskId

log = logging.getLogger(__name__)


def subscriptions_of(said: Mapping[str, bytes]) -> dict[str, SubscriptionInfo | None]:
    """Decode the subscriptions of all members; None, with a warning, for a member that cannot be understood."""
    found: dict[str, SubscriptionInfo | None] = {}
    for member, data in said.items():
        try:
            found[member] = subscription_info_of(data)
        except UnreadableError as error:
            found[member] = None
            log.warning(
                "group member %s gets no tasks: its subscription info cannot be read: %s", shortened(member), error
            )
    return found


def finds_more(said: Iterable[SubscriptionInfo | AssignmentInfo | None], topics: Mapping[str, int]) -> bool:
    """Return whether messages claim topics or partitions that this process has not found."""
    claims = (claim for each in said if each is not None for claim in each.topics.items())
    return any(partitions > topics.get(topic, 0) for topic, partitions in claims)


def give_assignments(
    members: Mapping[str, SubscriptionInfo | None],
    topics: Mapping[str, int],
    tasks: Mapping[TaskId, bool],
    config: AssignmentConfig,
    application_id: str,
    *,
    room: int,
) -> dict[str, bytes]:
    """Make the assignment of each member, as bytes; addresses are left out if all would exceed `room` bytes with them.

    `topics` are those that the leader itself has found: claims of members prove nothing.
    """
    refusals = _refusals(members, application_id)
    admitted = {member: info for member, info in members.items() if info is not None and member not in refusals}
    plans = _plans(admitted.values(), tasks, config)
    shuts_down = any(info.shuts_down for info in admitted.values())
    assignments = dict(refusals)
    for member, info in admitted.items():
        plan = plans[info.instance]
        assignments[member] = AssignmentInfo(
            ranges(plan.active),
            ranges(plan.standby),
            ranges(plan.warm_up),
            shuts_down=shuts_down,
            topics=dict(topics),
            process=info.process,
            fingerprint=info.fingerprint,
        )
    servers = {info.instance: info.server for info in admitted.values() if info.server}
    return _with_servers(assignments, _active_servers(plans, servers), _standby_servers(plans, servers), room)


def _with_servers(
    assignments: Mapping[str, AssignmentInfo], active: dict[str, str], standby: dict[str, list[str]], room: int
) -> dict[str, bytes]:
    found = {member: packed(info) for member, info in assignments.items()}
    if not active and not standby:
        return found
    needed = sum(map(len, found.values()))
    addresses = addresses_of(active, standby)
    more = len(packed(AssignmentInfo(addresses=addresses))) * len(found)
    fits = needed + more <= room
    if not fits:
        log.info("assignments name no addresses: with them, they would have %d bytes", needed + more)
    if needed > room:
        message = "the assignments of %d instances have %d bytes: brokers may need a larger message.max.bytes"
        log.warning(message, len(found), needed)
    known = {"addresses": addresses} if fits else {"omits_servers": True}
    return {
        member: found[member] if info.refusal is not None else packed(msgspec.structs.replace(info, **known))
        for member, info in assignments.items()
    }


def _process(info: SubscriptionInfo | None) -> str:
    return info.process if info is not None else ""


def _refusals(members: Mapping[str, SubscriptionInfo | None], application_id: str) -> dict[str, AssignmentInfo]:
    """Return why members cannot take part: their topology is not the running or most common one, or their id is not unique."""
    # The topology that runs tasks wins. With none running, the most common one does; ties go to the greater
    # fingerprint, so that each leader decides alike.
    running = Counter(info.fingerprint for info in members.values() if info is not None and info.active)
    present = running or Counter(info.fingerprint for info in members.values() if info is not None)
    prevailing = max(present, key=lambda print_: (present[print_], print_), default="")
    # A process that has died counts until its session ends. In any order of members, its successor may wait for that.
    counts = Counter(info.instance for info in members.values() if info is not None)
    seen: set[str] = set()
    refusals = {}
    for member, info in sorted(members.items()):
        if info is None:
            why = (
                f"Instances of {application_id} run another release of Riverrun, with which this one cannot work: "
                "the subscription info of this instance cannot be read"
            )
        elif info.fingerprint != prevailing:
            why = (
                f"Instances of {application_id} run another topology (fingerprint {prevailing}, "
                f"this one has {info.fingerprint}); a changed topology needs its own version"
            )
        elif info.instance in seen:
            why = f"Another instance of {application_id} uses the same state directory (id {info.instance})"
        else:
            seen.add(info.instance)
            continue
        may_pass = info is not None and counts[info.instance] > 1
        refusals[member] = AssignmentInfo(refusal=why, process=_process(info), may_pass=may_pass)
    return refusals


def _plans(
    subscriptions: Iterable[SubscriptionInfo], tasks: Mapping[TaskId, bool], config: AssignmentConfig
) -> dict[str, InstanceTasks]:
    instances = [_instance(info, tasks) for info in subscriptions]
    return withhold(assign(instances, tasks, config), instances) if instances else {}


def _instance(info: SubscriptionInfo, tasks: Mapping[TaskId, bool]) -> Instance:
    positions = zip(in_order(info.known), info.positions, strict=True)
    return Instance(
        id=info.instance,
        capacity=info.capacity,
        tags=info.tags,
        # Members may still have tasks that no longer exist, since topics have changed.
        active=task_ids(info.active) & tasks.keys(),
        positions={task: position for task, position in positions if tasks.get(task)},
        restoring=task_ids(info.restoring) & tasks.keys(),
        standby=task_ids(info.standby) & tasks.keys(),
    )


def _active_servers(plans: Mapping[str, InstanceTasks], servers: Mapping[str, str]) -> dict[str, str]:
    return {str(task): servers[owner] for owner, plan in plans.items() if owner in servers for task in plan.active}


def _standby_servers(plans: Mapping[str, InstanceTasks], servers: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for owner, plan in plans.items():
        if owner in servers:
            for task in plan.standby:
                found.setdefault(str(task), []).append(servers[owner])
    return found
