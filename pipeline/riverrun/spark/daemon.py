"""Forks the Python processes of a local Spark. Otherwise each of them loads Riverrun, after each failed attempt as well.

Spark starts it with `-m`, and passes the name of the module that runs tasks, `pyspark.worker`.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

# Their imports are most of those of any task. What cannot be loaded fails again in tasks that need it: their errors say more.
_LOADED = ("pyarrow", "pyarrow.compute", "riverrun.spark.bounded_runs.executor")


def main() -> None:
    """Load what tasks need, and fork processes until Spark ends."""
    from pyspark import daemon

    for name in _LOADED:
        with suppress(Exception):
            import_module(name)
    # Each task ends with a collection, which need not visit all modules.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
