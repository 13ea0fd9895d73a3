"""Shows the examples of docstrings as code: without a heading of their own, Markdown takes `>>>` for quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)


class FencedDoctests(Extension):
    """Puts the examples of each docstring into a block of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
