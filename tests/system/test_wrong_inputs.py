"""Wrong inputs of every kind get a clear answer: none is accepted in silence, ends in a traceback, or hangs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.wrong_inputs import ALL, FILES, SERVER, WrongInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker

ROOT = Path(__file__).parents[2]
SECONDS = 90
"""Far more than any of these commands needs: what takes longer hangs."""
CLEAR = 0.98

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def commands() -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, str(Path(__file__).with_name("forked_commands.py"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "pipeline", ROOT / "plugins")))}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def judged(case: WrongInput, code: int | None, output: str) -> str:
    """Return `clear`, `unclear`, `silent`, `traceback` or `hang`."""
    if code is None:
        return "hang"
    if "Traceback (most recent call last)" in output:
        return "traceback"
    if code == 0:
        return "silent"
    told = " ".join(output.replace("│", " ").split())
    return "clear" if "Error" in output and re.search(case.names, told) else "unclear"


def answer(
    commands: subprocess.Popen[str], case: WrongInput, directory: Path, broker: Broker
) -> tuple[int | None, str]:
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    if case.toml is not None:
        raw = case.toml if isinstance(case.toml, bytes) else case.toml.encode()
        (directory / "streams.toml").write_bytes(raw.replace(SERVER.encode(), broker.bootstrap_servers.encode()))
    job = {
        "arguments": [each.replace(SERVER, broker.bootstrap_servers) for each in case.command],
        "directory": str(directory),
        "output": str(directory / "output"),
        "environment": {"RIVERRUN_HOME": str(directory / "home"), "COLUMNS": "200"},
        "seconds": SECONDS,
    }
    assert commands.stdin is not None
    assert commands.stdout is not None
    commands.stdin.write(f"{json.dumps(job)}\n")
    commands.stdin.flush()
    found: dict[str, Any] = json.loads(commands.stdout.readline())
    shutil.rmtree(directory)
    return found["code"], found["output"]


def test_wrong_inputs_are_told_clearly(
    commands: subprocess.Popen[str], broker: Broker, tmp_path: Path, record_property: Any
) -> None:
    broker.create(4, "clicks", "click-counts")
    figures: Counter[str] = Counter()
    told = []
    for number, case in enumerate(ALL):
        code, output = answer(commands, case, tmp_path / str(number), broker)
        judgement = judged(case, code, output)
        figures[judgement] += 1
        if judgement != "clear":
            told.append(f"{judgement}: {case.name} ({code}): {' '.join(output.split())[-400:]}")
    record_property("wrong_inputs", dict(figures))
    print("\n".join(told))
    assert not [each for each in told if not each.startswith("unclear")]
    assert figures["clear"] >= CLEAR * len(ALL), told
