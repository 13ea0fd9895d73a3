"""Downloaded Java libraries are what they were when a release was made, or are not used."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import EmbeddedBrokerError
from riverrun.kafka.embedded import artifacts
from riverrun.kafka.embedded.broker import KAFKA_VERSION
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"kafka-1.jar": b"kafka", "log-2.jar": b"log"}
CHECKSUMS = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in GOOD.items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, ""),
        ({"log-2.jar": b"log, and more"}, "log-2.jar"),
        ({"evil-1.jar": b"evil"}, "evil-1.jar"),
        ({"kafka-1.jar": None}, "kafka-1.jar"),
    ],
)
def test_libraries_with_other_checksums_are_not_kept(
    change: dict[str, bytes | None], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retrieve(_java: str, _artifact: artifacts.Artifact, _scratch: Path, jars: Path) -> None:
        jars.mkdir()
        for name, data in (GOOD | change).items():
            if data is not None:
                (jars / name).write_bytes(data)

    monkeypatch.setattr(artifacts, "_retrieve", retrieve)
    target = tmp_path / "libraries"
    artifact = artifacts.Artifact("org.apache.kafka", "kafka", "1")
    if not named:
        assert sorted(path.name for path in artifacts.resolve([artifact], target, "java", CHECKSUMS).iterdir()) == [
            *GOOD
        ]
        return
    with pytest.raises(EmbeddedBrokerError, match=f"differ from those of this release: {named}\n"):
        artifacts.resolve([artifact], target, "java", CHECKSUMS)
    assert list(tmp_path.iterdir()) == []


def test_a_download_tells_its_size_rate_and_remaining_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def retrieve(_java: str, _artifact: artifacts.Artifact, scratch: Path, jars: Path) -> None:
        (scratch / "cache").mkdir()
        (scratch / "cache" / "kafka-1.jar.part").write_bytes(bytes(2_000_000))
        until(lambda: any("MB/s" in step for step in told), "told its progress")
        jars.mkdir()
        (jars / "kafka-1.jar").write_bytes(b"kafka")

    monkeypatch.setattr(artifacts, "_retrieve", retrieve)
    monkeypatch.setattr(artifacts, "_LOOK_SECONDS", 0.01)
    artifact = artifacts.Artifact("org.apache.kafka", "kafka", "1")
    artifacts.resolve([artifact], tmp_path / "libraries", "java", on_step=told.append, megabytes=45)
    assert told[0] == "Downloading kafka 1 and its dependencies; this happens once"
    assert re.fullmatch(r"2 of 45 MB, [\d.]+ MB/s, \d+ s left", told[1])


def test_the_checksums_of_the_brokers_libraries_are_there() -> None:
    lines = (
        resources.files("riverrun.kafka.embedded").joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text().splitlines()
    )
    names = [line.split()[1] for line in lines]
    assert f"kafka_2.13-{KAFKA_VERSION}.jar" in names
    assert all(len(line.split()[0]) == 64 for line in lines)
