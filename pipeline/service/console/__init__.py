"""The console: a page that shows an instance, and what it is made of. It has no data: a browser asks for these with a token."""

from __future__ import annotations
