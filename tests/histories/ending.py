"""The end of a history of releases: faults end, what is under way is completed, and all that is public is compared."""

from __future__ import annotations

from datetime import timedelta
from operator import eq, ge
from typing import TYPE_CHECKING, Any

from riverrun.errors import StreamsError
from riverrun.hosting.gated import HeldState
from riverrun.hosting.release import BEGUN, SWITCHING, ReleaseStep
from tests.histories import commands
from tests.histories.commands import JUDGE, Operator
from tests.histories.events import resume, retain
from tests.histories.history import WrongError
from tests.histories.versions import LOGS, TABLES, USERS, VERSIONS, WINDOWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.release import Release
    from tests.histories.scene import Scene

LONGEST = timedelta(hours=2)
_ATTEMPTS = 40


def end(scene: Scene) -> None:
    """Check what is public in the end, and once more after the way back."""
    heal(scene)
    check_rows(scene)
    check_followed(scene)
    go_back(scene)
    release_from_archive(scene)
    scene.stop_all()


def heal(scene: Scene) -> None:
    """End all faults, settle what is under way, and process everything."""
    scene.faults.rate = 0.0
    scene.faults.cut_off.clear()
    JUDGE.is_strict = False
    resume(scene)
    for host in scene.cluster.turns.hosts:
        host.lag_s = 0.0
    scene.say("all faults end")
    _await(scene, lambda: not scene.busy(), f"{', '.join(scene.busy())} do not end")
    for name, operator in scene.operators.items():
        scene.judge_end(name, operator)
    _settle(scene)
    _process(scene)
    _correct_damage(scene)


def _settle(scene: Scene) -> None:
    """Complete the release that is under way, or abort it; decide about a run that is held back."""
    app, last = scene.app("settler"), None
    operator = Operator(app, scene.random, scene.cluster, scene.began_ms)
    for _ in range(_ATTEMPTS):
        scene.drop_ended()
        status = app.release().status
        if status.held is None and status.step not in {*BEGUN, *SWITCHING}:
            scene.say(f"{status.live} is live, {status.step.value}")
            return
        try:
            _settle_step(scene, operator, status)
        except StreamsError as error:
            scene.say(f"settling: {type(error).__name__}: {error}"[:300])
            scene.require_expected(error)
            last = error
        scene.cluster.advance(timedelta(seconds=20))
    raise WrongError("the release cannot be settled") from last


def _settle_step(scene: Scene, operator: Operator, status: Release) -> None:
    if status.held is not None and status.held.state is HeldState.BEGUN:
        operator.app.run()
    elif status.held is not None:
        commands.decide_held(operator)
    elif status.step is ReleaseStep.CUTTING:
        operator.app.release().cut()
    elif status.step is ReleaseStep.ROLLING_BACK:
        operator.app.release().rollback()
    elif scene.random.random() < 0.5:
        commands.take_steps(operator)
    else:
        scene.stop_all()
        operator.app.release().abort()


def _process(scene: Scene) -> None:
    """Let workers or runs process everything."""
    scene.drop_ended()
    live = scene.watch.release.live
    if scene.kind.workers:
        if not any(worker.version == live for worker in scene.workers.values()):
            scene.start("last", live)
    else:
        scene.stop_all()
        _run_until_done(scene)
    _await(scene, lambda: _is_complete(scene, live), "not everything is counted")
    scene.say("everything is counted")
    scene.cluster.advance(timedelta(seconds=30))


def _run_until_done(scene: Scene) -> None:
    operator = Operator(scene.app("runner"), scene.random, scene.cluster, scene.began_ms)
    _until_done(scene, "run", operator.app.run, lambda: commands.decide_held(operator))


def _until_done(
    scene: Scene, what: str, call: Callable[[], object], between: Callable[[], object] = lambda: None
) -> None:
    """Repeat a call until it raises no error."""
    last = None
    for _ in range(_ATTEMPTS):
        try:
            call()
        except StreamsError as error:
            scene.say(f"{what}: {type(error).__name__}: {error}"[:300])
            scene.require_expected(error)
            last = error
        else:
            return
        between()
        scene.cluster.advance(timedelta(seconds=20))
    raise WrongError(f"no {what} is possible") from last


