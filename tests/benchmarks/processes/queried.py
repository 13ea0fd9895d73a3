"""An instance of Riverrun that answers point queries: over HTTP, and in this process whenever a line asks for it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from events import tell

from riverrun.config import ProjectConfig
from riverrun.releases.topology import build_topology, load_application
from riverrun.service.api import new_api
from riverrun.service.instance import bound, name_of, serving
from riverrun.service.routing import store_places
from riverrun.worker.queries import AnswerPage, KeyQuery, StoreQuery
from riverrun.worker.streams_instance import StreamsInstance

STORE = "sums"
LOCAL = "127.0.0.1:0"


def main(config: str, name: str) -> None:
    application = load_application(ProjectConfig.load(Path(config), os.environ), name)
    listener = bound(LOCAL, wants_token=False)
    server = name_of(listener, LOCAL, application.kafka.servers)
    instance = StreamsInstance(application, build_topology, server=server)
    signal.signal(signal.SIGTERM, lambda _number, _frame: instance.stop())
    threading.Thread(target=measure, args=[instance], daemon=True).start()
    with serving(new_api(instance), listener):
        tell("answers", port=int(server.rpartition(":")[2]))
        instance.run()


def measure(instance: StreamsInstance) -> None:
    """For each "seconds limit keys" on standard input tell the latencies in us."""
    random_of = random.Random(1)
    for line in sys.stdin:
        seconds, limit, keys = (float(word) for word in line.split())
        layout = instance.layout
        assert layout is not None
        place = store_places(instance.application.topology, layout, instance.application.id)[STORE]
        end, micros = time.perf_counter() + seconds, list[float]()
        while len(micros) < limit and time.perf_counter() < end:
            key = f"user-{random_of.randrange(int(keys)):06}".encode()
            started = time.perf_counter()
            answer = instance.ask(StoreQuery(STORE, place.task_of(key), KeyQuery(key)))
            micros.append((time.perf_counter() - started) * 1e6)
            assert isinstance(answer, AnswerPage), answer
        tell("asked", micros=micros)


if __name__ == "__main__":
    main(*sys.argv[1:])
