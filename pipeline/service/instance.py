"""An instance as it is started anywhere: a supervisor and, if it has an address, what answers queries there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.worker.instance.spawning import require_importable
from pipeline.worker.instance.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.hosting.application import Application
    from pipeline.topology.topology import Topology
    from pipeline.worker.states import WorkerState
    from pipeline.worker.stream_thread.protocol import StreamJob


@contextmanager
def new_instance(
    application: Application,
    build: Callable[[StreamJob], Topology],
    *,
    token: str = "",
    on_state: Callable[[WorkerState], None] = lambda _state: None,
) -> Iterator[Supervisor]:
    """An instance that has not begun to run; within this context it answers at `application.server`, if that is set.

    Args:
        application: What it runs.
        build: Builds its topology within a stream process; must be importable there.
        token: What those who ask must show.
        on_state: Told about every change of state.

    Raises:
        ConfigError: If its address cannot be used, or its processes could not import what they need.
    """
    require_importable(build)
    server = application.config.streams.application_server
    if not server:
        yield Supervisor(application, build, on_state=on_state)
        return
    from pipeline.service.api import new_api  # noqa: PLC0415 - half of what an instance loads, and most answer nowhere
    from pipeline.service.server import bound, name_of, serving  # noqa: PLC0415 - as above

    with bound(server, token) as listener:
        name = name_of(listener, server, application.kafka["bootstrap.servers"])
        supervisor = Supervisor(application, build, server=name, on_state=on_state)
        with serving(new_api(supervisor, token), listener):
            yield supervisor
