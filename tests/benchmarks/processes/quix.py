"""Rows in quixstreams, as its documentation writes them. Runs in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from quixstreams import Application, State
from quixstreams.models import JSONSerializer

MINUTE_MS = 60_000


class CompactJson(JSONSerializer):  # type: ignore[misc] # quixstreams asks for its own class
    """As the other sides write it: without spaces."""

    def __init__(self) -> None:
        super().__init__(dumps=_dumps)


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _add(view: dict[str, Any], state: State) -> int:
    total: int = state.get("sum", 0) + view["millis"]
    state.set("sum", total)
    return total


def main(topology: str, servers: str, group: str, guarantee: str, interval_ms: str, state: str) -> None:
    app = Application(
        servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_interval=int(interval_ms) / 1000,
        state_dir=state,
        processing_guarantee=guarantee.removesuffix("_v2").replace("_", "-"),
        loglevel="WARNING",
    )
    views = app.dataframe(app.topic(os.environ["BENCH_INPUT"], key_deserializer="str", value_deserializer="json"))
    if topology == "stateless":
        views = views[views["ok"]].apply(
            lambda view: {"page": view["page"], "seconds": view["millis"] // 1000, "user": view["user"]}
        )
    elif topology == "windowed-count":
        views = views.tumbling_window(MINUTE_MS).count().current()
    elif topology == "table-sum":
        views = views.apply(_add, stateful=True)
    else:
        raise ValueError(topology)
    views.to_topic(app.topic(os.environ["BENCH_OUTPUT"], key_serializer="str", value_serializer=CompactJson()))
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
