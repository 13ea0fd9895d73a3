"""A program that starts a worker wrongly is told what is wrong, instead of that its processes end."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ConfigError
from pipeline.worker.instance.deaths import Deaths
from pipeline.worker.instance.spawning import UNGUARDED, require_importable

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """
import sys
from pathlib import Path
from pipeline.config import AppConfig
from pipeline.releases.build import build_topology
from pipeline.worker.instance.deaths import Deaths
from pipeline.worker.instance.processes import StreamProcesses
from pipeline.worker.stream_thread.protocol import StreamJob

processes = StreamProcesses(StreamJob(AppConfig("a", "none:none"), "v1", {}, Path("state"), {}), build_topology)
assert processes.start()
(stream,) = processes.all
stream.process.join()
print(Deaths("shutdown_client").judge(stream))
"""


def test_a_script_without_a_guard_hears_so_at_the_first_process_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(_SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "The script starts a worker when it is imported" in done.stdout
    assert '`if __name__ == "__main__":`' in done.stdout
    assert "Traceback" not in done.stderr


def ended_with(exit_code: int) -> Any:
    """A stream process that has ended without a word."""
    return SimpleNamespace(failure=None, number=1, process=SimpleNamespace(exitcode=exit_code))


def test_a_process_that_ended_for_another_reason_is_replaced() -> None:
    assert Deaths("shutdown_client").judge(ended_with(UNGUARDED + 1)) is None


@pytest.mark.parametrize(
    ("exit_code", "hint"),
    [(3, r"ended the process \(os\._exit\)"), (-9, "has no memory left"), (-11, "Signal SIGSEGV has ended it")],
)
def test_when_processes_end_too_often_without_a_word_a_hint_says_who_may_have_ended_them(
    exit_code: int, hint: str
) -> None:
    deaths = Deaths("shutdown_client")
    judged = next(filter(None, (deaths.judge(ended_with(exit_code)) for _ in range(100))))
    assert f"at last with exit code {exit_code}" in judged.message
    assert re.search(hint, judged.hint or "")


def test_a_function_of_a_notebook_is_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(_job: object) -> None: ...

    build.__module__, build.__qualname__ = "__main__", "build"
    script = type(sys)("__main__")
    script.__file__ = "start.py"
    monkeypatch.setattr("sys.modules", {**sys.modules, "__main__": script})
    require_importable(build)  # which processes import under another name
    monkeypatch.setattr("sys.modules", {**sys.modules, "__main__": type(sys)("__main__")})
    with pytest.raises(ConfigError, match="build is of a notebook or an interactive session") as refused:
        require_importable(build)
    assert "from my_module import build" in (refused.value.hint or "")
