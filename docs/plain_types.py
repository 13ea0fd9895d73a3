"""Shows the types of attributes without what annotates them: bounds of settings are in the reference of `streams.toml`."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, ExprSubscript, ExprTuple, Extension


class PlainTypes(Extension):
    """Replaces `Annotated[T, ...]` by `T`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Change the type of an attribute that was read."""
        found = attr.annotation
        if isinstance(found, ExprSubscript) and str(found.left) == "Annotated" and isinstance(found.slice, ExprTuple):
            attr.annotation = found.slice.elements[0]
