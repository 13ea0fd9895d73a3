"""Riverrun's tasks taken over in this process, without a group: how long it takes until they run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from events import tell

from riverrun.config import ProjectConfig
from riverrun.hosting.process import collect_rarely
from riverrun.releases.topology import load_application
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from riverrun.worker.states import WorkerState


def main(config: str, name: str) -> None:
    application = load_application(ProjectConfig.load(Path(config), os.environ), name)
    collect_rarely()

    def show(state: WorkerState) -> None:
        tell(state.value, restored=worker.summary().restored)

    worker = Worker(application, on_state=show)
    signal.signal(signal.SIGTERM, lambda _number, _frame: worker.stop())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
