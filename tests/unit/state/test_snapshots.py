"""Snapshots on a file store: what travels, what stays, and what is noticed."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fsspec
import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from riverrun.errors import SnapshotError
from riverrun.foreign_files import sealed
from riverrun.records import TopicPartition
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.state.snapshots import Manifest, SnapshotStore, StateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def draft(created_ms: int) -> Manifest:
    return Manifest("app-v1", "0_0", "abc", created_ms, {"log-0": created_ms}, {"log": "id"}, {"in-0": 5})


def directory(parent: Path, name: str, files: dict[str, bytes]) -> Path:
    made = parent / name
    made.mkdir(parents=True)
    for file, content in files.items():
        (made / file).write_bytes(content)
    return made


def stored(store: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in (store / "files").iterdir())


def test_a_snapshot_comes_back_as_it_was_published(tmp_path: Path) -> None:
    state = directory(tmp_path, "state", {"a.sst": b"one", "b.sst": b"two", "LOCK": b""})
    store = SnapshotStore(f"file://{tmp_path}/store", keep=3)
    published = store.publish(state, draft(7))
    (found,) = store.manifests()
    assert found == published
    assert found.size_bytes == 6
    store.fetch(found, tmp_path / "fetched")
    assert {p.name: p.read_bytes() for p in (tmp_path / "fetched").iterdir()} == {"a.sst": b"one", "b.sst": b"two"}


def test_a_file_is_uploaded_once_whatever_it_is_called(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    store.publish(directory(tmp_path, "first", {"1.sst": b"same", "2.sst": b"old"}), draft(1))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "files").iterdir()}
    store.publish(directory(tmp_path, "second", {"9.sst": b"same", "3.sst": b"new"}), draft(2))
    assert stored(tmp_path / "store") == [b"new", b"old", b"same"]
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "files").iterdir()}
    assert before.items() <= after.items()


def test_only_the_last_snapshots_and_their_files_are_kept_newest_first(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=2)
    for number in range(1, 5):
        files = {"always": b"always", "now": b"%d" % number}
        store.publish(directory(tmp_path, f"state{number}", files), draft(number))
    assert [manifest.created_ms for manifest in store.manifests()] == [4, 3]
    assert stored(tmp_path / "store") == [b"3", b"4", b"always"]


def test_an_upload_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    state = directory(tmp_path, "state", {"a.sst": b"content"})
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    store.publish(state, draft(1))
    (file,) = (tmp_path / "store" / "files").iterdir()
    file.write_bytes(b"cont")
    found = store.publish(state, draft(2))
    store.fetch(found, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "a.sst").read_bytes() == b"content"


def test_a_file_that_was_found_damaged_is_uploaded_again(tmp_path: Path) -> None:
    state = directory(tmp_path, "state", {"a.sst": b"content"})
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    damaged = store.publish(state, draft(1))
    (file,) = (tmp_path / "store" / "files").iterdir()
    file.write_bytes(b"CONTENT")
    with pytest.raises(SnapshotError, match="its checksum does not match"):
        store.fetch(damaged, tmp_path / "fetched")
    store.fetch(store.publish(state, draft(2)), tmp_path / "fetched")
    assert (tmp_path / "fetched" / "a.sst").read_bytes() == b"content"


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_file_is_noticed_and_nothing_is_left_of_it(tmp_path: Path, damage: str) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    found = store.publish(directory(tmp_path, "state", {"a.sst": b"content", "b.sst": b"other"}), draft(1))
    place = tmp_path / "store" / "files" / found.files[0].sha256
    if damage == "gone":
        place.unlink()
    else:
        place.write_bytes(b"CONTENT")
    with pytest.raises(SnapshotError, match="damaged" if damage == "changed" else "cannot be read"):
        store.fetch(found, tmp_path / "fetched")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "store"]


def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    good = store.publish(directory(tmp_path, "state", {"a": b"1"}), draft(1))
    (tmp_path / "store" / "manifests" / "999999999999999-x.json").write_bytes(b'{"format": 1, "app')
    assert list(store.manifests()) == [good]
    assert "999999999999999-x.json: " in caplog.text


@pytest.mark.parametrize(
    "file",
    [
        {"sha256": "../../victim"},
        {"sha256": "../victim"},
        {"sha256": "A" * 64},
        {"sha256": "0" * 64 + "\n"},
        {"name": ".."},
        {"name": "."},
        {"name": ""},
        {"name": "../a"},
        {"name": "/etc/a"},
        {"name": "a\\b"},
        {"name": "a\0"},
    ],
)
def test_a_manifest_that_names_a_file_elsewhere_is_passed_over(tmp_path: Path, file: dict[str, str]) -> None:
    manifest = msgspec.json.decode(draft(1).encode())
    manifest["files"] = [{"name": "a", "sha256": "0" * 64, "size": 1} | file]
    with pytest.raises(SnapshotError, match="not a snapshot's manifest"):
        Manifest.decode(msgspec.json.encode(manifest))
    directory(tmp_path, "store/manifests", {"1.json": msgspec.json.encode(manifest)})
    assert list(SnapshotStore(str(tmp_path / "store"), keep=1).manifests()) == []


def test_old_manifests_that_name_files_elsewhere_delete_nothing_there(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of somebody else")
    manifest = msgspec.json.decode(draft(1).encode())
    manifest["files"] = [{"name": "a", "sha256": "../../victim", "size": 1}]
    directory(tmp_path, "store/manifests", {"000000000000001-x.json": msgspec.json.encode(manifest)})
    store = SnapshotStore(str(tmp_path / "store"), keep=1)
    published = store.publish(directory(tmp_path, "state", {"a": b"1"}), draft(2))
    assert victim.read_text() == "of somebody else"
    assert [found.name for found in store.manifests()] == [published.name]


def test_a_manifest_of_changelogs_that_cannot_be_is_passed_over() -> None:
    manifest = msgspec.json.decode(draft(1).encode()) | {"changelogs": {"no partition": 5}}
    with pytest.raises(SnapshotError, match="no partition"):
        Manifest.decode(msgspec.json.encode(manifest))


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, no directory")
    with pytest.raises(SnapshotError, match="cannot be written"):
        SnapshotStore(str(tmp_path / "store"), keep=1).publish(directory(tmp_path, "s", {"a": b"1"}), draft(1))
    with pytest.raises(SnapshotError, match="cannot be kept at nonsense"):
        SnapshotStore("nonsense://somewhere", keep=1)


def test_each_byte_of_a_manifest_that_is_changed_is_passed_over_or_means_the_same() -> None:
    url = f"memory://{uuid.uuid4()}"
    store = SnapshotStore(url, keep=3)
    files, root = fsspec.url_to_fs(url)
    files.makedirs(f"{root}/manifests")
    name, kept = "000000000000007-x.json", 0
    data = sealed(replace(draft(7), files=(StateFile("a.sst", "0" * 64, 5),)).encode())
    files.pipe_file(f"{root}/manifests/{name}", data)
    (right,) = store.manifests()
    for number, byte in enumerate(data):
        changed = data[:number] + bytes([byte ^ (1 << number % 7)]) + data[number + 1 :]
        files.pipe_file(f"{root}/manifests/{name}", changed)
        found = list(store.manifests())
        assert found in ([], [right])
        kept += len(found)
    assert kept < 100, "only bytes of the digest's name mean nothing"


@pytest.mark.parametrize("become", ["longer", "a link", "a pipe", "a directory"])
def test_a_file_that_cannot_be_the_one_of_the_manifest_is_not_downloaded(
    tmp_path: Path, become: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    found = store.publish(directory(tmp_path, "state", {"a.sst": b"content"}), draft(1))
    place = tmp_path / "store" / "files" / found.files[0].sha256
    if become == "longer":
        os.truncate(place, 2**40)
    else:
        place.rename(tmp_path / "outside")
        {"a link": lambda: place.symlink_to(tmp_path / "outside"), "a pipe": lambda: os.mkfifo(place)}.get(
            become, place.mkdir
        )()
    monkeypatch.setattr(LocalFileSystem, "get_file", None)
    with pytest.raises(SnapshotError, match=r"has 1099511627776 bytes, not 7|symbolic link|not a regular file"):
        store.fetch(found, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("become", ["very long", "a link", "a pipe"])
def test_what_is_no_manifest_of_a_snapshot_is_passed_over(tmp_path: Path, become: str) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=3)
    good = store.publish(directory(tmp_path, "state", {"a.sst": b"content"}), draft(1))
    place = tmp_path / "store" / "manifests" / "999999999999999-x.json"
    match become:
        case "very long":
            place.touch()
            os.truncate(place, 2**40)
        case "a link":
            place.symlink_to("/dev/zero")
        case _:
            os.mkfifo(place)
    assert list(store.manifests()) == [good]


def test_two_files_of_one_name_are_no_state() -> None:
    files = (StateFile("a.sst", "0" * 64, 5), StateFile("a.sst", "1" * 64, 5))
    with pytest.raises(SnapshotError, match="two of its files have one name"):
        Manifest.decode(replace(draft(1), files=files).encode())


def test_inputs_that_cannot_be_are_no_state() -> None:
    with pytest.raises(SnapshotError, match="no partition"):
        Manifest.decode(replace(draft(1), inputs={"no partition": 5}).encode())


def test_a_store_that_does_not_answer_loses_no_file_of_a_kept_snapshot(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=2)
    for number in (1, 2):
        store.publish(
            directory(tmp_path, f"state{number}", {"always": b"always", "now": b"%d" % number}), draft(number)
        )
    read = LocalFileSystem.cat_file

    def silent(files: LocalFileSystem, path: str, *args: object, **kwargs: object) -> bytes:
        if "000000000000002-" in path:
            raise TimeoutError(path)
        found: bytes = read(files, path, *args, **kwargs)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFileSystem, "cat_file", silent)
        with pytest.raises(SnapshotError, match="cannot be written"):
            store.publish(directory(tmp_path, "state3", {"now": b"3"}), draft(3))
    newest, second = list(store.manifests())[:2]
    assert (newest.created_ms, second.created_ms) == (3, 2)
    store.fetch(second, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "always").read_bytes() == b"always"


@pytest.mark.parametrize(("published", "keep", "reads"), [(1, 1, 0), (2, 2, 0), (3, 2, 3), (3, 9, 0)])
def test_manifests_are_read_only_if_there_are_too_many(
    published: int, keep: int, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=keep)
    read = LocalFileSystem.cat_file
    asked: list[str] = []

    def counted(files: LocalFileSystem, path: str, *more: Any) -> Any:
        asked.append(path)
        return read(files, path, *more)

    monkeypatch.setattr(LocalFileSystem, "cat_file", counted)
    for number in range(published):
        asked.clear()
        store.publish(directory(tmp_path, f"state{number}", {"now": b"%d" % number}), draft(number))
    assert len(asked) == reads


def test_of_a_large_state_only_what_changed_travels_and_it_opens_where_nothing_was(tmp_path: Path) -> None:
    tp = TopicPartition("log", 0)
    store, backend = SnapshotStore(str(tmp_path / "store"), keep=3), RocksDbBackend(tmp_path / "state")
    backend.write({"t": {b"%d" % n: b"x" * 100 for n in range(1000)}}, {tp: 1000})
    backend.checkpoint(tmp_path / "c1")
    first = store.publish(tmp_path / "c1", draft(1))
    backend.write({"t": {b"new": b"y"}}, {tp: 1001})
    backend.checkpoint(tmp_path / "c2")
    second = store.publish(tmp_path / "c2", draft(2))
    backend.close()
    new = {file for file in second.files if file.sha256 not in {f.sha256 for f in first.files}}
    assert sum(file.size for file in new) < second.size_bytes / 5
    store.fetch(second, tmp_path / "elsewhere")
    opened = RocksDbBackend(tmp_path / "elsewhere")
    assert opened.positions() == {tp: 1001}
    assert opened.table("t").get(b"new") == b"y"
    assert opened.table("t").get(b"999") == b"x" * 100
    opened.close()


def sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, 2**40)


BECOME: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda place, outside: place.symlink_to(outside),
    "a link to nothing": lambda place, outside: place.symlink_to(outside.with_name("nothing")),
    "a link to a device": lambda place, _: place.symlink_to("/dev/zero"),
    "a pipe": lambda place, _: os.mkfifo(place),
    "a directory": lambda place, _: place.mkdir(),
    "no manifest": lambda place, _: place.write_bytes(b"{"),
    "without end": lambda place, _: sparse(place),
}


@pytest.mark.parametrize("become", BECOME)
def test_a_file_that_is_none_of_the_store_is_never_written(tmp_path: Path, become: str) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep=1)
    state, outside = directory(tmp_path, "state", {"a.sst": b"content"}), tmp_path / "outside"
    outside.write_text("of somebody else")
    first = store.publish(state, draft(1))
    place = tmp_path / "store" / "files" / first.files[0].sha256
    place.unlink()
    BECOME[become](place, outside)
    before = sorted(path.name for path in tmp_path.iterdir())
    if become in {"no manifest", "without end"}:
        store.fetch(store.publish(state, draft(2)), tmp_path / "fetched")
        return
    with pytest.raises(SnapshotError, match="cannot be written"):
        store.publish(state, draft(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert outside.read_text() == "of somebody else"


@pytest.mark.parametrize("become", BECOME)
@pytest.mark.parametrize("name", ["000000000000000-x.json", "000000000000002-x.json", "999999999999999-x.json"])
@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_no_manifest_takes_the_place_of_no_snapshot(tmp_path: Path, become: str, name: str, keep: int) -> None:
    store = SnapshotStore(str(tmp_path / "store"), keep)
    (tmp_path / "outside").write_text("of somebody else")
    for number in range(1, 5):
        store.publish(directory(tmp_path, f"state{number}", {"a.sst": b"%d" % number}), draft(number))
        if number == 1:
            BECOME[become](tmp_path / "store" / "manifests" / name, tmp_path / "outside")
    assert [found.created_ms for found in store.manifests()] == [4, 3][:keep]
    for found in store.manifests():
        store.fetch(found, tmp_path / f"fetched{found.created_ms}")
    assert len(stored(tmp_path / "store")) == keep
    assert (tmp_path / "outside").read_text() == "of somebody else"
