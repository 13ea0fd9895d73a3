"""Example applications. They import the public surface only, as users' applications do."""

from __future__ import annotations
