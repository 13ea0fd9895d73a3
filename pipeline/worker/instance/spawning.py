"""What must hold of a program that starts stream processes: each of them imports it first."""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING, Final

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

UNGUARDED: Final = 213
"""The exit code of a stream process whose program starts a worker when it is imported."""
_UNGUARDED_TEXT = "The script starts a worker when it is imported, as each of the worker's processes does first"
_UNGUARDED_HINT = 'Start it below `if __name__ == "__main__":`, or with `millrace worker`.'


def require_importable(build: Callable[..., object]) -> None:
    """Make sure that stream processes can import the program that starts them, and the function that builds the topology.

    A stream process that is about to start a worker itself ends at once, so that its supervisor can say why.

    Args:
        build: Builds the topology within a stream process.

    Raises:
        ConfigError: If the function is of a notebook or an interactive session.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        sys.exit(UNGUARDED)
    main = sys.modules["__main__"]
    if getattr(build, "__module__", "") == "__main__" and not hasattr(main, "__file__"):
        name = getattr(build, "__qualname__", "the function")
        message = f"{name} is of a notebook or an interactive session, which the worker's processes cannot import"
        raise ConfigError(message, hint=f"Write it into a file of its own, and import it: from my_module import {name}")


def unguarded() -> ConfigError:
    """What is wrong if a stream process has ended with `UNGUARDED`."""
    return ConfigError(_UNGUARDED_TEXT, hint=_UNGUARDED_HINT)
