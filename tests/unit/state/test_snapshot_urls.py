"""The place of snapshots is checked before the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.errors import ConfigError
from riverrun.state.snapshots import check_url

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_place_that_cannot_be_a_directory_is_warned_of(
    prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_url(f"{prefix}{tmp_path}/new/snapshots")
    assert not caplog.messages
    (tmp_path / "file").touch()
    check_url(f"{prefix}{tmp_path}/file/snapshots")
    assert f"{tmp_path}/file is not a writable directory" in caplog.text


def test_a_kind_of_url_that_nothing_understands_is_refused() -> None:
    with pytest.raises(ConfigError, match="Snapshots cannot be kept at nothing://here"):
        check_url("nothing://here")
