"""How far a bounded run is, as any process can see it: the committed offsets between its start and its end."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError
from pipeline.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.hosting.application import Application
    from pipeline.spark.ranges import RunRange


def progress(application: Application, admin: Admin, run_range: RunRange) -> int:
    """How many of a range's offsets are committed."""
    committed = admin.committed(application.id, run_range.ranges)
    return sum(
        min(max(committed[tp].offset - r.start, 0), r.size) for tp, r in run_range.ranges.items() if tp in committed
    )


@contextmanager
def followed(
    application: Application, run_range: RunRange, on_progress: Callable[[int, int], None], every_s: float
) -> Iterator[None]:
    """Tell `on_progress(offsets done, offsets in all)` again and again, from another thread, as long as the body runs.

    Brokers that do not answer are asked again the next time: whoever does the work reports what is wrong with them.
    """
    done = threading.Event()

    def follow() -> None:
        admin = Admin(application.kafka)
        while not done.wait(every_s):
            try:
                on_progress(progress(application, admin, run_range), run_range.size)
            except BrokerError:
                continue

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
