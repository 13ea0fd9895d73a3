"""Functions that other processes cannot import, such as those of a notebook. They travel with their code."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function with its code.

    Args:
        name: `module:function`, for messages.
        code: The function, pickled by cloudpickle. Only the same version of Python reads it.
    """

    name: str
    code: bytes = field(repr=False)

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def load(self) -> Any:
        """Return the function, or a copy of it."""
        import cloudpickle  # noqa: PLC0415 - few applications have such functions

        return cloudpickle.loads(self.code)


def reference_of(function: Callable[..., Any] | str) -> str | PickledFunction:
    """Return a reference for other processes: the name of an importable function, otherwise the function with its code.

    Args:
        function: The function, or `module:attribute`.

    Raises:
        ConfigError: If it is not a function, or refers to an object that cannot be pickled, such as a connection.
    """
    if isinstance(function, str):
        return function
    if not callable(function):
        message = f"{function!r} is not a function"
        raise ConfigError(message, hint="Pass a function of a StreamsBuilder, or its name: my_module:build.")
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__qualname__)
    reference = f"{module}:{name}"
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return reference
    from riverrun.config.code.by_value import dumps  # noqa: PLC0415 - as above

    try:
        return PickledFunction(reference, dumps(function))
    except Exception as error:  # pickling a referenced object may raise anything
        message = f"{reference} cannot be sent to other processes: {type(error).__name__}: {error}"
        raise ConfigError(
            message, hint="Create such objects, for example a connection, inside the function."
        ) from error
