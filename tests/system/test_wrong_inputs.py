"""Wrong inputs of every kind get a clear answer: none is accepted in silence, ends in a traceback, or hangs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.wrong_inputs import ALL, EXPORTS, FILES, FITTING_EXPORTS, OTHERS, SERVER, VALUE, VALUES, WrongInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker

ROOT = Path(__file__).parents[2]
SECONDS = 90
"""Far more than any of these commands needs: what takes longer hangs."""
CLEAR = 0.98

pytestmark = pytest.mark.broker


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, str(Path(__file__).with_name("forked_commands.py")), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "pipeline", ROOT / "plugins")))}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def commands() -> Iterator[subprocess.Popen[str]]:
    with serving() as process:
        yield process


def judged(case: WrongInput, code: int | None, output: str) -> str:
    """Return `clear`, `unclear`, `silent`, `traceback` (of Python or Java) or `hang`."""
    if code is None:
        return "hang"
    if "Traceback (most recent call last)" in output or re.search(r"^\s+at [\w.$/]+\(", output, re.MULTILINE):
        return "traceback"
    if code == 0:
        return "silent"
    text = " ".join(output.replace("│", " ").split())
    return "clear" if "Error" in output and re.search(case.names, text) else "unclear"


def prepare(case: WrongInput, directory: Path, broker: Broker) -> dict[str, Any]:
    """Write the files of a case, and return its job."""
    directory.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    if case.toml is not None:
        raw = case.toml if isinstance(case.toml, bytes) else case.toml.encode()
        (directory / "streams.toml").write_bytes(raw.replace(SERVER.encode(), broker.bootstrap_servers.encode()))
    return {
        "arguments": [each.replace(SERVER, broker.bootstrap_servers) for each in case.command],
        "directory": str(directory),
        "output": str(directory / "output"),
        "environment": {"RIVERRUN_HOME": str(directory / "home"), "COLUMNS": "200"},
        "seconds": SECONDS,
    }


def answers(commands: subprocess.Popen[str], jobs: list[dict[str, Any]]) -> Iterator[tuple[int | None, str]]:
    assert commands.stdin is not None
    assert commands.stdout is not None
    commands.stdin.write(f"{json.dumps(jobs)}\n")
    commands.stdin.flush()
    for _ in jobs:
        found: dict[str, Any] = json.loads(commands.stdout.readline())
        yield found["code"], found["output"]


def test_wrong_inputs_are_reported_clearly(
    commands: subprocess.Popen[str], broker: Broker, tmp_path: Path, record_property: Any
) -> None:
    broker.create(4, "clicks", "click-counts")
    figures: Counter[str] = Counter()
    lines = []
    jobs = [prepare(case, tmp_path / str(number), broker) for number, case in enumerate(ALL)]
    for case, (code, output) in zip(ALL, answers(commands, jobs), strict=True):
        judgement = judged(case, code, output)
        figures[judgement] += 1
        if judgement != "clear":
            lines.append(f"{judgement}: {case.name} ({code}): {' '.join(output.split())[-400:]}")
    record_property("wrong_inputs", dict(figures))
    print("\n".join(lines))
    assert not [each for each in lines if not each.startswith("unclear")]
    assert figures["clear"] >= CLEAR * len(ALL), lines


@pytest.mark.spark
def test_exports_that_do_not_fit_are_reported_clearly_and_without_java(
    broker: Broker, tmp_path: Path, record_property: Any
) -> None:
    """Exports share a Spark session, in which earlier ones have written."""
    broker.create(1, VALUES, OTHERS)
    broker.write(VALUES, [(b"k", json.dumps(VALUE).encode(), 1)] * 2)
    broker.write(OTHERS, [(b"k", b"\xff\xfe", 1)])
    figures: Counter[str] = Counter()
    lines = []
    with serving(str(tmp_path / "output")) as commands:
        for case in (*FITTING_EXPORTS, *EXPORTS, *FITTING_EXPORTS):
            ((code, output),) = answers(commands, [prepare(case, tmp_path / "project", broker)])
            if not case.names:
                assert code == 0, output
                assert not re.search(r"^\s+at |ERROR|Exception", output, re.MULTILINE), output
                continue
            judgement = judged(case, code, output)
            figures[judgement] += 1
            if judgement != "clear":
                lines.append(f"{judgement}: {case.name} ({code}): {' '.join(output.split())[-400:]}")
    record_property("wrong_inputs", dict(figures))
    print("\n".join(lines))
    assert not lines
