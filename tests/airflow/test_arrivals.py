"""New records of topics as events of assets, and as what sensors wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.test_waits import printed_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.airflow

SCRIPT = """
import asyncio, json
from datetime import timedelta
from types import SimpleNamespace
from airflow.sdk import DAG
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferralTimeout, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from riverrun.errors import BrokerError, TopicError
from riverrun_airflow import arrivals, waiting
from riverrun_airflow.arrivals import watched
from riverrun_airflow.looks import Arrived, Look, reason_of
from riverrun_airflow.waiting import NewRecordsSensor, ProcessedSensor

def tell(value):
    print("=" + json.dumps(value))

HOUR = 3_600_000
arrivals.position = lambda project, topics, start: {"latest": "in-0@5"}[start]
arrivals.now_ms = lambda: now

class Over(BaseException):
    pass

class Stored(dict):
    async def aget(self, key):
        return self.get(key)
    async def aset(self, key, value):
        self[key] = json.loads(json.dumps(value))

def events(trigger, *looks):
    # Looks one after the other: how many offsets there are, their event time, and the time of the clock.
    left, seen = list(looks), []
    async def fired():
        found = []
        try:
            async for event in trigger.run():
                found.append(event.payload)
        except Over:
            return found
    def look(project, awaited):
        global now
        seen.append(awaited)
        if not left:
            raise Over
        each = left.pop(0)
        if isinstance(each, Exception):
            raise each
        end, event_time, now = each
        count = end - int(awaited.since.rpartition("@")[2])
        at = event_time if count else None
        reason = reason_of(awaited, count, at, now)
        return Arrived(f"in-0@{end - count}..{end}", f"in-0@{end}", count, at, reason)
    arrivals.arrived = look
    return [(each["offsets"], each["reason"]) for each in asyncio.run(fired())], seen

def made(asset, store=None):
    (watcher,) = asset.watchers
    path, arguments = watcher.trigger.serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    again.asset_state_store = store
    return again

# Each event begins where the one before ended; looks that fail are repeated.
now, store = 0, Stored()
counted = watched("in", records=10, every_s=0)
tell(events(made(counted, store), (9, 0, 0), BrokerError("gone"), (15, 0, 0), (24, 0, 0), (26, 0, 0))[0])
tell([*store.values()][0]["since"])
tell(events(made(counted, store), (30, 0, 0), (36, 0, 0))[0])

# Other watches of the topic have assets and positions of their own, also with a store in common.
others = [watched("in", every_s=0, **each) for each in ({"records": 2}, {"minutes": 1}, {"records": 2, "name": "x"})]
def begun(asset):
    global now
    now = 0
    return events(made(asset, store), (6, 0, 120_000), (7, 0, 120_000))[0]
tell([begun(each) for each in others])
tell([len({each.name for each in (counted, *others)}), len(store)])

# Only conditions are in a name. Airflow normalises URIs, but two assets never have one URI.
same = watched("in", records=2), watched("in", records=2, minutes=0, every_s=7, config="a/b", start="earliest")
apart = [watched("in", records=1, name=each) for each in ("w:in", "w:in#a", "w:in#b", "w:in?a=", "w:in?b=")]
apart += [watched("in", records=1, riverrun_conn_id=each) for each in ("a#b", "a#c")]
tell([{each.name for each in same} == {"riverrun-watch:in?records=2"}, same[0].uri == same[0].name, apart[0].uri == "w:in"])
tell(len({each.uri for each in apart}) == len(apart))

# A watch whose position was kept without a name continues from it.
old = Stored({arrivals._key(["in"]): {"since": "in-0@20", "since_ms": 0, "passed_ms": None}})
tell(events(made(watched("in", records=10, every_s=0), old), (30, 0, 0))[0])

# Time counts from the event before, and does not report nothing.
now = 0
timed = watched("in", records=10, minutes=1, every_s=0)
tell(events(made(timed), (5, 0, 59_000), (5, 0, 70_000), (6, 0, 71_000), (7, 0, 80_000), (8, 0, 140_000))[0])

# A period of event time is reported once, when it has passed.
hourly = watched("in", event_hours=1, every_s=0)
looks = (5, 0, 0), (6, HOUR + 5, 0), (7, 2 * HOUR - 1, 0), (8, 2 * HOUR, 0), (9, 2 * HOUR + 9, 0), (12, 7 * HOUR, 0)
tell(events(made(hourly), *looks, (13, 7 * HOUR + 1, 0))[0])

# Airflow keeps the asset with its watcher.
with DAG("follows", schedule=[counted]) as dag:
    pass
shown = json.dumps(DagSerialization.to_dict(dag))
tell(["riverrun_airflow.arrivals.NewRecordsTrigger" in shown, "riverrun-watch:in" in shown])
for wrong in {"topics": "in"}, {"topics": []}, {"topics": ["in"]}:
    try:
        arrivals.NewRecordsTrigger(**wrong)
    except ValueError as error:
        tell(str(error))

# Sensors wait without a slot for what they resolved first, time out and fail softly as Airflow's do.
class Kept(dict):
    set = dict.__setitem__

def outcome(action):
    try:
        return action()
    except TaskDeferred as wait:
        return ["waits", type(wait.trigger).__name__, wait.trigger.look, wait.trigger.every_s, wait.timeout.total_seconds()]
    except AirflowSkipException:
        return "is skipped"

class Missing:
    def __call__(self, *_, **wanted):
        raise TopicError("no topic")

