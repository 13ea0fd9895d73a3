"""Processes ask brokers with one client each: it is made where a process begins, and handed on."""

from __future__ import annotations

import re
from pathlib import Path

import pipeline

ROOT = Path(pipeline.__file__).parent
ENTRIES = {
    "cluster/instance.py",  # an instance as a Spark task
    "demo/story.py",
    "project/cluster.py",  # the front door
    "service/live_version.py",  # asked by name, of another version's group
    "spark/tasks/work.py",  # tasks of a Spark executor
    "worker/instance/supervisor.py",
    "worker/stream_thread/stream_thread.py",
    "worker/worker.py",
}


def test_clients_that_ask_brokers_are_made_where_processes_begin() -> None:
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    made = {name for name, text in modules.items() if re.search(r"(?<!class )\bAdmin\(", text)}
    assert {name for name in made if not name.startswith("kafka/")} == ENTRIES
