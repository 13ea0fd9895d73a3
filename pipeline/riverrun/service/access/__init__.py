"""Admits callers of the HTTP interface: limits on connections, TLS, tokens, and signatures between instances."""

from __future__ import annotations
