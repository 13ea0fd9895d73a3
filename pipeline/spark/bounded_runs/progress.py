"""How far a bounded run is, as any process can see it: the committed offsets between its start and its end.

Also what imports and exports are followed by.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.spark.ranges import RunRange

LOOK_SECONDS = 0.5
_LAST_LOOK_SECONDS = 1.0
"""How long a look that is under way is waited for; one at a commit that has lost its owner takes longer than a minute."""


def progress(connected: ConnectedApplication, run_range: RunRange) -> int:
    """Count how many of a range's offsets are committed."""
    committed = connected.committed(run_range.ranges)
    return sum(
        min(max(committed[tp].offset - r.start, 0), r.size) for tp, r in run_range.ranges.items() if tp in committed
    )


@contextmanager
def followed(
    connected: ConnectedApplication, run_range: RunRange, on_progress: Callable[[int, int], None], every_s: float
) -> Iterator[None]:
    """Tell `on_progress(offsets done, offsets in all)` again and again, from another thread, as long as the body runs."""
    with watched(lambda: progress(connected, run_range), run_range.size, on_progress, every_s):
        yield


@contextmanager
def watched(
    look: Callable[[], int],
    everything: int,
    on_progress: Callable[[int, int], None] | None,
    every_s: float = LOOK_SECONDS,
) -> Iterator[None]:
    """Tell `on_progress(done, everything)` again and again, from another thread, as long as the body runs.

    Brokers that do not answer are asked again the next time: whoever does the work reports what is wrong with them.

    Args:
        look: Says how much is done.
        everything: How much there is.
        on_progress: Whom to tell; None tells nobody, and looks at nothing.
        every_s: How often.
    """
    if on_progress is None:
        yield
        return
    done = threading.Event()

    def follow() -> None:
        while not done.wait(every_s):
            try:
                on_progress(look(), everything)
            except BrokerError:
                continue

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LAST_LOOK_SECONDS)
