"""Events in a history of releases, with their weights."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from riverrun.archive.manifest import ArchiveStore
from riverrun.errors import StreamsError
from riverrun.records import TopicPartition
from tests.histories import commands
from tests.histories.commands import JUDGE, Operator
from tests.histories.versions import COUNTS, INPUT, PAGES, SEEN, USERS, WINDOWS
from tests.histories.watch import DAMAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.histories.commands import Command
    from tests.histories.scene import Kind, Scene

    Event = Callable[[Scene], object]


def produce(scene: Scene) -> None:
    """Write records, some of them late."""
    count = scene.random.randrange(1, 25)
    for _ in range(count):
        late_ms = scene.random.choice([0, 0, 0, 5_000, 40_000, 100_000])
        time_ms = scene.cluster.now_ms - scene.random.randrange(late_ms + 1)
        scene.write(scene.random.choice(USERS), scene.random.choice(PAGES), time_ms)
    scene.producer.flush(60)
    scene.say(f"{count} records are written")


def damage(scene: Scene) -> None:
    """Overwrite a public row, as a program that should not."""
    keys = sorted(key for key, (version, _) in scene.watch.rows[WINDOWS].items() if version != DAMAGE)
    if keys:
        user, start = scene.random.choice(keys)
        raw = user.encode() + start.to_bytes(8, "big")
        found = [
            number
            for number in range(2)
            if any(entry.key == raw for entry in scene.cluster.brokers.topics.log(WINDOWS, number).entries)
        ]
        if found:
            value = f"{DAMAGE} 999".encode()
            scene.producer.produce(WINDOWS, key=raw, value=value, partition=found[0], timestamp=start)
            scene.producer.flush(60)
            scene.say(f"row {user}@{start} is damaged")


def start_worker(scene: Scene) -> None:
    """Start a worker of the live version, or of a version that it names."""
    name = scene.random.choice(["one", "two", "three"])
    status = scene.app().release().status
    named = scene.random.choice([None, None, status.candidate, status.previous])
    if name not in scene.workers:
        scene.start(name, named)


def stop_worker(scene: Scene) -> None:
    for name in scene.some(scene.workers):
        scene.stop(name)


def kill_worker(scene: Scene) -> None:
    for name in scene.some(scene.workers):
        scene.workers.pop(name).kill()
        scene.was_harmed = True
        scene.say(f"worker {name} is killed")


def scale(scene: Scene) -> None:
    for name in scene.some(scene.workers):
        threads = scene.random.choice([1, 2])
        try:
            scene.workers[name].scale(threads)
            scene.say(f"worker {name} is scaled to {threads}")
        except StreamsError as error:
            scene.say(f"worker {name} is not scaled to {threads}: {error}")


def operate(scene: Scene, *chosen: Command) -> str:
    """Let an operator give a command, maybe twice. Return its name."""
    name = f"operator-{len(scene.operators)}"
    weights, known = zip(*COMMANDS, strict=True)
    command = chosen[0] if chosen else scene.random.choices(known, weights)[0]
    times = scene.random.choice([1, 1, 1, 2])
    app, random = scene.app(name), Random(scene.random.random())
    if command is commands.look:
        scene.watch.lookers.add(name)

    def work() -> None:
        operator = Operator(app, random, scene.cluster, scene.began_ms)
        for _ in range(times):
            scene.say(f"{name}: {command.__name__} begins")
            try:
                command(operator)
                scene.say(f"{name}: {command.__name__} is done")
            except StreamsError as error:
                scene.say(f"{name}: {command.__name__}: {type(error).__name__}: {error}"[:300])
                scene.require_expected(error)

    scene.operators[name] = scene.cluster.start(name, work)
    return name


def kill_operator(scene: Scene) -> None:
    for name in scene.some(scene.busy()):
        scene.operators[name].kill()
        scene.was_harmed = True
        scene.say(f"{name} is killed")


def strike(scene: Scene) -> None:
    """Kill or suspend an operator in the middle of a switch, or of another decision."""
    turns = scene.cluster.turns
    if not turns.wait_until(lambda: scene.watch.is_deciding, 20):
        return
    turns.sleep(scene.random.choice([0, 0, 0.1, 1]) * scene.random.random())
    for name in scene.some(scene.busy()):
        kills = scene.random.random() < 0.5
        scene.operators[name].kill() if kills else scene.operators[name].suspend()
        scene.was_harmed = True
        scene.say(f"{name} is {'killed' if kills else 'suspended'} in the middle")


def start_follower(scene: Scene) -> None:
    """Start a process that follows a topic into the database, next to others."""
    follow(scene, scene.random.choice([COUNTS, SEEN]), scene.random.choice(["first", "second"]))


def follow(scene: Scene, topic: str, which: str) -> None:
    """Start one of the followers of a topic, unless it runs."""
    name = f"{which} follower of {topic}"
    if name not in scene.followers:
        scene.followers[name] = scene.cluster.start(name, scene.database.follower(topic))
        scene.say(f"the {name} starts")


def kill_follower(scene: Scene) -> None:
    for name in scene.some(scene.followers):
        scene.followers.pop(name).kill()
        scene.say(f"the {name} is killed")


def hang_follower(scene: Scene) -> None:
    for name in scene.some(scene.followers):
        request = scene.random.choice(["Fetch", "Fetch", "Fetch", "OffsetCommit", "Heartbeat"])
        hang_s = scene.random.choice([5.0, 15.0, 60.0])
        scene.faults.hang_at(name, request, scene.random.randrange(1, 12), hang_s)
        scene.say(f"the {name} is to hang for {hang_s} s at a {request}")


def retain(scene: Scene) -> None:
    """Delete records that the archive has, as brokers do after a while."""
    manifest = ArchiveStore(scene.archive_url).manifest(INPUT)
    if manifest is None:
        return
    for number in range(manifest.partitions):
        end, tp = manifest.end(number), TopicPartition(INPUT, number)
        if end is not None:
            start = scene.cluster.brokers.topics.log(*tp).start
            before = scene.random.choice([end, scene.random.randint(start, end)])
            scene.cluster.brokers.delete_records(tp, before)
            scene.say(f"records of {tp} before {before} are deleted")


def correct_expectations(scene: Scene) -> None:
    JUDGE.is_strict = not JUDGE.is_strict
    scene.say(f"expectations are {'strict' if JUDGE.is_strict else 'as usual'}")


def suspend(scene: Scene) -> None:
    """Suspend a worker or an operator, or resume those that are."""
    hosts = scene.hosts()
    for name in scene.some(hosts):
        hosts[name].suspend()
        scene.was_harmed = True
        scene.say(f"{name} is suspended")


def resume(scene: Scene) -> None:
    for each in (*scene.workers.values(), *scene.operators.values(), *scene.followers.values()):
        each.resume()
    scene.say("all that was suspended is resumed")


def change_faults(scene: Scene) -> None:
    scene.faults.rate = scene.random.choice([0.0, 0.0, 0.002, 0.02])
    scene.was_harmed = True
    scene.say(f"requests fail at a rate of {scene.faults.rate}")


def cut_off(scene: Scene) -> None:
    """Cut a host off from the brokers, or connect all again."""
    if scene.faults.cut_off:
        scene.faults.cut_off.clear()
        scene.say("all hosts are connected again")
    elif hosts := [host for host in scene.cluster.turns.hosts if host.parent is None and host.name != "brokers"]:
        host = scene.random.choice(hosts)
        scene.faults.cut_off.add(host)
        scene.was_harmed = True
        scene.say(f"{host.name} is cut off")


def pass_time(scene: Scene) -> None:
    seconds = scene.random.choice([0.1, 1, 1, 5, 15, 60])
    scene.cluster.advance(timedelta(seconds=seconds * scene.random.random()))


def pass_days(scene: Scene) -> None:
    """Let days pass in which all hosts hang, or none is left."""
    days, kills = scene.random.choice([0.5, 2, 8]), scene.random.random() < 0.5
    for host in scene.hosts().values():
        host.kill() if kills else host.suspend()
        scene.was_harmed = True
    if kills:
        scene.workers.clear()
        scene.followers.clear()
    scene.say(f"{days} days pass, all hosts are {'killed' if kills else 'suspended'}")
    scene.cluster.advance(timedelta(days=days))


COMMANDS: list[tuple[int, Command]] = [
    (8, commands.take_next),
    (6, commands.take_chain),
    (4, commands.take_steps),
    (2, commands.gate),
    (2, commands.cut),
    (3, commands.roll_back),
    (1, commands.abort),
    (1, commands.retire),
    (1, commands.repair),
    (1, commands.backfill),
    (2, commands.look),
]
EVENTS: list[tuple[int, Event]] = [
    (6, produce),
    (8, operate),
    (1, kill_operator),
    (2, strike),
    (3, suspend),
    (2, resume),
    (2, change_faults),
    (1, cut_off),
    (12, pass_time),
    (1, pass_days),
    (1, damage),
]
WITH_WORKERS: list[tuple[int, Event]] = [
    (5, start_worker),
    (1, stop_worker),
    (2, kill_worker),
    (1, scale),
]
WITH_RUNS: list[tuple[int, Event]] = [(4, lambda scene: operate(scene, commands.run))]
WITH_GATES: list[tuple[int, Event]] = [
    (2, lambda scene: operate(scene, commands.decide_held)),
    (1, correct_expectations),
]
WITH_ARCHIVES: list[tuple[int, Event]] = [
    (5, lambda scene: operate(scene, commands.archive)),
    (3, retain),
]
WITH_FOLLOWERS: list[tuple[int, Event]] = [
    (4, start_follower),
    (1, kill_follower),
    (2, hang_follower),
]


def happening(kind: Kind) -> list[tuple[int, Event]]:
    """Return what may happen in a history of a kind, with weights."""
    found = [*EVENTS]
    if kind.workers:
        found += WITH_WORKERS
    if kind.runs:
        found += WITH_RUNS
    if kind.follows:
        found += WITH_FOLLOWERS
    if kind.archives:
        found += WITH_ARCHIVES
    return found + WITH_GATES if kind.gated else found