now, context = 7, {"task_state_store": Kept()}
waiting.now_ms = lambda: now
waiting.position = lambda project, topics, start: f"{topics[0]}-0@5"
given = {"task_id": "wait", "topics": ["in"], "timeout": timedelta(hours=1)}
sensor = NewRecordsSensor(**given, event_time="1970-01-01T01:00", soft_fail=True)
arrived = {"offsets": "in-0@5..9", "end": "in-0@9", "records": 4, "reason": "event_time", "event_time": None}
waiting.look = lambda project, kind, **wanted: Look("few", False)
tell(outcome(lambda: sensor.execute(context)))
waiting.position = lambda project, topics, start: "in-0@99"
tell(outcome(lambda: sensor.execute(context))[2]["since"])
tell(sensor.resume(context, {"status": "ok", "said": "", "found": json.dumps(arrived)}))
tell(outcome(lambda: sensor.resume_execution("resume", {"event": {"status": "failed", "said": "no"}}, context)))
tell(outcome(lambda: sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context)))
waiting.look = Missing()
tell(outcome(lambda: sensor.execute(context)))
waiting.look = lambda project, kind, **wanted: Look("enough", True, json.dumps(arrived))
for deferrable in True, False:
    tell(outcome(lambda: NewRecordsSensor(**given, deferrable=deferrable).execute({"task_state_store": Kept()})) == arrived)
tell(NewRecordsSensor(**given)._awaited()["records"])

waiting.look = lambda project, kind, **wanted: Look(kind, True)
processed = ProcessedSensor(task_id="done", app="clicks", deferrable=False)
processed._resolved = lambda: {"app": "clicks", "version": "v1", "end": "in-0@9"}
tell(processed.execute({"task_state_store": Kept()}))
"""

LOOKS = """
import json, os
from pathlib import Path
from riverrun_airflow.looks import Awaited, arrived, position
from riverrun_airflow.location import Location
from riverrun.errors import RangeError

project, topic = Location(Path(os.environ["RIVERRUN_CONFIG"])).project(), ["TOPIC"]
for awaited in (
    Awaited(topic, records=6), Awaited(topic, records=7), Awaited(topic, event_time_ms=300),
    Awaited(topic, event_time_ms=301), Awaited(topic, minutes=1), Awaited(topic, records=1, since="TOPIC-0@2"),
    Awaited(topic, records=1, since=position(project, topic, "latest")),
):
    print("=" + json.dumps(arrived(project, awaited).told()))
print("=" + json.dumps([position(project, topic, text) for text in ("latest", "earliest", "TOPIC-1@2")]))
again = arrived(project, Awaited(topic, records=1, since="TOPIC-0@99,TOPIC-1@3"))
try:
    position(project, topic, "yesterday")
except RangeError as error:
    print("=" + json.dumps([again.offsets, str(error)]))
"""


def test_watchers_report_each_new_record_once_and_sensors_wait_as_airflows_do(tmp_path: Path) -> None:
    counted, kept, after, others, own, names, are_apart, continued, timed, hourly, shown, *rest = printed_by(
        SCRIPT, tmp_path
    )
    assert counted == [["in-0@5..15", "records"], ["in-0@15..26", "records"]]
    assert kept == "in-0@26"
    assert after == [["in-0@26..36", "records"]], "another triggerer goes on"
    assert others == [[["in-0@5..7", "records"]], [["in-0@5..6", "minutes"]], [["in-0@5..7", "records"]]]
    assert own == [4, 4]
    assert names == [True, True, True]
    assert are_apart
    assert continued == [["in-0@20..30", "records"]]
    assert timed == [["in-0@5..6", "minutes"], ["in-0@6..8", "minutes"]]
    assert hourly == [["in-0@5..8", "event_time"], ["in-0@8..12", "event_time"]]
    assert shown == [True, True]
    assert rest[:3] == ["a list of topics, and records, minutes or event_hours above 0 are needed"] * 3
    waits, since, arrived, failed, late, missing, *ended, alone, processed = rest[3:]
    look = {
        "kind": "arrived",
        "topics": ["in"],
        "records": 0,
        "minutes": 0.0,
        "event_time_ms": 3_600_000,
        "since": "in-0@5",
        "since_ms": 7,
    }
    assert waits == ["waits", "LookTrigger", look, 5.0, 3600.0]
    assert since == "in-0@5"
    assert arrived["offsets"] == "in-0@5..9"
    assert [failed, late, missing] == ["is skipped"] * 3
    assert ended == [True, True]
    assert alone == 1
    assert processed == {"app": "clicks", "version": "v1", "end": "in-0@9"}


@pytest.mark.broker
def test_new_records_are_counted_from_an_offset_and_have_an_event_time(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(3, unique)
    for partition, last in ((0, 400), (1, 300)):
        broker.write(unique, [(b"k", b"v", time) for time in (100, last, 200)], partition)
    records, more, passed, not_yet, minutes, rest, none, positions, (again, wrong) = printed_by(
        LOOKS.replace("TOPIC", unique), tmp_path, broker.bootstrap_servers
    )
    ends = f"{unique}-0@3,{unique}-1@3,{unique}-2@0"
    assert records == {
        "offsets": f"{unique}-0@0..3,{unique}-1@0..3",
        "end": ends,
        "records": 6,
        "reason": "records",
        "event_time": None,
    }
    assert more["reason"] == ""
    assert (passed["reason"], passed["event_time"]) == ("event_time", "1970-01-01T00:00:00.300000+00:00")
    assert (not_yet["reason"], minutes["reason"]) == ("", "minutes")
    assert rest["offsets"] == f"{unique}-0@2..3,{unique}-1@0..3"
    assert (none["records"], none["offsets"], none["end"], none["reason"]) == (0, "", ends, "")
    assert positions == [ends, f"{unique}-0@0,{unique}-1@0,{unique}-2@0", f"{unique}-1@2"]
    assert again == f"{unique}-0@0..3", "the topic was created again"
    assert wrong == "'yesterday' is neither latest, earliest, nor a vector (topic-0@12,topic-1@7)"
