"""Records of topics that other processes write: each kind is read, refused by its one error, or left out by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun.cluster.instance import InstanceReport, StopInstances, _message
from riverrun.decoders import UnreadableError
from riverrun.errors import RangeError, ReleaseError, SnapshotError
from riverrun.hosting import control_topic
from riverrun.hosting.gated import GateVerdict, HeldRun, HeldState
from riverrun.hosting.release import Release, ReleaseChange, ReleaseStep, history_in, release_in
from riverrun.quality.frames import ColumnStatistics, Statistics
from riverrun.records import OffsetVector, TaskId, TopicPartition, is_legal_topic, whole_number
from riverrun.releases.check_log import CheckRecord
from riverrun.releases.check_log import _check as check_of
from riverrun.releases.worker_quality import TaskWork
from riverrun.runtime.barrier import Barrier
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunRecord
from riverrun.spark.runs import _run as run_of
from riverrun.spark.unfinished import InterruptedRun
from riverrun.state.snapshots import Manifest, StateFile
from riverrun.transfers.batches import Batch, ExportBatch, Terms
from riverrun.transfers.exports import _last
from riverrun.transfers.import_progress import ImportProgress
from tests.malformed import malformed

if TYPE_CHECKING:
    from collections.abc import Callable

VERDICT = GateVerdict("v1", "in-0@5", "abc", {"v1": "d1"}, {"rows": "passed"}, (), ("w",), "ann", 5, {"out": "a.html"})
BARRIER = Barrier("m1", 1, {"v1": {"in-0": 5}})
HELD = HeldRun(
    "a1",
    "v1",
    HeldState.HELD,
    5,
    True,
    {"in-0": (5, "AgAAAAAAAABk")},
    {"t-0": 7},
    {"t": "id"},
    {"t": "0"},
    {"out-0": 3},
    VERDICT,
)
RELEASE = Release(
    "clicks",
    "v1",
    ReleaseStep.GATED,
    "v2",
    verdict=VERDICT,
    digests={"v1": "d"},
    barrier=BARRIER,
    held=HELD,
    revision=3,
)
CHANGE = ReleaseChange(
    "clicks", 3, "ann@desk", 5, "1.0", "gated", "live", "v2", "v2", 1, {"v2": "d"}, "in-0@5", changed=("live",)
)
RUN = RunRecord(
    "1-a", "clicks", "v1", "ann", 5, "in-0@0..5", "done", 9, 1, 5, 5, {"late": 1}, 0, {"s.total": 1.5}, {"0_0": "1-a.json"},
    {"in-0": (5, "AgAAAAAAAABk")},
)  # fmt: skip
CHECK = CheckRecord(
    "c1",
    "clicks",
    "v1",
    "ann",
    5,
    "",
    "out-0@5",
    {"a": "passed"},
    workers={"i/0_0": TaskWork(1, 2, 3)},
    statistics={"out": Statistics(3, {"value": ColumnStatistics(1, 2, 0.5, 7, 3.75)})},
)
MANIFEST = Manifest(
    "clicks-v1", "0_0", "f00", 5, {"clicks-v1-counts-changelog-0": 7}, {"clicks-v1-counts-changelog": "id"}, {"in-0": 5},
    (StateFile("000012.sst", "a" * 64, 10),),
)  # fmt: skip


class Memory:
    """A control topic of one record."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> dict[str, bytes]:
        return {"clicks": self._data}


def import_batch(data: bytes) -> Batch:
    progress = ImportProgress.__new__(ImportProgress)
    progress._name = "clicks"
    progress._topic = Memory(data)  # type: ignore[assignment]
    return progress.last()


def export_batch(data: bytes) -> ExportBatch:
    return _last(Memory(data), "clicks")  # type: ignore[arg-type]


KINDS: dict[str, tuple[Any, Callable[[bytes], Any], type[Exception]]] = {
    "release": (RELEASE, lambda data: release_in({"clicks": data}, "clicks"), ReleaseError),
    "change": (CHANGE, lambda data: history_in({"clicks/3": data}, "clicks")[0], ReleaseError),
    "run": (RUN, run_of, UnreadableError),
    "check": (CHECK, check_of, UnreadableError),
    "manifest": (MANIFEST, Manifest.decode, SnapshotError),
    "export": (ExportBatch(3, "in-0@0..5", True, "id", "out"), export_batch, RangeError),
    "import": (Batch(3, 2, 2, ("a.csv",), "1", "2", True, Terms("a", "csv")), import_batch, RangeError),
    "report of an instance": (InstanceReport(1, "h", "RUNNING", "h:1", 5, 5), _message, UnreadableError),
    "order to stop": (StopInstances(), _message, UnreadableError),
}
BEGUN = InterruptedRun(RunRange.parse("in-0@0..5"), (RunRange.parse("in-0@0..5"),), (OffsetVector.parse("in-0@5"),))


