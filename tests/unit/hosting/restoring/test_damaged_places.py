"""Local state whose bookkeeping is damaged: it is restored from scratch or gets another name, and nothing hangs."""

from __future__ import annotations

import base64
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun.errors import CorruptStateError
from riverrun.hosting.local_state import instance_id, task_directories
from riverrun.hosting.restoring import _shown
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.rocksdb import _POSITION_PREFIX, RocksDbBackend
from riverrun.worker.group.protocol import SubscriptionInfo, subscription_info_of

if TYPE_CHECKING:
    from pathlib import Path

GOOD = OffsetMetadata(5, {"user": 7}, 3, {"a": 4, "b": 4}, 9, ("m1", 2))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Metadata with bytes changed, left out or added, and with lengths of any kind."""
    data = bytearray(base64.b64decode(GOOD.encode()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 2)):
            case 0:
                del data[at:]
            case 1:
                lengths = [-(2**31), -12, -1, 0, 1, 2**31 - 1]
                data[at : at + 4] = struct.pack(">i", draw(st.sampled_from(lengths)))
            case _:
                data[at:at] = draw(st.binary(max_size=9))
    return base64.b64encode(bytes(data)).decode()


@given(damaged() | st.text(max_size=40) | st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()))
@example(base64.b64encode(struct.pack(">bqii", 2, 5, 2**31 - 1, -12) + bytes(8)).decode())
@example("é")
@example("AgAAAAAAAABk\n")
def test_metadata_of_offsets_is_read_or_unknown_at_once(text: str) -> None:
    found = OffsetMetadata.decode(text)
    assert found.partition_time >= -1
    assert found.taken >= 0
    assert found.next_time >= -1
    assert OffsetMetadata.decode(found.encode()).partition_time == found.partition_time
    assert _shown(found.partition_time)


def test_metadata_is_read_as_it_was_written() -> None:
    assert OffsetMetadata.decode(GOOD.encode()) == GOOD


@pytest.mark.parametrize("name", [b"x", b"\xff-0", b"../x-0", b"in-\xd9\xa3", b"in-99999999999"])
@pytest.mark.parametrize("value", [struct.pack(">q", 5), b"", b"abc"])
def test_state_with_damaged_positions_is_corrupt_when_it_is_opened(tmp_path: Path, name: bytes, value: bytes) -> None:
    state = RocksDbBackend(tmp_path / "0_0")
    state.write({"t": {b"k": b"v"}}, {TopicPartition("in", 0): 3})
    state._opened[_POSITION_PREFIX + name] = value
    state.close()
    with pytest.raises(CorruptStateError):
        RocksDbBackend(tmp_path / "0_0")
    with pytest.raises(CorruptStateError):  # it stays so until it is restored, and no lock is left
        RocksDbBackend(tmp_path / "0_0")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe", b"two words", b"x" * 301, b"\x1b[2J", b"a\nb", "ü".encode()]
)
def test_a_damaged_id_of_an_instance_is_replaced(tmp_path: Path, content: bytes) -> None:
    application: Any = SimpleNamespace(directory=tmp_path)
    (tmp_path / "process-id").write_bytes(content)
    found = instance_id(application)
    assert found.isascii()
    assert found.isprintable()
    assert " " not in found
    assert instance_id(application) == found
    said = msgspec.json.encode(SubscriptionInfo(instance=found, fingerprint="", capacity=1))
    assert subscription_info_of(said).instance == found, "the leader takes it"


def test_directories_with_other_names_are_no_tasks(tmp_path: Path) -> None:
    for name in ("0_0", "1_12", "00_1", "٣_١", "0_0_0", "9999999999_0", "a_b", "_", "0_"):  # noqa: RUF001
        (tmp_path / name).mkdir()
    assert sorted(map(str, task_directories(tmp_path))) == ["0_0", "1_12"]