def _correct_damage(scene: Scene) -> None:
    if not scene.watch.damaged:
        return
    # Windows close.
    scene.cluster.advance(timedelta(minutes=5))
    for user in USERS:
        scene.write(user, "a", scene.cluster.now_ms)
    scene.producer.flush(60)
    _process(scene)
    operator = Operator(scene.app("repairer"), scene.random, scene.cluster, scene.began_ms)
    commands.repair(operator)
    scene.say("damaged rows are repaired")


def go_back(scene: Scene) -> None:
    """Roll the last release back, and look at what is public then."""
    app = scene.app("last")
    if app.release().status.step is not ReleaseStep.LIVE:
        return
    try:
        app.release().rollback()
    except StreamsError as error:
        scene.say(f"rollback: {type(error).__name__}: {error}"[:300])
        scene.require_expected(error)
        return
    scene.say("the release is rolled back")
    # Rows that another program has written come back as well: they were public before.
    _correct_damage(scene)
    check_rows(scene)
    check_followed(scene)


def release_from_archive(scene: Scene) -> None:
    """Release another version when brokers have deleted all that the archive has, and look at what is public then."""
    if not scene.kind.archives:
        return
    operator = Operator(scene.app("archiver"), scene.random, scene.cluster, scene.began_ms)
    commands.archive(operator)
    retain(scene)
    _until_done(scene, "release from the archive", lambda: commands.take_steps(operator))
    scene.say("a version is released from the archive")
    check_rows(scene)


def check_followed(scene: Scene) -> None:
    """Check that the database has what is public."""
    if scene.kind.follows:
        scene.drop_ended()
        for name in list(scene.followers):
            scene.followers.pop(name).kill()
        scene.database.check(scene.watch)
        scene.say("the database has what is public")


def check_rows(scene: Scene) -> None:
    """Check that all that is public is what the live version's code makes of the records."""
    scene.check()
    live = scene.watch.release.live
    wanted = VERSIONS[live].rows(scene.clicks)
    if missing := _missing(scene, live):
        raise WrongError("records are not in logs:", missing)
    for topic in TABLES:
        found = {key: count for key, (_, count) in scene.watch.rows[topic].items()}
        if scene.watch.exactly_once or not scene.was_harmed:
            _require_equal(topic, found, dict(wanted[topic]))
        elif less := {key: (found.get(key), n) for key, n in wanted[topic].items() if found.get(key, 0) < n}:
            raise WrongError(topic, "has lost", less)
    marks = {mark for mark, _ in scene.watch.rows[WINDOWS].values()}
    if scene.watch.exactly_once and marks - {live}:
        raise WrongError("rows of", marks, "are public, and", live, "is live")
    scene.say(f"all is as {live} computes it")


def _is_complete(scene: Scene, live: str) -> bool:
    scene.check()
    wanted = VERSIONS[live].rows(scene.clicks)
    # At least once counts more, and commits every 30 s only.
    is_enough = eq if scene.watch.exactly_once else ge
    is_whole = all(
        is_enough(scene.watch.rows[topic].get(key, ("", 0))[1], count)
        for topic in TABLES
        for key, count in wanted[topic].items()
        if (topic, key) not in scene.watch.damaged
    )
    return is_whole and not _missing(scene, live)


def _missing(scene: Scene, live: str) -> dict[str, list[int]]:
    """Return the records that are not in the logs which a version writes."""
    wanted = VERSIONS[live].logs(scene.clicks)
    missing = {topic: [each for each in sorted(wanted[topic]) if not scene.watch.logs[topic][each]] for topic in LOGS}
    return {topic: numbers for topic, numbers in missing.items() if numbers}


def _require_equal(topic: str, found: dict[Any, int], wanted: dict[Any, int]) -> None:
    if found != wanted:
        keys = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
        raise WrongError(topic, {key: (found.get(key), wanted.get(key)) for key in keys}, "is, should be")


def _await(scene: Scene, condition: Callable[[], bool], what: str) -> None:
    try:
        scene.cluster.wait_until(condition, LONGEST)
    except StreamsError as error:
        # A host may have ended as it should.
        has_ended = scene.drop_ended()
        if "does not hold" in str(error):
            raise WrongError(what) from error
        if not has_ended:
            raise
        _await(scene, condition, what)
