"""Repeats a task's part of a slice without the records that handlers set aside. Imports no pyspark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import ProcessingError, SetAsideError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.runtime.failures import SetAside

log = logging.getLogger(__name__)

T = TypeVar("T")

# Each one repeats the slice, which may be long. With more of them, a run would seem to hang.
MOST_SET_ASIDE = 100


def without_set_aside(attempt: Callable[[Sequence[SetAside]], T]) -> T:
    """Return the result of the first attempt that sets no further record aside; each gets those of the earlier ones."""
    aside: list[SetAside] = []
    while True:
        try:
            return attempt(aside)
        except SetAsideError as error:
            task_id = error.aside.task_id
            if len(aside) == MOST_SET_ASIDE:
                message = f"Task {task_id} sets more than {MOST_SET_ASIDE} records aside: {error.message}"
                hint = "Each repeats the slice. Keep them out with a filter, or set continue instead of set-aside as handler."
                raise ProcessingError(message, hint=hint) from error
            log.warning("task %s starts over: %s", task_id, error)
            aside.append(error.aside)
