"""What a setting refers to as `module:attribute`."""

from __future__ import annotations

import importlib
from typing import Any

from pipeline.config.checks import nearest
from pipeline.errors import ConfigError


def load_attribute(reference: str) -> Any:
    """What `module:attribute` names.

    Raises:
        ConfigError: If there is no such module or attribute, or the module cannot be imported.
    """
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        message = f"{reference!r} is not module:attribute"
        raise ConfigError(message)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"Module {module_name!r} cannot be imported: {error}"
        hint = "Is it installed, or in the directory millrace was started in? Executors of a cluster need it, too: [spark]."
        raise ConfigError(message, hint=hint) from error
    if not hasattr(module, attribute):
        message = f"Module {module_name} has no attribute {attribute!r}"
        raise ConfigError(message, hint=nearest(attribute, vars(module)))
    return getattr(module, attribute)
