"""Forks the Python processes of a local Spark. Otherwise each of them loads Riverrun, after each failed attempt as well.

Spark starts it with `-m`, and passes the name of its own worker module.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

# Tasks of all kinds import these. Libraries that a task uses may be missing: its error says that better.
_LOADED = ("pyarrow", "pyarrow.compute", "riverrun.spark.bounded_runs.executor")


def main() -> None:
    """Load what tasks need, and fork processes until Spark ends."""
    from pyspark import daemon

    for name in _LOADED:
        with suppress(ImportError):
            import_module(name)
    # Each task ends with a collection, which need not visit all modules.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