def plain(record: Any) -> Any:
    """A record as JSON has it."""
    return json.loads(msgspec.json.encode(record))


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_read_as_they_were_written(kind: str) -> None:
    record, read, _ = KINDS[kind]
    assert read(msgspec.json.encode(record)) == record
    newer = {**plain(record), "of a newer release": {"deep": [[{}]]}}
    assert read(json.dumps(newer).encode()) == record


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_malformed_records_are_read_or_refused_by_one_error(kind: str, data: st.DataObject) -> None:
    record, read, error = KINDS[kind]
    sent = data.draw(malformed(plain(record)))
    try:
        read(sent)
    except error as refused:
        assert len(str(refused)) < 1000, "it does not repeat what was sent"  # noqa: PT017
        assert "\x1b" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sent", [b"", b"\xff", b"[" * 100_000, b'{"x":' * 100_000, b"9" * 5000, b"null", b"[]", b'""', b"0"]
)
def test_bytes_of_no_kind_are_refused(kind: str, sent: bytes) -> None:
    _, read, error = KINDS[kind]
    with pytest.raises(error):
        read(sent)


@given(malformed(plain(json.loads(BEGUN.encode()))))
@example(b'{"whole": "in-0@5..1", "slices": [], "ends": []}')
@example(b'{"whole": "", "slices": ["in-0@0..5"], "ends": []}')
def test_begun_work_is_read_or_refused(sent: bytes) -> None:
    assert InterruptedRun.decode(BEGUN.encode()) == BEGUN
    try:
        found = InterruptedRun.decode(sent)
    except UnreadableError:
        return
    assert len(found.slices) == len(found.ends)


@pytest.mark.parametrize(
    "name", ["../../x", "..", ".", "a/b", "a\\b", "a b", "", "x" * 250, "ünï", "a\0b", "a\n", "%2e%2e", "~"]
)
def test_versions_of_the_control_topic_cannot_leave_names_of_topics_and_paths(name: str) -> None:
    for field in ("app", "live", "candidate", "previous"):
        with pytest.raises(ReleaseError, match=r"holds a record of clicks that cannot be read"):
            release_in({"clicks": json.dumps({**plain(RELEASE), field: name}).encode()}, "clicks")


@pytest.mark.parametrize(
    "limits", [{"v1": {"x": 1}}, {"v1": {"../x-0": 1}}, {"v1": {"in-0": -1}}, {"../v": {"in-0": 1}}]
)
def test_barriers_name_partitions_of_topics(limits: dict[str, Any]) -> None:
    record = {**plain(RELEASE), "barrier": {"id": "m", "limits": limits}}
    with pytest.raises(ReleaseError):
        release_in({"clicks": json.dumps(record).encode()}, "clicks")


def test_a_record_of_another_application_is_refused() -> None:
    with pytest.raises(ReleaseError, match="it is about orders"):
        release_in({"clicks": b'{"app": "orders", "live": "v1"}'}, "clicks")


def test_histories_leave_out_what_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    good = msgspec.json.encode(asdict(RUN))
    values = {"clicks/v1/1-a": good, "clicks/v1/2-b": b"\xff", "clicks/v1/\x1b[2J": b"[]"}
    assert control_topic.readable("riverrun-runs", values, run_of) == [RUN]
    assert [record.message.partition(" of topic")[0] for record in caplog.records] == [
        "ignored record 'clicks/v1/2-b'",
        "ignored record 'clicks/v1/\\x1b[2J'",
    ]


@given(st.binary(max_size=30) | st.text().map(str.encode) | st.none())
def test_keys_of_control_topics_are_names_or_nothing(key: bytes | None) -> None:
    found = control_topic._name_in(key)
    assert found is None or found.encode() == key


@given(st.text(max_size=30) | st.from_regex(r"[a-z./]{0,4}[-_@.0-9]{0,12}"))
@example("9" * 5000)
@example("a-" + "9" * 5000)
@example("٣_٣")
@example("a-٣")
@example("0_1_0")
@example("../x-0")
@example("in-0@٣")
@example("in-0@9223372036854775808")
def test_texts_of_tasks_partitions_and_offsets_are_their_own_form(text: str) -> None:
    parsers: list[Callable[[str], Any]] = [TaskId.parse, TopicPartition.parse, OffsetVector.parse, RunRange.parse]
    for parse in parsers:
        try:
            found = parse(text)
        except (ValueError, RangeError) as error:
            assert len(str(error)) < 400  # noqa: PT017
            continue
        assert parse(str(found)) == found
        if isinstance(found, TopicPartition):
            assert str(found) == text
            assert is_legal_topic(found.topic)
        if isinstance(found, TaskId):
            assert str(found) == text
    assert whole_number(text) is None or str(whole_number(text)) == text
