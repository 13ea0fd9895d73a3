"""The console: a page that shows an instance and its parts. The files hold no data: the browser asks for it with a token."""

from __future__ import annotations
